"""What is plainly wrong with a gateway, before anything is late: no number has to be judged. Pure.

Must never advise to look at what a trouble itself explains: a pool that is down cannot be read.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from extproc.doctor.window import Window
from extproc.refused import WHY

Name = Literal[
    "the config file was refused",
    "no replica answers",
    "some replicas do not answer",
    "its servers refuse tries",
    "it sheds",
]

_CREDENTIAL = "Mend the credential that Envoy sends: credential_injector in the cluster {pool}."
_ELSEWHERE = (
    "Write the address that they redirect to into the cluster {pool}, with TLS if it is https."
)
_FIX = {
    "401": _CREDENTIAL,
    "402": "Give the account credit, or take the pool out of routing.",
    "403": _CREDENTIAL,
    "404": "Make pools.{pool}.model a name that GET /v1/models of the server lists (vLLM: "
    "--served-model-name); then look at the address of the cluster {pool}, and at a path before "
    "/v1.",
    "405": "Look at the address of the cluster {pool}, and at a path before /v1: is it an OpenAI "
    "API?",
}


@dataclass(frozen=True, slots=True)
class Trouble:
    pool: str | None
    """None: of the whole gateway."""
    name: Name
    evidence: str
    fix: str


def troubles(windows: Sequence[Window], *, config_refused: bool) -> tuple[Trouble, ...]:
    """In the order in which to mend them."""
    found = [_config()] if config_refused else []
    for window in windows:
        if window.now.replicas_down:
            found.append(_down(window))
        found += [_refused(window, status) for status in sorted(window.refused)]
        if window.now.shedding and window.now.replicas_up:
            found.append(_sheds(window))
    return tuple(found)


def _config() -> Trouble:
    return Trouble(
        None,
        "the config file was refused",
        "It changed, or the model's file that it names, and cannot be taken: the last good one "
        "stays in use.",
        "The processor's log says why (`config refused`, with the key), `forebay check FILE` too. "
        "A mended file is taken within seconds, without a restart.",
    )


def _down(window: Window) -> Trouble:
    pool = window.now
    of, down = len(pool.endpoints), pool.replicas_down
    if pool.replicas_up:
        name: Name = "some replicas do not answer"
        shown = f"{down} of {of}; the others carry their load, with fewer slots."
    else:
        name = "no replica answers"
        shown = (
            f"{of} of {of} ({', '.join(pool.endpoints)}): requests go to the next pool of their "
            "list, or fail."
        )
    if window.unread:
        return Trouble(
            window.pool,
            name,
            f"{shown} From here: {'; '.join(window.unread)}.",
            "See whether the server runs, and its log (vLLM takes minutes to start), and whether "
            f"pools.{window.pool}.endpoints is where it listens.",
        )
    return Trouble(
        window.pool,
        name,
        f"{shown} Asked from here, their /metrics can be read.",
        "Ask them for /health: other than 200, see their log. Where it is 200, the gateway leaves "
        "them alone after bad answers (its log says so), or does not reach them from its host.",
    )


def _refused(window: Window, status: str) -> Trouble:
    since = "in this time"
    if not window.ever.served:
        since = "since the processor's start, and no answer of the pool had status 200"
    return Trouble(
        window.pool,
        "its servers refuse tries",
        f"Status {status} of its servers, {window.refused[status]} times {since}: "
        f"{WHY[status]}. No client can mend that; a next pool may hide it.",
        _FIX.get(status, _ELSEWHERE).format(pool=window.pool),
    )


def _sheds(window: Window) -> Trouble:
    pool = window.now
    return Trouble(
        window.pool,
        "it sheds",
        f"{pool.queue_depth} wait for {pool.slots} slots, shedding began at {pool.high_water}: new "
        "requests get 429, or what admission.on_overload says.",
        "A short peak passes. If it lasts: more replicas, or more slots where TPOT has room; "
        "`forebay plan` says how many.",
    )
