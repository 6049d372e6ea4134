"""`deltastore diff`."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import pytest
from cli_samples import COLLECTED, Sample, initial, lines, move, run, succeed
from hypothesis import given
from hypothesis import strategies as st

from deltastore import Producer, Store
from deltastore.cli.compare import differing
from deltastore.protocol.digest import Lanes
from deltastore.slicing import cut
from deltastore.tensors.host import HostTensor


def test_changes_are_counted_by_tensor_and_size_of_step(root: Path) -> None:
    *tensors, total = lines("diff", root, 3, 4)
    assert [one["name"] for one in tensors] == ["embed.weight", "layer.weight", "scale"]
    assert tensors[0]["changed"] == 4
    assert tensors[0]["steps"] == {"1": 1, "2": 1, "3-127": 1, ">127": 1}
    assert tensors[1]["steps"] == {"1": 1, "2": 0, "3-127": 0, ">127": 0}
    assert tensors[2]["changed"] == 0
    assert (total["type"], total["changed"], total["total"]) == ("total", 5, 40 * 16 + 16 * 24 + 9)
    assert total["same"] is False


def test_versions_far_apart_are_compared_by_their_bits(sample: Sample) -> None:
    found = {one["name"]: one for one in lines("diff", sample.root, 1, 8) if one["type"] == "tensor"}
    for name, dtype in (("embed.weight", "<u2"), ("layer.weight", "<u2"), ("scale", "<u4")):
        before, after = (np.frombuffer(sample.bits[v][name], dtype) for v in (1, 8))
        assert found[name]["changed"] == np.count_nonzero(before != after)


def test_the_order_of_the_versions_changes_no_count(root: Path) -> None:
    forth, back = (
        [one for one in lines("diff", root, *ab) if one["type"] == "tensor"] for ab in ((3, 7), (7, 3))
    )
    assert forth == back


def test_text_shows_what_changed_most_first_and_a_total(root: Path) -> None:
    text = succeed("diff", root, 3, 4).splitlines()
    assert text[0].split()[:3] == ["TENSOR", "DTYPE", "CHANGED"]
    assert text[1].startswith("embed.weight")
    assert text[2].startswith("layer.weight")
    assert text[3].startswith("all 3 tensors")
    assert len(text) == 4


def test_top_keeps_the_tensors_that_changed_most(root: Path) -> None:
    result = run("diff", root, 3, 4, "--top", 1)
    assert "layer.weight" not in result.stdout
    assert "--top 2 shows all" in result.stderr
    assert [one.get("name") for one in lines("diff", root, 3, 4, "--top", 1)] == ["embed.weight", None]


def test_a_version_and_its_claim_are_the_same(root: Path) -> None:
    assert "bit for bit" in succeed("diff", root, 4, 5)
    total = lines("diff", root, 4, 5)[-1]
    assert (total["same"], total["changed"], total["a_state"]) == (True, 0, total["b_state"])


def test_small_groups_of_tensors_give_the_same_counts(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = lines("diff", root, 1, 8)
    small = partial(cut, shard_bytes=64, part_bytes=256)
    monkeypatch.setattr("deltastore.cli.compare.cut", small)
    assert lines("diff", root, 1, 8) == whole


def test_schema_differences_are_listed_and_the_rest_is_compared(tmp_path: Path) -> None:
    weights = initial()
    with Store.create(str(tmp_path / "s")) as store, Producer(store, anchors=None) as producer:
        producer.publish(weights, step=1).result(60)
        move(weights, 2)
        after = dict(weights)
        del after["scale"]
        after["extra"] = HostTensor("U8", (3,), np.zeros(3, np.uint8))
        after["head.weight"] = HostTensor("BF16", (40, 16), weights["embed.weight"].lanes.copy())
        after["layer.weight"] = HostTensor("BF16", (24, 16), weights["layer.weight"].lanes)
        producer.publish(after, step=2, new_schema=True).result(60)
    found = lines("diff", tmp_path / "s", 1, 2)
    changes = {one["name"]: one for one in found if one["type"] == "schema"}
    assert {name: one["change"] for name, one in changes.items()} == {
        "extra": "added",
        "head.weight": "retied",
        "layer.weight": "retyped",
        "scale": "removed",
    }
    assert changes["layer.weight"]["before"] == "BF16[16, 24]"
    assert changes["head.weight"]["before"] == "BF16[40, 16], tied to embed.weight"
    tensors = {one["name"]: one["changed"] for one in found if one["type"] == "tensor"}
    assert tensors == {"embed.weight": 4, "head.weight": 4}
    text = succeed("diff", tmp_path / "s", 1, 2)
    assert "retyped  layer.weight: BF16[16, 24] -> BF16[24, 16]" in text
    assert "added    extra: U8[3]" in text


def test_versions_that_are_not_there_are_out_of_reach(root: Path) -> None:
    assert run("diff", root, 3, 99).exit_code == 6
    assert run("diff", root, COLLECTED, 4).exit_code == 6
    assert run("diff", root, 0, 4).exit_code == 6  # a claim on nothing holds no weights


def test_one_version_is_too_few(root: Path) -> None:
    assert run("diff", root, 3).exit_code == 2


@given(st.lists(st.tuples(st.integers(0, 65535), st.integers(0, 65535)), max_size=50))
def test_steps_are_counted_the_shorter_way_round(pairs: list[tuple[int, int]]) -> None:
    old: Lanes = np.array([a for a, _ in pairs], np.uint16)
    new: Lanes = np.array([b for _, b in pairs], np.uint16)
    ways = [min((b - a) % 65536, (a - b) % 65536) for a, b in pairs if a != b]
    changed, steps = differing(old, new)
    classes = (lambda d: d == 1, lambda d: d == 2, lambda d: 3 <= d <= 127, lambda d: d > 127)
    assert changed == len(ways)
    assert steps == tuple(sum(map(inside, ways)) for inside in classes)


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.uint32, np.uint64])
def test_the_largest_step_of_a_width_is_counted_once(dtype: type) -> None:
    old: Lanes = np.array([0], dtype)
    new: Lanes = np.array([1 << (8 * old.itemsize - 1)], dtype)
    assert differing(old, new) == (1, (0, 0, 0, 1))
