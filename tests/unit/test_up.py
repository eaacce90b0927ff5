"""`forebay up` in front of real servers: what it takes from them, and when it refuses them."""

import json
import traceback
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any

import pytest

from extproc import config
from extproc.up import Options, UpError
from extproc.up.render import reference_config, render
from tests.unit.admin_port import admin_port

QWEN = {"id": "qwen", "max_model_len": 4000}
LLAMA = {"id": "llama", "max_model_len": 8000}


def server(listed: Any) -> AbstractContextManager[str]:
    """The URL of a server that answers every GET with this list of models, or with this status."""
    status = listed if isinstance(listed, int) else 200
    return admin_port(None, json.dumps({"object": "list", "data": listed}).encode(), status)


def pools(folder: Path, *replicas_of_small: Any) -> dict[str, Any]:
    """The policy's pools as `up` runs them, with such servers behind the small one."""
    with ExitStack() as servers:
        small = tuple(servers.enter_context(server(listed)) for listed in replicas_of_small)
        large = servers.enter_context(server([{"id": "big"}]))
        options = Options(
            config=reference_config(),
            port=0,
            envoy_admin_port=0,
            admin_port=0,
            backends={"small": small, "large": (large,)},
        )
        made = render(options, folder, lambda line: None, lambda: None)
    return made.document["node"]["metadata"]["forebay"]["pools"]


def test_a_pool_has_its_servers_model_and_the_least_context_of_them(tmp_path: Path) -> None:
    shorter = QWEN | {"max_model_len": 3000}
    got = pools(tmp_path, [QWEN], [LLAMA, shorter])
    assert (got["small"]["model"], got["small"]["context"]) == ("qwen", 3000)
    assert got["large"]["model"] == "big"
    assert "context" not in got["large"], "it does not say one"


def test_replicas_with_different_models_are_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(UpError) as refused:
        pools(tmp_path, [QWEN], [QWEN], [LLAMA])
    said = str(refused.value)
    assert "the pool small: " in said
    assert "serves 'qwen'" in said
    assert "serves 'llama'" in said
    assert "give each a pool of its own" in said


@pytest.mark.parametrize(
    ("listed", "said"),
    [([], "names no model"), ([1], "not OpenAI's list"), (None, "not OpenAI's list")],
)
def test_a_server_that_names_no_model_is_refused(tmp_path: Path, listed: Any, said: str) -> None:
    with pytest.raises(UpError, match=f"backend small: .*{said}"):
        pools(tmp_path, [QWEN], listed)


def test_a_pool_without_a_server_is_refused_with_the_way_out(tmp_path: Path) -> None:
    options = Options(reference_config(), port=0, backends={"small": ("http://127.0.0.1:1",)})
    with pytest.raises(UpError, match="no backend for the pool 'large'") as refused:
        render(options, tmp_path, lambda line: None, lambda: None)
    assert f"in a copy of {reference_config()}" in str(refused.value)
    assert "make up ARGS='--config my.yaml'" in str(refused.value)


def test_that_way_out_is_one(tmp_path: Path) -> None:
    document: Any = config.read_yaml(reference_config())
    policy = document["node"]["metadata"]["forebay"]
    del policy["pools"]["large"], policy["routing"]["large"], policy["routing"]["fallback"]
    path = tmp_path / "my.yaml"
    path.write_text(json.dumps(document))
    with server([QWEN]) as url:
        options = Options(
            path, port=0, envoy_admin_port=0, admin_port=0, backends={"small": (url,)}
        )
        made = render(options, tmp_path, lambda line: None, lambda: None)
    assert made.backend_urls == {"small": url}


def test_of_a_broken_file_of_keys_no_line_is_shown(tmp_path: Path) -> None:
    path = tmp_path / "envoy.yaml"
    path.write_text(reference_config().read_text())
    (tmp_path / "api-keys.yaml").write_text("- {key: sk-secret, client: acme\n")
    with pytest.raises(UpError, match="not YAML") as refused:
        render(Options(path, port=0), tmp_path, lambda line: None, lambda: None)
    assert f"`forebay check {path}` says where" in str(refused.value)
    assert "secret" not in "".join(traceback.format_exception(refused.value))


@pytest.mark.parametrize("status", [401, 403])
def test_a_server_that_wants_a_key_is_not_waited_for(tmp_path: Path, status: int) -> None:
    with pytest.raises(UpError, match=f"backend small: .*status {status}. It wants a key"):
        pools(tmp_path, status)
