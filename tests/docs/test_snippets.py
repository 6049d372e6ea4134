"""Every Python block of the README and of docs/ runs as it is written."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]

_BLOCK = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def blocks(text: str) -> list[tuple[int, str]]:
    """The Python blocks of a page, and the lines that they start on."""
    return [(text.count("\n", 0, found.start()) + 2, found[1]) for found in _BLOCK.finditer(text)]


def run(page: Path, namespace: dict[str, object]) -> None:
    """Runs the blocks of a page from top to bottom as one program; tracebacks name the page's lines."""
    for line, source in blocks(page.read_text()):
        code = compile("\n" * (line - 1) + source, str(page), "exec")
        exec(code, namespace)


WITH_CODE = [page for page in PAGES if blocks(page.read_text())]


@pytest.mark.parametrize("page", WITH_CODE, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_python_of_a_page_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    run(page, {"__name__": "__main__"})


def test_pages_that_show_code_are_found() -> None:
    assert {page.name for page in WITH_CODE} >= {"README.md", "guide.md"}


def test_a_block_that_fails_is_noticed_where_it_stands(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# Page\n\n```python\nx = 1\n```\n\ntext\n\n```python\nassert x == 2\n```\n")

    with pytest.raises(AssertionError) as caught:
        run(page, {})

    assert (caught.traceback[-1].path, caught.traceback[-1].lineno) == (page, 9)
