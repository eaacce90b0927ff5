"""`forebay train-router`: difficulty learned from a deployment's own outcomes.

`train` is the order of it, `boosting` the fit, `apgr` the measure. Needs numpy; nothing that serves
imports it.
"""
