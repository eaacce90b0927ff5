"""What `forebay route` says of a request, as its --json has it. Nothing here holds a piece of the
prompt."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Score:
    """How hard the request is, by `policy`."""

    policy: str
    share: float
    """Of the judged requests, what goes large: those with the highest scores."""
    score: float
    parts: dict[str, float]
    """What each counted feature adds to it or takes off, the weightiest first."""
    usual_rank: tuple[float, float] | None
    """Learned: between which shares of the scores that the model was compared on it lies."""


@dataclass(frozen=True, slots=True)
class Way:
    """One way that it may go. `when`: empty, where there is only one."""

    when: str
    reason: str
    tiers: tuple[str, ...]
    """Pools, one for each attempt; none where the reason is a refusal."""
    if_shed: tuple[str, ...]
    """What is done instead where the first of them sheds, in order."""


@dataclass(frozen=True, slots=True)
class PoolFacts:
    pool: str
    model: str
    allowed: bool
    down: bool
    fits: bool
    """Prompt and answer, as estimated; an unknown context takes all."""
    context: int | None
    usd: float | None
    """Of this request; None: the pool has no price."""


@dataclass(frozen=True, slots=True)
class Decision:
    tenant: str
    """As metrics call it."""
    pin: str
    request_class: str
    path: str
    model: str
    streamed: bool
    prompt_tokens: int
    completion_tokens: int
    """All answers': as many as it allows, or else an assumption."""
    completion_assumed: bool
    caps: tuple[str, ...]
    """What limits its answer."""
    score: Score | None
    """None: it is not scored."""
    ways: tuple[Way, ...]
    pools: tuple[PoolFacts, ...]


@dataclass(frozen=True, slots=True)
class Refused:
    status: int
    code: str
    message: str
