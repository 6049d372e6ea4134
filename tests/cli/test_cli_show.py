"""`deltastore show`."""

from __future__ import annotations

from pathlib import Path

from cli_samples import ANCHORED, COLLECTED, FILES, NEWEST, lines, record_path, run, succeed

from deltastore import ExternalBase, Producer, Store
from deltastore.protocol import keys
from deltastore.protocol.wire import sha256


def test_the_newest_version_is_shown_by_default(root: Path) -> None:
    assert succeed("show", root).startswith(f"version {NEWEST}\n")


def test_text_has_every_field_of_the_record(root: Path) -> None:
    with Store.open(str(root)) as store:
        slot = store.log.require(4)
    text = succeed("show", root, 4, "--full")
    for said in (
        f"record        {slot.sha256} ({len(slot.data)} B)",
        f"parent        {slot.record.parent} (version 3)",
        f"state         {slot.record.state:016x}",
        "term          1, which began with version 0",
        "step          40",
        'user          {"loss": 0.25}',
        "resumed from  none",
        "last anchor   version 1 or newer",
        "requires      nothing",
        "changed    5 of 1,033 (0.48 %)",
        "full sync  2.08 kB (2,084 bytes)",
        "tensors  4: 2 BF16, 1 F32",
        "ties     head.weight = embed.weight",
        "edge from 3, in the version's record",
        "embed.weight … scale (4)",
    ):
        assert said in text
    for name, data in FILES.items():
        assert name in text
        assert sha256(data) in text


def test_hashes_are_short_unless_asked_for(root: Path) -> None:
    digest = lines("show", root, 4)[0]["record_sha256"]
    assert digest not in succeed("show", root, 4)
    assert f"{digest[:12]}…" in succeed("show", root, 4)


def test_added_edges_are_shown_beside_the_embedded_one(root: Path) -> None:
    text = succeed("show", root, ANCHORED)
    assert "edge from 2, in the version's record" in text
    assert "anchor, added later" in text
    edges = lines("show", root, ANCHORED)[0]["edges"]
    assert [(edge["base"], edge["embedded"]) for edge in edges] == [(2, True), ("none", False)]


def test_an_embedded_anchor_with_a_record_of_its_own_is_one_edge(root: Path) -> None:
    (edge,) = lines("show", root, 1)[0]["edges"]
    assert (edge["base"], edge["embedded"], edge["key"]) == ("none", True, None)


def test_a_version_is_found_by_step_the_highest_first(root: Path) -> None:
    assert lines("show", root, "--step", 40)[0]["version"] == 6
    assert lines("show", root, "--step", 30)[0]["version"] == 3


def test_json_is_one_object_with_hashes_in_full(root: Path) -> None:
    (found,) = lines("show", root, 4)
    assert found["type"] == "version"
    assert found["record_sha256"] == sha256(record_path(root, 4).read_bytes())
    assert found["record_bytes"] == record_path(root, 4).stat().st_size
    assert found["files"]["config.json"] == {
        "sha256": sha256(FILES["config.json"]),
        "size": len(FILES["config.json"]),
    }
    assert found["schema"]["ties"] == {"head.weight": "embed.weight"}
    (shard,) = found["edges"][0]["shards"]
    data = (root / keys.object_(shard["sha256"])).read_bytes()
    assert (len(data), sha256(data)) == (shard["size"], shard["sha256"])
    assert shard["slices"] == [[0, 4]]
    assert len(shard["xxh3"]) == len(shard["state_delta"]) == 16
    assert found["stats"]["stored"] == len(data)
    assert found["user"] == {"loss": 0.25}


def test_of_a_collected_version_what_remains_is_shown(root: Path) -> None:
    text = succeed("show", root, COLLECTED)
    assert "collected: this is what its tombstone keeps" in text
    assert "step    20" in text
    (found,) = lines("show", root, "--step", 20)
    assert (found["version"], found["kind"]) == (COLLECTED, "collected")
    assert found["edges"] == []
    assert "user" not in found


def test_a_claim_has_no_step_and_no_cost(root: Path) -> None:
    text = succeed("show", root, 5)
    assert "kind          claim" in text
    assert "what it cost" not in text
    assert lines("show", root, 5)[0]["step"] is None


def test_an_external_base_is_named(root: Path, tmp_path: Path) -> None:
    base = tmp_path / "base"
    assert run("materialize", root, base).exit_code == 0
    with Store.create(str(tmp_path / "based")) as store:
        weights = dict(ExternalBase(base).state().tensors())
        with Producer(store, base=ExternalBase(base, "hf://org/tiny@main")) as producer:
            producer.publish(weights, step=1).result(60)
    assert "hf://org/tiny@main" in succeed("show", tmp_path / "based", 0)
    assert lines("show", tmp_path / "based", 0)[0]["external"]["url"] == "hf://org/tiny@main"
    assert "edge from external" in succeed("show", tmp_path / "based", 1)


def test_a_version_and_a_step_are_too_much(root: Path) -> None:
    result = run("show", root, 4, "--step", 40)
    assert result.exit_code == 2
    assert "Give one of them" in result.stderr


def test_a_version_that_does_not_exist_is_out_of_reach(root: Path) -> None:
    assert run("show", root, 99).exit_code == 6
    assert run("show", root, "--step", 41).exit_code == 6


def test_a_damaged_record_is_an_integrity_error(root: Path) -> None:
    record_path(root, 4).write_bytes(record_path(root, 3).read_bytes())
    result = run("show", root, 4)
    assert result.exit_code == 4
    assert result.stderr.startswith("error: BadRecord: record of version 4 says that it is version 3")
    (found,) = lines("show", root, 4, code=4)
    assert (found["type"], found["error"], found["exit_code"]) == ("error", "BadRecord", 4)


def test_a_damaged_edge_record_is_shown_and_fails(root: Path) -> None:
    (path,) = (root / keys.edges_of(ANCHORED)).iterdir()
    path.write_bytes(b"nonsense")
    result = run("show", root, ANCHORED)
    assert result.exit_code == 4
    assert "cannot be read" in result.stdout
    assert "edge from 2, in the version's record" in result.stdout
    assert lines("show", root, ANCHORED, code=4)[0]["edges"][1]["problem"]


def test_a_lost_schema_is_shown_and_fails(root: Path) -> None:
    schema = lines("show", root)[0]["schema"]["sha256"]
    (root / keys.object_(schema)).unlink()
    result = run("show", root)
    assert result.exit_code == 4
    assert "no such file" in result.stdout.lower()
    assert "tensor 0 … tensor 3 (4)" in result.stdout
