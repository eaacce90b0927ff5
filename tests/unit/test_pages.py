"""What the Markdown pages point to is there: files, headings, and pages named by messages.

GitHub shows these pages, so links are resolved as GitHub does it: relative to the page, letter by
letter, a heading by its slug. Addresses of the web are not asked.
"""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
_NOT_OURS = {".venv", ".git", "node_modules", "bench"}
PAGES = sorted(
    path.relative_to(ROOT)
    for path in (*ROOT.glob("*.md"), *ROOT.glob("[!.]*/**/*.md"))
    if not _NOT_OURS & set(path.relative_to(ROOT).parts[:1])
)
LONGEST_WITHOUT_CONTENTS = 120
LONGEST_FRONT_PAGE = 350


def _prose(page: Path) -> Iterator[str]:
    """The lines of a page that Markdown reads as text: no fence, no indented code."""
    fenced, before = False, ""
    for line in (ROOT / page).read_text().splitlines():
        if line.startswith("```"):
            fenced = not fenced
        elif not fenced and not (line.startswith("    ") and not before.startswith("- ")):
            yield line
        before = line if line.strip() else ""


def _slug(heading: str) -> str:
    """As GitHub makes it: lower case, hyphens for spaces, no other punctuation but underscores."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


def _anchors(page: Path) -> set[str]:
    found: dict[str, int] = {}
    anchors: set[str] = set()
    for line in _prose(page):
        if heading := re.match(r"#{1,6} (.*)", line):
            slug = _slug(heading[1])
            times = found[slug] = found.get(slug, -1) + 1
            anchors.add(f"{slug}-{times}" if times else slug)
    return anchors


def _links(page: Path) -> list[str]:
    text = re.sub(r"`[^`]*`", "`", "\n".join(_prose(page)))
    return re.findall(r"\]\(([^)\s]+)\)", text)


def _exists(path: Path) -> bool:
    """Letter by letter, also where the file system does not mind capitals."""
    if not path.is_relative_to(ROOT):
        return False
    here = ROOT
    for part in path.relative_to(ROOT).parts:
        if part not in {child.name for child in here.iterdir()}:
            return False
        here /= part
    return True


def _broken(page: Path) -> list[str]:
    problems: list[str] = []
    for link in _links(page):
        if re.match(r"[a-z]+:", link):
            continue
        to, _, anchor = link.partition("#")
        target = (ROOT / page.parent / to).resolve() if to else ROOT / page
        if not _exists(target):
            problems.append(f"{page}: {link}: there is no such file")
        elif anchor and anchor not in _anchors(target.relative_to(ROOT)):
            problems.append(f"{page}: {link}: {to or page} has no such heading")
    return problems


def test_all_pages_are_looked_at() -> None:
    assert {Path("README.md"), Path("envoy/README.md"), Path("extproc/bench/README.md")} <= {*PAGES}
    assert sum(len(_links(page)) for page in PAGES) > 80, "are links still found?"


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_links_lead_somewhere(page: Path) -> None:
    assert _broken(page) == []


def test_a_broken_link_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{__name__}.ROOT", tmp_path)
    (tmp_path / "a.md").write_text(
        "# A `b`, c\n[1](#a-b-c) [2](#nothing) [3](b.md) [4](A.md) [5](https://example.com/x)\n"
        "```\n[6](nowhere.md)\n# Not a heading\n```\n[7](a.md#not-a-heading)\n"
    )
    assert [problem.split(": ")[1] for problem in _broken(Path("a.md"))] == [
        *("#nothing", "b.md", "A.md", "a.md#not-a-heading"),
    ]


@pytest.mark.parametrize("page", [p for p in PAGES if p.name == "README.md"], ids=str)
def test_a_long_page_begins_with_a_list_of_its_contents(page: Path) -> None:
    lines = list(_prose(page))
    if len((ROOT / page).read_text().splitlines()) <= LONGEST_WITHOUT_CONTENTS:
        return
    chapters = [line[3:] for line in lines if line.startswith("## ")]
    first = next(i for i, line in enumerate(lines) if "](#" in line)
    listed = set(re.findall(r"\]\(#([\w-]+)\)", "\n".join(lines)))
    assert first < LONGEST_WITHOUT_CONTENTS
    assert {_slug(chapter) for chapter in chapters} - listed - {"contents"} == set()


def test_the_front_page_stays_one() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= LONGEST_FRONT_PAGE


def test_pages_that_messages_and_comments_name_are_there() -> None:
    named: set[str] = set()
    for pattern in ("extproc/**/*.py", "serving/**/*.py", "envoy/*.yaml", "compose/**/*.y*ml"):
        for path in ROOT.glob(pattern):
            named |= set(re.findall(r"[\w/]*README(?:\.md)?", path.read_text()))
    assert named, "at least `forebay check` names one"
    assert all((ROOT / name).is_file() for name in named), named
