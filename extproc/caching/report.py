"""What is said on /cache and what may be asked there: the shapes alone, for both sides."""

from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field

Id = Annotated[str, Field(min_length=1, max_length=1000)]

# --- how they do --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Store:
    """None: only Redis knows. The counts are since the store was opened."""

    kind: Literal["memory", "redis"]
    state: Literal["up", "away"]
    entries: int | None
    used_bytes: int | None
    stored: int
    evicted: int
    failed: dict[str, int]
    """Look-ups that were a miss, and writes that were lost, by why."""


@dataclass(frozen=True, slots=True)
class Requests:
    """Of one tenant, since the start, as forebay_cache_requests_total counts them."""

    hit: int = 0
    semantic_hit: int = 0
    collapsed: int = 0
    miss: int = 0
    bypass: int = 0


@dataclass(frozen=True, slots=True)
class Embedder:
    state: str
    """`ready`, or why it has no vector now: a text was just tried."""
    says: str
    model: str
    """Empty until it had a vector for the first time."""


@dataclass(frozen=True, slots=True)
class Budget:
    """Of hits that the model was asked to answer too, to compare."""

    checked: int
    false: int
    rate: float | None
    """false / checked; None: nothing was checked yet."""
    allowed: float
    unchecked: int
    """Checks that could not be made."""
    off: dict[str, str]
    """Tenants whose questions are compared no more, and why."""


@dataclass(frozen=True, slots=True)
class Semantic:
    embedder: Embedder
    questions: int
    """That this processor holds, in so many partitions and bytes."""
    partitions: int
    used_bytes: int
    lookups: dict[str, int]
    """By what came of them, of all tenants, since the start."""
    budget: Budget


@dataclass(frozen=True, slots=True)
class Report:
    """`store`: None where the caches are off; `semantic`: None where that one is."""

    store: Store | None
    under_way: int
    """Requests that identical ones may wait for."""
    tenants: dict[str, Requests]
    semantic: Semantic | None


# --- orders -------------------------------------------------------------------------------------


class _Asked(BaseModel):
    # An error must not show what was sent.
    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)


class Purge(_Asked):
    tenant: Id
    user: Id | None = None
    """None: all that was stored for the tenant, its users included."""


class Trust(_Asked):
    tenant: Id


@dataclass(frozen=True, slots=True)
class Done:
    """`entries`: how many answers were dropped; None: nobody counts them. `says`: sentences."""

    says: list[str]
    entries: int | None = None


@dataclass(frozen=True, slots=True)
class Refusal:
    """With any status but 200. A sentence."""

    error: str


# --- why ----------------------------------------------------------------------------------------


class Why(_Asked):
    """A request as it would come: who sends it, its headers, its body."""

    tenant: Id | None = None
    user: Id | None = None
    path: Annotated[str, Field(max_length=1000)] = "/v1/chat/completions"
    cache_control: Annotated[str, Field(max_length=1000)] = ""
    latency_budget_ms: Annotated[int, Field(ge=0)] | None = None
    request: str | dict[str, Any]
    """The body: as a string, byte for byte; or as an object, where the spelling of long numbers
    does not matter."""


Result: TypeAlias = Literal["hit", "semantic_hit", "collapsed", "miss", "bypass", "refused"]
"""As the metrics say it; refused: it does not come as far as the caches."""


@dataclass(frozen=True, slots=True)
class Step:
    name: str
    says: str


@dataclass(frozen=True, slots=True)
class Candidate:
    """A stored question; what it says is not shown, but for the words that `why` names."""

    similarity: float
    verdict: Literal["same", "other", "gone", "too_old"]
    why: str


@dataclass(frozen=True, slots=True)
class Explanation:
    result: Result
    conclusion: str
    steps: list[Step]
    """In order, as far as the request would come."""
    candidates: list[Candidate]
