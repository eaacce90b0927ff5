"""`forebay doctor`: what is plainly wrong, which of TTFT and TPOT is out of its SLO, why, and what
mends it.

`run` has the gateway and its servers read (`reading`); all that judges (`window`, `troubles`,
`diagnosis`, `causes`, `advice`) is pure. Nothing here changes a config, a gateway or a server.
"""
