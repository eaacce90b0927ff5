"""What the tests of `forebay check` share: a document in which nothing is to be found, and hands to
break it. Nothing here counts on an index: envoy.yaml may gain filters, routes and clusters.
"""

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from extproc.check import check

REFERENCE = Path(__file__).parents[2] / "envoy" / "envoy.yaml"
GOOGLE = "type.googleapis.com/envoy"


class Document:
    """A bootstrap and the places in it. `data` may be edited; nothing in it is shared."""

    def __init__(self, data: Any) -> None:
        self.data = json.loads(json.dumps(data))

    @property
    def policy(self) -> Any:
        return self.data["node"]["metadata"]["forebay"]

    @property
    def listener(self) -> Any:
        return self.data["static_resources"]["listeners"][0]

    @property
    def door(self) -> Any:
        return self.listener["filter_chains"][0]["filters"][0]["typed_config"]

    @property
    def host(self) -> Any:
        return self.door["route_config"]["virtual_hosts"][0]

    def index(self, kind: str) -> int:
        """Of the HTTP filter whose type ends so."""
        return next(n for n, f in enumerate(self.door["http_filters"]) if _is(f, kind))

    def filter(self, kind: str) -> Any:
        return self.door["http_filters"][self.index(kind)]["typed_config"]

    def drop(self, *kinds: str) -> None:
        kept = [f for f in self.door["http_filters"] if not any(_is(f, kind) for kind in kinds)]
        self.door["http_filters"] = kept

    @property
    def ext_proc(self) -> Any:
        return self.filter("ExternalProcessor")

    def route(self, name: str) -> Any:
        return next(r for r in self.host["routes"] if r["name"] == name)

    def cluster(self, name: str) -> Any:
        return next(c for c in self.data["static_resources"]["clusters"] if c["name"] == name)

    def options(self, name: str) -> Any:
        (options,) = self.cluster(name)["typed_extension_protocol_options"].values()
        return options

    def thresholds(self, name: str) -> Any:
        return self.cluster(name)["circuit_breakers"]["thresholds"][0]

    @property
    def log(self) -> Any:
        return next(
            entry["typed_config"]
            for entry in self.door["access_log"]
            if _is(entry, "OpenTelemetryAccessLogConfig")
        )

    # --- the places, as the findings say them ---------------------------------------------------

    def at_door(self, field: str) -> str:
        return f"static_resources.listeners[0]...{field} ({self.listener['name']})"

    def at_filter(self, kind: str, field: str = "") -> str:
        number = self.index(kind)
        name = self.door["http_filters"][number]["name"]
        below = f".typed_config.{field}" if field else ""
        return f"static_resources.listeners[0]...http_filters[{number}]{below} ({name})"

    def at_ext_proc(self, field: str) -> str:
        return self.at_filter("ExternalProcessor", field)

    def at_route(self, name: str, field: str = "") -> str:
        number = self.host["routes"].index(self.route(name))
        below = f".{field}" if field else ""
        path = f"route_config.virtual_hosts[0].routes[{number}]{below}"
        return f"static_resources.listeners[0]...{path} ({name})"

    def at_cluster(self, name: str, field: str) -> str:
        number = self.data["static_resources"]["clusters"].index(self.cluster(name))
        return f"static_resources.clusters[{number}].{field} ({name})"

    def at_options(self, name: str, field: str) -> str:
        return self.at_cluster(name, f"typed_extension_protocol_options...{field}")


Edit = Callable[[Document], object]


def _is(entry: Any, kind: str) -> bool:
    discovered = entry.get("config_discovery", {}).get("type_urls", [])
    return any(
        str(url).endswith(kind) for url in (entry.get("typed_config", {}).get("@type"), *discovered)
    )


@cache
def _parsed() -> Any:
    return yaml.safe_load(REFERENCE.read_text())


def reference() -> Document:
    return Document(_parsed())


def sound() -> Document:
    """The reference with an auth filter, a rate limit and an overload manager, whether or not it
    has them already."""
    document = reference()
    document.drop("ApiKeyAuth", "LocalRateLimit")
    # The reference's keys come from a file of their own, which is not on every machine.
    filters = document.door["http_filters"]
    filters[:] = [each for each in filters if each["name"] != "api-keys"]
    auth = {
        "@type": f"{GOOGLE}.extensions.filters.http.api_key_auth.v3.ApiKeyAuth",
        "credentials": [{"key": "k", "client": "acme"}],
        "key_sources": [{"header": "authorization"}],
        "forwarding": {"header": "x-tenant-id", "hide_credentials": True},
    }
    limit = {
        "@type": f"{GOOGLE}.extensions.filters.http.local_ratelimit.v3.LocalRateLimit",
        "stat_prefix": "gateway",
        "token_bucket": {"max_tokens": 1000, "tokens_per_fill": 1000, "fill_interval": "1s"},
    }
    document.door["http_filters"][:0] = [
        {"name": "envoy.filters.http.api_key_auth", "typed_config": auth},
        {"name": "envoy.filters.http.local_ratelimit", "typed_config": limit},
    ]
    heap = {
        "@type": f"{GOOGLE}.extensions.resource_monitors.fixed_heap.v3.FixedHeapConfig",
        "max_heap_size_bytes": 2**31,
    }
    trigger = {"name": "envoy.resource_monitors.fixed_heap", "threshold": {"value": 0.95}}
    stop = {"name": "envoy.overload_actions.stop_accepting_requests", "triggers": [trigger]}
    document.data["overload_manager"] = {
        "resource_monitors": [{"name": trigger["name"], "typed_config": heap}],
        "actions": [stop],
    }
    return document


def test_nothing_is_found_in_a_sound_document() -> None:
    assert check(sound().data) == []
    assert not any(finding.severity == "error" for finding in check(reference().data))
