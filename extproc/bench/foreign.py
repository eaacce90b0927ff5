"""Other people's gateways as contenders, each in an environment of its own under a cache folder.

Installed once with pip, at the versions named here; what cannot be installed or started is skipped
with the reason. Configured as their own documentation says for production, as far as one worker
without a database goes.
"""

import os
import subprocess
import sys
from pathlib import Path

import yaml

from extproc.bench.lab import Lab, say
from extproc.bench.upstream import MODEL
from extproc.up import UpError, free_port

_INSTALL_WITHIN_S = 900.0
_START_WITHIN_S = 120.0

LITELLM = "litellm[proxy]==1.106.12"
LITELLM_KEY = "sk-bench"
VLLM_ROUTER = "vllm-router==0.1.17"


class Skipped(Exception):
    """A contender that cannot run here; the message says why."""


def cache_folder() -> Path:
    given = os.environ.get("FOREBAY_BENCH_CACHE")
    return Path(given) if given else Path.home() / ".cache" / "forebay" / "bench"


def installed(name: str, requirement: str) -> Path:
    """The `bin` folder of an environment that has `requirement`."""
    folder = cache_folder() / name
    done = folder / ".installed"
    if done.exists() and done.read_text() == requirement:
        return folder / "bin"
    say(f"installing {requirement} into {folder} (a minute or two, once)")
    python = folder / "bin" / "python"
    for command in (
        (sys.executable, "-m", "venv", "--clear", str(folder)),
        (str(python), "-m", "pip", "install", "--quiet", requirement),
    ):
        try:
            subprocess.run(
                command, check=True, timeout=_INSTALL_WITHIN_S, capture_output=True, text=True
            )
        except subprocess.CalledProcessError as error:
            last = (error.stderr.strip().splitlines() or ["no word of why"])[-1]
            raise Skipped(f"{requirement} cannot be installed: {last}") from error
        except (OSError, subprocess.TimeoutExpired) as error:
            raise Skipped(f"{requirement} cannot be installed: {error}") from error
    done.write_text(requirement)
    return folder / "bin"


def litellm(lab: Lab, upstream: str) -> tuple[str, int]:
    """LiteLLM's proxy: one model, one worker, no database, no callbacks; URL and pid."""
    tools = installed("litellm", LITELLM)
    config = {
        "model_list": [
            {
                "model_name": "auto",
                "litellm_params": {
                    "model": f"openai/{MODEL}",
                    "api_base": f"{upstream}/v1",
                    "api_key": "none",
                },
            }
        ],
        "general_settings": {"master_key": LITELLM_KEY},
        "litellm_settings": {"request_timeout": 600, "set_verbose": False, "json_logs": True},
    }
    file = lab.folder / "litellm.yaml"
    file.write_text(yaml.safe_dump(config))
    port = free_port()
    command = ("litellm", "--config", str(file), "--host", "127.0.0.1", "--port", str(port))
    settings = ("LITELLM_LOG=ERROR", "LITELLM_MODE=PRODUCTION", "LITELLM_LOCAL_MODEL_COST_MAP=True")
    path = f"PATH={tools}:{os.environ.get('PATH', '')}"
    return _start(
        lab,
        "litellm",
        port,
        ("env", path, *settings, *command, "--num_workers", "1"),
        "/health/liveliness",
    )


def vllm_router(lab: Lab, upstream: str) -> tuple[str, int]:
    """vLLM's router before one server; URL and pid."""
    tools = installed("vllm-router", VLLM_ROUTER)
    port, metrics_port = free_port(), free_port()
    command = (str(tools / "vllm-router"), "--worker-urls", upstream, "--policy", "round_robin")
    where = ("--host", "127.0.0.1", "--port", str(port), "--log-level", "warning")
    metrics = ("--prometheus-host", "127.0.0.1", "--prometheus-port", str(metrics_port))
    return _start(lab, "vllm-router", port, (*command, *where, *metrics), "/health")


def _start(
    lab: Lab, name: str, port: int, command: tuple[str, ...], health: str
) -> tuple[str, int]:
    url = f"http://127.0.0.1:{port}"
    try:
        return url, lab.start(name, command, f"{url}{health}", _START_WITHIN_S)
    except UpError as error:
        raise Skipped(f"does not start: {str(error).splitlines()[-1]}") from error
