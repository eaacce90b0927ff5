"""Whose request is this, and what may they use. Pure.

The tenant's name comes from one header, set by a trusted filter in front of us.
"""

from typing import NamedTuple

from extproc.config import Config, TenantConfig


class Tenant(NamedTuple):
    label: str
    """For metrics and logs: a configured name or `default`, so the set of labels is bounded."""
    pools: tuple[str, ...]
    """The pools that this tenant may use, in the order of preference."""


def resolve(config: Config, header_value: str | None) -> Tenant:
    """A tenant without a policy of its own has that of `default`."""
    label = header_value if header_value in config.tenants else "default"
    policy = config.tenants.get(label or "default", TenantConfig())
    return Tenant(label or "default", policy.pools or tuple(config.pools))
