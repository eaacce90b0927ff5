"""The policy block: what is accepted, and that every mistake names its path."""

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from extproc.config import (
    ConfigError,
    Credentials,
    credentials,
    from_document,
    load,
    parse_yaml,
)
from extproc.gateway import Gateway
from extproc.injections import Asker
from extproc.tenants import Tenants
from tests.sampling import examples

REFERENCE = Path(__file__).parents[2] / "envoy" / "envoy.yaml"


def policy(**changes: Any) -> dict[str, Any]:
    pools = {"small": {"model": "s", "slots": 4}, "large": {"model": "l", "slots": 2}}
    return {"forebay": {"pools": pools, **changes}}


PARSED = yaml.safe_load(REFERENCE.read_text())


def reference() -> Any:
    return copy.deepcopy(PARSED)


def test_the_reference_config_is_read_with_its_endpoints_and_the_processors_address() -> None:
    loaded = load(REFERENCE)
    assert loaded.listen == "unix:/run/forebay/processor.sock"
    assert loaded.config.pools["small"].endpoints == ("http://127.0.0.1:8101",)
    assert loaded.config.admission.max_wait == 10.0


def test_a_policy_alone_is_enough() -> None:
    loaded = from_document(policy(response={"deadline": "2m", "grace": "500ms"}))
    assert loaded.listen is None
    assert (loaded.config.response.deadline, loaded.config.response.grace) == (120.0, 0.5)


def test_cached_input_costs_as_input_unless_the_price_says_otherwise() -> None:
    pools = {
        "a": {"model": "a", "slots": 1, "price": {"input": 2, "output": 5}},
        "b": {"model": "b", "slots": 1, "price": {"input": 2, "cached_input": 0.5, "output": 5}},
        "c": {"model": "c", "slots": 1},
    }
    read = from_document(policy(pools=pools)).config.pools
    assert [pool.price and pool.price.cached_input for pool in read.values()] == [2, 0.5, None]


def _priced(**price: Any) -> dict[str, Any]:
    return {"pools": {"small": {"model": "s", "slots": 1, "price": price}}}


def redis(exact: Any = None, secret_file: str | None = None, **keys: Any) -> dict[str, Any]:
    store = {"redis": {"url": "redis://h:1", **keys}}
    return {"cache": {"store": store, "secret_file": secret_file, "exact": exact or {}}}


def difficulty(**keys: Any) -> dict[str, Any]:
    return {"routing": {"difficulty": keys}}


def learning(**keys: Any) -> dict[str, Any]:
    judge = {"url": "http://h:1", "model": "m", "price": {"input": 1, "output": 1}}
    return {"routing": {"learning": {"file": "f", "judge": judge, **keys}}}


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        (_priced(output=1), "forebay.pools.small.price.input: missing; it is required"),
        (_priced(input=1, output=-1), "forebay.pools.small.price.output: must be at least 0"),
        (_priced(input="x", output=1), "forebay.pools.small.price.input: must be a number"),
        (
            _priced(input=1, output=float("inf")),
            "forebay.pools.small.price.output: must be a finite number",
        ),
        (
            _priced(input=1, cached_input=2, output=1),
            "forebay.pools.small.price: cached_input (2) must not be above input (1)",
        ),
        (
            _priced(input=1, cached=1, output=1),
            "forebay.pools.small.price.cached: unknown key; did you mean cached_input?",
        ),
        ({"costs": {"batch": 1}}, "forebay.costs.batch: unknown key; did you mean batch_price?"),
        ({"costs": {"batch_price": 1.5}}, "forebay.costs.batch_price: must be at most 1"),
        ({"features": ["a b"]}, "forebay.features.0: use letters, digits"),
        ({"pool": {}}, "forebay.pool: unknown key; did you mean pools?"),
        ({"Admission": {}}, "forebay.Admission: unknown key; did you mean admission?"),
        (
            {"admission": {"slo": {"p99": "1s"}}},
            "forebay.admission.slo.p99: unknown key; there are ttft, tpot, percentile",
        ),
        (
            {"cache": {"exact": {}, "semantic": {"treshold": 1}}},
            "forebay.cache.semantic.treshold: unknown key; there are scope, ttl, similarity, ",
        ),
        (
            {"tenants": {"cache": {"klass": "batch"}}},
            "forebay.tenants.cache.klass: unknown key; did you mean class?",
        ),
        (
            {"response": {"paths": {"/v1/completions": {"grace": "1s"}}}},
            "forebay.response.paths./v1/completions.grace: unknown key; there are deadline, on_",
        ),
        ({"pools": {}}, "forebay.pools: must not be empty"),
        ({"pools": "small"}, "forebay.pools: must be a block of keys"),
        (
            {"admission": {"highwater": 1}},
            "forebay.admission.highwater: unknown key; did you mean high_water?",
        ),
        ({"tenants": {"a": {"pools": "small"}}}, "forebay.tenants.a.pools: must be a list"),
        ({"admin": 9902}, "forebay.admin: must be text"),
        ({"admin": "127.0.0.1:99020"}, "forebay.admin: write host:port"),
        (
            {"admission": {"slo": {"percentile": 1}}},
            "forebay.admission.slo.percentile: must be below 1, not 1",
        ),
        (
            {"response": {"on_expiry": "stop"}},
            "forebay.response.on_expiry: must be 'partial' or 'cut', not 'stop'",
        ),
        ({"costs": {"batch_price": None}}, "forebay.costs.batch_price: must be a number; nothing"),
        ({"costs": {1: 2}}, "forebay.costs.1: a key must be text; quote it"),
        ({"unknown_tenant": "\ud800"}, "forebay.unknown_tenant: must be text that can be"),
        (
            {"pools": {"small": {"model": "s", "slots": 1, "endpoints": ["127.0.0.1:1"]}}},
            "forebay.pools.small.endpoints.0: write http://host:port",
        ),
        (
            {"pools": {"small": {"model": "s", "slots": 1, "overflow_only": True}}},
            "forebay.routing.small: 'small' is overflow_only",
        ),
        ({"pools": {"small": {"slots": 1}}}, "forebay.pools.small.model: missing; it is required"),
        ({"pools": {"small": {"model": "s", "slots": 0}}}, "forebay.pools.small.slots: "),
        ({"pools": {"sm;all": {"model": "s", "slots": 1}}}, "forebay.pools.sm;all: use letters"),
        ({"pools": {"small": {"model": 'a"b', "slots": 1}}}, "forebay.pools.small.model: use"),
        ({"admission": {"max_wait": 10}}, "forebay.admission.max_wait: write a duration with"),
        ({"admission": {"max_wait": "10 s"}}, "forebay.admission.max_wait: write a duration with"),
        ({"admission": {"max_wait": "0s"}}, "forebay.admission.max_wait: "),
        ({"admission": {"high_water": 1, "low_water": 2}}, "forebay.admission: low_water (2) must"),
        ({"admission": {"high_water": -1}}, "forebay.admission.high_water: "),
        ({"routing": {"small": "tiny"}}, "forebay.routing.small: no pool is named 'tiny'"),
        (
            {"routing": {"fallback": {"small": ["x"]}}},
            "forebay.routing.fallback.small: no pool is named 'x'",
        ),
        ({"tenants": {"a": {"pools": ["x"]}}}, "forebay.tenants.a.pools: no pool is named 'x'"),
        ({"tenants": {"a": {"pools": []}}}, "forebay.tenants.a.pools: empty"),
        ({"tenants": {"a": {"weight": 0}}}, "forebay.tenants.a.weight: "),
        ({"tenants": {"a": {"class": "slow"}}}, "forebay.tenants.a.class: "),
        (
            {"tenants": {"a": {"request_class": "batch"}}},
            "forebay.tenants.a.request_class: unknown",
        ),
        (
            {"admission": {"hard_water": 1, "high_water": 2}},
            "forebay.admission: hard_water (1) must",
        ),
        ({"admission": {"on_overload": ["shed", "cached"]}}, "forebay.admission: on_overload: "),
        ({"admission": {"slo": {"percentile": 1}}}, "forebay.admission.slo.percentile: "),
        ({"tenant_header": "X-Tenant"}, "forebay.tenant_header: write a header name"),
        ({"user_header": "X User"}, "forebay.user_header: write a header name"),
        ({"cache": {"store": "redis"}}, "forebay.cache.store: write memory, or a block: {redis"),
        ({"cache": {"store": {"reddis": {}}}}, "forebay.cache.store.reddis: unknown key; did you"),
        (redis(url="redis://:secret@h:1"), "forebay.cache.store.redis.url: write no credential"),
        (redis(url="http://h:1"), "forebay.cache.store.redis.url: write redis://host:port"),
        (redis(url="redis://h:1/x"), "forebay.cache.store.redis.url: write redis://host:port"),
        ({"cache": {"store": {"redis": {}}}}, "forebay.cache.store.redis.url: missing"),
        (redis(timelimit="1s"), "forebay.cache.store.redis.timelimit: unknown key; did you mean t"),
        (redis(time_limit=20), "forebay.cache.store.redis.time_limit: write a duration"),
        (redis(ca_file="/x"), "forebay.cache.store.redis: ca_file and cert_file are for TLS"),
        (
            redis(url="rediss://h:1", cert_file="/x"),
            "forebay.cache.store.redis: cert_file and key_file: name both or none",
        ),
        (redis(url="redis://h:1/2", cluster=True), "forebay.cache.store.redis: url: a cluster has"),
        (redis(exact={"max_bytes": "1MiB"}), "forebay.cache: exact.max_bytes is for memory"),
        ({"cache": {"exact": {"scope": "all"}}}, "forebay.cache.exact.scope: must be 'user', "),
        ({"cache": {"exact": {"store": "all"}}}, "forebay.cache.exact.store: must be 'determ"),
        (
            {"cache": {"exact": {"ttl_jitter": 1}}},
            "forebay.cache.exact.ttl_jitter: must be at most",
        ),
        ({"cache": {"secret_file": 1}}, "forebay.cache.secret_file: must be a path"),
        (
            {"tenants": {"a": {"cache": {"scop": "user"}}}},
            "forebay.tenants.a.cache.scop: unknown k",
        ),
        ({"tenants": {"a": {"cache": {"exact": "x"}}}}, "forebay.tenants.a.cache.exact: must be t"),
        ({"routing": {"auto_model": "s"}}, "forebay.pools.small.model: is also"),
        (difficulty(policy="hard"), "forebay.routing.difficulty.policy: must be 'off', 'rules', "),
        (difficulty(policy=True), "forebay.routing.difficulty.policy: must be 'off', 'rules', "),
        (difficulty(share=0), "forebay.routing.difficulty.share: must be above 0, not 0"),
        (difficulty(share=1), "forebay.routing.difficulty.share: must be below 1, not 1"),
        (difficulty(shares=1), "forebay.routing.difficulty.shares: unknown key; did you mean sh"),
        (difficulty(policy="learned"), "forebay.routing.difficulty: policy: learned needs model_"),
        ({"tenants": {"a": {"pin": "x"}}}, "forebay.tenants.a.pin: no pool is named 'x'"),
        (
            {"tenants": {"a": {"pools": ["large"], "pin": "small"}}},
            "forebay.tenants.a.pin: 'small' is none of the tenant's pools (large)",
        ),
        (learning(), "forebay.routing.learning.usd_per_day: pools.small has no price to count"),
        (learning(usd_per_day=0), "forebay.routing.learning.usd_per_day: must be above 0"),
        (learning(share=2), "forebay.routing.learning.share: must be at most 1"),
        (learning(file=None), "forebay.routing.learning.file: must be a path"),
        (learning(judge={"model": "m"}), "forebay.routing.learning.judge.url: missing"),
        (
            learning(judge={"url": "http://h:1", "model": "m"}),
            "forebay.routing.learning.judge.price: missing; it is required",
        ),
        (
            learning(judge={"url": "http://h:1", "model": "m", "modle": 1}),
            "forebay.routing.learning.judge.modle: unknown key; did you mean model?",
        ),
        (
            {"routing": {"aliases": {"gpt": "huge"}}},
            "forebay.routing.aliases.gpt: 'huge' is neither a pool nor auto_model",
        ),
        ({"routing": {"aliases": {"s": "large"}}}, "forebay.routing.aliases.s: this name is the"),
        ({"routing": {"aliases": {"auto": "small"}}}, "forebay.routing.aliases.auto: this name is"),
        (
            {"routing": {"auto_model": "small", "aliases": {"x": "small"}}},
            "forebay.routing.aliases.x: 'small' is a pool and routing.auto_model",
        ),
        (
            {"pools": {"a": {"model": "s", "slots": 1, "server": "other", "priority": True}}},
            "forebay.pools.a: priority and cache_salt are for vllm servers only",
        ),
        ({"tenants": {"a": {"priority": 1001}}}, "forebay.tenants.a.priority: must be at most"),
        ({"admin": "9902"}, "forebay.admin: "),
        (
            {"pools": {"small": {"model": "s", "slots": 1, "endpoints": ["http://u:p@h:1"]}}},
            "forebay.pools.small.endpoints.0: write http://host:port, without",
        ),
    ],
)
def test_a_mistake_names_its_path(changes: dict[str, Any], line: str) -> None:
    with pytest.raises(ConfigError) as refused:
        from_document(policy(**changes))
    assert any(text.startswith(line) for text in str(refused.value).splitlines()), refused.value


@pytest.mark.parametrize("document", [None, [], "x", {}, {"node": {}}, {"node": {"metadata": []}}])
def test_a_file_without_a_policy_says_where_to_put_it(document: object) -> None:
    with pytest.raises(ConfigError, match=r"node\.metadata\.forebay"):
        from_document(document)


def test_a_missing_file_and_one_that_is_not_yaml_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        load(tmp_path / "none.yaml")
    (tmp_path / "bad.yaml").write_text("a: [")
    with pytest.raises(ConfigError, match=r"bad\.yaml: not YAML"):
        load(tmp_path / "bad.yaml")


@pytest.mark.parametrize(
    ("policy", "line"),
    [
        ({"pools": None}, "forebay.pools: must be a block of keys; nothing stands there"),
        (
            {"pools": {"sm all": {"model": "s", "slots": 1}}},
            "forebay.pools.sm all: use letters, digits and . _ : / | @ + - only, 200 at most",
        ),
        (
            _priced(input="$1", output=1),
            "forebay.pools.small.price.input: must be a number, not '$1'",
        ),
    ],
)
def test_what_was_filled_in_for_the_user_is_no_mistake_of_theirs(
    policy: dict[str, Any], line: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        from_document({"forebay": policy})
    assert str(refused.value).splitlines() == [line]


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ({"forebay": {}}, "no keys stand in it; it needs pools"),
        ({"node": {"metadata": {"forebay": None}}}, "no keys stand in it; it needs pools"),
        ({"forbay": {"pools": {}}}, "missing; did you mean it by forbay?"),
        ({"node": {"metadata": {"fourbay": {}}}}, r"did you mean it by node\.metadata\.fourbay\?"),
        ({"static_resources": {}}, "`forebay attach FILE` adds it"),
    ],
)
def test_where_there_is_no_policy_it_is_said_why(document: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        from_document(document)


def test_hold_times_out_of_order_are_refused() -> None:
    document = reference()
    document["node"]["metadata"]["forebay"]["admission"]["max_wait"] = "15s"
    with pytest.raises(
        ConfigError, match=r"max_wait: 15s must be below .* message_timeout \(15s\)"
    ):
        from_document(document)
    document = reference()
    chain = document["static_resources"]["listeners"][0]["filter_chains"][0]
    chain["filters"][0]["typed_config"]["stream_idle_timeout"] = "15s"
    with pytest.raises(ConfigError, match=r"message_timeout: 15s .* stream_idle_timeout \(15s\)"):
        from_document(document)


def test_long_waits_of_batch_need_longer_limits_of_envoy() -> None:
    document = reference()
    admission = document["node"]["metadata"]["forebay"]["admission"]
    admission["batch"] = {"max_wait": "305s"}
    from_document(document)
    admission["batch"] = {"max_wait": "306s"}
    with pytest.raises(ConfigError, match=r"batch\.max_wait: 306s .* of 311s .* it is 310s"):
        from_document(document)
    admission["batch"] = {"max_wait": "5m"}
    chain = document["static_resources"]["listeners"][0]["filter_chains"][0]
    chain["filters"][0]["typed_config"]["stream_idle_timeout"] = "310s"
    with pytest.raises(ConfigError, match=r"max_message_timeout: 310s .* stream_idle_timeout"):
        from_document(document)
    admission["batch"] = {}
    from_document(document)  # nobody is held so long


def test_batch_may_not_wait_less_than_others() -> None:
    document = reference()
    document["node"]["metadata"]["forebay"]["admission"]["batch"] = {"max_wait": "9s"}
    with pytest.raises(ConfigError, match=r"batch\.max_wait \(9s\) must not be below max_wait"):
        from_document(document)


def test_a_pool_that_the_admit_routes_do_not_know_is_refused() -> None:
    document = reference()
    document["node"]["metadata"]["forebay"]["pools"]["forebay"] = {"model": "x", "slots": 1}
    with pytest.raises(ConfigError, match=r"forebay\.pools\.forebay: .* priority_groups lacks"):
        from_document(document)


def test_a_pool_without_a_cluster_and_a_bootstrap_without_the_filter_are_refused() -> None:
    document = reference()
    document["static_resources"]["clusters"][0]["name"] = "tiny"
    with pytest.raises(ConfigError, match=r"forebay\.pools\.small: .* no static cluster"):
        from_document(document)
    document = reference()
    chain = document["static_resources"]["listeners"][0]["filter_chains"][0]
    filters = chain["filters"][0]["typed_config"]["http_filters"]
    filters[:] = [f for f in filters if f["name"] != "envoy.filters.http.ext_proc"]
    with pytest.raises(ConfigError, match="no ext_proc filter"):
        from_document(document)


def _places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    if isinstance(value, dict | list):
        for key, child in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _places(child, (*path, key))


PLACES = list(_places(reference()))
NONSENSE = [None, True, -1, 1.5, "", "abc", [], [None], {}, {"a": 1}, {"name": []}, [[{}]]]


@given(place=st.sampled_from(PLACES[1:]), value=st.sampled_from(NONSENSE))
@settings(max_examples=examples(150), deadline=None)
def test_nonsense_anywhere_is_refused_in_words_or_does_not_matter(
    place: tuple[Any, ...], value: Any
) -> None:
    document = reference()
    parent = document
    for key in place[:-1]:
        parent = parent[key]
    parent[place[-1]] = value
    try:
        from_document(document)
    except ConfigError as error:
        # These are pydantic's words, for programmers.
        assert "Input" not in str(error)
        assert "valid" not in str(error)


@pytest.mark.parametrize("text", ["a: [\n", "a: b: c\n", "a: &x\n  - *y\n", "\ta: b\n"])
def test_text_that_is_no_yaml_is_shown_with_its_place(tmp_path: Path, text: str) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"(?s)not YAML: .*line \d+, column \d+:\n.*\^"):
        load(path)


def test_what_both_parsers_read_is_the_same() -> None:
    for text in (REFERENCE.read_text(), "a: 1.5\nb: yes\nc: 0o7\nd: ~\ne: 'x'\nf: 2020-01-02\n"):
        assert parse_yaml(text) == yaml.safe_load(text)
    assert parse_yaml("a:\tb") == {"a": "b"}, "as Envoy reads it"


async def test_the_low_mark_is_half_the_high_one_if_it_is_left_out() -> None:
    gateway = Gateway(from_document(policy(admission={"high_water": 3})).config)
    marks = gateway.policy.limiters["small"].marks
    assert (marks.high, marks.low) == (3, 1)


def test_small_and_large_are_found_by_name_or_order() -> None:
    def routing(*names: str) -> tuple[str, str]:
        pools = {name: {"model": name, "slots": 1} for name in names}
        made = from_document({"forebay": {"pools": pools}}).config.routing
        return made.small, made.large

    assert routing("one") == ("one", "one")
    assert routing("a", "b", "c") == ("a", "c")
    assert routing("large", "x", "small") == ("small", "large")


@pytest.mark.parametrize("key", ["tenant_header", "user_header"])
def test_a_header_that_envoy_withholds_is_refused(key: str) -> None:
    document = reference()
    policy = document["node"]["metadata"]["forebay"]
    policy[key] = "x-org"
    policy["cache"]["exact"]["scope"] = "user"
    with pytest.raises(ConfigError, match=rf"forebay\.{key}: .* do not let x-org through"):
        from_document(document)


def test_the_user_header_matters_only_where_something_is_cached_by_user() -> None:
    document = reference()
    policy = document["node"]["metadata"]["forebay"]
    policy["user_header"] = "x-person"
    assert from_document(document).config.scopes == {"tenant"}
    policy["pools"]["small"]["cache_salt"] = "user"
    with pytest.raises(ConfigError, match="do not let x-person through"):
        from_document(document)


def test_an_alias_may_say_again_what_a_name_means_already() -> None:
    aliases = {"s": "small", "auto": "auto", "gpt-4o": "large"}
    assert from_document(policy(routing={"aliases": aliases})).config.routing.aliases == aliases


async def test_the_secret_of_salts_is_shared_or_this_processors_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pools = {"small": {"model": "s", "slots": 1, "cache_salt": "tenant"}}
    asker = Asker(0, 0, "acme", "", "r", "")

    def salt(gateway: Gateway) -> str:
        return gateway.policy.injections.members(("small",), asker)

    monkeypatch.delenv("FOREBAY_CACHE_SECRET", raising=False)
    config = from_document(policy(pools=pools)).config
    one, other = Gateway(config), Gateway(config)
    assert salt(one) != salt(other)
    before = salt(one)
    await one.configure(config)
    assert salt(one) == before  # a reload keeps the servers' prefix caches warm
    monkeypatch.setenv("FOREBAY_CACHE_SECRET", "x" * 16)
    await one.configure(config)
    await other.configure(config)
    assert salt(one) == salt(other) != before
    missing = {"secret_file": str(tmp_path / "none")}
    with pytest.raises(ConfigError, match="secret_file"):
        await one.configure(from_document(policy(pools=pools, cache=missing)).config)
    assert salt(one) == salt(other)
    for gateway in (one, other):
        await gateway.close()


def test_what_a_tenant_leaves_out_of_its_cache_is_as_for_all() -> None:
    config = from_document(
        policy(
            cache={"exact": {"scope": "public", "store": "asked"}},
            tenants={
                "plain": {},
                "own": {"cache": {"scope": "user", "store": "deterministic"}},
                "none": {"cache": {"exact": False}},
            },
        )
    ).config
    tenants = Tenants(config)
    caching = {name: tenants.resolve(name).caching for name in ("plain", "own", "none", "unknown")}
    assert caching == {
        "plain": ("public", "asked", None),
        "own": ("user", "deterministic", None),
        "none": None,
        "unknown": ("public", "asked", None),
    }
    assert config.scopes == {"public", "user"}
    assert Tenants(from_document(policy()).config).resolve("a").caching is None


def test_secrets_come_from_files_or_the_environment_and_show_nowhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(**more: Any) -> Credentials:
        return credentials(from_document(policy(**redis(**more))).config.cache)

    def refused(**more: Any) -> str:
        with pytest.raises(ConfigError) as error:
            read(**more)
        return str(error.value)

    for variable in ("FOREBAY_CACHE_SECRET", "FOREBAY_REDIS_PASSWORD"):
        monkeypatch.delenv(variable, raising=False)
    memory = credentials(from_document(policy(cache={"exact": {}})).config.cache)
    assert len(memory.secret) == 32
    assert refused().startswith("forebay.cache.secret_file: missing; all processors that share")

    monkeypatch.setenv("FOREBAY_CACHE_SECRET", "of the environment")
    monkeypatch.setenv("FOREBAY_REDIS_PASSWORD", "pass of the environment")
    assert read().secret == b"of the environment"
    assert read().redis_password == "pass of the environment"
    secret, password = tmp_path / "secret", tmp_path / "password"
    secret.write_text("of the secret file\n")
    password.write_text("pass of the file\n")
    found = read(secret_file=str(secret), password_file=str(password))
    assert (found.secret, found.redis_password) == (b"of the secret file", "pass of the file")
    assert "of the" not in repr(found)

    secret.write_text("short")
    assert refused(secret_file=str(secret)).startswith("forebay.cache.secret_file: 5 bytes; write")
    secret.write_text("")
    assert refused(secret_file=str(secret)).endswith("is empty")
    missing = str(tmp_path / "missing")
    for key in ("ca_file", "password_file"):
        line = f"forebay.cache.store.redis.{key}: {missing} cannot be read: No such file"
        assert refused(url="rediss://h:1", **{key: missing}).startswith(line)


async def test_a_change_of_the_cache_keeps_what_is_stored_unless_it_moves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("FOREBAY_CACHE_SECRET", raising=False)
    gateway = Gateway(from_document(policy(cache={"exact": {}})).config)
    caches = gateway.policy.caches
    assert caches
    try:
        await gateway.configure(from_document(policy(cache={"exact": {"ttl": "5s"}})).config)
        assert gateway.policy.caches is caches
        assert caches.exact.times.ttl_s == 5
        old = gateway.policy
        with pytest.raises(ConfigError, match="secret_file: missing"):
            await gateway.configure(from_document(policy(**redis())).config)
        assert gateway.policy is old  # refused as a whole
        monkeypatch.setenv("FOREBAY_CACHE_SECRET", "of the environment")
        await gateway.configure(from_document(policy(**redis())).config)
        assert gateway.policy.caches
        assert gateway.policy.caches.exact.store.stats().kind == "redis"
        await gateway.configure(from_document(policy()).config)
        assert gateway.policy.caches is None
    finally:
        await gateway.close()


def test_deadlines_by_tenant_before_those_by_path_before_the_rest() -> None:
    config = from_document(
        policy(
            response={
                "deadline": "60s",
                "grace": "2s",
                "paths": {"/v1/completions": {"deadline": "20s", "on_expiry": "cut"}},
            },
            tenants={"fast": {"deadline": "5s"}, "slow": {"deadline": "90s"}, "default": {}},
        )
    ).config
    chat, completions = "/v1/chat/completions", "/v1/completions"
    assert config.expiry("default", chat) == (60, 2, True)
    assert config.expiry("default", completions) == (20, 0, False)
    assert config.expiry("fast", chat) == (5, 2, True)
    assert config.expiry("fast", completions) == (5, 0, False)
    assert config.longest_s == config.drain_s == 92


def test_off_is_the_word_that_yaml_reads_as_false() -> None:
    document = yaml.safe_load(
        "{pools: {s: {model: m, slots: 1}}, routing: {difficulty: {policy: off}}}"
    )
    assert document["routing"]["difficulty"]["policy"] is False
    read = from_document({"forebay": document}).config
    assert read.routing.difficulty.policy == "off"
