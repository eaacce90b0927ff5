"""How a real vLLM server is started: everything that the policy decides, and no secret."""

import copy
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from extproc import config
from extproc.cli import app
from serving import vllm_profiles
from serving.vllm_profiles import Launch, ProfileError, profile

REFERENCE = Path(__file__).parents[2] / "envoy" / "envoy.yaml"
POLICY: Any = {
    "pools": {
        "small": {
            "model": "small-7b",
            "slots": 33,
            "context": 8192,
            "endpoints": ["http://10.0.0.1:8101", "http://10.0.0.2:8102"],
        },
        "hosted": {"model": "gpt-x", "slots": 4, "server": "other", "endpoints": ["http://h:1"]},
    },
    "routing": {"small": "small", "large": "small"},
    "response": {"deadline": "90s", "grace": "1500ms"},
}


def policy(**small: Any) -> config.Config:
    document = copy.deepcopy(POLICY)
    document["pools"]["small"] |= small
    return config.Config.model_validate(document)


def launch(policy: config.Config, **options: Any) -> Launch:
    return profile(policy, "small", "/models/7b", cache_root=Path("/cache"), **options)


def value(launch: Launch, flag: str) -> str:
    return launch.argv[launch.argv.index(flag) + 1]


def test_names_sizes_and_place_are_the_policys() -> None:
    made = launch(policy(), replica=1)
    assert made.argv[:3] == ("vllm", "serve", "/models/7b")
    assert value(made, "--served-model-name") == "small-7b"
    assert value(made, "--max-model-len") == "8192"
    assert (value(made, "--host"), value(made, "--port")) == ("10.0.0.2", "8102")
    assert made.env == {"VLLM_CACHE_ROOT": "/cache"}


def test_each_replica_holds_its_slots() -> None:
    assert value(launch(policy(), replica=0), "--max-num-seqs") == "33"


def test_a_server_that_stops_lets_the_longest_answer_finish() -> None:
    assert value(launch(policy(), replica=0), "--shutdown-timeout") == "92"


def test_a_pool_of_unknown_context_takes_the_models_own() -> None:
    assert "--max-model-len" not in launch(policy(context=None), replica=0).argv


def test_further_flags_come_first_so_that_the_policy_wins() -> None:
    argv = launch(policy(), replica=0, extra=["-tp", "4", "--max-num-seqs", "999"]).argv
    assert argv[3:7] == ("-tp", "4", "--max-num-seqs", "999")
    assert argv.index("--max-num-seqs", 7) > 7


@pytest.mark.parametrize(
    ("pool", "small", "replica", "says"),
    [
        ("huge", {}, None, "no pool is named 'huge'; there are small, hosted"),
        ("hosted", {}, None, "the servers of hosted are not vLLM"),
        ("small", {}, None, "the pool small has 2 replicas; say which"),
        ("small", {}, 2, "the pool small has no replica 2; the last is 1"),
        ("small", {"endpoints": []}, None, "the pool small has no endpoint to listen at"),
        ("small", {"endpoints": ["https://h:1"]}, None, "https://h:1: only http:// endpoints"),
    ],
)
def test_what_cannot_be_started_is_refused_in_a_sentence(
    pool: str, small: dict[str, Any], replica: int | None, says: str
) -> None:
    with pytest.raises(ProfileError, match=says):
        profile(policy(**small), pool, "m", cache_root=Path("/cache"), replica=replica)


def run(*arguments: str, env: dict[str, str] | None = None) -> Any:
    return CliRunner().invoke(app, ["vllm", *arguments], env=env)


def test_print_shows_a_line_for_a_shell_without_the_key() -> None:
    common = ("--config", str(REFERENCE), "--pool", "large", "--model", "/models/a b", "--print")
    shown = run(*common, "--", "-tp", "4", env={"VLLM_API_KEY": "sesame"})
    assert shown.exit_code == 0, shown.output
    words = shlex.split(shown.stdout)
    assert words[0].startswith("VLLM_CACHE_ROOT=")
    assert words[1:6] == ["vllm", "serve", "/models/a b", "-tp", "4"]
    assert "sesame" not in shown.stdout
    assert "api-key" not in shown.stdout


def test_a_mistake_is_one_sentence_and_exit_status_1() -> None:
    shown = run("--config", str(REFERENCE), "--pool", "huge", "--model", "m", "--print")
    assert shown.exit_code == 1
    assert "forebay: no pool is named 'huge'" in shown.output


@pytest.mark.parametrize(
    ("key", "host", "warns"),
    [("", "10.0.0.1", True), ("k", "10.0.0.1", False), ("", "127.0.0.1", False)],
)
def test_starting_warns_of_an_open_server_and_becomes_vllm(
    key: str, host: str, warns: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    became: list[Any] = []
    program = tmp_path / "vllm"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(vllm_profiles.sys, "executable", str(tmp_path / "python"))
    monkeypatch.setattr(vllm_profiles.os, "execve", lambda *given: became.append(given))
    file = tmp_path / "policy.yaml"
    document = copy.deepcopy(POLICY)
    document["pools"]["small"]["endpoints"] = [f"http://{host}:8101"]
    file.write_text(yaml.safe_dump({"forebay": document}))
    shown = run("--config", str(file), "--pool", "small", "--model", "m", env={"VLLM_API_KEY": key})
    assert shown.exit_code == 0, shown.output
    assert ("VLLM_API_KEY is not set" in shown.output) is warns
    [(path, argv, env)] = became
    assert path == str(program)
    assert argv[:3] == ("vllm", "serve", "m")
    assert env["VLLM_CACHE_ROOT"].endswith(".cache/vllm")
    assert env["VLLM_API_KEY"] == key


def test_without_vllm_it_says_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(vllm_profiles.sys, "executable", str(tmp_path / "python"))
    shown = run("--config", str(REFERENCE), "--pool", "small", "--model", "m")
    assert shown.exit_code == 1
    assert "pip install 'forebay[vllm]'" in shown.output


def test_a_pool_of_vectors_is_started_for_them() -> None:
    flags = launch(policy(serves="embeddings"), replica=0).flags
    assert flags[flags.index("--runner") + 1] == "pooling"
    assert "--enable-scale-out" not in flags, "there is nothing to be ended early"
