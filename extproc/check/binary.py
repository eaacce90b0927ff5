"""What the Envoy binary itself says about a file: `envoy --mode validate`. Opens no port."""

import os
import re
import signal
import subprocess
import tempfile
from pathlib import Path
from typing import Literal

from extproc.check.findings import Finding, error, warning

_WITHIN_S = 20.0


def validate(path: Path, envoy: str) -> tuple[list[Finding], list[str]]:
    """What it finds, and notes on what it could not judge. OSError if it cannot be run."""
    text, notes = path.read_text("utf-8"), list[str]()
    with tempfile.TemporaryDirectory(prefix="forebay-check-") as folder:
        judged, environment = path, dict(os.environ)
        while True:
            said = _said(judged, envoy, environment)
            if not isinstance(said, str):
                return ([_slow(path)] if said is None else []), notes
            unset = re.search(r"Environment variable doesn't exist: (\w+)", said)
            if unset is not None and unset[1] not in environment:
                notes.append(f"{unset[1]} is not in this environment; Envoy needs it where it runs")
                environment[unset[1]] = "unset"
                continue
            missing = re.search(r"existing path in the system: '([^']*)'", said)
            if missing is None:
                break
            # What stands under /etc in production is often beside the config where it is written.
            beside = path.resolve().with_name(Path(missing[1]).name)
            if not beside.exists() or missing[1] not in text:
                return [], [
                    f"not validated by Envoy itself: the file names {missing[1]}, which is not on "
                    "this machine (that is no mistake). Check again where it is, or put a file of "
                    f"that name beside {path.name}."
                ]
            notes.append(f"{missing[1]} is not on this machine; Envoy judged with {beside}")
            text = text.replace(missing[1], str(beside))
            judged = Path(folder) / path.name
            judged.write_text(text, "utf-8")
    return [
        error(
            "envoy-refuses",
            _place(said) or path,
            f"Envoy does not start with this file: {_reason(said)}",
            "Correct what Envoy names; if it knows no such type, it is older than 1.40.",
        )
    ], notes


def _said(path: Path, envoy: str, environment: dict[str, str]) -> str | Literal[True] | None:
    """Why Envoy refuses the file; True: it takes it; None: it did not end in time."""
    command = [envoy, "--mode", "validate", "-c", str(path), "--log-level", "error"]
    with subprocess.Popen(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,  # `envoy` may be a script that starts it
    ) as process:
        try:
            said, _ = process.communicate(timeout=_WITHIN_S)
        except subprocess.TimeoutExpired:
            return None
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
    return True if process.returncode == 0 else said.decode("utf-8", "replace")


def _slow(path: Path) -> Finding:
    return warning(
        "envoy-slow",
        path,
        f"Envoy had not judged this file after {_WITHIN_S:g} s.",
        "Run envoy --mode validate -c FILE by hand; it may be waiting for a file or a server.",
    )


def _reason(output: str) -> str:
    said = re.search(r"error initializing configuration '[^']*': (.*)", output, re.DOTALL)
    words = (said[1] if said else output).split()
    text = re.sub(r"\(type envoy\.config\.bootstrap.*? reason ", "(", " ".join(words))
    return text[-1000:] or "it says nothing."


def _place(output: str) -> str:
    found = re.search(r"@\s+([\w.<>\[\]\"]+):", output)
    return found[1].replace(".<any>", "") if found else ""
