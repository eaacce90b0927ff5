"""`check_file`: reading, the Envoy binary, and how findings are shown."""

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from extproc.check import Finding, as_json, as_text, check_file, run
from extproc.up import UpError, find_envoy
from tests.unit.test_check_kit import REFERENCE, Document, sound

try:
    ENVOY = find_envoy()
except UpError:
    ENVOY = ""

needs_envoy = pytest.mark.skipif(not ENVOY, reason="there is no Envoy binary")


def written(folder: Path, document: Document) -> Path:
    path = folder / "envoy.yaml"
    path.write_text(yaml.safe_dump(document.data))
    return path


@needs_envoy
def test_envoy_takes_the_reference_and_a_sound_file(tmp_path: Path) -> None:
    here = tmp_path / "here.yaml"
    here.write_text(REFERENCE.read_text().replace("/etc/forebay", str(REFERENCE.parent)))
    report = check_file(here)
    assert ({one.rule for one in report.findings}, report.notes) == ({"demo-key"}, [])
    elsewhere = tmp_path / "elsewhere.yaml"
    elsewhere.write_text(REFERENCE.read_text().replace("/etc/forebay", "/nowhere"))
    report = check_file(elsewhere)
    assert (report.findings, report.ok) == ([], True)
    (note,) = report.notes
    assert "names /nowhere/api-keys.yaml, which is not on this machine" in note
    report = check_file(REFERENCE)  # whose keys stand under /etc, and for trying beside it
    assert report.ok
    if not Path("/etc/forebay/api-keys.yaml").exists():
        assert report.findings == []
        keys = REFERENCE.with_name("api-keys.yaml")
        told = f"/etc/forebay/api-keys.yaml is not on this machine; Envoy judged with {keys}"
        assert report.notes == [told]
    report = check_file(written(tmp_path, sound()))
    assert (report.findings, report.notes, report.ok) == ([], [], True)


@needs_envoy
def test_what_only_envoy_knows_is_an_error_at_its_place(tmp_path: Path) -> None:
    document = sound()
    document.filter("SseToMetadata")["response_rules"]["max_event_sizes"] = 9
    report = check_file(written(tmp_path, document))
    (finding,) = report.findings
    assert (finding.rule, finding.severity, report.ok) == ("envoy-refuses", "error", False)
    number = document.index("SseToMetadata")
    assert f"typed_config.http_filters[{number}].typed_config" in finding.place
    assert "no such field: 'max_event_sizes'" in finding.reason


@needs_envoy
def test_a_refusal_without_a_place_names_the_file(tmp_path: Path) -> None:
    document = sound()
    document.cluster("small")["lb_policy"] = "CLUSTER_PROVIDED"
    path = written(tmp_path, document)
    (finding,) = check_file(path).findings
    assert (finding.rule, finding.place) == ("envoy-refuses", str(path))


def alone(folder: Path, policy: str) -> Path:
    path = folder / "policy.yaml"
    path.write_text("forebay:\n  pools: {small: {model: s, slots: 1}}\n" + policy)
    return path


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("forbay: {pools: {}}\n", "missing; did you mean it by forbay?"),
        ("forebay:\n", "no keys stand in it; it needs pools at least."),
        ("static_resources: {}\n", "`forebay attach FILE` adds it"),
    ],
)
def test_a_file_without_a_policy_is_told_why(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text(text)
    finding = next(one for one in check_file(path).findings if one.rule == "policy")
    assert words in finding.reason


def test_text_that_is_no_yaml_has_a_line_and_a_reason(tmp_path: Path) -> None:
    path = alone(tmp_path, "  admission: {max_wait: 10s\n")
    (finding,) = check_file(path).findings
    assert (finding.rule, finding.place, finding.line) == ("unreadable-file", str(path), 4)
    assert finding.reason == (
        "not YAML: expected ',' or '}', but got '<stream end>', while parsing a flow mapping that "
        "begins in line 3, column 14."
    )


def test_a_key_that_a_block_has_twice_is_warned_of_with_both_lines(tmp_path: Path) -> None:
    path = alone(tmp_path, "  drain: 1s\n  routing: {small: small}\n  drain: 2s\n")
    (finding,) = check_file(path).findings
    assert (finding.severity, finding.rule) == ("warning", "duplicate-key")
    assert (finding.place, finding.line) == ("forebay.drain", 5)
    assert "in line 3 too" in finding.reason


def test_equal_keys_of_different_blocks_and_merged_ones_are_not_twice(tmp_path: Path) -> None:
    merged = "  tenants: {a: &a {weight: 2}, b: {<<: *a, weight: 3}, c: *a}\n"
    assert check_file(alone(tmp_path, merged)).findings == []


def test_a_secret_that_is_not_here_is_a_note(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FOREBAY_CACHE_SECRET", raising=False)
    shared = "  cache: {exact: {}, store: {redis: {url: 'redis://h:1'}}%s}\n"
    report = check_file(alone(tmp_path, shared % ""))
    assert (report.findings, report.ok) == ([], True)
    assert "would not start: forebay.cache.secret_file: missing" in report.notes[-1]
    report = check_file(alone(tmp_path, shared % ", secret_file: /nowhere/secret"))
    assert "/nowhere/secret cannot be read" in report.notes[-1]
    monkeypatch.setenv("FOREBAY_CACHE_SECRET", "x" * 16)
    assert "would not start" not in str(check_file(alone(tmp_path, shared % "")).notes)


def test_packages_that_are_not_here_are_a_note(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "find_spec", lambda name: None)
    semantic = "  cache: {exact: {}, semantic: {%s}}\n"
    notes = check_file(alone(tmp_path, semantic % "")).notes
    assert "simplemma, onnxruntime, tokenizers not installed: " in notes[-1]
    assert f"{sys.executable} -m pip install 'forebay[semantic]'" in notes[-1]
    url = "embedder: {url: 'http://h:1', model: m}"
    assert "semantic: simplemma not inst" in check_file(alone(tmp_path, semantic % url)).notes[-1]
    monkeypatch.setattr(run, "find_spec", lambda name: name)
    assert "not installed" not in str(check_file(alone(tmp_path, semantic % "")).notes)


def test_without_a_binary_there_is_a_note(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def absent() -> str:
        raise UpError("there is no envoy; install it")

    monkeypatch.setattr(run, "find_envoy", absent)
    report = check_file(written(tmp_path, sound()))
    assert (report.findings, report.ok) == ([], True)
    assert report.notes == ["not validated by Envoy itself: there is no envoy; install it"]
    monkeypatch.setattr(run, "find_envoy", lambda: str(tmp_path / "none"))
    assert "No such file" in check_file(written(tmp_path, sound())).notes[0]


def test_a_binary_that_does_not_end_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = tmp_path / "envoy"
    slow.write_text("#!/bin/sh\nsleep 60 & wait\n")
    slow.chmod(slow.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setattr(run, "find_envoy", lambda: str(slow))
    monkeypatch.setattr(run.binary, "_WITHIN_S", 0.2)
    (finding,) = check_file(written(tmp_path, sound())).findings
    assert (finding.rule, finding.severity) == ("envoy-slow", "warning")


def test_a_policy_alone_is_checked_alone(tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text("forebay: {pools: {small: {model: s, slots: 1}, large: {model: l, slots: 1}}}")
    report = check_file(path)
    assert (report.findings, report.ok) == ([], True)
    assert report.notes == ["the file holds no bootstrap: only the policy was checked"]
    path.write_text("forebay: {pools: {small: {model: s, slots: 0}}, drain: 5}")
    found = {finding.place: finding.rule for finding in check_file(path).findings}
    assert found == {"forebay.pools.small.slots": "policy", "forebay.drain": "policy"}


@pytest.mark.parametrize("text", ["", "a: [", "- 1", "x: 1", "\x00", "a: &a [*a]", "forebay: 7"])
def test_a_file_that_is_nothing_is_an_error(tmp_path: Path, text: str) -> None:
    path = tmp_path / "x.yaml"
    path.write_text(text)
    report = check_file(path)
    assert not report.ok
    assert len(report.findings) == 1


def test_each_finding_names_its_line(tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text(
        "forebay:\n"
        "  pools:\n"
        "    small.v1: {model: s, slots: 0}\n"
        "    large:\n"
        "      model: l\n"
        "  drain: 5\n"
    )
    report = check_file(path)
    assert {finding.place: finding.line for finding in report.findings} == {
        "forebay.pools.small.v1.slots": 3,
        "forebay.pools.large.slots": 4,  # missing: the block that lacks it
        "forebay.drain": 6,
    }
    assert "line 6: forebay.drain\n" in as_text(report.findings)


def test_in_a_bootstrap_too_also_where_a_place_leaves_out_the_middle(tmp_path: Path) -> None:
    text = REFERENCE.read_text()
    for old, new in (("message_timeout: 15s", "message_timeout: 11m"), ("slots: 16", "slots: x")):
        assert text.count(old) == 1
        text = text.replace(old, new)
    path = tmp_path / "envoy.yaml"
    path.write_text(text)
    report = check_file(path)
    lines = text.splitlines()
    found = {finding.place: lines[(finding.line or 0) - 1] for finding in report.findings}
    policy = found.pop("node.metadata.forebay.pools.large.slots")
    assert "slots: x" in policy
    timeout = next(line for place, line in found.items() if "message_timeout" in place)
    assert "message_timeout: 11m" in timeout


def test_a_missing_file_is_an_error_that_names_it(tmp_path: Path) -> None:
    (finding,) = check_file(tmp_path / "none.yaml").findings
    assert (finding.rule, finding.place) == ("unreadable-file", str(tmp_path / "none.yaml"))


def test_the_text_has_errors_first_by_place_and_ends_with_the_count() -> None:
    findings = [
        Finding("warning", "w", "b", "it may.", "do that"),
        Finding("error", "e1", "a (x)", "it " + "bites " * 30 + "hard.", "do this"),
        Finding("error", "e2", "a (x)", "it barks.", "do so"),
    ]
    text = as_text(findings, ["no envoy"])
    lines = text.splitlines()
    assert lines[0] == "ERRORS"
    assert lines.count("a (x)") == 1
    assert max(map(len, lines)) <= 100
    assert text.index("e1:") < text.index("e2:") < text.index("WARNINGS") < text.index("w:")
    assert lines[-2:] == ["note: no envoy", "2 errors, 1 warning."]
    assert as_text([]) == "Nothing found."


def test_the_last_line_does_not_contradict_a_note() -> None:
    note = "the processor would not start"
    last = as_text([], [note]).splitlines()[-1]
    assert last == "Nothing found in the file, but see the note above."
    last = as_text([], [note, note]).splitlines()[-1]
    assert last == "Nothing found in the file, but see the 2 notes above."


def test_the_json_holds_everything() -> None:
    finding = Finding("error", "e", "a", "it bites.", "do this")
    assert json.loads(as_json([finding], ["n"])) == {
        "findings": [
            {
                "severity": "error",
                "rule": "e",
                "place": "a",
                "reason": "it bites.",
                "mend": "do this",
                "line": None,
            }
        ],
        "notes": ["n"],
        "errors": 1,
        "warnings": 0,
    }


def test_envoys_types_are_loaded_by_a_check_alone() -> None:
    """Neither the processor nor the import of the room pays for them."""
    code = (
        "import sys; import extproc.check, extproc.server;"
        "print(any(m.startswith(('envoy_data_plane', 'betterproto2')) for m in sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        cwd=REFERENCE.parents[1],
        env={**os.environ},
    )
    assert done.stdout.strip() == "False"
