"""The check as a whole: over a parsed document, and over a file."""

import warnings
from dataclasses import dataclass, replace
from pathlib import Path

from extproc.check import binary
from extproc.check.findings import Finding, error
from extproc.check.parse import read, read_policy
from extproc.check.reading import is_tree
from extproc.check.rules import RULES
from extproc.check.rules.no_effect import no_effect
from extproc.check.rules.policy import policy_errors
from extproc.config import ConfigError, Lines, from_document, read_text, read_yaml
from extproc.config.tree import dig, mapping
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
    """`check`, and what the Envoy binary says where there is one."""
    try:
        document, lines = read_yaml(path), Lines(read_text(path))
    except ConfigError as refused:
        mend = "Give a YAML file: an Envoy bootstrap, or one with a top-level forebay block."
        return Report([error("unreadable-file", path, str(refused), mend)], [])
    findings, notes = check(document), list[str]()
    if not _is_bootstrap(document):
        notes.append("the file holds no bootstrap: only the policy was checked")
    else:
        try:
            refused, notes = binary.validate(path, find_envoy())
            findings += refused
        except (UpError, OSError) as absent:
            notes.append(f"not validated by Envoy itself: {absent}")
    # A place is a path and, in brackets, a name.
    return Report([replace(f, line=lines.of(f.place.partition(" (")[0])) for f in findings], notes)


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
