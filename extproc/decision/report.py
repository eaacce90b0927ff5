"""What a config would do with one request. Pure, but for the model's file that the config names.

It goes the way of an exchange through the same functions. What depends on the traffic before (a
share of it goes large) is said both ways. Nothing here holds a piece of the prompt.
"""

from bisect import bisect_left
from dataclasses import dataclass, field

from extproc import openai
from extproc.admission import CLASSES
from extproc.caps import lower_to_tenants
from extproc.config import Config, PoolConfig
from extproc.front import tenant_at
from extproc.judging import Judging, make_judging
from extproc.policy import Policy, enforced
from extproc.refusals import Answered
from extproc.routing import Plan, Unroutable, from_overflow, prior
from extproc.routing.difficulty import scored
from extproc.routing.features import features
from extproc.routing.learned import Model, Trees
from extproc.routing.rules import Judgement, hurried
from extproc.tenants import Tenant, Tenants, UnknownTenant

_PATHS = (openai.CHAT, openai.COMPLETIONS, openai.EMBEDDINGS)
# As a gateway estimates before it has seen an answer.
_COMPLETION_TOKENS = 256


class Undecided(Exception):
    """The question itself is wrong; the message says how."""


@dataclass(frozen=True, slots=True)
class Asked:
    body: bytes = field(repr=False)
    path: str = openai.CHAT
    tenant: str | None = None
    request_class: str | None = None
    """As x-request-class says it."""
    latency_budget_ms: float | None = None
    down: frozenset[str] = frozenset()


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


def decide(config: Config, asked: Asked) -> Decision | Refused:
    """Raises Undecided, and ConfigError for a model's file that cannot be used."""
    if unknown := sorted(asked.down - config.pools.keys()):
        there = ", ".join(config.pools)
        raise Undecided(f"--down {unknown[0]}: no pool is named so; there are {there}")
    judging = make_judging(config.routing.difficulty)
    try:
        if asked.path not in _PATHS:
            raise openai.no_such_path()
        tenant = tenant_at(asked.path, Tenants(config).resolve(asked.tenant), config)
        request = openai.parse(asked.path, asked.body)
        lower_to_tenants(request, tenant.most_tokens)
        policy = enforced(config, {}, None, judging.difficulty)
        contract = policy.own_members(request, asked.body).contract
        plan = _plan(policy, request, tenant, asked)
    except UnknownTenant:
        return Refused(403, "unknown_tenant", "the policy does not name this tenant")
    except Answered as answer:
        return Refused(answer.status, answer.decision, openai.error_message(answer.body))
    except openai.ApiError as error:
        return Refused(error.status, error.code, error.message)
    except Unroutable as error:
        return Refused(error.status, error.why, str(error))
    score = _score(judging, request) if plan.judged and judging.share is not None else None
    policies = [("", policy)]
    if score is not None:
        policies = [
            (when, enforced(config, {}, None, _Always(score.policy, large=large)))
            for when, large in _whens(score)
        ]
    ways: list[Way] = []
    refusal: Unroutable | None = None
    for when, one in policies:
        try:
            plan = _plan(one, request, tenant, asked, contract)
            ways.append(_way(config, tenant, when, plan))
        except Unroutable as error:
            refusal = error
            ways.append(Way(when, f"refused: {error.status} {error.why}", (), ()))
    if refusal is not None and not any(way.tiers for way in ways):
        return Refused(refusal.status, refusal.why, str(refusal))
    each = _COMPLETION_TOKENS if request.max_tokens is None else request.max_tokens
    completion = each * request.sequences
    return Decision(
        tenant=tenant.label,
        pin=tenant.pin,
        request_class=_class_of(tenant, asked),
        path=request.path,
        model=request.model,
        streamed=request.stream,
        prompt_tokens=request.prompt_tokens_estimate,
        completion_tokens=completion,
        completion_assumed=request.max_tokens is None,
        caps=tuple(_caps(config, tenant, request)),
        score=score,
        ways=tuple(ways),
        pools=tuple(
            _facts(name, pool, tenant, request, completion, config, asked)
            for name, pool in config.pools.items()
        ),
    )


class _Always:
    """As a policy that keeps a share judges one of the hardest, or one of the others."""

    def __init__(self, name: str, *, large: bool) -> None:
        self._judgement = scored(name, large=large)

    def judge(self, text: str, latency_budget_ms: float | None) -> Judgement:
        return hurried(latency_budget_ms) or self._judgement

    look = judge


def _plan(
    policy: Policy, request: openai.Request, tenant: Tenant, asked: Asked, contract: str = ""
) -> Plan:
    budget_ms = asked.latency_budget_ms
    return policy.route(request, tenant, budget_ms, asked.down, contract=contract, counts=False)


def _tokens_needed(request: openai.Request) -> int:
    return request.prompt_tokens_estimate + (request.max_tokens or 0)


def _class_of(tenant: Tenant, asked: Asked) -> str:
    if asked.request_class is None:
        return CLASSES[tenant.class_index]
    if asked.request_class not in CLASSES:
        raise Undecided(f"--class {asked.request_class}: write one of {', '.join(CLASSES)}")
    return CLASSES[max(tenant.class_index, CLASSES.index(asked.request_class))]


def _score(judging: Judging, request: openai.Request) -> Score:
    counted = features(request.last_user_text)
    rank = None
    if judging.model is None:
        value, parts = prior.score(counted), prior.parts(counted)
    else:
        trees = Trees(judging.model.base, judging.model.trees)
        value, parts = trees.score(counted), trees.parts(counted)
        rank = _usual_rank(judging.model, value)
    weighty = sorted(parts.items(), key=lambda part: -abs(part[1]))
    return Score(
        policy=judging.in_force,
        share=judging.settings.share,
        score=value,
        parts={name: by for name, by in weighty if by},
        usual_rank=rank,
    )


def _usual_rank(model: Model, score: float) -> tuple[float, float]:
    at = bisect_left(model.usual.edges, score)
    lower = sum(model.usual.shares[:at])
    return lower, lower + model.usual.shares[at]


def _whens(score: Score) -> list[tuple[str, bool]]:
    hardest = f"among the hardest {score.share:.0%} of the traffic before it"
    return [(f"if it is {hardest}", True), ("if not", False)]


def _caps(config: Config, tenant: Tenant, request: openai.Request) -> list[str]:
    expiry = config.expiry(tenant.label, request.path)
    caps = [f"it has to have ended {expiry.deadline_s:g} s after it came (deadline)"]
    if request.lowered_to is not None:
        caps.append(f"{request.lowered_to:,} tokens an answer (max_output_tokens)")
    elif request.max_tokens:
        caps.append(f"{request.max_tokens:,} tokens an answer (the client's)")
    admission = config.admission
    if "shorter" in admission.on_overload and request.path != openai.EMBEDDINGS:
        caps.append(f"{admission.shorter_tokens:,} tokens, if it has to queue (shorter_tokens)")
    return caps


def _way(config: Config, tenant: Tenant, when: str, plan: Plan) -> Way:
    instead: list[str] = []
    for word in config.admission.on_overload:
        if word == "cached" and tenant.caching is not None:
            instead.append("an expired answer, if there is one")
        if word == "smaller" and plan.smaller:
            instead.append(f"the smaller pool: {', '.join(plan.smaller)}")
        if word == "overflow":
            ways = [", ".join(from_overflow(plan, pool)) for pool in plan.overflow]
            instead += [f"overflow: {way}" for way in ways]
    return Way(when, plan.reason, plan.pools, (*instead, "429 overloaded"))


def _facts(
    name: str,
    pool: PoolConfig,
    tenant: Tenant,
    request: openai.Request,
    completion_tokens: int,
    config: Config,
    asked: Asked,
) -> PoolFacts:
    usd = None
    if pool.price is not None:
        prompt = request.prompt_tokens_estimate
        usd = (prompt * pool.price.input + completion_tokens * pool.price.output) / 1e6
        if _class_of(tenant, asked) == "batch":
            usd *= config.costs.batch_price
    return PoolFacts(
        pool=name,
        model=pool.model,
        allowed=name in tenant.pools,
        down=name in asked.down,
        fits=pool.context is None or _tokens_needed(request) <= pool.context,
        context=pool.context,
        usd=usd,
    )
