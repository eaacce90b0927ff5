"""`forebay plan`: how many slots, which marks. From numbers given, or read from a running gateway.

`plan` is pure: an `Asked` in, a result of JSON's types out. It advises; nothing here changes a
config or a gateway.
"""

from extproc.admin_port import GatewayError
from extproc.plan.gateway import Pool, read_pool
from extproc.plan.run import Asked, plan

__all__ = ["Asked", "GatewayError", "Pool", "plan", "read_pool"]
