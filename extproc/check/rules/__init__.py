"""The rules, by theme. A rule is a function from the bootstrap to its findings; it never raises."""

from collections.abc import Callable, Iterator

from extproc.check.bootstrap import Bootstrap
from extproc.check.findings import Finding
from extproc.check.rules import (
    affinity,
    answers,
    bodies,
    door,
    headers,
    hosted,
    limits,
    policy,
    pools,
    processor,
    retries,
    routes,
    times,
)

Rule = Callable[[Bootstrap], Iterator[Finding]]

RULES: tuple[Rule, ...] = (
    *policy.RULES,
    *door.RULES,
    *headers.RULES,
    *processor.RULES,
    *times.RULES,
    *routes.RULES,
    *retries.RULES,
    *pools.RULES,
    *hosted.RULES,
    *bodies.RULES,
    *answers.RULES,
    *affinity.RULES,
    *limits.RULES,
)
