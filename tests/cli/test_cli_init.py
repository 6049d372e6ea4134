"""`deltastore init`."""

from __future__ import annotations

from pathlib import Path

from cli_samples import lines, run

from deltastore import Store
from deltastore.protocol.identity import DEFAULT_GRACE, CommitMode


def test_a_store_is_made_and_its_id_is_all_of_stdout(tmp_path: Path) -> None:
    result = run("init", tmp_path / "new")
    assert result.exit_code == 0
    with Store.open(str(tmp_path / "new")) as store:
        assert result.stdout == f"{store.identity.store}\n"
        assert store.identity.commit is CommitMode.CONDITIONAL
        assert store.identity.grace == DEFAULT_GRACE
        assert f"deltastore doctor {store.url}" in result.stderr


def test_mode_and_grace_are_what_was_asked_for(tmp_path: Path) -> None:
    (found,) = lines("init", tmp_path / "new", "--single-writer", "--grace", 7200)
    assert (found["type"], found["commit"], found["grace"]) == ("store", "single-writer", 7200)
    with Store.open(found["url"]) as store:
        assert (store.identity.commit, store.identity.grace) == (CommitMode.SINGLE_WRITER, 7200)


def test_a_second_store_at_the_same_place_is_refused(root: Path) -> None:
    before = (root / "STORE.json").read_bytes()
    result = run("init", root)
    assert result.exit_code == 2
    assert "StoreExists" in result.stderr
    assert (root / "STORE.json").read_bytes() == before


def test_a_grace_of_nothing_is_refused(tmp_path: Path) -> None:
    assert run("init", tmp_path / "new", "--grace", 0).exit_code == 2
    assert not (tmp_path / "new").exists()


def test_a_url_that_nothing_understands_is_wrong_usage() -> None:
    result = run("init", "s4://bucket/store")
    assert result.exit_code == 2
    assert "BadURL" in result.stderr
