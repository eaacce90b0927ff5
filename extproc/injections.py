"""What vLLM servers are told beside the client's words: who goes first, who shares a prefix cache.
Pure. Never to a server that is not vLLM, which would answer 400.

The salt is a keyed hash: whoever sees it learns no tenant, and no client can make one that another
has. Processors that are to share prefix caches need the same secret.
"""

from collections.abc import Mapping
from typing import Literal, NamedTuple

from extproc.admission import CLASSES
from extproc.cache import Secret
from extproc.config import PoolConfig

_OF_CLASS = {"interactive": 0, "batch": 10_000}
"""Further apart than the numbers of tenants reach: batch stays behind, whatever theirs."""
_PRIORITY = tuple(_OF_CLASS[name] for name in CLASSES)

Sharing = Literal["none", "tenant", "user"]


class Asker(NamedTuple):
    """`tenant`, `user`: their ids as they came, which may be empty. `salt`: the client's own."""

    class_index: int
    priority: int
    tenant: str
    user: str
    request_id: str
    salt: str


class Injections:
    """Of one config."""

    def __init__(self, pools: Mapping[str, PoolConfig], secret: bytes) -> None:
        self._secret = Secret(secret)
        self._pools: dict[str, tuple[bool, Sharing]] = {
            name: (pool.priority, pool.cache_salt)
            for name, pool in pools.items()
            if pool.server == "vllm" and pool.serves == "generate"
        }
        self.always = any(wants != (False, "none") for wants in self._pools.values())
        """Some pool is told something of each request; else only of one with a salt of its own."""
        self.salts = any(sharing != "none" for _, sharing in self._pools.values())
        """Tenants are kept apart in some pool's prefix cache."""

    def members(self, tiers: tuple[str, ...], asker: Asker) -> str:
        """What goes behind the model's name in the body, by tier, for its filter to put there:
        `;small=,"priority":0,"cache_salt":"1f..";`. Empty: nothing for any."""
        told = ""
        salts: dict[Sharing, str] = {}
        for tier in dict.fromkeys(tiers):
            has_priority, sharing = self._pools.get(tier, (False, "none"))
            said = ""
            if has_priority:
                said = f',"priority":{_PRIORITY[asker.class_index] + asker.priority}'
            if tier in self._pools and (sharing != "none" or asker.salt):
                if sharing not in salts:
                    salts[sharing] = self._salt(sharing, asker)
                said += f',"cache_salt":"{salts[sharing]}"'
            if said:
                told += f"{tier}={said};"
        return f";{told}" if told else ""

    def batch_priority(self, pool: str) -> int | None:
        """Of a request that is nobody's and has no hurry. None: the pool is told none."""
        return _OF_CLASS["batch"] if self._pools.get(pool, (False, "none"))[0] else None

    def _salt(self, sharing: Sharing, asker: Asker) -> str:
        """The tenant is in each: a client's own salt narrows who shares, never widens it. Where
        users are to be apart and nobody knows who this one is, it shares with nobody."""
        user = ""
        if sharing == "user":
            user = f"user {asker.user}" if asker.user else f"request {asker.request_id}"
        parts = (sharing, asker.tenant, user, asker.salt)
        encoded = tuple(part.encode("utf-8", "surrogatepass") for part in parts)
        return self._secret.digest(b"prefix-salt", *encoded, size=32).hex()
