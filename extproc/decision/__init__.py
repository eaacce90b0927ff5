"""`forebay route`: what a config would do with one request, and why, without any gateway.

`report` finds it by the functions that serve requests, `views` shows it. Never shows a prompt.
"""
