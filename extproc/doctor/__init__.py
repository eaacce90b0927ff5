"""`forebay doctor`: which of TTFT and TPOT is out of its SLO, why, and what mends it.

`run` has the gateway and its servers read (`reading`); all that judges (`window`, `diagnosis`,
`causes`, `advice`) is pure. Nothing here changes a config, a gateway or a server.
"""
