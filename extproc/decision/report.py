"""What a config would do with one request. Pure, but for the model's file that the config names.

It goes the way of an exchange through the same functions. What depends on the traffic before (a
share of it goes large) is said both ways. Nothing here holds a piece of the prompt.
"""

from bisect import bisect_left
from dataclasses import dataclass, field

from extproc import caps, openai
from extproc.admission import CLASSES
from extproc.config import Config, PoolConfig
from extproc.decision.facts import Decision, PoolFacts, Refused, Score, Way
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
        caps.lower_to_tenants(request, tenant.most_tokens)
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
    plans = _plans(config, policy, score, request, tenant, asked, contract)
    refusals = [made for _, made in plans if isinstance(made, Unroutable)]
    if len(refusals) == len(plans):
        return Refused(refusals[0].status, refusals[0].why, str(refusals[0]))
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
        caps=tuple(_caps(config, tenant, request, _class_of(tenant, asked))),
        score=score,
        ways=tuple(_way(config, tenant, when, made) for when, made in plans),
        pools=tuple(
            _facts(name, pool, tenant, request, completion, config, asked)
            for name, pool in config.pools.items()
        ),
    )


def _plans(
    config: Config,
    policy: Policy,
    score: Score | None,
    request: openai.Request,
    tenant: Tenant,
    asked: Asked,
    contract: str,
) -> list[tuple[str, Plan | Unroutable]]:
    """Each way that it may go, and when; a refusal is one too."""

    def made(by: Policy, *, frugal: bool = False) -> Plan | Unroutable:
        try:
            return _plan(by, request, tenant, asked, contract, frugal=frugal)
        except Unroutable as error:
            return error

    def judged_as(name: str, *, large: bool) -> Policy:
        return enforced(config, {}, None, _Always(name, large=large))

    plans = [("", made(policy))]
    if score is not None:
        plans = [
            (when, made(judged_as(score.policy, large=large))) for when, large in _whens(score)
        ]
    budget = tenant.rules.budget if tenant.rules else None
    if budget is None:
        return plans
    spared = made(judged_as("", large=True), frugal=True)  # it is not judged then
    if any(_told(spared) != _told(one) for _, one in plans):
        over = f"if over {budget.soft / budget.most:.0%} of its budget is spent"
        plans = [(over, spared), *((when or "if not", one) for when, one in plans)]
    return plans


def _told(plan: Plan | Unroutable) -> tuple[object, str]:
    return (plan.why, str(plan)) if isinstance(plan, Unroutable) else (plan.pools, plan.reason)


class _Always:
    """As a policy that keeps a share judges one of the hardest, or one of the others."""

    def __init__(self, name: str, *, large: bool) -> None:
        self._judgement = scored(name, large=large)

    def judge(self, text: str, latency_budget_ms: float | None) -> Judgement:
        return hurried(latency_budget_ms) or self._judgement

    look = judge


def _plan(
    policy: Policy,
    request: openai.Request,
    tenant: Tenant,
    asked: Asked,
    contract: str = "",
    *,
    frugal: bool = False,
) -> Plan:
    """Raises Unroutable."""
    return policy.route(
        request,
        tenant,
        asked.latency_budget_ms,
        asked.down,
        contract=contract,
        frugal=frugal,
        counts=False,
    )


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


def _caps(config: Config, tenant: Tenant, request: openai.Request, request_class: str) -> list[str]:
    expiry = config.expiry(tenant.label, request.path)
    since = "it got its slot" if request_class == "batch" else "it came"
    limits = [f"it has to have ended {expiry.deadline_s:g} s after {since} (deadline)"]
    if request.path == openai.EMBEDDINGS:
        return limits
    if request.max_tokens is not None:
        whose = "the client's" if request.lowered_to is None else "the tenant's max_output_tokens"
        limits.append(f"{request.max_tokens:,} tokens an answer ({whose})")
    admission = config.admission
    if "shorter" in admission.on_overload:
        limits.append(f"{admission.shorter_tokens:,} tokens, if it has to queue (shorter_tokens)")
    if config.response.cap_to_deadline:
        limits.append("what fits before the deadline, if it could only be cut (cap_to_deadline)")
    return limits


def _way(config: Config, tenant: Tenant, when: str, plan: Plan | Unroutable) -> Way:
    if isinstance(plan, Unroutable):
        return Way(when, f"refused: {plan.status} {plan.why}", (), ())
    instead: list[str] = []
    for word in config.admission.on_overload:
        if word == "cached" and tenant.caching is not None:
            instead.append("an expired answer, if there is one")
        if word == "smaller" and plan.smaller:
            instead.append(f"the smaller pool: {', '.join(plan.smaller)}")
        if word == "overflow":
            for pool in plan.overflow:
                instead.append(f"overflow: {', '.join(from_overflow(plan, pool))}")
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
