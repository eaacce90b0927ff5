"""One exchange whose end is known beforehand: what its client asks for, what it then saw, and what
the processor counted of a pool meanwhile.

Knows no server's faults: what is to come of an exchange, a test says.
"""

import json
import re
from dataclasses import dataclass
from typing import Any, Literal

from tests.e2e.client import CHAT, Gateway, chat
from tests.e2e.soak.wire import STAYS, Got, Leave, Request

COMPLETIONS = "/v1/completions"

Way = Literal["ask", "guard"]
# How the gateway is to call the end of an exchange, and what its client is to see.
Told = tuple[str, str]
WHOLE: Told = ("whole", "whole")


@dataclass(frozen=True)
class Asked:
    """One exchange: what the client asks for."""

    way: Way
    stream: bool
    http2: bool
    usage: bool
    chat: bool
    choices: int
    tokens: int
    leaves: bool

    @property
    def path(self) -> str:
        return CHAT if self.chat else COMPLETIONS


def request(asked: Asked, *, key: str | None, model: str, prompt: str, **more: Any) -> Request:
    """`more`: further members of its body."""
    body: dict[str, Any] = chat(prompt, model=model, max_tokens=asked.tokens, **more)
    if not asked.chat:
        body["prompt"] = prompt
        del body["messages"]
    body |= {"n": asked.choices, "stream": asked.stream}
    if asked.usage and asked.stream:
        body["stream_options"] = {"include_usage": True}
    leave = STAYS
    if asked.leaves:
        leave = Leave(after_pieces=12) if asked.stream else Leave(after_s=0.4)
    return Request(
        asked.path,
        {"content-type": "application/json", "authorization": f"Bearer {key}"},
        json.dumps(body).encode(),
        http2=asked.http2,
        leave=leave,
    )


@dataclass
class Seen:
    what: str
    tokens: int = 0
    """Chunks with text."""
    usage: dict[str, Any] | None = None
    request_id: str = ""


def see(asked: Asked, got: Got) -> Seen:
    seen = Seen("", request_id=got.headers.get("x-request-id", ""))
    chunks = _chunks(got.body) if asked.stream and got.status == 200 else []
    for chunk in chunks:
        for choice in chunk.get("choices", ()):
            seen.tokens += bool(choice["delta"].get("content") if asked.chat else choice["text"])
    if got.end != "whole":
        seen.what = got.end
    elif got.status != 200:
        json.loads(got.body)["error"]["message"]
        seen.what = str(got.status)
    elif not asked.stream:
        answer = json.loads(got.body)
        seen.usage = answer["usage"]
        seen.what = _reasons(answer["choices"], asked)
    else:
        assert got.body.endswith(b"data: [DONE]\n\n"), got.body[-200:]
        if any("error" in chunk for chunk in chunks):
            seen.what = "error event"
            return seen
        usages = [chunk for chunk in chunks if chunk.get("usage")]
        assert len(usages) == asked.usage, f"usage, asked for: {asked.usage}: {usages}"
        said = [
            chunk["forebay"]["reason"] for chunk in chunks if "reason" in chunk.get("forebay", {})
        ]
        ends = [c for chunk in chunks for c in chunk["choices"] if c["finish_reason"] is not None]
        if said:
            seen.what = f"incomplete: {said[0]}"
        else:
            seen.what = _reasons(ends, asked) if ends else "no reason"
        if usages:
            seen.usage = usages[0]["usage"]
            assert bool(said) == usages[0].get("forebay", {}).get("usage_estimated", False)
    return seen


def _chunks(body: bytes) -> list[dict[str, Any]]:
    """Whole ones; a cut stream may end in half of one."""
    whole, _, _ = body.rpartition(b"\n\n")
    events = [event.removeprefix(b"data: ") for event in whole.split(b"\n\n") if event]
    return [json.loads(event) for event in events if event != b"[DONE]"]


def _reasons(ended: list[dict[str, Any]], asked: Asked) -> str:
    assert sorted(choice["index"] for choice in ended) == [*range(asked.choices)]
    return "abort" if {c["finish_reason"] for c in ended} == {"abort"} else "whole"


# --- the processor's books ------------------------------------------------------------------------


def counters(gateway: Gateway, pool: str) -> dict[str, float]:
    """The counters of this pool, by name and the label that tells them apart."""
    text = gateway.get(f"{gateway.stack.config.admin_url}/metrics").decode()
    found: dict[str, float] = {}
    for name, labels, value in re.findall(r"^forebay_(\w+)\{(.*)\} (\S+)$", text, re.M):
        told = dict(re.findall(r'(\w+)="(.*?)"', labels))
        if told.get("pool") == pool and "le" not in told:
            label = told.get("ending") or told.get("kind") or told.get("reason") or ""
            key = f"{name} {label}".strip()
            found[key] = found.get(key, 0) + float(value)
    return found


def labelled(found: dict[str, float], name: str) -> dict[str, float]:
    """Of `counters`, those of one name that are not 0, by their label."""
    start = f"{name} "
    return {k.removeprefix(start): v for k, v in found.items() if k.startswith(start) and v}
