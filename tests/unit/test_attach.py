"""`attach`: what it makes of plain bootstraps, and that it leaves alone what it need not touch."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from extproc.attach import Attached, AttachError, Options, unified_diff
from extproc.attach import attach as attach_anew
from extproc.attach.tree import Tree
from extproc.check import check
from extproc.cli import app
from extproc.config import ConfigError, from_document

ROOT = Path(__file__).parents[2]
REFERENCE = ROOT / "envoy" / "envoy.yaml"
PLAIN = (ROOT / "tests" / "data" / "plain.yaml").read_text()
STYLES = {path.stem: path.read_text() for path in (ROOT / "tests/data/attach").glob("*.yaml")}
BOTH = Options(pools=("small", "large"))

LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
DUMPER: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)


def load(text: str) -> Any:
    return yaml.load(text, LOADER)


def attach(text: str, options: Options | None = None) -> Attached:
    """As the real one, which is a pure function; the same question is not asked twice."""
    key = (text, repr(options))
    if key not in _attached:
        _attached[key] = attach_anew(text, options)
    return _attached[key]


_attached: dict[tuple[str, str], Attached] = {}


def dump(document: Any) -> str:
    return yaml.dump(document, Dumper=DUMPER, sort_keys=False)


REPLACED = {
    # The lines of routes that give way and those written in braces that had to be extended.
    "plain": [22, 23],
    "flow": range(2, 100),
    "indented": [8, *range(44, 50)],
    "hosts": [*range(53, 65), *range(67, 80)],
    "grown": [18, *range(67, 71)],
    "anchors": [1, 8, 41, 42, *range(46, 49)],
}


def manager(document: Any, chain: int = 0) -> Any:
    listener = document["static_resources"]["listeners"][0]
    return listener["filter_chains"][chain]["filters"][0]["typed_config"]


def routes(document: Any, host: int = 0) -> list[Any]:
    return manager(document)["route_config"]["virtual_hosts"][host]["routes"]


def cluster(document: Any, name: str) -> Any:
    return next(c for c in document["static_resources"]["clusters"] if c["name"] == name)


# --- the proof ---------------------------------------------------------------------------------


def test_the_reference_config_is_what_attach_makes_of_a_plain_one() -> None:
    reference = load(REFERENCE.read_text())
    pools = reference["node"]["metadata"]["forebay"]["pools"]
    attached = attach(
        PLAIN,
        Options(
            pools=("small", "large"),
            models={name: pool["model"] for name, pool in pools.items()},
            slots={name: pool["slots"] for name, pool in pools.items()},
            contexts={name: pool["context"] for name, pool in pools.items()},
        ),
    )
    document = load(attached.text)
    for pool in pools.values():  # what only a person can know, and no option says
        for key in set(pool) - {"model", "slots", "context"}:
            del pool[key]
    reference["node"]["metadata"]["forebay"]["costs"] = {"batch_price": 1}
    assert document == reference


def test_the_reference_config_needs_nothing_more() -> None:
    text = REFERENCE.read_text()
    assert attach(text).text == text
    assert attach(text).notes == []


def test_without_options_the_first_policy_says_what_is_a_guess() -> None:
    attached = attach(PLAIN)
    policy = load(attached.text)["node"]["metadata"]["forebay"]
    assert policy["pools"] == {"small": {"model": "small", "slots": 32}}
    assert policy["routing"]["fallback"] == {"small": ["small"]}
    assert any("set `slots` (32 is a guess)" in note for note in attached.notes)
    assert any("--pool small --pool large" in note for note in attached.notes)
    assert "# slots: the requests that each server takes at once" in attached.text
    assert "times\n" not in attached.text, "slots are of each replica, not of all"
    assert "with one pool, `auto` is small, and nothing takes its place" in "".join(attached.notes)


# --- twice, and in parts -----------------------------------------------------------------------


@pytest.mark.parametrize("style", ["plain", *STYLES])
def test_a_second_run_changes_nothing(style: str) -> None:
    text = attach(STYLES.get(style, PLAIN)).text
    again = attach(text)
    assert again.text == text
    assert unified_diff(text, again.text, "envoy.yaml") == ""


def pieces() -> list[tuple[Any, ...]]:
    """The place of everything that attach adds to the plain config."""
    old, new = load(PLAIN), load(attach(PLAIN, BOTH).text)
    found: list[tuple[Any, ...]] = []

    def compare(before: Any, after: Any, path: tuple[Any, ...]) -> None:
        if isinstance(after, dict):
            for key, value in after.items():
                if key not in before:
                    found.append((*path, key))
                else:
                    compare(before[key], value, (*path, key))
        elif isinstance(after, list) and path[-1] == "clusters":
            for n, value in enumerate(after):
                same = [c for c in before if c["name"] == value["name"]]
                compare(same[0], value, (*path, n)) if same else found.append((*path, n))
        elif isinstance(after, list) and path[-1] in ("routes", "http_filters"):
            found.extend((*path, n) for n, item in enumerate(after) if item not in before)
        elif isinstance(after, list):
            for n, value in enumerate(after):
                compare(before[n], value, (*path, n))

    compare(old, new, ())
    at = ("static_resources", "listeners", 0, "filter_chains", 0, "filters", 0, "typed_config")
    early = (*at, "early_header_mutation_extensions", 0, "typed_config", "mutations")
    found += [(*early, n) for n in range(5)]
    options = ("typed_extension_protocol_options", *HTTP, "http_filters")
    found += [("static_resources", "clusters", c, *options, n) for c in (0, 1) for n in range(3)]
    found += [("node", key) for key in ("id", "cluster", "metadata")]
    found += [
        ("static_resources", "clusters", c, "circuit_breakers", "thresholds", 0, key)
        for c in (0, 1)
        for key in ("max_connections", "max_retries")
    ]
    return found


HTTP = ("envoy.extensions.upstreams.http.v3.HttpProtocolOptions",)


WHOLE = attach(PLAIN, BOTH).text
WHOLE_DOCUMENT = load(WHOLE)


@pytest.mark.parametrize("piece", pieces(), ids=lambda piece: ".".join(map(str, piece[-3:])))
def test_a_half_attached_file_is_completed(piece: tuple[Any, ...]) -> None:
    half = load(dump(WHOLE_DOCUMENT))
    *above, last = piece
    at = half
    for part in above:
        at = at[part]
    del at[last]
    written_anew = dump(half)
    for text in (written_anew, without(WHOLE, piece)):
        if text is not None:
            attached = attach(text).text
            assert load(attached) == WHOLE_DOCUMENT
            assert attach(attached).text == attached


def without(text: str, piece: tuple[Any, ...]) -> str | None:
    """The text less these lines; None if an anchor that is needed went with them, or if it stands
    beside others."""
    tree = Tree(text)
    *above, last = piece
    parent = tree.root.get(*above)
    assert parent
    if parent.flow:
        return None
    pair = parent.pair(last) if isinstance(last, str) else (parent.items[last], parent.items[last])
    assert pair
    start, end = tree.line_start(pair[0].mark), tree.line_end(pair[1].end)
    try:
        Tree(text[:start] + text[end:])
    except AttachError:
        return None
    return text[:start] + text[end:]


def test_a_pool_can_be_added_later() -> None:
    first = attach(PLAIN).text
    attached = attach(first, BOTH)
    document = load(attached.text)
    policy = document["node"]["metadata"]["forebay"]
    assert list(policy["pools"]) == ["small", "large"]
    for route in routes(document)[:2]:
        plugin = route["route"]["inline_cluster_specifier_plugin"]["extension"]["typed_config"]
        assert [group["name"] for group in plugin["priority_groups"]] == ["small", "large"]
    assert from_document(document).config.pools["large"].endpoints == ("http://127.0.0.1:8102",)
    assert any("forebay.pools.large: new" in note for note in attached.notes)
    assert attach(attached.text).text == attached.text


def test_a_pool_for_embeddings_can_be_added_later() -> None:
    """Its route stood aside at first, and had what other routes are switched off by."""
    first = "              # Everything goes to the 7B; nobody has tried the 70B yet.\n"
    match = "              - match: {prefix: /%s}\n                route: {cluster: %s}\n"
    more = match % ("v1/embeddings", "large") + match % ("a", "web") + match % ("b", "web")
    text = PLAIN.replace(first, more + first)
    before = attach(text, Options(pools=("small",)))
    assert any("run this with --pool" in note for note in before.notes)
    attached = attach(before.text, BOTH)
    document = load(attached.text)
    assert [finding for finding in check(document) if finding.severity == "error"] == []
    assert {"prefix": "/v1/embeddings"} not in [route["match"] for route in routes(document)]
    off = [
        route
        for route in routes(document)
        if route["match"] in ({"prefix": "/a"}, {"prefix": "/b"})
    ]
    kept = [
        r for r in routes(load(before.text)) if r["match"] in ({"prefix": "/a"}, {"prefix": "/b"})
    ]
    assert off == kept
    assert len(off) == 2


def test_what_an_earlier_version_put_in_is_renewed() -> None:
    old = load(REFERENCE.read_text())
    for name in ("small", "large"):
        source = lua_of(
            cluster(old, name)["typed_extension_protocol_options"][HTTP[-1]]["http_filters"]
        )
        source["inline_string"] = "-- earlier: x-forebay-tier\nfunction envoy_on_request(h) end\n"
    of = {f["name"].rpartition(".")[2]: f for f in manager(old)["http_filters"]}
    lua_of([of["lua"]])["inline_string"] = "-- earlier: hide_usage\n"
    of["ext_proc"]["typed_config"]["metadata_options"]["receiving_namespaces"]["untyped"] = [
        *("forebay", "forebay_request", "pg")
    ]
    del of["ext_proc"]["typed_config"]["max_message_timeout"]
    lua_of([of["count"]])["inline_string"] = "-- earlier: facts.uncounted\n"
    manager(old)["http_filters"].insert(-3, json_parser("prompt_tokens", "cached_tokens"))
    body = manager(old)["access_log"][0]["typed_config"]["body"]
    told = body["string_value"]
    body["string_value"] = told.replace("%DYNAMIC_METADATA(forebay_tier:refused)%\n", "")
    retries = cluster(old, "forebay")["typed_extension_protocol_options"][HTTP[-1]]
    earlier = {"retry_on": "reset,unavailable", "num_retries": 2}
    of["ext_proc"]["typed_config"]["grpc_service"]["retry_policy"] = earlier
    del retries["retry_policy"]
    mappers = manager(old)["local_reply_config"]["mappers"]
    mappers[:] = [one for one in mappers if "response_flag_filter" not in one["filter"]]
    for route in routes(old)[:2]:
        del route["response_headers_to_add"][2:], route["route"]["hash_policy"]
        del route["request_headers_to_remove"][-4:]
    text = dump(old)
    before = [f.rule for f in check(old)]
    assert before.count("tier-lua-old") == 2
    assert {"access-log-body", "hosted-refusals", "model-not-told"} <= set(before)
    assert "json-parsed-whole" in before

    attached = attach(text)

    assert load(attached.text) == load(REFERENCE.read_text())
    assert check(load(attached.text)) == []
    renewed = [note for note in attached.notes if "not this version's; it is now" in note]
    assert len(renewed) == 4, "the Lua that the tiers share, the front's two, and the log's body"
    assert [note for note in attached.notes if "removed; the cluster forebay has one" in note]
    assert [note for note in attached.notes if "is removed" in note] == [
        f"line {line_of(text, '- name: json')} (http_filters[4]): json is removed: it parsed "
        "each JSON answer whole, and Forebay's Lua filter counts now."
    ]
    again = attach(attached.text)
    assert (again.text, again.notes) == (attached.text, [])


def test_a_comment_below_a_block_text_does_not_become_a_part_of_it() -> None:
    domains = '              domains: ["*"] # whoever knows the port\n'
    below = domains + "\n" + " " * 60 + "# deep\n          http_filters:\n"
    text = PLAIN.replace(domains, "").replace("          http_filters:\n", below)
    attached = attach(text, BOTH)
    assert load(attached.text) == load(WHOLE)
    assert "# deep" in attached.text


def test_the_log_of_an_earlier_version_gives_way() -> None:
    old = load(REFERENCE.read_text())
    grpc = "type.googleapis.com/envoy.extensions.access_loggers.grpc.v3.HttpGrpcAccessLogConfig"
    common = {"log_name": "forebay", "grpc_service": {"envoy_grpc": {"cluster_name": "forebay"}}}
    mine = {"name": "mine", "typed_config": {"@type": grpc, "common_config": {"log_name": "mine"}}}
    earlier = {"name": "earlier", "typed_config": {"@type": grpc, "common_config": common}}
    manager(old)["access_log"] = [earlier, mine]
    assert [finding.rule for finding in check(old)] == ["access-log"]

    attached = attach(dump(old))

    assert [log["name"] for log in manager(load(attached.text))["access_log"]] == [
        "mine",
        "envoy.access_loggers.open_telemetry",
    ]
    assert check(load(attached.text)) == []
    assert any("earlier version" in note for note in attached.notes)


def test_a_json_parser_with_rules_of_the_users_stays() -> None:
    old = load(REFERENCE.read_text())
    mine = json_parser("prompt_tokens", "total_tokens")
    manager(old)["http_filters"].insert(-3, mine)
    attached = attach(dump(old))
    assert (load(attached.text), attached.notes) == (old, [])
    assert [finding.rule for finding in check(load(attached.text))] == ["json-parsed-whole"]


def json_parser(*keys: str) -> Any:
    """What counted JSON answers in an earlier version."""
    rules = [
        {
            "selectors": [{"key": "usage"}, {"key": key}],
            "on_present": {"metadata_namespace": "llm", "key": key, "type": "NUMBER"},
        }
        for key in keys
    ]
    of = "envoy.extensions.filters.http.json_to_metadata.v3.JsonToMetadata"
    config = {"@type": f"type.googleapis.com/{of}", "response_rules": {"rules": rules}}
    return {"name": "json", "typed_config": config}


def line_of(text: str, word: str) -> int:
    return next(n for n, line in enumerate(text.splitlines(), 1) if word in line)


def lua_of(filters: list[Any]) -> Any:
    found = next(f for f in filters if f["typed_config"]["@type"].endswith(".Lua"))
    return found["typed_config"]["default_source_code"]


def test_a_policy_that_is_there_stays_and_its_headers_are_used() -> None:
    policy = {"tenant_header": "x-org", "user_header": "x-person"}
    policy |= {"pools": {"small": {"model": "s", "slots": 3}}}
    policy |= {"routing": {"small": "small", "large": "small"}}
    node = dump({"node": {"metadata": {"forebay": policy}}})
    document = load(attach(PLAIN + node).text)
    assert document["node"]["metadata"]["forebay"] == policy
    text = dump(manager(document))
    assert "remove: x-org" in text
    assert "remove: x-person" in text
    assert "exact: x-person" in text
    assert "x-tenant-id" not in text
    assert "x-user-id" not in text
    assert from_document(document).config.pools["small"].slots == 3


# --- what was there stays ----------------------------------------------------------------------


@pytest.mark.parametrize("style", ["plain", *STYLES])
def test_every_line_that_is_not_replaced_is_still_there_in_order(style: str) -> None:
    old = STYLES.get(style, PLAIN)
    lines = iter(attach(old).text.splitlines())
    for number, line in enumerate(old.splitlines(), 1):
        if number not in REPLACED[style]:
            assert line in lines, f"line {number} is gone: {line}"


def kept(old: Any, new: Any, path: str = "") -> None:
    """Everything in `old` is in `new`, lists in order; routes that lead to a pool apart."""
    if isinstance(old, dict):
        for key, value in old.items():
            assert key in new, f"{path}.{key} is gone"
            kept(value, new[key], f"{path}.{key}")
    elif isinstance(old, list):
        rest = iter(new)
        for n, value in enumerate(old):
            if path.endswith(".routes") and not stays(value):
                continue
            assert any(contains(candidate, value) for candidate in rest), f"{path}[{n}] is gone"
    else:
        assert old == new, path


def contains(new: Any, old: Any) -> bool:
    try:
        kept(old, new)
    except (AssertionError, TypeError):
        return False
    return True


def stays(route: Any) -> bool:
    return route.get("route", {}).get("cluster") in (None, "web", "embedder", "site", "authz") and (
        "weighted_clusters" not in route.get("route", {})
    )


@pytest.mark.parametrize("style", ["plain", *STYLES])
def test_nothing_that_was_said_is_lost(style: str) -> None:
    options = Options(pools=("little", "big")) if style == "anchors" else Options()
    old = STYLES.get(style, PLAIN)
    kept(load(old), load(attach(old, options).text))


@pytest.mark.parametrize("style", ["plain", *STYLES])
def test_the_processor_takes_it(style: str) -> None:
    document = load(attach(STYLES.get(style, PLAIN)).text)
    assert from_document(document).listen == "unix:/run/forebay/processor.sock"


def test_other_line_ends_a_byte_order_mark_and_a_missing_last_line_end_are_kept() -> None:
    usual = attach(PLAIN, BOTH).text
    assert attach(PLAIN.replace("\n", "\r\n"), BOTH).text == usual.replace("\n", "\r\n")
    assert attach("\ufeff" + PLAIN, BOTH).text == "\ufeff" + usual
    assert attach(PLAIN.rstrip("\n"), BOTH).text == usual
    assert attach(PLAIN + "...\n", BOTH).text.endswith("0.95}}]\n\n...\n")


@pytest.mark.parametrize("metadata", ["", " {}", " # nothing yet", " {} # nothing yet", " ~"])
def test_an_empty_value_is_filled(metadata: str) -> None:
    attached = attach(f"node:\n  id: a\n  metadata:{metadata}\n{PLAIN}", BOTH).text
    node = load(attached)["node"]
    assert node["id"] == "a"
    assert set(node["metadata"]) == {"forebay"}
    assert ("# nothing yet" in attached) == ("#" in metadata)


def test_text_beyond_ascii_does_not_shift_anything() -> None:
    strange = PLAIN.replace("# 7B", "# 7B, größer als 𝟛B").replace("ask Ann", "frag Ännchen")
    expected = attach(PLAIN, BOTH).text.replace("# 7B", "# 7B, größer als 𝟛B")
    assert attach(strange, BOTH).text == expected


# --- other people's configs --------------------------------------------------------------------


def test_other_routes_stay_and_nothing_of_forebay_acts_on_them() -> None:
    document = load(attach(STYLES["hosts"]).text)
    web, models = manager(document)["route_config"]["virtual_hosts"]
    ours = [f["name"] for f in manager(document)["http_filters"][2:-1]]
    assert "envoy.filters.http.ext_proc" in ours
    for place in (web, *(route for route in models["routes"] if "name" not in route)):
        off = {k for k, v in place["typed_per_filter_config"].items() if v.get("disabled") is True}
        assert off == set(ours)
    assert [route.get("name") or route["match"] for route in models["routes"]] == [
        {"path": "/robots.txt"},
        {"prefix": "/v1/embeddings"},
        {
            "prefix": "/chat",
            "headers": [{"name": "upgrade", "string_match": {"exact": "websocket"}}],
        },
        *("admit_stream", "admit_json", "not_admitted"),
        {"prefix": "/docs"},
        "no_such_path",
    ]


def test_a_route_for_embeddings_to_no_pool_keeps_them() -> None:
    attached = attach(STYLES["hosts"])
    regexes = [
        route["match"]["safe_regex"]["regex"]
        for route in routes(load(attached.text), host=1)
        if "safe_regex" in route.get("match", {})
    ]
    assert len(regexes) == 3
    assert not any("embeddings" in regex for regex in regexes)
    assert any("embeddings go past Forebay" in note for note in attached.notes)


def test_a_pool_that_only_a_route_for_embeddings_leads_to_serves_them() -> None:
    first = "              # Everything goes to the 7B; nobody has tried the 70B yet.\n"
    route = (
        "              - match: {prefix: /v1/embeddings}\n                route: {cluster: large}\n"
    )
    attached = attach(PLAIN.replace(first, route + first), BOTH)
    document = load(attached.text)
    policy = document["node"]["metadata"]["forebay"]
    assert policy["pools"]["large"] == {"model": "large", "slots": 32, "serves": "embeddings"}
    assert policy["routing"]["large"] == "small"
    assert policy["routing"]["fallback"] == {"small": ["small"]}
    assert {"prefix": "/v1/embeddings"} not in [route["match"] for route in routes(document)]
    assert from_document(document).config.pools_that("embeddings") == ("large",)
    assert [f for f in check(document) if f.severity == "error"] == []
    again = attach(attached.text)
    assert again.text == attached.text


def test_what_the_replaced_routes_said_beside_their_destination_is_kept() -> None:
    document = load(attach(STYLES["hosts"]).text)
    for route in routes(document, host=1)[3:5]:
        assert route["route"]["hash_policy"] == [
            {"header": {"header_name": name}} for name in ("x-forebay-prefix", "x-session")
        ]
        assert route["request_headers_to_add"][0]["header"]["key"] == "x-edge"
        added = [entry["header"]["key"] for entry in route["response_headers_to_add"]]
        assert added[-1] == "x-served-from"
        assert "x-forebay-route" in added


def test_an_auth_filter_stays_and_stands_before_the_processor() -> None:
    for style, auth in (("hosts", "jwt_authn"), ("grown", "ext_authz")):
        attached = attach(STYLES[style])
        names = [f["name"] for f in manager(load(attached.text))["http_filters"]]
        assert "api-keys" not in names
        order = [f"envoy.filters.http.{name}" for name in (auth, "ext_proc", "router")]
        assert [name for name in names if name in order] == order
        said = [note for note in attached.notes if "x-tenant-id" in note]
        assert bool(said) == (style == "grown"), "jwt_authn sets the header already"


def test_a_filter_of_the_users_with_our_name_is_another_one() -> None:
    document = load(attach(STYLES["grown"]).text)
    names = [f["name"] for f in manager(document)["http_filters"]]
    assert len(set(names)) == len(names)
    assert {"envoy.filters.http.lua", "forebay.lua", "forebay.local_ratelimit"} <= set(names)
    authz = next(r for r in routes(document) if r["match"] == {"prefix": "/authz"})
    assert "envoy.filters.http.lua" not in authz["typed_per_filter_config"]
    assert authz["typed_per_filter_config"]["forebay.lua"]["disabled"] is True


def test_values_that_somebody_set_stay_and_are_told_of() -> None:
    attached = attach(STYLES["grown"])
    document = load(attached.text)
    limits = cluster(document, "own")["circuit_breakers"]
    assert limits["thresholds"][0] == {"priority": "HIGH", "max_requests": 10}
    assert limits["thresholds"][1]["max_retries"] == 3
    assert limits["thresholds"][1]["max_requests"] == 1024
    assert "use_remote_address" not in manager(document), "Envoy refuses it beside detection"
    assert manager(document)["common_http_protocol_options"]["idle_timeout"] == "3600s"
    for line in ("line 9 (per_conn", "line 17 (request_t", "line 85 (max_r", "line 86 (retry_b"):
        assert any(note.startswith(line) for note in attached.notes), line


def test_a_host_name_that_a_route_wrote_is_written_by_the_tier() -> None:
    document = load(attach(STYLES["grown"]).text)
    options = cluster(document, "openai")["typed_extension_protocol_options"][HTTP[0]]
    names = [f["name"] for f in options["http_filters"]]
    assert names == ["mark", "tier", "envoy.filters.http.lua", "envoy.filters.http.upstream_codec"]
    mutations = options["http_filters"][1]["typed_config"]["mutations"]["request_mutations"]
    said = {m["append"]["header"]["key"]: m["append"]["header"]["value"] for m in mutations}
    assert said == {"x-forebay-tier": "openai", "x-forebay-tier-host": "api.openai.com"}


def test_mutations_and_local_replies_that_are_there_are_extended() -> None:
    config = manager(load(attach(STYLES["grown"]).text))
    (early,) = config["early_header_mutation_extensions"]
    assert {"remove": "x-internal"} in early["typed_config"]["mutations"]
    assert {"remove": "x-request-id"} in early["typed_config"]["mutations"]
    assert early["typed_config"]["mutations"].count({"remove": "x-tenant-id"}) == 1
    (mapper,) = config["local_reply_config"]["mappers"]
    assert "forebay_" in dump(mapper)
    assert config["local_reply_config"]["body_format"]["json_format"]["code"] == "%RESPONSE_CODE%"


def test_anchors_that_others_share_keep_their_meaning() -> None:
    document = load(attach(STYLES["anchors"], Options(pools=("little", "big"))).text)
    assert cluster(document, "site-again")["load_assignment"]["cluster_name"] == "site"
    assert manager(document, 0) == manager(document, 1)
    site = manager(document)["route_config"]["virtual_hosts"][2]
    assert site["typed_per_filter_config"]["envoy.filters.http.ext_proc"]["disabled"] is True
    for name in ("big", "little", "site"):
        assert cluster(document, name)["circuit_breakers"]["thresholds"][0]["max_requests"] == 1024


def test_names_that_yaml_would_read_otherwise_are_quoted() -> None:
    text = PLAIN.replace("small", '"on"').replace("large", "'outbound|80||x'")
    attached = attach(text, Options(pools=("on", "outbound|80||x"), models={"on": "null"}))
    document = load(attached.text)
    config = from_document(document).config
    assert list(config.pools) == ["on", "outbound|80||x"]
    assert config.pools["on"].model == "null"
    assert config.routing.fallback["on"] == ("on", "outbound|80||x")
    assert not any("refuses" in note for note in attached.notes)


def test_a_limit_that_makes_the_processor_refuse_is_told_of_not_changed() -> None:
    text = PLAIN.replace(
        "stat_prefix: gateway", "stat_prefix: gateway\n          stream_idle_timeout: 5s"
    )
    attached = attach(text, BOTH)
    with pytest.raises(ConfigError, match="stream_idle_timeout"):
        from_document(load(attached.text))
    assert any("refuses to start" in n and "stream_idle_timeout" in n for n in attached.notes)


# --- several listeners -------------------------------------------------------------------------


def two_listeners() -> str:
    document = load(PLAIN)
    listeners = document["static_resources"]["listeners"]
    listeners.append(load(dump(listeners[0])))
    listeners[1]["name"] = "internal"
    listeners[1]["address"]["socket_address"]["port_value"] = 10001
    return dump(document)


def test_of_several_listeners_one_has_to_be_chosen() -> None:
    with pytest.raises(AttachError, match=r"gateway, internal\. Choose with --listener NAME"):
        attach(two_listeners())
    attached = attach(two_listeners(), Options(listener="internal"))
    first, second = load(attached.text)["static_resources"]["listeners"]
    assert first == load(two_listeners())["static_resources"]["listeners"][0]
    assert "x-forebay-admit" in dump(second)
    assert any("gateway also leads to a pool, past admission" in note for note in attached.notes)
    assert attach(attached.text).text == attached.text, "the attached one is chosen"
    both = attach(attached.text, Options(listener="gateway")).text
    assert attach(both).text == both
    assert attach(both).notes == []
    first, second = load(both)["static_resources"]["listeners"]
    first.update(name=second["name"], address=second["address"])
    assert first == second


def test_a_listener_that_does_not_exist_is_named() -> None:
    with pytest.raises(AttachError, match="'nobody'; there are: gateway"):
        attach(PLAIN, Options(listener="nobody"))


# --- what cannot be done -----------------------------------------------------------------------


def changed(old: str, new: str) -> str:
    assert old in PLAIN
    return PLAIN.replace(old, new)


ROUTE = """              - match: {prefix: "/"}
                route: {cluster: small, timeout: 600s}
"""


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "not an Envoy bootstrap"),
        ("- a\n", "not an Envoy bootstrap"),
        ("a: [", "could not read this file"),
        ("a: 1\n---\nb: 2\n", "could not read this file"),
        ("a:\n\tb\n", "could not read this file"),
        ("!ignore x: 1\n" + PLAIN, "could not read this file"),
        ("staticResources: {}\n", "underscores"),
        ("static_resources: {}\n", "HttpConnectionManager"),
        (changed(ROUTE, ROUTE.replace("small", "cds")), "no cluster is named 'cds'"),
        (
            changed(ROUTE, "              - match: {prefix: /}\n                redirect: {}\n"),
            "--pool",
        ),
        (changed('prefix: "/"', "prefix: /v1/embeddings"), "no route leads to.*there are: small, "),
        (changed("timeout: 600s", "prefix_rewrite: /x"), r"line 22 .*prefix_rewrite: .*regex_rewr"),
        (changed("timeout: 600s", "upgrade_configs: []"), "line 22 .*upgrade_configs"),
        (changed("timeout: 600s", "rate_limits: []"), "line 22 .*rate_limits"),
        (changed("domains:", "rate_limits: []\n              domains:"), "line 19 .*rate_limits"),
        (
            changed("type: STATIC", "type: STATIC\n    http2_protocol_options: {}"),
            "line 3. .*an old",
        ),
        (changed("envoy.filters.http.router", "x").replace("router.v3.Router", "x"), "no router"),
    ],
)
def test_what_cannot_be_done_is_said_with_its_place(text: str, reason: str) -> None:
    with pytest.raises(AttachError, match=reason):
        attach(text)


def test_a_route_to_a_pool_past_admission_is_refused() -> None:
    text = changed(
        ROUTE,
        "              - match: {prefix: /metrics}\n                route: {cluster: small}\n"
        + ROUTE,
    )
    with pytest.raises(AttachError, match=r"line 22 .*leads prefix /metrics to the pool small"):
        attach(text)


def test_routes_that_disagree_cannot_be_one() -> None:
    other = ROUTE.replace("timeout: 600s", "auto_host_rewrite: true").replace("/", "/v1")
    with pytest.raises(AttachError, match=r"line 22 .* and line 24 .*auto_host_rewrite"):
        attach(changed(ROUTE, other + ROUTE))


def test_a_weighted_route_that_also_leads_elsewhere_is_refused() -> None:
    weighted = "weighted_clusters: {clusters: [{name: small, weight: 9}, {name: large, weight: 1}]}"
    text = changed("cluster: small, timeout: 600s", weighted)
    with pytest.raises(AttachError, match="leads to large too, which is none of the pools"):
        attach(text, Options(pools=("small",)))


def test_routes_from_elsewhere_are_refused_with_a_way_out() -> None:
    document = load(PLAIN)
    del manager(document)["route_config"]
    manager(document)["rds"] = {"route_config_name": "x"}
    with pytest.raises(AttachError, match=r"line \d+ \(rds\): the routes are not in this file"):
        attach(dump(document))


def test_a_foreign_processor_is_refused() -> None:
    document = load(attach(PLAIN).text)
    foreign = next(f for f in manager(document)["http_filters"] if "ext_proc" in f["name"])
    foreign["typed_config"] = {
        "@type": foreign["typed_config"]["@type"],
        "grpc_service": {"envoy_grpc": {"cluster_name": "large"}},
    }
    plain = load(PLAIN)
    manager(plain)["http_filters"].insert(0, foreign)
    with pytest.raises(AttachError, match=r"line \d+: an ext_proc filter that is not Forebay's"):
        attach(dump(plain))


def test_a_part_shared_with_another_listener_is_refused() -> None:
    text = two_listeners()
    document = load(text)
    first, second = document["static_resources"]["listeners"]
    second["filter_chains"] = first["filter_chains"]  # PyYAML writes an anchor and an alias
    with pytest.raises(AttachError, match=r"line \d+: \*id001 shares with another listener"):
        attach(dump(document), Options(listener="gateway"))


def test_options_that_name_no_pool_are_refused() -> None:
    with pytest.raises(AttachError, match="'huge' is not one of the pools: small"):
        attach(PLAIN, Options(models={"huge": "x"}))
    with pytest.raises(AttachError, match="no cluster is named 'huge'"):
        attach(PLAIN, Options(pools=("small", "huge")))


def test_a_pool_that_is_no_cluster_is_named_although_nothing_leads_to_the_others() -> None:
    with pytest.raises(AttachError, match="no cluster is named 'smal'"):
        attach(PLAIN, Options(pools=("smal", "large")))


# --- the command ------------------------------------------------------------------------------


def _run(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["attach", *arguments])


def test_the_command_shows_a_diff_and_writes_only_when_told(tmp_path: Path) -> None:
    file = tmp_path / "envoy.yaml"
    plain = PLAIN
    file.write_text(plain)
    shown = _run(str(file))
    assert shown.exit_code == 0
    assert "+      tenant_header: x-tenant-id" in shown.output
    assert file.read_text() == plain
    written = _run(str(file), "--write", "--pool", "small", "--pool", "large")
    assert written.exit_code == 0, written.output
    assert (tmp_path / "envoy.yaml.bak").read_text() == plain
    assert "tenant_header: x-tenant-id" in file.read_text()
    assert f"the old file is {file}.bak. " in written.output
    again = _run(str(file), "--write")
    assert "nothing to add" in again.output
    assert not (tmp_path / "envoy.yaml.bak.2").exists()


def test_each_write_keeps_what_was_there_under_a_name_of_its_own(tmp_path: Path) -> None:
    """The first one is the user's own work: a later write must not take its place."""
    file = tmp_path / "envoy.yaml"
    kept = {name: tmp_path / f"envoy.yaml.bak{name}" for name in ("", ".2", ".3")}
    texts = [PLAIN, *(f"# {number}\n{PLAIN}" for number in (2, 3))]
    for text, backup in zip(texts, kept.values(), strict=True):
        file.write_text(text)
        written = _run(str(file), "--write")
        assert written.exit_code == 0, written.output
        assert f"the old file is {backup}. " in written.output
    assert [backup.read_text() for backup in kept.values()] == texts


@pytest.mark.parametrize(
    ("text", "arguments", "sentence"),
    [
        ("a: [", (), "the processor could not read this file"),
        ("- a", (), "not an Envoy bootstrap"),
        ("a: 1", ("--model", "x"), "write it as POOL=NAME"),
    ],
)
def test_what_the_command_cannot_do_is_one_sentence(
    tmp_path: Path, text: str, arguments: tuple[str, ...], sentence: str
) -> None:
    file = tmp_path / "envoy.yaml"
    file.write_text(text)
    failed = _run(str(file), "--write", *arguments)
    assert failed.exit_code == 1
    assert sentence in failed.output
    assert file.read_text() == text
    assert _run(str(tmp_path / "none.yaml")).exit_code == 1
