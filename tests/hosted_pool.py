"""envoy/hosted.yaml put into a bootstrap, as it says, and `forebay attach` for the rest."""

from typing import Any

import yaml

from extproc.attach import attach
from tests.gateways import REFERENCE

HOSTED = REFERENCE.with_name("hosted.yaml")


def pieces() -> Any:
    return yaml.safe_load(HOSTED.read_text())


def put_in(document: Any, given: Any) -> None:
    """`given`: the pieces, which may have been changed. The document is changed in place."""
    policy, static = document["node"]["metadata"]["forebay"], document["static_resources"]
    for block in ("pools", "routing", "admission"):
        policy[block] |= given[block]
    if "secrets" in given:
        static["secrets"] = given["secrets"]
    static["clusters"].append(given["cluster"])
    attached = yaml.safe_load(attach(yaml.safe_dump(document, sort_keys=False)).text)
    document.clear()
    document.update(attached)


def upstream_filters(cluster: Any) -> list[Any]:
    (options,) = cluster["typed_extension_protocol_options"].values()
    return options["http_filters"]
