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


class UnknownTenant(Exception):
    """The policy refuses tenants that it does not name."""


def resolve(config: Config, header_value: str | None) -> Tenant:
    """A tenant without a policy of its own has that of `default`, or raises UnknownTenant."""
    if header_value is not None and header_value in config.tenants:
        label = header_value
    elif config.unknown_tenant == "default":
        label = "default"
    else:
        raise UnknownTenant
    policy = config.tenants.get(label, TenantConfig())
    return Tenant(label, policy.pools or tuple(config.pools))
