"""`forebay cache stats`, `purge`, `trust` and `why`, on the real admin port of a real gateway."""

import http.client
import json
import logging
import random
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import orjson
import pytest
from typer.testing import CliRunner, Result

from extproc import admin, stores, wire
from extproc._generated.forebay_ext_proc_pb2 import (
    HeaderMap,
    HeaderValue,
    HttpHeaders,
    ProcessingRequest,
)
from extproc.cache import StoreUnavailable
from extproc.cache.exact import Hit
from extproc.cache.semantic.budget import FalseHitBudget
from extproc.caching.explain import explain
from extproc.caching.report import Why
from extproc.cli import app
from extproc.config import Config
from extproc.embedders import EmbedderUnavailable
from extproc.gateway import Gateway
from extproc.openai import Answer
from tests.unit.running_admin import Running, answer, body, look_up, running_admin, store

SECRET = "the quick secret fox"


def config(**changes: Any) -> Config:
    pools = {
        "small": {"model": "small-7b", "slots": 4},
        "large": {"model": "large-70b", "slots": 2},
    }
    tenants = {
        "acme": {},
        "nightly": {"pools": ["small"]},
        "public": {"cache": {"scope": "public"}},
        "single": {"cache": {"scope": "user"}},
        "asks": {"cache": {"store": "asked"}},
        "none": {"cache": {"exact": False}},
    }
    given = {"pools": pools, "tenants": tenants, "cache": {"exact": {}}}
    return Config.model_validate(given | changes)


@pytest.fixture(scope="module")
def shared() -> Iterator[Running]:
    with running_admin(config()) as running:
        yield running


def run(*args: str, sent: bytes | None = None) -> Result:
    return CliRunner().invoke(app, ["cache", *args], input=sent)


def why(running: Running, sent: bytes, *args: str) -> dict[str, Any]:
    done = run("why", "-", "--from", running.url, "--json", *args, sent=sent)
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    return {**told, "steps": {step["name"]: step["says"] for step in told["steps"]}}


# --- why ----------------------------------------------------------------------------------------


def test_a_stored_answer_is_a_hit_and_each_step_says_how_it_came_there(shared: Running) -> None:
    shared.store(body("one"))
    told = why(shared, body("one"), "--tenant", "acme")
    assert told["result"] == "hit"
    assert told["conclusion"].startswith("hit (exact): stored 0 s ago, ")
    steps = told["steps"]
    assert list(steps) == [
        *("tenant", "request", "route", "policy", "cacheable", "scope", "key", "exact"),
    ]
    assert steps["tenant"] == "acme: named in the policy"
    assert steps["request"] == "/v1/chat/completions, model small-7b"
    assert steps["route"] == "pool small, which serves small-7b: named by the client"
    assert steps["cacheable"] == "temperature 0, no Cache-Control: read and stored"
    assert steps["scope"] == "tenant acme"
    assert len(bytes.fromhex(steps["key"])) == 8
    spaced = body("one").replace(b":", b" : ")
    assert why(shared, spaced, "--tenant", "acme")["steps"]["key"] == steps["key"]
    assert why(shared, body("two"), "--tenant", "acme")["steps"]["key"] != steps["key"]


def test_rules_that_choose_are_named(shared: Running) -> None:
    said = why(shared, body("Is it?", model="auto"), "--tenant", "acme")["steps"]["route"]
    assert said == "pool small, which serves small-7b: chosen by rules (short-question)"
    soon = ("--tenant", "acme", "--latency-budget-ms", "100")
    assert "rules (latency" in why(shared, body("Is it?", model="auto"), *soon)["steps"]["route"]


@pytest.mark.parametrize(
    ("sent", "args", "result", "conclusion"),
    [
        (body("x"), ("--tenant", "acme"), "miss", "miss: nothing is stored under this key"),
        (body("x"), (), "bypass", "bypass: no tenant came with it"),
        (body("x"), ("--tenant", "ghost"), "miss", "miss: nothing is stored under this key"),
        (body("x"), ("--tenant", "single"), "bypass", "bypass: no user id came with it"),
        (body("x"), ("--tenant", "none"), "bypass", "bypass: the caches are off for this tenant"),
        (
            body("x", temperature=0.7),
            ("--tenant", "acme"),
            "bypass",
            "bypass: its answer is drawn, and the client does not ask for it by max-age",
        ),
        (
            body("x"),
            ("--tenant", "asks"),
            "bypass",
            "bypass: the client does not ask for it by max-age",
        ),
        (
            body("x"),
            ("--tenant", "acme", "--cache-control", "max-age=9, No-Store"),
            "bypass",
            "bypass: the client says no-store",
        ),
        (body("x", model="gpt"), ("--tenant", "acme"), "refused", "refused: model_not_found"),
        (
            body("x", model="large-70b"),
            ("--tenant", "nightly"),
            "refused",
            "refused: model_not_allowed",
        ),
        (b"{", ("--tenant", "acme"), "refused", "refused: 400 invalid_request"),
        (
            body("x"),
            ("--tenant", "acme", "--path", "/v1/chat/completions?v=1"),
            "bypass",
            "bypass: its path has a query, which the server may read",
        ),
        (body("x"), ("--tenant", "acme", "--path", "/v2"), "refused", "refused: 404 unknown_url"),
        (
            body("x")[:-1] + b',"z":' + b"[" * 300 + b"]" * 300 + b"}",
            ("--tenant", "acme"),
            "bypass",
            "bypass: the body nests too deep",
        ),
    ],
)
def test_what_is_no_hit_says_why(
    shared: Running, sent: bytes, args: tuple[str, ...], result: str, conclusion: str
) -> None:
    told = why(shared, sent, *args)
    assert (told["result"], told["conclusion"]) == (result, conclusion)
    assert told["steps"], told


def test_a_tenant_that_the_policy_refuses_is_refused_here(shared: Running) -> None:
    with running_admin(config(unknown_tenant="refuse")) as running:
        assert "403 unknown_tenant" in why(running, body(), "--tenant", "ghost")["conclusion"]
    assert "as `default`" in why(shared, body(), "--tenant", "ghost")["steps"]["tenant"]


def test_what_is_stored_and_not_given_is_told_from_what_is_not_stored() -> None:
    brief = {"exact": {"ttl": "100ms", "ttl_jitter": 0, "stale": "1m"}}
    with running_admin(config(cache=brief)) as running:
        running.store(body("old"))
        time.sleep(0.15)
        told = why(running, body("old"), "--tenant", "acme")
        assert told["conclusion"] == (
            "miss: expired 0 s ago: given only where the request would be shed"
        )
    with running_admin(config()) as running:
        running.store(body("old"))
        time.sleep(1.1)
        args = ("--tenant", "acme", "--cache-control")
        told = why(running, body("old"), *args, "max-age=1")
        assert told["conclusion"] == "miss: stored 1 s ago: older than the client takes"
        told = why(running, body("old"), *args, "no-cache")
        assert told["conclusion"] == "miss: stored 1 s ago, and not read"
        assert "in flight" not in told["steps"]
        assert why(running, body("old"), *args, "max-age=60")["result"] == "hit"


def test_a_request_under_way_is_waited_for() -> None:
    with running_admin(config()) as running:
        fill = running.do(look_up(running.gateway, body("slow"))).fill
        assert fill
        told = why(running, body("slow"), "--tenant", "acme")
        assert told["result"] == "collapsed"
        assert told["conclusion"].startswith("wait: ")
        assert stats(running)["under_way"] == 1
        told = why(running, body("slow"), "--tenant", "acme", "--cache-control", "no-cache")
        assert told["result"] == "miss"


async def test_the_explanation_is_what_an_exchange_then_gets() -> None:
    """Of random requests, some stored, some under way; and to explain changes none of it."""
    gateway = Gateway(config())
    draw = random.Random(7)
    seen: dict[str, int] = {}
    flying: list[Any] = []
    for _ in range(400):
        who = {
            "tenant": draw.choice(("acme", "nightly", "public", "single", "asks", "ghost")),
            "user": draw.choice(("", "u", "v")),
            "cache_control": draw.choice(("", "", "max-age=60", "no-cache", "no-store")),
        }
        sent = body(draw.choice("abcdefghijkl"), temperature=draw.choice((0, 0, 0, 1)))
        asked = Why(
            tenant=who["tenant"],
            user=who["user"] or None,
            cache_control=who["cache_control"],
            request=sent.decode(),
        )
        before = books(gateway)
        told = await explain(gateway, asked, b"")
        assert books(gateway) == before
        found = await look_up(gateway, sent, **who)
        result = "collapsed" if found.under_way is not None else found.result
        assert told.result == result, told
        seen[result] = seen.get(result, 0) + 1
        if found.fill is not None and found.fill.flight is not None:
            if draw.random() < 0.3:
                answer(found.fill)
            else:
                flying.append(found.fill)
        if flying and draw.random() < 0.1:
            flying.pop(draw.randrange(len(flying))).give_up()
    assert min(seen[name] for name in ("hit", "miss", "bypass", "collapsed")) > 5, seen


def books(gateway: Gateway) -> tuple[Any, ...]:
    caches, metrics = gateway.policy.caches, gateway.metrics
    assert caches
    counts = [dict(one) for one in (metrics.cache, metrics.semantic, metrics.decisions)]
    return caches.exact.store.stats(), caches.under_way, counts, gateway.ledger.saved_usd()


def test_a_body_counts_byte_for_byte_and_an_object_only_where_spelling_does_not(
    shared: Running,
) -> None:
    """Long numbers are kept in the key as they are written."""
    long = body("long", seed=0).replace(b'"seed":0', b'"seed":1234567890123456789012')
    shared.store(long)
    assert why(shared, long, "--tenant", "acme")["result"] == "hit"
    other = long.replace(b"789012", b"789013")
    assert why(shared, other, "--tenant", "acme")["result"] == "miss"
    as_object = b'{"tenant":"acme","request":%b}'
    status, told = post(shared, "/cache/why", as_object % long)
    assert status == 400
    assert "send `request` as a string" in told["error"]
    shared.store(body("object"))
    status, told = post(shared, "/cache/why", as_object % body("object"))
    assert (status, told["result"]) == (200, "hit")


def test_why_reads_a_file_and_shows_a_table(shared: Running, tmp_path: Path) -> None:
    shared.store(body("file"))
    path = tmp_path / "request.json"
    path.write_bytes(body("file"))
    shown = run("why", str(path), "--tenant", "acme", "--from", shared.url)
    assert shown.exit_code == 0
    flat = " ".join(shown.stdout.split())
    assert "cacheable temperature 0, no Cache-Control: read and stored" in flat
    assert shown.stdout.splitlines()[-1].startswith("hit (exact): stored 0 s ago")
    path.write_bytes(b"\xff")
    odd = run("why", str(path), "--tenant", "acme", "--from", shared.url)
    assert (odd.exit_code, odd.stderr) == (
        1,
        f"forebay: {path}: it is not UTF-8, as JSON has to be\n",
    )
    assert run("why", str(tmp_path / "none.json")).exit_code == 2


# --- the semantic cache -------------------------------------------------------------------------
# Its rooms need packages and a model: here a stand-in says what a look found.


def spent() -> FalseHitBudget:
    """Of 97 checked hits none was false, then of acme's three all."""
    budget = FalseHitBudget(0.01)
    for _ in range(97):
        budget.told("default", True, 0.0)
    for _ in range(3):
        budget.told("acme", False, 0.0)
    return budget


class Semantic:
    def __init__(self) -> None:
        self.budget = spent()
        self.partitions = SimpleNamespace(
            stats=lambda: SimpleNamespace(partitions=2, entries=7, used_bytes=3000)
        )
        self.embedder = SimpleNamespace(model="minilm", embed=self.embed)
        self.unchecked = 3
        self.fails: EmbedderUnavailable | None = None
        self.looked: Any = None
        self.judge_all = False

    async def embed(self, text: str) -> None:
        if self.fails:
            raise self.fails

    async def look(self, *, judge_all: bool, **_: object) -> Any:
        self.judge_all = judge_all
        return self.looked

    async def close(self) -> None:
        pass


@contextmanager
def with_semantic(semantic: Semantic) -> Iterator[Running]:
    alike = {"exact": {}, "semantic": {"scope": "tenant"}}
    tenants = {"acme": {}, "single": {"cache": {"semantic": False}}}
    with (
        patch.object(stores, "_semantic", lambda *_: semantic),
        running_admin(config(cache=alike, tenants=tenants)) as running,
    ):
        yield running


def looked(outcome: str, says: str, *, asked: bool = False, **more: Any) -> SimpleNamespace:
    """As SemanticCache.look says it."""
    given = {"judged": (), "found": None, **more}
    return SimpleNamespace(outcome=outcome, why=says, asked=object() if asked else None, **given)


def judged(similarity: float, verdict: str, says: str) -> SimpleNamespace:
    return SimpleNamespace(similarity=similarity, verdict=verdict, why=says, id=b"")


@pytest.mark.parametrize(
    ("outcome", "passed", "last"),
    [
        ("off", (), "budget"),
        ("unfit", ("budget",), "fit"),
        ("unreadable", ("budget", "fit"), "readable"),
        ("no_vector", ("budget", "fit", "readable"), "embedding"),
        ("stateful", ("budget", "fit", "readable", "embedding"), "stateless"),
    ],
)
def test_a_question_that_is_not_compared_says_at_which_test_it_failed(
    outcome: str, passed: tuple[str, ...], last: str
) -> None:
    semantic = Semantic()
    semantic.looked = looked(outcome, "it is so")
    with with_semantic(semantic) as running:
        told = why(running, body("q"), "--tenant", "acme")
    names = list(told["steps"])
    assert tuple(names[names.index("semantic") + 1 :]) == (*passed, last)
    assert told["steps"][last] == "no: it is so"
    assert told["conclusion"] == "miss: nothing is stored under this key; semantic: it is so"


def test_candidates_come_with_similarity_and_verdict() -> None:
    semantic = Semantic()
    both = (judged(0.95, "other", "the numbers differ: 5 and 6"), judged(0.91, "same", "alike"))
    hit = Hit(Answer("/v1/chat/completions", b"{}", 1, 1), 12.0, 48.0)
    semantic.looked = looked("hit", "alike", asked=True, judged=both, found=(hit, 0.91))
    with with_semantic(semantic) as running:
        told = why(running, body("q"), "--tenant", "acme")
        shown = run("why", "-", "--tenant", "acme", "--from", running.url, sent=body("q")).stdout
    assert semantic.judge_all
    assert told["result"] == "semantic_hit"
    assert told["conclusion"].startswith("hit (semantic, similarity 0.91): stored 12 s ago, 48 s")
    assert told["steps"]["candidates"] == "2 stored questions of similarity 0.6 or more"
    assert told["candidates"][0] == {
        "similarity": 0.95,
        "verdict": "other",
        "why": "the numbers differ: 5 and 6",
    }
    flat = " ".join(shown.split())
    assert "0.950 no the numbers differ: 5 and 6 0.910 yes alike" in flat


@pytest.mark.parametrize(
    ("found", "candidates", "conclusion"),
    [
        (looked("no_candidate", "none is similar", asked=True), "no stored", "none is similar"),
        (
            looked("refused", "no", asked=True, judged=(judged(0.9, "other", "no"),)),
            "1 stored",
            "semantic: no",
        ),
        (
            looked("unfit", "the client wants a new answer", asked=True),
            "none was looked for: the client wants",
            "miss: nothing is stored under this key",
        ),
    ],
)
def test_a_question_without_a_match_is_a_miss(found: Any, candidates: str, conclusion: str) -> None:
    semantic = Semantic()
    semantic.looked = found
    with with_semantic(semantic) as running:
        told = why(running, body("q"), "--tenant", "acme")
    assert told["result"] == "miss"
    assert told["steps"]["candidates"].startswith(candidates)
    assert told["conclusion"].endswith(conclusion)


def test_where_questions_are_not_compared_why_says_what_to_change(shared: Running) -> None:
    off = why(shared, body("q"), "--tenant", "acme")["steps"]["semantic"]
    assert off == "off: see forebay.cache.semantic"
    with with_semantic(Semantic()) as running:
        told = why(running, body("q"), "--tenant", "single")
    assert told["steps"]["semantic"] == "off for this tenant: see tenants.single.cache.semantic"


# --- stats --------------------------------------------------------------------------------------


def stats(running: Running) -> dict[str, Any]:
    done = run("stats", "--from", running.url, "--json")
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def test_stats_tell_of_store_and_tenants() -> None:
    with running_admin(config()) as running:
        running.store(body("one"))
        counted = running.gateway.metrics.cache
        counted["hit", "acme"] += 3
        counted["miss", "acme"] += 1
        counted["bypass", "default"] += 2
        told = stats(running)
        shown = run("stats", "--from", running.url).stdout
    assert told["store"].pop("used_bytes") > 500
    expected = {"kind": "memory", "state": "up", "entries": 1, "stored": 1, "evicted": 0}
    assert told["store"] == expected | {"failed": {}}
    none = dict.fromkeys(("hit", "semantic_hit", "collapsed", "miss", "bypass"), 0)
    assert told["tenants"] == {
        "acme": {**none, "hit": 3, "miss": 1},
        "default": {**none, "bypass": 2},
    }
    assert told["semantic"] is None
    flat = " ".join(shown.split())
    assert "acme 3 0 0 1 0 75.0%" in flat
    assert "default 0 0 0 0 2 0.0%" in flat
    assert "The semantic cache is off: see forebay.cache.semantic." in flat


def test_a_hit_that_the_model_will_answer_to_compare_is_told_from_one_that_is_given() -> None:
    semantic = Semantic()
    hit = Hit(Answer("/v1/chat/completions", b"{}", 1, 1), 12.0, 48.0)
    alike = (judged(0.91, "same", "alike"),)
    semantic.looked = looked("hit", "alike", asked=True, judged=alike, found=(hit, 0.91))
    semantic.budget = FalseHitBudget(0.01, first=1)
    with with_semantic(semantic) as running:
        first = why(running, body("q"), "--tenant", "acme")["conclusion"]
        semantic.budget.told("acme", True, 0.0)
        later = why(running, body("q"), "--tenant", "acme")["conclusion"]
    assert "; but the model answers, to compare, as to the first" in first
    assert later.endswith("(5% of such hits go to the model instead, to compare)")


def test_stats_without_a_semantic_look_up_say_what_may_be_missing() -> None:
    with with_semantic(Semantic()) as running:
        shown = " ".join(run("stats", "--from", running.url).stdout.split())
        running.gateway.metrics.semantic["stateful", "acme"] += 1
        later = " ".join(run("stats", "--from", running.url).stdout.split())
    assert "No question was compared yet. With scope user, only those with a user id are" in shown
    assert "No question was compared yet" not in later
    assert "stateful 1" in later


def test_stats_tell_of_the_semantic_cache_and_whose_is_switched_off() -> None:
    semantic = Semantic()
    with with_semantic(semantic) as running:
        running.gateway.metrics.semantic["hit", "acme"] += 4
        running.gateway.metrics.semantic["hit", "default"] += 1
        told = stats(running)["semantic"]
        shown = " ".join(run("stats", "--from", running.url).stdout.split())
        semantic.fails = EmbedderUnavailable("starting", "the model is not loaded yet")
        away = stats(running)["semantic"]["embedder"]
    assert told["lookups"] == {"hit": 5}
    assert (told["questions"], told["partitions"]) == (7, 2)
    off = {"acme": "3 of 3 checked hits were false"}
    assert told["budget"].pop("off") == off
    checked = {"checked": 100, "false": 3, "rate": 0.03, "allowed": 0.01, "unchecked": 3}
    assert told["budget"] == checked
    assert told["embedder"]["state"] == "ready"
    assert away["state"] == "starting"
    assert "100 hits, 3 false (3.00%)" in shown
    assert "forebay cache trust --tenant acme switches it on again" in shown


def test_without_caches_the_commands_say_that_they_are_off() -> None:
    with running_admin(config(cache={})) as running:
        assert "The caches are off" in run("stats", "--from", running.url).stdout
        assert why(running, body(), "--tenant", "acme")["conclusion"] == (
            "bypass: the caches are off"
        )
        for order in ("purge", "trust"):
            done = run(order, "--tenant", "acme", "--from", running.url)
            assert (done.exit_code, done.stdout) == (1, "")
            assert "The caches are off: see forebay.cache.exact." in done.stderr


# --- purge and trust ----------------------------------------------------------------------------


def test_a_purge_takes_the_tenants_answers_and_nobody_elses() -> None:
    with running_admin(config()) as running:
        for tenant, user in (("acme", ""), ("nightly", ""), ("public", ""), ("single", "u")):
            running.store(body("kept"), tenant=tenant, user=user)
        running.store(body("more"))
        done = run("purge", "--tenant", "acme", "--from", running.url)
        assert done.exit_code == 0
        assert done.stdout.startswith("2 stored answers of tenant acme, its users' included")
        assert "What is in public scope stays." in done.stdout
        assert why(running, body("kept"), "--tenant", "acme")["result"] == "miss"
        for args in (("nightly",), ("public",), ("single", "--user", "u")):
            assert why(running, body("kept"), "--tenant", *args)["result"] == "hit"
        told = json.loads(
            run("purge", "--tenant", "public", "--from", running.url, "--json").stdout
        )
        assert told["entries"] == 0
        assert "That is where the answers of this tenant are stored" in told["says"][-1]
        assert why(running, body("kept"), "--tenant", "public")["result"] == "hit"
        typo = run("purge", "--tenant", "acmee", "--from", running.url).stdout
        assert "The policy does not name tenant acmee" in typo


def test_a_users_purge_leaves_the_other_users() -> None:
    with running_admin(config()) as running:
        for user in ("u", "v"):
            running.store(body("kept"), tenant="single", user=user)
        args = ("--tenant", "single", "--user")
        done = run("purge", *args, "u", "--from", running.url)
        assert done.stdout.startswith("1 stored answers of user u are gone")
        assert "share stays: purge without a user" in " ".join(done.stdout.split())
        assert why(running, body("kept"), *args, "u")["result"] == "miss"
        assert why(running, body("kept"), *args, "v")["result"] == "hit"


def test_an_id_that_is_not_ascii_is_the_one_that_came_in_a_header() -> None:
    """Headers are UTF-8, read as one character a byte: "é" in one is not "é" in the other."""
    header = HttpHeaders(
        headers=HeaderMap(headers=[HeaderValue(key="x-user-id", raw_value="José".encode())])
    )
    read = wire.read(ProcessingRequest(request_headers=header).SerializeToString())
    assert isinstance(read, wire.RequestHeaders)
    with running_admin(config()) as running:
        running.store(body("kept"), tenant="single", user=read.values["x-user-id"])
        running.store(body("kept"), tenant="single", user="José")  # whose header is Latin-1
        args = ("--tenant", "single", "--user", "José")
        told = why(running, body("kept"), *args)
        assert (told["result"], told["steps"]["scope"]) == ("hit", "user José of tenant single")
        done = run("purge", *args, "--from", running.url)
        assert done.stdout.startswith("1 stored answers of user José are gone")
        assert why(running, body("kept"), *args)["result"] == "miss"
        assert running.gateway.policy.caches
        assert running.gateway.policy.caches.exact.store.stats().entries == 1


def test_a_purge_that_the_store_did_not_take_fails() -> None:
    async def refuse(_: object) -> None:
        raise StoreUnavailable("Redis did not take the purge (ConnectionError).")

    with running_admin(config()) as running:
        caches = running.gateway.policy.caches
        assert caches
        caches.exact.store.purge = refuse
        done = run("purge", "--tenant", "acme", "--from", running.url)
    assert (done.exit_code, done.stdout) == (1, "")
    assert done.stderr.endswith("Redis did not take the purge (ConnectionError).\n")


def test_trust_switches_a_tenants_semantic_cache_on_again() -> None:
    with with_semantic(Semantic()) as running:
        first = run("trust", "--tenant", "acme", "--from", running.url)
        again = run("trust", "--tenant", "acme", "--from", running.url)
    assert first.stdout.startswith("Questions of tenant acme are compared again")
    assert again.stdout == "Questions of tenant acme are compared already.\n"
    with running_admin(config()) as running:
        off = run("trust", "--tenant", "acme", "--from", running.url)
    assert off.exit_code == 1
    assert "The semantic cache is off" in off.stderr


# --- the port -----------------------------------------------------------------------------------


def post(
    running: Running, path: str, sent: bytes, method: str = "POST", **headers: str
) -> tuple[int, Any]:
    host = running.url.removeprefix("http://")
    connection = http.client.HTTPConnection(host, timeout=5)
    given = {"content-type": "application/json"} | headers
    connection.request(method, path, sent, {n.replace("_", "-"): v for n, v in given.items()})
    answered = connection.getresponse()
    text = answered.read()
    connection.close()
    try:
        return answered.status, json.loads(text)
    except ValueError:
        return answered.status, {"error": text.decode()}


ORDERS = ("/cache/purge", "/cache/trust", "/cache/why")


@pytest.mark.parametrize("path", ORDERS)
def test_a_web_page_cannot_give_orders(shared: Running, path: str) -> None:
    shared.store(body(path))
    order = b'{"tenant":"acme","request":"{}"}' if path.endswith("why") else b'{"tenant":"acme"}'
    for origin in ("http://evil.example", "null", shared.url):
        assert post(shared, path, order, origin=origin)[0] == 403
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""):
        assert post(shared, path, order, content_type=kind)[0] in (403, 415)
    for method in ("GET", "OPTIONS", "PUT", "DELETE", "HEAD"):
        assert post(shared, path, order, method)[0] == 405
    assert why(shared, body(path), "--tenant", "acme")["result"] == "hit"


@pytest.mark.parametrize(
    ("path", "sent", "status", "says"),
    [
        ("/cache/purge", b"{}", 400, "tenant: Field required"),
        ("/cache/purge", b'{"tenant":""}', 400, "tenant: String should have at least 1"),
        ("/cache/purge", b'{"tenant":"a","user":""}', 400, "user: String should have at least 1"),
        ("/cache/purge", b"[]", 400, "Send tenant, user as JSON."),
        ("/cache/purge", b'{"tenant":"acme","all":1}', 400, "Send tenant, user as JSON."),
        ("/cache/why", body(SECRET), 400, "request: Field required"),
        ("/cache/why", b'{"request":[]}', 400, "request: Input should be a valid string"),
        ("/cache/why", SECRET.encode(), 400, "as JSON."),
        ("/cache/why", b" " * (1024 * 1024 + 1), 413, "Send 1,024 KiB at most."),
    ],
)
def test_what_is_sent_wrongly_is_said_and_never_shown(
    shared: Running, path: str, sent: bytes, status: int, says: str
) -> None:
    answered = post(shared, path, sent)
    assert answered[0] == status
    assert says in answered[1]["error"]
    assert SECRET not in str(answered)


def test_a_body_that_does_not_come_is_not_waited_for(
    shared: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admin, "_TIME_LIMIT_S", 0.2)
    host, _, port = shared.url.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port)), 5) as sock:
        head = "POST /cache/why HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        sock.sendall(f"{head}content-length: 9\r\n\r\n{{".encode())
        answered = sock.recv(4096)
    assert answered.startswith(b"HTTP/1.1 503")
    assert b"longer than 0.2 s" in answered


def test_a_bug_shows_nothing_of_the_prompt(
    shared: Running, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail(*_: object) -> None:
        raise ValueError(SECRET)

    monkeypatch.setattr(admin, "explain", fail)
    with caplog.at_level(logging.DEBUG):
        done = run("why", "-", "--from", shared.url, "--tenant", "acme", sent=body(SECRET))
    assert done.exit_code == 1
    assert "This failed: ValueError" in done.stderr
    assert "/cache/why failed: ValueError" in caplog.text
    assert SECRET not in done.output + caplog.text


def test_prompts_are_in_no_answer_but_the_keys_are(
    shared: Running, caplog: pytest.LogCaptureFixture
) -> None:
    shared.store(body(SECRET))
    with caplog.at_level(logging.DEBUG):
        told = why(shared, body(SECRET), "--tenant", "acme")
    assert told["result"] == "hit"
    assert SECRET not in json.dumps(told) + caplog.text


def test_a_gateway_that_cannot_be_asked_is_one_sentence(shared: Running) -> None:
    gone = ("--from", "http://127.0.0.1:9")
    for done in (
        run("stats", *gone),
        run("purge", "--tenant", "acme", *gone),
        run("trust", "--tenant", "acme", *gone),
        run("why", "-", *gone, sent=body()),
        run("stats", "--from", f"{shared.url}/elsewhere"),
        run("purge", "--tenant", "acme", "--from", f"{shared.url}/elsewhere"),
    ):
        assert (done.exit_code, done.stdout, done.stderr.count("\n")) == (1, "", 1)
        assert "Is it running, and is this its admin port" in done.stderr
    assert "write http://host:port" in run("stats", "--from", "127.0.0.1:9902").stderr


async def test_each_answer_is_json_that_the_command_reads() -> None:
    gateway = Gateway(config())
    await store(gateway, body())
    told = await explain(gateway, Why(tenant="acme", request=body().decode()), b"")
    assert orjson.loads(orjson.dumps(told))["result"] == "hit"
