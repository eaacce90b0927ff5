"""Benchmarks that a user can run: `forebay bench NAME`. One module each; `report` shows them all.

Must never be imported by what serves requests.
"""
