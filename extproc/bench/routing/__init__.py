"""`forebay bench routing`: what difficulty is worth, what it costs, and whether a share is kept.

`flow` is the order of the run. `quality` scores exam questions, never by a model that was trained
on the question; `share` simulates traffic; `times` measures the decision.
"""
