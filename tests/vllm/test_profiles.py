"""The launch profiles against vLLM's own parser: each flag exists there and takes its value."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from extproc import config
from serving.vllm_profiles import Launch, profile
from tests.vllm.install import Places

REFERENCE = Path(__file__).parents[2] / "envoy" / "envoy.yaml"
POLICY = config.load(REFERENCE).config

# Reads command lines of `vllm serve` as JSON, answers what vLLM's parser makes of each. Unknown
# flags end it with vLLM's own message.
ASK_VLLM = """
import json, sys
from vllm import envs
from vllm.entrypoints.cli.serve import ServeSubcommand
from vllm.entrypoints.launchers.cli_args import validate_parsed_serve_args
from vllm.utils.argparse_utils import FlexibleArgumentParser

def parse(argv):
    parser = FlexibleArgumentParser()
    ServeSubcommand().subparser_init(parser.add_subparsers())
    args = parser.parse_args(argv)
    validate_parsed_serve_args(args)
    return {key: repr(value) for key, value in vars(args).items()}

asked = json.load(sys.stdin)
answer = {"parsed": [parse(argv) for argv in asked], "env": sorted(envs.environment_variables)}
print("ANSWER " + json.dumps(answer))
"""


def launch(pool: str) -> Launch:
    return profile(POLICY, pool, "/models/some", cache_root=Path("/cache"))


@pytest.fixture(scope="module")
def vllm_says(vllm_places: Places) -> dict[str, Any]:
    """For each pool what vLLM understands; last, what it takes by default."""
    lines = [*(launch(pool).argv[1:] for pool in POLICY.pools), ("serve", "/models/some")]
    done = subprocess.run(
        [str(vllm_places.python), "-c", ASK_VLLM],
        input=json.dumps(lines),
        capture_output=True,
        text=True,
    )
    answers = [line for line in done.stdout.splitlines() if line.startswith("ANSWER ")]
    assert answers, done.stderr[-2000:]
    return json.loads(answers[0].removeprefix("ANSWER "))


@pytest.mark.parametrize("pool", POLICY.pools)
def test_vllm_understands_every_flag_of_a_profile(pool: str, vllm_says: dict[str, Any]) -> None:
    parsed = vllm_says["parsed"][list(POLICY.pools).index(pool)]
    settings = POLICY.pools[pool]
    [endpoint] = settings.endpoints
    host, _, port = endpoint.removeprefix("http://").partition(":")
    expected = {
        "model_tag": "/models/some",
        "host": host,
        "port": int(port),
        "served_model_name": [settings.model],
        "max_num_seqs": settings.slots,
        "max_model_len": settings.context,
        "scheduling_policy": "priority",
        "enable_prefix_caching": True,
        "enable_prompt_tokens_details": True,
        "enable_scale_out": True,
        "shutdown_timeout": 122,
        "disable_access_log_for_endpoints": "/health,/metrics",
    }
    assert {key: parsed[key] for key in expected} == {k: repr(v) for k, v in expected.items()}


@pytest.mark.parametrize("pool", POLICY.pools)
def test_a_profile_changes_nothing_but_what_it_names(pool: str, vllm_says: dict[str, Any]) -> None:
    """Every flag changes one setting; an abbreviation or a flag of two settings would not."""
    parsed = vllm_says["parsed"]
    asked, default = parsed[list(POLICY.pools).index(pool)], parsed[-1]
    changed = {key for key in default if asked[key] != default[key]}
    flags = {flag for flag in launch(pool).flags if flag.startswith("--")}
    assert changed == {flag.removeprefix("--").replace("-", "_") for flag in flags}


def test_vllm_knows_the_environment_variables(vllm_says: dict[str, Any]) -> None:
    assert {*launch("small").env, "VLLM_API_KEY"} <= set(vllm_says["env"])
