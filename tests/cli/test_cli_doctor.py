"""`deltastore doctor`."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from cli_samples import NEWEST, collect, lines, record_path, run, succeed

from deltastore import ExternalBase, Producer, Store
from deltastore.backends import MemoryBackend
from deltastore.codec import kernels
from deltastore.errors import AuthError
from deltastore.protocol import keys
from deltastore.testing import Fault, FaultBackend


def verdicts(*args: object, code: int = 0) -> dict[str, str]:
    """The verdict of each check."""
    return {
        one["name"]: one["verdict"] for one in lines("doctor", *args, code=code) if one["type"] == "finding"
    }


def contents(root: Path) -> dict[str, bytes]:
    """All files under a directory."""
    return {str(path): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def test_without_a_url_it_says_what_is_installed() -> None:
    text = succeed("doctor")
    assert re.search(rf"kernels +{kernels.NAME}$", text, re.MULTILINE)
    (found,) = lines("doctor")
    assert found["kernels"] == kernels.NAME
    assert found["type"] == "environment"
    assert {"deltastore", "python", "numpy", "safetensors", "zstandard", "torch"} <= found["versions"].keys()


def test_a_sound_store_passes_every_check(root: Path) -> None:
    found = verdicts(root)
    assert set(found.values()) == {"pass"}
    assert {
        "conditional create",
        "read after write",
        "listing",
        "ranged get",
        "clock",
        "delete",
    } <= found.keys()
    assert {"STORE.json", "newest version", "chain", "schema", "way from nothing", "objects"} <= found.keys()
    *_, summary = lines("doctor", root)
    assert (summary["type"], summary["fail"], summary["exit_code"]) == ("summary", 0, 0)


def test_text_has_a_line_for_each_check(root: Path) -> None:
    text = succeed("doctor", root)
    assert "  PASS  conditional create" in text
    assert f"{NEWEST}, term 2, step 60" in text
    assert "versions 0 to 8 follow each other; 1 of them collected" in text


def test_the_probe_leaves_nothing_behind(root: Path) -> None:
    before = contents(root)
    verdicts(root)
    assert contents(root) == before


def test_read_only_writes_nothing_at_all(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    watched = FaultBackend(MemoryBackend("read-only"))
    Store.create(watched).close()
    monkeypatch.setattr("deltastore.cli.doctor.open_backend", lambda url: watched)
    done = len(watched.operations)
    found = verdicts("memory://read-only", "--read-only")
    assert "conditional create" not in found
    assert {one.name for one in watched.operations[done:]} <= {"get", "head", "list"}


def test_without_a_store_nothing_is_written(tmp_path: Path) -> None:
    result = run("doctor", tmp_path / "typo")
    assert result.exit_code == 3
    assert "FAIL  STORE.json  NotFound: there is no store" in result.stdout
    assert not (tmp_path / "typo").exists()


def test_storage_that_refuses_us_is_unreachable(monkeypatch: pytest.MonkeyPatch) -> None:
    refusing = FaultBackend(MemoryBackend(), lambda _: Fault(before=AuthError("the credentials are wrong")))
    monkeypatch.setattr("deltastore.cli.doctor.open_backend", lambda url: refusing)
    assert verdicts("any", code=3) == {"STORE.json": "fail"}


def test_an_empty_store_is_sound(tmp_path: Path) -> None:
    assert run("init", tmp_path / "new").exit_code == 0
    assert set(verdicts(tmp_path / "new").values()) == {"pass"}


def test_a_damaged_record_is_found(root: Path) -> None:
    record_path(root, 4).write_bytes(b"nonsense")
    assert verdicts(root, code=4)["log"] == "fail"


def test_a_missing_record_is_found(root: Path) -> None:
    record_path(root, 4).unlink()
    result = run("doctor", root, "--read-only")
    assert result.exit_code == 4


def test_a_broken_chain_is_found(root: Path) -> None:
    with Store.open(str(root)) as store:
        collect(store, 3)
        stone = record_path(root, 3).read_bytes()
        digest = bytes.fromhex(store.log.require(3).sha256)
    record_path(root, 3).write_bytes(stone.replace(digest, bytes(32)))
    result = run("doctor", root)
    assert result.exit_code == 4
    assert "Diverged: record of version 4" in result.stdout


def test_a_lost_shard_of_the_way_from_nothing_is_found(root: Path) -> None:
    shard = lines("show", root)[0]["edges"][0]["shards"][0]["sha256"]
    path = root / keys.object_(shard)
    data = path.read_bytes()
    path.unlink()
    assert verdicts(root, code=4)["objects"] == "fail"
    path.write_bytes(data[:-1])
    result = run("doctor", root)
    assert result.exit_code == 4
    assert f"has {len(data) - 1} bytes, not {len(data)}" in result.stdout


def test_a_newest_version_that_nothing_leads_to_is_found(root: Path) -> None:
    with Store.open(str(root)) as store:
        collect(store, 7)
    assert verdicts(root, code=4)["way from nothing"] == "fail"


def test_a_collected_newest_version_is_found(root: Path) -> None:
    with Store.open(str(root)) as store:
        collect(store, NEWEST)
    assert verdicts(root, code=4)["way from nothing"] == "fail"


def test_a_store_on_an_external_base_is_warned_about(root: Path, tmp_path: Path) -> None:
    base = tmp_path / "base"
    assert run("materialize", root, base).exit_code == 0
    with Store.create(str(tmp_path / "based")) as store:
        weights = dict(ExternalBase(base).state().tensors())
        with Producer(store, base=ExternalBase(base, "hf://org/tiny@main"), anchors=None) as producer:
            producer.publish(weights, step=1).result(60)
    result = run("doctor", tmp_path / "based")
    assert result.exit_code == 0
    assert "WARN  way from nothing  only on top of hf://org/tiny@main" in result.stdout


def test_a_single_writer_store_without_conditional_create_is_warned_about(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plain = MemoryBackend("plain", conditional=False)
    Store.create(plain).close()
    monkeypatch.setattr("deltastore.cli.doctor.open_backend", lambda url: plain)
    found = verdicts("any")
    assert found.pop("conditional create") == "warn"
    assert set(found.values()) == {"pass"}


def test_storage_that_breaks_its_promises_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    lying = FaultBackend(
        MemoryBackend(), lambda op: Fault(alter=lambda data: data[:1]) if op.key.endswith("-b") else None
    )
    Store.create(lying).close()
    monkeypatch.setattr("deltastore.cli.doctor.open_backend", lambda url: lying)
    assert verdicts("any", code=4)["read after write"] == "fail"
