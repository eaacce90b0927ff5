"""The clients' keys that a bootstrap names: what Envoy 1.40 was seen to refuse, or to let nobody
in by, is told by client and line, and never with the key."""

from pathlib import Path

import pytest

from extproc.check import Finding, as_json, as_text, check_file, keys, run
from extproc.config import ConfigError
from extproc.up import UpError
from tests.unit.test_check_kit import REFERENCE

DEMO = REFERENCE.with_name("api-keys.yaml").read_text()
OWN = DEMO.replace("sk-demo-acme", "sk-first").replace("sk-demo-nightly", "sk-second")
CREDENTIALS = "".join(line for line in OWN.splitlines(True) if "{key: " in line)
SOURCES = "".join(line for line in OWN.splitlines(True) if "- header:" in line)


@pytest.fixture(autouse=True)
def _no_envoy(monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes any key file when it validates; it is not asked."""

    def absent() -> str:
        raise UpError("no Envoy")

    monkeypatch.setattr(run, "find_envoy", absent)


def found(folder: Path, text: str | bytes) -> list[Finding]:
    """With this key file where the bootstrap says; nothing that is shown has a key in it."""
    content = text if isinstance(text, bytes) else text.encode()
    (folder / "api-keys.yaml").write_bytes(content)
    (folder / "envoy.yaml").write_text(
        REFERENCE.read_text().replace("/etc/forebay", str(folder)), "utf-8"
    )
    report = check_file(folder / "envoy.yaml")
    shown = as_text(report.findings, report.notes) + as_json(report.findings, report.notes)
    for secret in ("sk-first", "sk-second", "sk-demo-", "31415926"):
        assert secret not in shown
    assert all(str(folder / "api-keys.yaml") in finding.place for finding in report.findings)
    return report.findings


def test_a_sound_file_with_own_keys_has_no_finding(tmp_path: Path) -> None:
    assert found(tmp_path, OWN) == []


@pytest.mark.parametrize(
    ("text", "words", "line"),
    [
        ("", "It is empty, or has no list", None),
        ("- 1", "It is empty, or has no list", None),
        ("resources: []\n", "It is empty, or has no list", 1),
        (OWN + "- {}\n", "more than one resource", 8),
        (OWN.replace("core.v3.Typed", "core.v3.Other"), "no envoy.config.core.v3.Typed", 8),
        (OWN.replace("name: api-keys", "name: keys"), "another name than the filter", 8),
        (OWN.replace("v3.ApiKeyAuth", "v3.Router"), "Its typed_config is no envoy.ext", 8),
        (OWN.replace("resources:", "resources: ["), "It is not YAML.", 8),
        (OWN.replace("sk-first", "*sk-first"), "It is not YAML.", 16),
        (OWN.replace("sk-first", "!sk-first x"), "It is not YAML.", 16),
        (OWN.encode() + b"# \xff", "It is not UTF-8.", None),
    ],
)
def test_what_envoy_refuses_whole_is_an_error(
    tmp_path: Path, text: str | bytes, words: str, line: int | None
) -> None:
    (finding,) = found(tmp_path, text)
    assert (finding.severity, finding.rule, finding.line) == ("error", "key-file", line)
    assert words in finding.reason
    assert "every request 503 gateway_unavailable" in finding.reason


def test_a_key_that_two_clients_have_is_told_by_their_names_and_lines(tmp_path: Path) -> None:
    (finding,) = found(tmp_path, OWN.replace("sk-second", "sk-first"))
    assert (finding.severity, finding.rule, finding.line) == ("error", "key-file", 17)
    assert finding.place == f"{tmp_path / 'api-keys.yaml'} (client nightly)"
    assert finding.reason.startswith("It has the same key as client acme in line 16;")


@pytest.mark.parametrize(
    ("old", "new", "words", "who"),
    [
        ("key: sk-first, ", "", "It has no key.", "client acme"),
        ("key: sk-first", "key: ''", "It has no key.", "client acme"),
        ("client: acme", "client: ''", "It has no client.", "credentials[0]"),
        ("sk-first", "31415926", "YAML does not read its key as text.", "client acme"),
        ("client: acme", "client: {key: sk-first}", "does not read its client", "credentials[0]"),
    ],
)
def test_a_credential_that_is_none_is_told_by_its_line(
    tmp_path: Path, old: str, new: str, words: str, who: str
) -> None:
    (finding,) = found(tmp_path, OWN.replace(old, new))
    assert (finding.severity, finding.rule, finding.line) == ("error", "key-file", 16)
    assert finding.place.endswith(f" ({who})")
    assert words in finding.reason


@pytest.mark.parametrize(
    ("field", "lines"), [("credentials", CREDENTIALS), ("key_sources", SOURCES)]
)
def test_a_file_that_lets_nobody_in_is_an_error(tmp_path: Path, field: str, lines: str) -> None:
    for text in (OWN.replace(lines, ""), OWN.replace(f"{field}:\n{lines}", f"{field}: []\n")):
        assert text != OWN
        (finding,) = found(tmp_path, text)
        assert (finding.severity, finding.rule) == ("error", "key-file")
        assert finding.reason.startswith(f"{field} names no ")
        assert "answered 401" in finding.reason


def test_demo_keys_where_they_let_in_are_a_warning(tmp_path: Path) -> None:
    assert [(one.severity, one.rule, one.line) for one in found(tmp_path, DEMO)] == [
        ("warning", "demo-key", 16),
        ("warning", "demo-key", 17),
    ]


def test_of_a_file_that_is_not_there_the_one_beside_the_bootstrap_is_read(tmp_path: Path) -> None:
    """The one that Envoy judges with; the demo keys may be in it, for it is not in use."""
    path = tmp_path / "envoy.yaml"
    path.write_text(REFERENCE.read_text().replace("/etc/forebay", "/nowhere"))
    assert check_file(path).findings == []
    (tmp_path / "api-keys.yaml").write_text(DEMO)
    assert check_file(path).findings == []
    (tmp_path / "api-keys.yaml").write_text(DEMO.replace("-nightly,", "-acme,"))
    (finding,) = check_file(path).findings
    assert finding.place == f"{tmp_path / 'api-keys.yaml'} (client nightly)"


def test_a_file_that_may_not_be_read_here_is_a_note(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def denied(path: Path) -> str:
        raise ConfigError(f"{path}: cannot be read: Permission denied") from PermissionError()

    monkeypatch.setattr(keys, "read_text", denied)  # the tests' user may read everything
    (tmp_path / "api-keys.yaml").write_text(OWN)
    path = tmp_path / "envoy.yaml"
    path.write_text(REFERENCE.read_text().replace("/etc/forebay", str(tmp_path)))
    report = check_file(path)
    assert report.findings == []
    assert report.notes[-1].startswith("the keys were not checked: ")
    assert report.notes[-1].endswith("Permission denied")
