"""`deltastore log`."""

from __future__ import annotations

from pathlib import Path

import pytest
from cli_samples import CLAIM, COLLECTED, NEWEST, SKIPPED, lines, record_path, run, succeed

from deltastore import Store
from deltastore.backends import LocalBackend
from deltastore.producer.term import Term
from deltastore.testing import FaultBackend


def rows(*args: object) -> dict[int, str]:
    """Rows of the table by version."""
    found = {}
    for line in succeed("log", *args).splitlines()[1:]:
        words = line.lstrip("●◆◇○▲✗│─╮╯┤┬┴┼ ").split()
        found[int(words[0])] = line
    return found


def test_versions_are_listed_newest_first_with_claims_folded(root: Path) -> None:
    assert list(rows(root)) == [8, 7, 6, 4, 3, 2, 1]


def test_a_folded_claim_leaves_a_mark_at_the_version_after_it(root: Path) -> None:
    marked = {version for version, line in rows(root).items() if "▲ claim" in line}
    assert marked == {1, 6}
    assert f"▲ claim {CLAIM}" in rows(root)[6]


def test_claims_are_rows_with_all(root: Path) -> None:
    found = rows(root, "--all")
    assert list(found) == [8, 7, 6, 5, 4, 3, 2, 1, 0]
    assert found[CLAIM].startswith("▲")
    assert "claim" in found[CLAIM]


def test_anchors_and_collected_versions_have_their_own_signs(root: Path) -> None:
    signs = {version: line[0] for version, line in rows(root).items()}
    assert signs == {8: "●", 7: "●", 6: "●", 4: "●", 3: "◇", COLLECTED: "○", 1: "◆"}


def test_a_skip_is_drawn_down_to_its_base(root: Path) -> None:
    found = rows(root)
    assert [found[v][:3] for v in (6, 4, 3)] == ["●─╮", "● │", "◇─╯"]
    assert "skip from 3" in found[SKIPPED]


def test_a_row_says_step_density_bytes_ratio_and_term(root: Path) -> None:
    info = lines("log", root, "-n", "1")[0]
    words = rows(root)[NEWEST].split()
    assert words[1:3] == ["8", "60"]
    assert f"{100 * info['density']:.3f}"[:3] in rows(root)[NEWEST]
    assert words[-1] == "2"


def test_a_count_limits_what_is_shown_and_says_so(root: Path) -> None:
    result = run("log", root, "-n", "2")
    assert [line.split()[1] for line in result.stdout.splitlines()[1:]] == ["8", "7"]
    assert "2 of 9 versions" in result.stderr
    assert "-n 0 shows all" in result.stderr


def test_the_log_is_not_read_as_a_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Store.create(str(tmp_path / "long")) as store:
        for _ in range(40):
            Term.begin(store, takeover=True)
    watched = FaultBackend(LocalBackend(tmp_path / "long"))
    monkeypatch.setattr("deltastore.store.store.open_backend", lambda url, options: watched)

    assert len(lines("log", "any", "-n", "5")) == 5
    reads = [o for o in watched.operations if o.name == "get" and o.key.startswith("versions/")]
    assert len(reads) <= 5 + 1 + 4  # what is shown, the one behind it, and those in flight
    assert sum(o.name == "list" for o in watched.operations) == 1


def test_json_has_every_version_and_its_numbers(root: Path) -> None:
    found = {one["version"]: one for one in lines("log", root)}
    assert list(found) == [8, 7, 6, 5, 4, 3, 2, 1, 0]
    assert [found[v]["kind"] for v in (8, 5, 2)] == ["data", "claim", "collected"]
    assert (found[4]["changed"], found[4]["total"]) == (5, 40 * 16 + 16 * 24 + 9)
    assert found[4]["ratio"] == found[4]["stored_bytes"] / found[4]["full_bytes"]
    assert found[4]["full_bytes"] == 2 * (40 * 16 + 16 * 24) + 4 * 9
    assert len(found[4]["state"]) == 16
    assert len(found[4]["record_sha256"]) == 64
    assert [found[v]["anchor"] for v in (1, 3, 4)] == ["embedded", "added", None]
    assert found[SKIPPED]["skips"] == [3]
    assert [found[v]["term"] for v in (4, 5, 8)] == [1, 2, 2]


def test_a_record_that_cannot_be_read_is_shown_and_fails(root: Path) -> None:
    record_path(root, 4).write_bytes(b"nonsense")
    result = run("log", root)
    assert result.exit_code == 4
    damaged = next(line for line in result.stdout.splitlines() if "damaged" in line)
    assert damaged.startswith("✗")
    assert "record of version 4" in damaged
    assert "data" in result.stdout.splitlines()[-1]


def test_json_reports_a_damaged_record_by_its_version(root: Path) -> None:
    record_path(root, 4).write_bytes(b"nonsense")
    found = lines("log", root, code=4)
    assert [one["version"] for one in found if one["type"] == "damaged"] == [4]
    assert len(found) == 9


def test_an_empty_store_has_no_rows(tmp_path: Path) -> None:
    Store.create(str(tmp_path / "empty")).close()
    result = run("log", tmp_path / "empty")
    assert (result.exit_code, result.stdout) == (0, "")
    assert "no versions yet" in result.stderr
    assert lines("log", tmp_path / "empty") == []


def test_a_log_of_claims_only_shows_the_newest(tmp_path: Path) -> None:
    with Store.create(str(tmp_path / "claims")) as store:
        for _ in range(3):
            Term.begin(store, takeover=True)
    assert list(rows(tmp_path / "claims")) == [2]
    assert "▲ claim 1, 0" in rows(tmp_path / "claims")[2]
