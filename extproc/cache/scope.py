"""Within whom an answer is shared. Pure; every key, name and epoch of a cache begins with a scope,
and nothing may ever be read by another scope than the one that it was stored for."""

from typing import Literal, NamedTuple, TypeAlias

Kind: TypeAlias = Literal["user", "tenant", "public"]


class Scope(NamedTuple):
    """`tenant` and `user` are what the auth filter wrote, whatever signs they hold; public: both
    empty. Make one by `scope_of`."""

    kind: Kind
    tenant: str
    user: str

    def encode(self) -> bytes:
        """Two scopes that differ never look the same: the tenant is told with its length, and the
        user is all the rest."""
        told = f"{self.kind}:{len(self.tenant)}:{self.tenant}{self.user}"
        # Lone surrogates cannot come from a header; they must not raise if they ever do.
        return told.encode("utf-8", "surrogatepass")

    def covers(self, other: "Scope") -> bool:
        """Whether purging this one takes that one too: a tenant's takes those of its users."""
        if self.kind == "tenant" and other.kind == "user":
            return self.tenant == other.tenant
        return self == other


def scope_of(kind: Kind, tenant: str, user: str) -> Scope | None:
    """None where nobody knows whose answer it would be: no tenant, or user scope without a user."""
    if kind == "public":
        return Scope("public", "", "")
    if not tenant or (kind == "user" and not user):
        return None
    return Scope(kind, tenant, user if kind == "user" else "")
