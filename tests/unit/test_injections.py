"""What vLLM is told beside the client's words: numbers by class and tenant, salts by tenant."""

import json
import re

import pytest

from extproc.config import PoolConfig
from extproc.injections import Asker, Injections

SECRET = b"s" * 32
POOLS = {
    "plain": PoolConfig(model="p", slots=1),
    "first": PoolConfig(model="f", slots=1, priority=True),
    "salted": PoolConfig(model="s", slots=1, cache_salt="tenant"),
    "private": PoolConfig(model="u", slots=1, cache_salt="user", priority=True),
    "api": PoolConfig(model="x", slots=1, server="other"),
    "vectors": PoolConfig(model="v", slots=1, serves="embeddings"),
}


def asker(**more: object) -> Asker:
    return Asker(0, 0, "acme", "ann", "r1", "")._replace(**more)


def told(pool: str, secret: bytes = SECRET, **more: object) -> dict[str, object]:
    text = Injections(POOLS, secret).members((pool,), asker(**more))
    if not text:
        return {}
    (members,) = re.fullmatch(rf";{pool}=,([^;]*);", text).groups()  # type: ignore[union-attr]
    return json.loads("{" + members + "}")


def salt(pool: str, secret: bytes = SECRET, **more: object) -> object:
    return told(pool, secret, **more)["cache_salt"]


def test_each_tier_is_told_its_own_and_once() -> None:
    tiers = ("plain", "first", "first", "api", "private")
    text = Injections(POOLS, SECRET).members(tiers, asker())
    assert re.fullmatch(r';first=,"priority":0;private=,"priority":0,"cache_salt":"\w{64}";', text)


def test_batch_stays_behind_whatever_a_tenants_number() -> None:
    assert told("first", priority=7) == {"priority": 7}
    eager = told("first", class_index=1, priority=-1000)["priority"]
    lazy = told("first", class_index=0, priority=1000)["priority"]
    assert isinstance(eager, int)
    assert isinstance(lazy, int)
    assert eager > lazy


def test_a_salt_is_of_a_tenant_and_hidden() -> None:
    assert salt("salted") == salt("salted", user="bob", request_id="r2", class_index=1)
    others = [salt("salted", tenant="b"), salt("salted", salt="mine"), salt("salted", b"t" * 32)]
    assert len({salt("salted"), *others}) == 4
    assert "acme" not in str(told("salted"))


def test_a_salt_is_of_a_user_where_the_pool_says_so() -> None:
    assert salt("private") == salt("private", request_id="r2")
    assert salt("private") != salt("private", user="bob")
    assert salt("private", user="") != salt("private", user="", request_id="r2")  # nobody's


def test_a_clients_salt_is_its_tenants_even_where_the_pool_has_none() -> None:
    assert told("plain") == {}
    mine = salt("plain", salt="x")
    assert mine not in ("x", salt("plain", salt="x", tenant="b"), salt("salted", salt="x"))
    assert told("api", salt="x") == {}
    assert told("vectors", salt="x") == {}  # vLLM's embeddings know neither


def test_parts_cannot_be_shifted_into_each_other() -> None:
    assert salt("salted", tenant="ab", salt="c") != salt("salted", tenant="a", salt="bc")
    assert salt("private", user="", request_id="a") != salt("private", user="a")


@pytest.mark.parametrize(("pool", "always"), [("plain", False), ("first", True), ("salted", True)])
def test_it_says_whether_each_request_is_told_something(pool: str, always: bool) -> None:
    pools = {pool: POOLS[pool], "api": POOLS["api"]}
    assert Injections(pools, SECRET).always is always


def test_what_has_no_hurry_is_behind_every_client() -> None:
    pools = {
        "p": PoolConfig(model="m", slots=1, priority=True),
        "q": PoolConfig(model="m", slots=1),
    }
    made = Injections(pools, b"")
    assert made.batch_priority("p") == 10_000
    assert made.batch_priority("q") is None
