"""From the policy to who judges: the model's file, reloads, what is shown of it."""

import asyncio
import json
import logging
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import generate_latest

from extproc import reload
from extproc.config import Config, ConfigError, DifficultyConfig, stamp
from extproc.gateway import Gateway
from extproc.judging import changed_judging, make_judging
from extproc.routing.difficulty import Off, Rules, Scored
from tests.unit.test_difficulty import HARD, model
from tests.unit.waiting import until

POOLS = {"small": {"model": "s", "slots": 4}, "large": {"model": "l", "slots": 4}}


def settings(**difficulty: Any) -> DifficultyConfig:
    return DifficultyConfig.model_validate(difficulty)


def config(**difficulty: Any) -> Config:
    return Config.model_validate({"pools": POOLS, "routing": {"difficulty": difficulty}})


def write(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps(model(**changes)))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "router.json"
    path.write_text(json.dumps(model()))
    return path


def test_each_policy_has_its_way_to_judge(file: Path) -> None:
    assert isinstance(make_judging(settings(policy="off")).difficulty, Off)
    assert isinstance(make_judging(settings()).difficulty, Rules)
    prior = make_judging(settings(policy="prior", share=0.2))
    assert isinstance(prior.difficulty, Scored)
    assert (prior.in_force, prior.share, prior.drift) == ("prior", 0.2, None)
    learned = make_judging(settings(policy="learned", model_file=file))
    assert (learned.in_force, learned.share) == ("learned", 0.3)
    assert learned.difficulty.judge(HARD, None).reason == "learned-easy"


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (None, "cannot be read: No such file"),
        ("{}", "train-router"),
        (json.dumps(model(format="other")), "format"),
        ("x" * 2_000_000, "larger than"),
    ],
)
def test_a_models_file_that_cannot_be_used_is_named(
    tmp_path: Path, content: str | None, why: str
) -> None:
    path = tmp_path / "router.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ConfigError, match=r"^forebay\.routing\.difficulty\.model_file: ") as error:
        make_judging(settings(policy="learned", model_file=path))
    assert why in str(error.value)
    assert str(path) in str(error.value)


def test_what_keeps_a_share_goes_on_unless_how_is_judged_has_changed(file: Path) -> None:
    old = make_judging(settings(policy="learned", model_file=file))
    write(file)  # the same once more
    again = changed_judging(old, settings(policy="learned", model_file=file))
    assert again.difficulty is old.difficulty
    assert again.stamp == stamp(file)
    write(file, base=-2.0)
    for now in (
        settings(policy="learned", model_file=file),
        settings(policy="learned", model_file=file, share=0.2),
        settings(policy="prior"),
    ):
        assert changed_judging(old, now).difficulty is not old.difficulty


async def test_the_share_lives_on_over_a_reload() -> None:
    gateway = Gateway(config(policy="prior", share=0.2))
    before = gateway.judging.difficulty
    await gateway.configure(
        Config.model_validate(
            {
                "pools": POOLS,
                "routing": {"difficulty": {"policy": "prior", "share": 0.2}},
                "response": {"deadline": "9s"},
            }
        )
    )
    assert gateway.judging.difficulty is before
    await gateway.configure(config(policy="prior", share=0.21))
    assert gateway.judging.difficulty is not before
    await gateway.close()


async def test_a_reload_with_a_bad_model_is_refused_and_the_old_one_stays(file: Path) -> None:
    gateway = Gateway(config(policy="learned", model_file=file))
    before, policy = gateway.judging, gateway.policy
    write(file, format="other")
    with pytest.raises(ConfigError, match=r"router\.json"):
        await gateway.configure(config(policy="learned", model_file=file))
    assert (gateway.judging, gateway.policy) == (before, policy)
    await gateway.close()


async def test_the_models_file_is_watched_also_after_it_was_refused(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reload, "_LOOK_EVERY_S", 0.01)
    path = tmp_path / "policy.yaml"
    difficulty = {"policy": "learned", "model_file": str(file)}
    text = json.dumps({"forebay": {"pools": POOLS, "routing": {"difficulty": difficulty}}})
    path.write_text(text)
    gateway = Gateway(config(**difficulty))
    watch = asyncio.create_task(reload.watch(path, stamp(path), gateway))
    reloads = gateway.metrics.reloads

    async def counted(result: str, count: int) -> None:
        await until(lambda: reloads[result] >= count)

    first = gateway.judging.difficulty
    write(file, base=-2.0)
    await counted("taken", 1)
    second = gateway.judging.difficulty
    assert second is not first
    other = tmp_path / "other.json"
    other.write_text("{}")
    path.write_text(text.replace("router.json", "other.json"))
    await counted("refused", 1)
    assert gateway.judging.difficulty is second
    write(other, base=-3.0)  # mended, and the config is what it was
    await counted("taken", 2)
    assert gateway.judging.model is not None
    assert gateway.judging.model.base == -3.0
    other.unlink()
    await counted("refused", 2)
    assert gateway.judging.model.base == -3.0
    watch.cancel()
    await gateway.close()


def samples(gateway: Gateway, name: str) -> list[str]:
    text = generate_latest(gateway.metrics.registry).decode()
    return [line for line in text.splitlines() if line.startswith(name)]


async def test_status_and_metrics_say_who_judges_and_a_drift_is_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "router.json"
    write(file, usual={"edges": [0.0], "shares": [0.9, 0.1]})
    gateway = Gateway(config(policy="learned", model_file=file))
    assert gateway.status()["routing"] == {
        "difficulty": "learned",
        "in_force": "learned",
        "share": 0.3,
        "drift_index": None,
        "drifted": False,
    }
    assert 'forebay_difficulty_in_force{policy="learned"} 1.0' in samples(gateway, "forebay_d")
    for _ in range(2000):
        gateway.judging.difficulty.judge(HARD, None)
    with caplog.at_level(logging.WARNING):
        gateway.keep_up()
        gateway.keep_up()
    assert [r.message for r in caplog.records if "no longer" in r.message] == [
        "the traffic is no longer what routing.difficulty.model_file was compared on: `prior` "
        "judges instead; train again"
    ]
    routing: Any = gateway.status()["routing"]
    assert (routing["in_force"], routing["drifted"]) == ("prior", True)
    assert routing["drift_index"] > 0.25
    told = samples(gateway, "forebay_difficulty")
    assert 'forebay_difficulty_in_force{policy="learned"} 0.0' in told
    assert 'forebay_difficulty_in_force{policy="prior"} 1.0' in told
    assert "forebay_difficulty_drifted 1.0" in told
    await gateway.close()
