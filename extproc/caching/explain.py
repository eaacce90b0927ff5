"""Why a request would hit or miss: it goes the way of an exchange as far as the caches, through the
same functions, and there it only looks. Must never store, count, lead a flight or take a slot.
"""

import json
from typing import TYPE_CHECKING, NoReturn

from extproc import openai, wire
from extproc.cache import Query, Scope
from extproc.cache.exact import Look
from extproc.cache.key import has_long_number
from extproc.cache.request_policy import directives_of
from extproc.caching.report import Candidate, Explanation, Result, Step, Why
from extproc.caps import lower_to_tenants
from extproc.gateway import Gateway, Policy
from extproc.routing import Plan, Unroutable
from extproc.tenants import Tenant, UnknownTenant

if TYPE_CHECKING:  # it needs packages that most do without
    from extproc.cache.semantic.cache import Looked

_KEY_DIGITS = 16
# What a question has to pass, in the order of SemanticCache.look: the step, with what outcome it
# ends there, and what is said if it does not.
_TESTS = (
    ("budget", "off", "few enough hits of this tenant were false"),
    ("fit", "unfit", "a single plain question, in a request that asks for nothing but text"),
    ("readable", "unreadable", "the gate can read it"),
    ("embedding", "no_vector", "it has a vector"),
    ("stateless", "stateful", "it depends on nothing but itself"),
)


class Unexplained(Exception):
    """The question itself is wrong; the message quotes nothing of it."""


class _Over(Exception):
    """The request goes no further."""

    def __init__(self, explanation: Explanation) -> None:
        super().__init__()
        self.explanation = explanation


async def explain(gateway: Gateway, why: Why, sent: bytes) -> Explanation:
    """`sent`: what `why` was read from. Raises Unexplained."""
    body = _body(why, sent)
    try:
        await _Way(gateway, why, body).go()
    except _Over as over:
        return over.explanation


def _body(why: Why, sent: bytes) -> bytes:
    if isinstance(why.request, str):
        return why.request.encode("utf-8", "surrogatepass")
    if has_long_number(sent):
        raise Unexplained(
            "there is a number of 15 digits or more, whose spelling counts: send `request` as a "
            "string that holds the body byte for byte, as `forebay cache why` does"
        )
    return json.dumps(why.request, ensure_ascii=False).encode("utf-8", "surrogatepass")


class _Way:
    """Of one request. Each step says what it found, or ends the way."""

    def __init__(self, gateway: Gateway, why: Why, body: bytes) -> None:
        self._gateway = gateway
        self._policy: Policy = gateway.policy
        self._why = why
        self._body = body
        self._contract = ""
        self._steps: list[Step] = []
        self._candidates: list[Candidate] = []

    async def go(self) -> NoReturn:
        tenant = self._tenant()
        request = self._request(tenant)
        route = self._route(request, tenant)
        query = self._query(request, tenant, route)
        caches = self._policy.caches
        assert caches is not None
        seen = await caches.look(query, judge_all=True)
        look = seen.exact
        self._cacheable(query, look)
        self._scope_and_key(query, look)
        self._exact(look)
        if seen.under_way is not None:
            self._say("in flight", "the same request is under way")
            self._end(
                "collapsed",
                "wait: it would get the answer to the same request, which is under way, or go on "
                "by itself if there is none in time",
            )
        missed = self._steps[-1].says
        if look.policy.may_read:
            self._say("in flight", "no other request is the same just now")
        self._semantic(tenant, query, seen.looked, f"miss: {missed}")

    def _say(self, name: str, says: str) -> None:
        self._steps.append(Step(name, says))

    def _end(self, result: Result, conclusion: str) -> NoReturn:
        raise _Over(Explanation(result, conclusion, self._steps, self._candidates))

    # --- in the order of a request's way -------------------------------------------------------

    def _tenant(self) -> Tenant:
        name, policy = self._why.tenant, self._policy
        called = "no tenant was given" if name is None else f"{name}"
        try:
            tenant = policy.tenants.resolve(name)
        except UnknownTenant:
            self._say("tenant", f"{called}: the policy does not name it")
            self._end("refused", "refused: 403 unknown_tenant (forebay.unknown_tenant: refuse)")
        named = name is not None and name in policy.config.tenants
        whose = "named in the policy" if named else "not named in the policy: as `default`"
        self._say("tenant", f"{called}: {whose}")
        return tenant

    def _request(self, tenant: Tenant) -> openai.Request:
        try:
            request = openai.parse(self._why.path.partition("?")[0], self._body)
            self._contract = self._policy.own_members(request, self._body).contract
            lower_to_tenants(request, tenant.most_tokens)
        except openai.ApiError as error:
            self._say("request", f"{error}")
            self._end("refused", f"refused: {error.status} {error.code}")
        self._say("request", f"{request.path}, model {request.model}")
        if request.path == openai.EMBEDDINGS:
            self._end("bypass", "bypass: vectors are not cached")
        return request

    def _route(self, request: openai.Request, tenant: Tenant) -> Plan:
        policy, gateway = self._policy, self._gateway
        budget_ms = self._why.latency_budget_ms
        try:
            route = policy.route(
                request,
                tenant,
                budget_ms,
                gateway.down,
                contract=self._contract,
                counts=False,
            )
        except Unroutable as refusal:
            self._say("route", str(refusal))
            self._end("refused", f"refused: {refusal.why}")
        named = route.rule == "client-model"
        chosen = "named by the client" if named else f"chosen by rules ({route.reason})"
        model = policy.config.pools[route.wanted].model
        self._say("route", f"pool {route.wanted}, which serves {model}: {chosen}")
        return route

    def _query(self, request: openai.Request, tenant: Tenant, route: Plan) -> Query:
        why = self._why
        if self._policy.caches is None:
            self._say("policy", "the caches are off: see forebay.cache.exact")
            self._end("bypass", "bypass: the caches are off")
        query = self._policy.query(
            request,
            self._body,
            tenant=tenant,
            tenant_id=wire.as_in_header(why.tenant or ""),
            user_id=wire.as_in_header(why.user or ""),
            pool=route.wanted,
            cache_control=why.cache_control,
        )
        if query is None or tenant.caching is None:
            self._say("policy", f"the caches are off for it: see tenants.{tenant.label}.cache")
            self._end("bypass", "bypass: the caches are off for this tenant")
        stored = "answers to temperature 0, and what a client asks for by max-age"
        if query.wanted == "asked":
            stored = "what a client asks for by max-age, only"
        self._say("policy", f"scope {tenant.caching.scope}; stored: {stored}")
        if "?" in why.path:
            self._say("cacheable", "no, its path has a query, which the server may read")
            self._end("bypass", "bypass: its path has a query, which the server may read")
        return query

    def _cacheable(self, query: Query, look: Look) -> None:
        policy, temperature = look.policy, query.request.temperature
        drawn = "no temperature" if temperature is None else f"temperature {temperature:g}"
        asked = f"Cache-Control {query.cache_control}" if query.cache_control else ""
        facts = f"{drawn}, {asked or 'no Cache-Control'}"
        if not policy.may_store:
            if "no-store" in directives_of(query.cache_control):
                reason = "the client says no-store"
            elif query.wanted == "asked":
                reason = "the client does not ask for it by max-age"
            else:
                reason = "its answer is drawn, and the client does not ask for it by max-age"
            self._say("cacheable", f"{facts}: no, {reason}")
            self._end("bypass", f"bypass: {reason}")
        reads = "read and stored" if policy.may_read else "stored, but not read: no-cache"
        self._say("cacheable", f"{facts}: {reads}")

    def _scope_and_key(self, query: Query, look: Look) -> None:
        scope = query.scope
        if scope is None:
            missing = "user id" if self._why.tenant else "tenant"
            self._say("scope", f"no {missing} came with it: nobody knows whose answer it is")
            self._end("bypass", f"bypass: no {missing} came with it")
        self._say("scope", _words(scope))
        if look.place is None:
            self._say("key", "none: the body nests too deep")
            self._end("bypass", "bypass: the body nests too deep")
        self._say("key", look.place.key.hex()[:_KEY_DIGITS])

    def _exact(self, look: Look) -> None:
        kept, place = look.kept, look.place
        assert place is not None
        if look.hit is not None:
            facts = f"stored {look.hit.age_s:.0f} s ago, {look.hit.ttl_s:.0f} s to live"
            self._say("exact", facts)
            self._end("hit", f"hit (exact): {facts}")
        if not place.epoch:
            self._say("exact", "the store did not answer: a miss, and nothing will be stored")
        elif kept is None:
            self._say("exact", "nothing is stored under this key")
        elif not look.policy.may_read:
            self._say("exact", f"stored {kept.age_s:.0f} s ago, and not read")
        elif look.usable is None:
            self._say("exact", f"stored {kept.age_s:.0f} s ago: older than the client takes")
        else:
            self._say(
                "exact",
                f"expired {-kept.ttl_s:.0f} s ago: given only where the request would be shed",
            )

    # --- questions that ask the same ------------------------------------------------------------

    def _semantic(
        self, tenant: Tenant, query: Query, looked: "Looked | None", missed: str
    ) -> NoReturn:
        if looked is None:
            self._say("semantic", self._why_not_compared(tenant))
            self._end("miss", missed)
        assert query.alike_scope is not None
        self._say("semantic", f"compared with questions of {_words(query.alike_scope)}")
        if looked.asked is None:
            self._first_failed(looked, missed)
        for name, _, passed in _TESTS:
            self._say(name, passed)
        if looked.outcome == "unfit":
            self._say("candidates", f"none was looked for: {looked.why}")
            self._end("miss", missed)
        self._candidates = [
            Candidate(round(judged.similarity, 4), judged.verdict, judged.why)
            for judged in looked.judged
        ]
        number, least = len(self._candidates), self._policy.config.cache.semantic
        at_least = f" of similarity {least.similarity:g} or more" if least else ""
        self._say("candidates", f"{number or 'no'} stored questions{at_least}")
        if looked.found is None:
            self._end("miss", f"{missed}; semantic: {looked.why}")
        hit, similarity = looked.found
        self._end(
            "semantic_hit",
            f"hit (semantic, similarity {similarity:.2f}): stored {hit.age_s:.0f} s ago, "
            f"{hit.ttl_s:.0f} s to live{self._checked(query.alike_scope)}",
        )

    def _checked(self, scope: Scope) -> str:
        """Whether the model answers instead."""
        policy, config = self._policy, self._policy.config.cache.semantic
        if config is None or policy.caches is None or policy.caches.semantic is None:
            return ""  # switched off meanwhile
        if policy.caches.semantic.budget.checks(scope.tenant, 1.0):  # no draw leads to this
            return (
                "; but the model answers, to compare, as to the first "
                f"{config.check_first} hits of each tenant and after too many false ones"
            )
        return f" ({config.check_share:.0%} of such hits go to the model instead, to compare)"

    def _why_not_compared(self, tenant: Tenant) -> str:
        if self._policy.config.cache.semantic is None:
            return "off: see forebay.cache.semantic"
        if tenant.caching is None or tenant.caching.alike is None:
            return f"off for this tenant: see tenants.{tenant.label}.cache.semantic"
        return "no user id came with it: nobody knows whose question it is"

    def _first_failed(self, looked: "Looked", missed: str) -> NoReturn:
        for name, ends_with, passed in _TESTS:
            if looked.outcome == ends_with:
                break
            self._say(name, passed)
        else:
            raise AssertionError(f"an outcome of no test: {looked.outcome}")
        self._say(name, f"no: {looked.why}")
        self._end("miss", f"{missed}; semantic: {looked.why}")


def _words(scope: Scope) -> str:
    if scope.kind == "public":
        return "all tenants whose scope is public"
    if scope.kind == "tenant":
        return f"tenant {wire.as_written(scope.tenant)}"
    return f"user {wire.as_written(scope.user)} of tenant {wire.as_written(scope.tenant)}"
