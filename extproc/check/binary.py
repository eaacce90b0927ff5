"""What the Envoy binary itself says about a file: `envoy --mode validate`. Opens no port."""

import os
import re
import signal
import subprocess
from pathlib import Path

from extproc.check.findings import Finding, error, warning

_WITHIN_S = 20.0


def validate(path: Path, envoy: str) -> list[Finding]:
    """OSError if the binary cannot be run."""
    command = [envoy, "--mode", "validate", "-c", str(path), "--log-level", "error"]
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,  # `envoy` may be a script that starts it
    ) as process:
        try:
            said, _ = process.communicate(timeout=_WITHIN_S)
        except subprocess.TimeoutExpired:
            return [_slow(path)]
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
    if process.returncode == 0:
        return []
    output = said.decode("utf-8", "replace")
    if missing := re.search(r"existing path in the system: '([^']*)'", output):
        return [
            warning(
                "envoy-file-missing",
                path,
                f"Envoy could not judge this file: it names {missing[1]}, which is not here.",
                "Check again on the gateway's machine, or with that file in place.",
            )
        ]
    return [
        error(
            "envoy-refuses",
            _place(output) or path,
            f"Envoy does not start with this file: {_reason(output)}",
            "Correct what Envoy names; if it knows no such type, it is older than 1.40.",
        )
    ]


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
