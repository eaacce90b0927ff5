"""The file of the clients' keys that a bootstrap names: what of it Envoy refuses, or what lets
nobody in. Tells clients and lines. It must never print a key, nor any text that may be one: of a
file that is no YAML it shows nothing.
"""

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import yaml

from extproc.check.findings import Finding, error, warning
from extproc.check.reading import Spot, text
from extproc.config import ConfigError, Lines, parse_yaml, read_text, walk
from extproc.config.tree import dig, items, mapping
from extproc.up import DEMO_KEY

_KEYS = "envoy.extensions.filters.http.api_key_auth.v3.ApiKeyAuth"
_OUTER = "envoy.config.core.v3.TypedExtensionConfig"
_KEYS_AT = "resources[0].typed_config"

_REFUSED = (
    "Envoy refuses the whole file. One that runs keeps the keys that it has; one that starts with "
    "it answers every request 503 gateway_unavailable."
)
_NOBODY = "Every request is answered 401."


def check_key_files(document: object, bootstrap: Path) -> tuple[list[Finding], list[str]]:
    """What is wrong with those that are on this machine, where the bootstrap says or beside it, and
    notes on those that cannot be read. `document`: the bootstrap, which has to be a tree."""
    findings, notes = list[Finding](), list[str]()
    for said, name in _named(document):
        path = said if os.path.exists(said) else bootstrap.resolve().with_name(said.name)
        if not os.path.isfile(path):
            continue
        try:
            content = read_text(path)
        except ConfigError as refused:
            if isinstance(refused.__cause__, OSError):  # a secret: perhaps Envoy alone may read it
                notes.append(f"the keys were not checked: {refused}")
            else:
                findings.append(_broken(path, "It is not UTF-8.", "Save it as UTF-8."))
            continue
        # A copy beside the bootstrap is for trying, or on its way: it may have the demo keys.
        findings += _problems(path, content, name, in_use=path == said)
    return findings, notes


def _named(document: object) -> dict[tuple[Path, str], None]:
    """The files by which api_key_auth filters get their config, and the filters' names."""
    found = dict[tuple[Path, str], None]()
    for block in walk(document):
        discovery = mapping(block.get("config_discovery"))
        source = text(dig(discovery, "config_source", "path_config_source", "path"))
        kinds = [text(url) for url in items(discovery.get("type_urls"))]
        if source and any(kind.endswith(_KEYS) for kind in kinds):
            found[Path(source), text(block.get("name"))] = None
    return found


def _problems(path: Path, content: str, name: str, *, in_use: bool) -> Iterator[Finding]:
    try:
        document = parse_yaml(content)
    except (yaml.YAMLError, ValueError, RecursionError) as refused:
        finding = _broken(path, "It is not YAML.", "Mend it there, or a little above.")
        mark = refused.problem_mark if isinstance(refused, yaml.MarkedYAMLError) else None
        yield replace(finding, line=mark.line + 1 if mark else None)
        return
    resources, lines = items(dig(document, "resources")), Lines(content)
    if wrong := _shape(resources, name):
        yield replace(_broken(path, *wrong), line=lines.of("resources[0]"))
        return
    keys = mapping(mapping(resources[0]).get("typed_config"))
    for field, what in (("credentials", "no client"), ("key_sources", "no header to look in")):
        if not items(keys.get(field)):
            mend = f"Write {field} as envoy/api-keys.yaml has them."
            finding = error("key-file", path, f"{field} names {what}. {_NOBODY}", mend)
            yield replace(finding, line=lines.of(f"{_KEYS_AT}.{field}"))
    yield from _credentials(path, items(keys.get("credentials")), lines, in_use=in_use)


def _shape(resources: list[object], name: str) -> tuple[str, str] | None:
    """What is wrong with what stands around the keys, and the mend."""
    mend = "Begin with a copy of envoy/api-keys.yaml, and put your keys in."
    if not resources:
        return "It is empty, or has no list of resources.", mend
    if len(resources) > 1:
        return "It has more than one resource.", "Write all credentials into the first one."
    outer = mapping(resources[0])
    if not text(outer.get("@type")).endswith(_OUTER):
        return f"Its resource is no {_OUTER}.", mend
    if outer.get("name") != name:
        return "Its resource has another name than the filter.", f"Write name: {name}."
    if not text(dig(outer, "typed_config", "@type")).endswith(_KEYS):
        return f"Its typed_config is no {_KEYS}.", mend
    return None


def _credentials(
    path: Path, credentials: list[object], lines: Lines, *, in_use: bool
) -> Iterator[Finding]:
    first = dict[str, str]()
    for number, one in enumerate(credentials):
        line = lines.of(f"{_KEYS_AT}.credentials[{number}]")
        client, key = mapping(one).get("client"), mapping(one).get("key")
        who = f"client {client}" if text(client) else f"credentials[{number}]"
        spot = Spot(str(path), who)
        for field, value in (("key", key), ("client", client)):
            if isinstance(value, bool | int | list | dict):
                reason = f"YAML does not read its {field} as text."
                yield replace(_broken(spot, reason, f'Quote it: {field}: "..."'), line=line)
            elif not value:
                reason = f"It has no {field}."
                yield replace(_broken(spot, reason, f"Write its {field}."), line=line)
        if not key:
            continue
        if (before := first.get(str(key))) is not None:
            reason = f"It has the same key as {before}; Envoy writes that key into its log."
            mend = "Give each client a key of its own, and a new one in place of this: openssl rand"
            yield replace(_broken(spot, reason, f"{mend} -base64 32"), line=line)
        first.setdefault(str(key), f"{who} in line {line}")
        if in_use and str(key).startswith(DEMO_KEY):
            finding = warning(
                "demo-key",
                spot,
                "Its key is one for trying, which everybody can read in Forebay's own files.",
                "Put in a key of your own: openssl rand -base64 32",
            )
            yield replace(finding, line=line)


def _broken(place: object, reason: str, mend: str) -> Finding:
    return error("key-file", place, f"{reason} {_REFUSED}", mend)
