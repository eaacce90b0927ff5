"""`forebay check` of a hosted API: envoy/hosted.yaml is sound, and what is broken is found."""

import copy
from collections.abc import Callable
from typing import Any

import pytest

from extproc.check import check
from tests.hosted_pool import pieces, put_in, upstream_filters
from tests.unit.test_check_kit import sound

_DOCUMENT: dict[str, Any] = {}


def document() -> Any:
    if not _DOCUMENT:
        _DOCUMENT.update(sound().data)
        put_in(_DOCUMENT, pieces())
    return copy.deepcopy(_DOCUMENT)


def hosted(document: Any) -> Any:
    (cluster,) = (c for c in document["static_resources"]["clusters"] if c["name"] == "hosted")
    return cluster


def tls(document: Any) -> Any:
    return hosted(document)["transport_socket"]["typed_config"]


def filters(document: Any) -> list[Any]:
    return upstream_filters(hosted(document))


def named(document: Any, name: str) -> Any:
    (found,) = (one for one in filters(document) if name in one["name"])
    return found


def mutations(document: Any) -> list[Any]:
    return named(document, "tier")["typed_config"]["mutations"]["request_mutations"]


def to_the_front(document: Any) -> None:
    injector = named(document, "credential_injector")
    filters(document).remove(injector)
    filters(document).insert(0, injector)


def inline_key(document: Any) -> None:
    (secret,) = document["static_resources"]["secrets"]
    secret["generic_secret"]["secret"] = {"inline_string": "sk-x"}


def key_in_header(document: Any) -> None:
    header = {"key": "Authorization", "value": "Bearer sk-x"}
    mutations(document).append({"append": {"header": header}})


def no_host(document: Any) -> None:
    kept = [m for m in mutations(document) if "tier-host" not in str(m)]
    mutations(document)[:] = kept


def old_lua(document: Any) -> None:
    code = named(document, "lua")["typed_config"]["default_source_code"]
    code["inline_string"] = code["inline_string"].replace("here.adds", "here.nothing")


def shown_refusals(document: Any) -> None:
    listener = document["static_resources"]["listeners"][0]
    manager = listener["filter_chains"][0]["filters"][0]["typed_config"]
    for one in manager["http_filters"]:
        code = one.get("typed_config", {}).get("default_source_code", {})
        if "hide_usage" in code.get("inline_string", ""):
            code["inline_string"] = code["inline_string"].replace("upstream_refused", "x")


def found(edit: Callable[[Any], Any] = lambda document: None) -> list[tuple[str, str]]:
    changed = document()
    edit(changed)
    return [(finding.rule, finding.severity) for finding in check(changed)]


def test_the_example_is_sound() -> None:
    assert found() == []


@pytest.mark.parametrize(
    ("rule", "severity", "edit"),
    [
        (
            "hosted-credential",
            "warning",
            lambda d: filters(d).remove(named(d, "credential_injector")),
        ),
        ("hosted-credential-order", "error", to_the_front),
        ("hosted-plain-text", "warning", lambda d: hosted(d).pop("transport_socket")),
        ("key-in-file", "warning", inline_key),
        ("key-in-file", "warning", key_in_header),
        ("hosted-host", "warning", no_host),
        (
            "hosted-tls",
            "error",
            lambda d: tls(d)["common_tls_context"].pop("validation_context"),
        ),
        ("hosted-tls-name", "error", lambda d: tls(d).pop("auto_sni_san_validation")),
        ("hosted-sni", "warning", lambda d: tls(d).pop("sni")),
        ("hosted-refusals", "warning", shown_refusals),
        ("tier-lua-old", "error", old_lua),
    ],
)
def test_what_is_broken_is_found(rule: str, severity: str, edit: Callable[[Any], Any]) -> None:
    assert (rule, severity) in found(edit)
    assert {one for one, _ in found(edit)} == {rule}
