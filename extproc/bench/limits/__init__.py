"""`forebay bench limits`: whether processors that share a Redis grant what a limit allows, no more
and no less, also while that is away. Nothing that serves imports it.
"""
