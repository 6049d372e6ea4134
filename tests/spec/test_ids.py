"""Ids of the specification: unique, known where they are cited, and each MUST named by a test."""

from __future__ import annotations

import ast
import re
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[2]
SPEC = ROOT / "spec" / "deltastore-v1.md"
ID = re.compile(r"DS-[A-Z]+-[0-9]+")
DEFINED = re.compile(r"^(?:- )?\*\*(DS-[A-Z]+-[0-9]+)\*\* ")
RANGE = re.compile(r"(DS-[A-Z]+-)([0-9]+) to \1([0-9]+)")
MUST = re.compile(r"\bMUST\b")


def items() -> list[tuple[str, str]]:
    """Ids and texts of the requirements, in order."""
    found: list[tuple[str, list[str]]] = []
    inside = False
    for line in SPEC.read_text().splitlines():
        if match := DEFINED.match(line):
            found.append((match[1], [line]))
            inside = True
        elif inside and line.startswith("  "):
            found[-1][1].append(line)
        else:
            inside = False
    return [(id_, " ".join(lines)) for id_, lines in found]


def test_spec_is_parsed_as_requirements() -> None:
    bold = re.findall(r"\*\*(DS-[A-Z]+-[0-9]+)\*\*", SPEC.read_text())
    assert [id_ for id_, _ in items()] == bold
    assert len(bold) > 100


def test_ids_are_unique() -> None:
    assert {id_: n for id_, n in Counter(id_ for id_, _ in items()).items() if n > 1} == {}


def test_every_must_stands_in_a_requirement() -> None:
    text = SPEC.read_text()
    body = text[text.index("\n## 2. ") :]
    inside = sum(len(MUST.findall(item)) for _, item in items())
    assert len(MUST.findall(body)) == inside


def test_ids_that_the_spec_refers_to_exist() -> None:
    assert set(ID.findall(SPEC.read_text())) - {id_ for id_, _ in items()} == set()


def test_ids_that_the_code_cites_exist() -> None:
    defined = {id_ for id_, _ in items()}
    unknown = {
        f"{path.relative_to(ROOT)}: {id_}"
        for path in (ROOT / "deltastore").rglob("*.py")
        for id_ in cited(path.read_text())
        if id_ not in defined
    }
    assert unknown == set()


def test_sections_that_the_code_cites_exist() -> None:
    headings = {
        re.sub(r"`", "", h) for h in re.findall(r"^##+ [0-9.]+ (.*)$", SPEC.read_text(), re.MULTILINE)
    }
    unknown = {
        f"{path.relative_to(ROOT)}: {section}"
        for path in (ROOT / "deltastore").rglob("*.py")
        for docstring in docstrings(path)
        for cited_ in re.findall(r"\(spec, ([^)]*)\)", docstring)
        for section in cited_.split("; ")
        if section not in headings
    }
    assert unknown == set()


def docstrings(path: Path) -> list[str]:
    """All docstrings of a module."""
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef)
    nodes = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, kinds)]
    return [text for node in nodes if (text := ast.get_docstring(node))]


def test_ids_that_tests_name_exist() -> None:
    defined = {id_ for id_, _ in items()}
    assert {f"{where}: {id_}" for where, id_ in marked() if id_ not in defined} == set()


def test_every_must_is_named_by_a_test() -> None:
    named = {id_ for _, id_ in marked()}
    missing = [id_ for id_, text in items() if MUST.search(text) and id_ not in named]
    assert not missing, f"{len(missing)} requirements that no test names:\n" + "\n".join(missing)


def cited(text: str) -> set[str]:
    """Ids in a text, those inside of "X-1 to X-4" too."""
    ids = set(ID.findall(text))
    for area, low, high in RANGE.findall(text):
        ids |= {f"{area}{n}" for n in range(int(low), int(high) + 1)}
    return ids


def marked() -> list[tuple[str, str]]:
    """Test files and the ids in their `pytest.mark.req(...)`."""
    found = []
    for path in sorted((ROOT / "tests").rglob("*.py")):
        where = str(path.relative_to(ROOT))
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("mark.req"):
                for argument in node.args:
                    assert isinstance(argument, ast.Constant), f"{where}:{node.lineno}: not a literal id"
                    found.append((where, str(argument.value)))
    return found
