"""What an operator asks of the caches of a running gateway: how they do, why a request would hit or
miss, and to forget.

`report` has the shapes on the wire; `stats`, `explain` and `orders` are the gateway's side, `cli`
and `views` the command's. Prompts come in a body, to be explained, and go nowhere from there.
"""
