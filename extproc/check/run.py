"""The check as a whole: over a parsed document, and over a file."""

import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path

import yaml

from extproc.check import binary
from extproc.check.findings import Finding, error, warning
from extproc.check.keys import check_key_files
from extproc.check.parse import read, read_policy
from extproc.check.reading import is_tree
from extproc.check.rules import RULES
from extproc.check.rules.no_effect import no_effect
from extproc.check.rules.policy import policy_errors
from extproc.config import (
    Config,
    ConfigError,
    Lines,
    credentials,
    from_document,
    limits_credentials,
    read_text,
    read_yaml,
)
from extproc.config.tree import dig, mapping
from extproc.extras import install
from extproc.judging import make_judging
from extproc.shadow.setup import judge_credential
from extproc.up import UpError, find_envoy


@dataclass(frozen=True, slots=True)
class Report:
    findings: list[Finding]
    notes: list[str]
    """What could not be checked, and why."""

    @property
    def ok(self) -> bool:
        """No errors; warnings do not count."""
        return not any(finding.severity == "error" for finding in self.findings)


def check(document: object) -> list[Finding]:
    """Every finding in a parsed bootstrap, or in a file with the `forebay` block alone. Pure; never
    raises for what is in the document."""
    if not is_tree(document):
        return [
            error(
                "not-a-tree",
                "the file",
                "Its anchors (&name, *name) make a loop or an endless number of copies.",
                "Use anchors only for parts that do not contain themselves.",
            )
        ]
    policy = read_policy(document)
    findings = [*policy_errors(policy), *no_effect(policy)]
    if not _is_bootstrap(document):
        return findings
    with warnings.catch_warnings():
        # envoy-data-plane's own code, and what it says of Envoy's deprecated fields.
        warnings.simplefilter("ignore", DeprecationWarning)
        bootstrap = read(document)
        for rule in RULES:
            findings += rule(bootstrap)
    if not any(finding.severity == "error" for finding in findings):
        findings += _refused(document)
    return findings


def check_file(path: Path) -> Report:
    """`check`, what the Envoy binary says where there is one, and the file of the clients' keys."""
    try:
        document, lines = read_yaml(path), Lines(read_text(path))
    except ConfigError as refused:
        return Report([_unreadable(path, refused)], [])
    findings, notes = [*check(document), *_said_twice(lines)], list[str]()
    if not _is_bootstrap(document):
        notes.append("the file holds no bootstrap: only the policy was checked")
    else:
        try:
            refused, notes = binary.validate(path, find_envoy())
            findings += refused
        except (UpError, OSError) as absent:
            notes.append(f"not validated by Envoy itself: {absent}")
        if is_tree(document):
            of_keys, unread = check_key_files(document, path)
            findings, notes = [*findings, *of_keys], [*notes, *unread]
    # A place is a path and, in brackets, a name.
    placed = [
        f if f.line else replace(f, line=lines.of(f.place.partition(" (")[0])) for f in findings
    ]
    config = read_policy(document).config
    return Report(placed, notes + (_missing_here(config) if config else []))


def _unreadable(path: Path, refused: ConfigError) -> Finding:
    mend = "Give a YAML file: an Envoy bootstrap, or one with a top-level forebay block."
    cause = refused.__cause__
    if not isinstance(cause, yaml.MarkedYAMLError) or cause.problem_mark is None:
        return error("unreadable-file", path, str(refused).removeprefix(f"{path}: "), mend)
    reason, mark = f"not YAML: {cause.problem}", cause.problem_mark
    if cause.context and cause.context_mark:
        begins = f"line {cause.context_mark.line + 1}, column {cause.context_mark.column + 1}"
        reason += f", {cause.context} that begins in {begins}"
    mend = "Mend it there, or a little above."
    return replace(error("unreadable-file", path, f"{reason}.", mend), line=mark.line + 1)


def _said_twice(lines: Lines) -> Iterator[Finding]:
    for path, first, last in lines.said_twice():
        finding = warning(
            "duplicate-key",
            path,
            f"It stands in line {first} too, and only the last one counts: what the other says is "
            "lost.",
            "Write what both say under one of them.",
        )
        yield replace(finding, line=last)


def _missing_here(config: Config) -> list[str]:
    """Of what the policy needs: it may be there where the processor runs."""
    missing, semantic = list[str](), config.cache.semantic
    learning, limits_redis = config.routing.learning, config.limits.store.redis
    for needed in (
        lambda: credentials(config.cache),
        lambda: limits_redis and limits_credentials(config.cache, limits_redis),
        lambda: make_judging(config.routing.difficulty),
        lambda: learning and judge_credential(learning),
    ):
        try:
            needed()
        except ConfigError as error:
            missing.append(str(error))
    packages = ["simplemma"] if semantic else []
    if semantic and not semantic.embedder.url:
        packages += ["onnxruntime", "tokenizers"]
    if absent := [name for name in packages if find_spec(name) is None]:
        names = ", ".join(absent)
        missing.append(f"forebay.cache.semantic: {names} not installed: {install('semantic')}")
    return [
        f"on this machine, and in this environment, the processor would not start: {one}"
        for one in missing
    ]


def _is_bootstrap(document: object) -> bool:
    top = mapping(document)
    return "static_resources" in top or bool(dig(top, "node", "metadata", "forebay"))


def _refused(document: object) -> list[Finding]:
    """A last question to the room that starts with this file: whatever it refuses and no rule has
    found is an error too."""
    try:
        from_document(document)
    except ConfigError as refused:
        problems = str(refused).splitlines()
    except Exception as broken:  # config is not made to be given nonsense; a check is
        problems = [f"the file: it cannot be read ({type(broken).__name__})"]
    else:
        return []
    return [
        error(
            "refused-at-start",
            problem.partition(": ")[0],
            f"The processor refuses to start with this: {problem.partition(': ')[2]}",
            "Correct what it names.",
        )
        for problem in problems
    ]
