"""`forebay bench cache`: what the caches decide on texts that people judged, and what it costs.

`flow` is the order of the run. All decisions are those of the rooms that serve: `rig` builds them
as an exchange has them. `quality` counts who was right, `times` how long it took.
"""
