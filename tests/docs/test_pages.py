"""What the pages say of the tree is true: links, paths, errors, commands, numbers of decisions."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

from deltastore import errors

ROOT = Path(__file__).parents[2]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
GUIDE = ROOT / "docs" / "guide.md"
DECISIONS = ROOT / "docs" / "decisions"

_LINK = re.compile(r"\]\(([^)#\s]+)(#[^)\s]*)?\)")
_ANCHOR = re.compile(r"\]\(([^)#\s]*)#([^)\s]+)\)")
_PATH = re.compile(r"`((?:deltastore|tests|docs|spec)/[\w./-]+)`")
_ERROR = re.compile(r"^\| `(\w+)` \| (\d+) \|", re.MULTILINE)
_TARGET = re.compile(r"`make ([a-z]+)")


def ids(page: Path) -> str:
    """How a page is called in a report."""
    return str(page.relative_to(ROOT))


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as Git hosts make them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=ids)
def test_links_lead_somewhere(page: Path) -> None:
    local = [target for target, _ in _LINK.findall(page.read_text()) if "://" not in target]

    assert [target for target in local if not (page.parent / target).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=ids)
def test_links_into_pages_lead_to_headings(page: Path) -> None:
    lost = []
    for target, anchor in _ANCHOR.findall(page.read_text()):
        other = page.parent / target if target else page
        if "://" not in target and anchor not in anchors(other):
            lost.append(f"{target}#{anchor}")

    assert lost == []


@pytest.mark.parametrize("page", PAGES, ids=ids)
def test_paths_that_a_page_names_exist(page: Path) -> None:
    assert [path for path in _PATH.findall(page.read_text()) if not (ROOT / path).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=ids)
def test_make_targets_that_a_page_names_exist(page: Path) -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))

    assert set(_TARGET.findall(page.read_text())) <= targets


def test_the_guide_lists_every_error_with_its_exit_status() -> None:
    classes = [value for _, value in inspect.getmembers(errors, inspect.isclass)]
    groups = {base for value in classes for base in value.__bases__}
    known = {
        value.__name__: value.code
        for value in classes
        if issubclass(value, errors.DeltaStoreError) and value not in groups
    }

    listed = [(name, int(code)) for name, code in _ERROR.findall(GUIDE.read_text())]

    assert dict(listed) == known
    assert len(listed) == len(known)


def test_decisions_are_numbered_without_gaps_and_keep_to_the_template() -> None:
    pages = sorted(DECISIONS.glob("[0-9]*.md"))

    assert [int(page.name[:4]) for page in pages] == list(range(1, len(pages) + 1))
    for page in pages:
        text = page.read_text()
        assert text.startswith(f"# {int(page.name[:4])}. "), page.name
        assert re.findall(r"^## (.*)$", text, re.MULTILINE) == ["Context", "Decision", "Consequences"], (
            page.name
        )


def test_the_index_of_decisions_lists_them_all() -> None:
    index = (DECISIONS / "README.md").read_text()

    assert [page.name for page in sorted(DECISIONS.glob("[0-9]*.md")) if f"({page.name})" not in index] == []
