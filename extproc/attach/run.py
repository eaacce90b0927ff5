"""`attach` itself: which listener, which pools, then the steps."""

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import cast

import yaml

from extproc import config
from extproc.attach import renewal, routes, steps
from extproc.attach.choice import choose
from extproc.attach.draft import Draft
from extproc.attach.errors import AttachError
from extproc.attach.reference import Reference
from extproc.attach.work import Work
from extproc.up import reference_config


@dataclass(frozen=True)
class Options:
    """`pools`: clusters, in order of preference; empty: those to which a request for a completion
    comes now. `models`, `slots`, `contexts`: by pool, for a policy that is not there yet."""

    pools: tuple[str, ...] = ()
    models: Mapping[str, str] = field(default_factory=dict[str, str])
    slots: Mapping[str, int] = field(default_factory=dict[str, int])
    contexts: Mapping[str, int] = field(default_factory=dict[str, int])
    listener: str | None = None


@dataclass(frozen=True)
class Attached:
    text: str
    notes: list[str]
    """A sentence or two each: what to check, what was kept although it conflicts."""


def attach(text: str, options: Options | None = None) -> Attached:
    """The bootstrap with all that Forebay needs; the same text if it has all. AttachError says
    where it cannot be done, and what to do by hand."""
    options = options or Options()
    _check_readable(text)
    body, mark = text.removeprefix("\ufeff"), text[: text.startswith("\ufeff")]
    line_end = "\r\n" if "\n" in body and body.count("\r\n") == body.count("\n") else "\n"
    body = body.replace("\r\n", "\n") if line_end == "\r\n" else body

    notes: list[str] = []
    draft = Draft(body, notes.append)
    chosen, pools = choose(draft, options.pools, options.listener, notes.append)
    reference = Reference(reference_config().read_text(encoding="utf-8"))
    policy = draft.find("node", "metadata", "forebay")
    if policy is not None and policy.word("tenant_header"):
        reference.use_tenant_header(policy.word("tenant_header"))
    if policy is not None and policy.word("user_header"):
        reference.use_user_header(policy.word("user_header"))
    for name in {*options.models, *options.slots, *options.contexts}:
        if name not in pools:
            raise AttachError(f"{name!r} is not one of the pools: {', '.join(pools)}")
    models = {name: options.models.get(name, name) for name in pools}
    embedders = [name for name in pools if routes.only_embeds(chosen, name)]
    reference.use_pools(models, options.slots, options.contexts, embedders)
    for route in routes.other_embeddings(chosen, pools, reference):
        reference.leave_embeddings()
        notes.append(
            f"{draft.where(*route.path)}: {route} stays: embeddings go past Forebay. To have them "
            "admitted and counted, run this with --pool for the cluster too."
        )
    draft.quiet = {node.anchor for node in reference.tree.anchors}

    work = Work(draft, reference, pools, models, chosen, notes.append, embedders)
    steps.policy(work)
    for manager in chosen:
        steps.settings(work, manager)
        steps.filters(work, manager)
        routes.routes(work, manager)
        steps.access_log(work, manager)
    steps.clusters(work)
    steps.around(work)
    renewal.renew(work)
    if draft.unfolded:
        lines = ", ".join(map(str, sorted(set(draft.unfolded))))
        notes.append(f"Rewritten from braces to lines, to make room (line {lines}).")
    result = mark + draft.text.replace("\n", line_end)
    return Attached(result, [*notes, *_refusals(result)])


def unified_diff(old: str, new: str, name: str) -> str:
    """What changes in the file of this name; empty if nothing does."""
    lines = difflib.unified_diff(
        old.splitlines(keepends=True), new.splitlines(keepends=True), name, name
    )
    return "".join(line if line.endswith("\n") else f"{line}\n" for line in lines)


def _check_readable(text: str) -> None:
    """The processor reads the file too, with PyYAML: `!ignore` is nothing to it."""
    try:
        document = config.parse_yaml(text)
    except yaml.YAMLError as error:
        raise AttachError(f"the processor could not read this file: {error}") from error
    if not isinstance(document, dict):
        raise AttachError("not an Envoy bootstrap: no mapping at the top")
    keys = map(str, cast("dict[object, object]", document))
    if camel := [key for key in keys if re.fullmatch("[a-z]+[A-Z][A-Za-z]*", key)]:
        raise AttachError(f"{camel[0]}: write Envoy's names with underscores (static_resources)")


def _refusals(text: str) -> list[str]:
    try:
        config.from_document(config.parse_yaml(text))
    except config.ConfigError as error:
        lines = str(error).split("\n")
        return [f"The processor refuses to start with this: {line}" for line in lines]
    return []
