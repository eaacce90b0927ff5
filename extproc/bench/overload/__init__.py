"""`forebay bench overload`: what each kind of protection does to a server under too much load.

`flow` is the order of the run, `arrivals` and `measures` are its arithmetic, `load` the clients.
"""
