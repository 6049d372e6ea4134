"""A checkpoint that everybody has already: version 0 costs no upload, and servers start from their copy."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from support import State, all_bits, blank, consumer, producer, read, record, small, stepped

from deltastore import ExternalBase, MaxChain, Store
from deltastore.errors import NoPath, NotFound, SchemaMismatch
from deltastore.protocol.records import Kind


@pytest.fixture
def base(tmp_path: Path, weights: State) -> Path:
    """The checkpoint, with a config."""
    directory = tmp_path / "base"
    directory.mkdir()
    save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})
    (directory / "config.json").write_text('{"tied": false}')
    return directory


@pytest.mark.req("DS-CLAIM-1", "DS-CLAIM-4")
def test_version_0_is_the_base_and_version_1_a_delta(store: Store, base: Path, weights: State) -> None:
    after = stepped(weights, 1)
    with producer(store, base=ExternalBase(base, url="hf://org/model@abc")) as out:
        out.publish(after, step=0)
    first = record(store, 0)
    assert first.kind is Kind.CLAIM
    assert first.external is not None
    assert first.external.url == "hf://org/model@abc"
    files = {p.name: (hashlib.sha256(p.read_bytes()).hexdigest(), p.stat().st_size) for p in base.iterdir()}
    assert {n: (d.sha256, d.size) for n, d in first.external.files.items()} == files
    edge = record(store, 1).embedded
    assert edge is not None
    assert (edge.base, edge.base_state) == ("external", first.state)
    stored = sum(info.size for info in store.access.backend.list("objects/"))
    assert stored < sum(len(b) for b in all_bits(weights).values()) / 2


@pytest.mark.req("DS-READ-5", "DS-READ-7")
def test_servers_start_from_their_own_copy(store: Store, base: Path, weights: State) -> None:
    after = stepped(weights, 1)
    with producer(store, base=base) as out:
        out.publish(after, step=0)
    target = blank(weights)
    reader = consumer(store, target, base=base)
    assert reader.update() is not None
    assert all_bits(target) == all_bits(after)
    assert all_bits(reader.host_tensors(1)) == all_bits(after)
    assert all_bits(reader.host_tensors(0)) == all_bits(weights)
    last = stepped(after, 2)
    with producer(store, base=base) as out:
        out.publish(last, step=1)
    reader.update()
    assert all_bits(target) == all_bits(last)


@pytest.mark.req("DS-READ-7")
def test_a_target_that_holds_the_base_is_recognised(store: Store, base: Path, weights: State) -> None:
    with producer(store, base=base) as out:
        out.publish(stepped(weights, 1), step=0)
        out.publish(stepped(weights, 2), step=1)
    target = {name: tensor.clone() for name, tensor in weights.items()}
    reader = consumer(store, target)
    assert reader.update() is not None
    assert all_bits(target) == all_bits(stepped(weights, 2))


def test_a_server_without_the_base_is_told_so(store: Store, base: Path, weights: State) -> None:
    with producer(store, base=ExternalBase(base, url="hf://org/model@abc")) as out:
        out.publish(stepped(weights, 1), step=0)
    target = blank(weights)
    reader = consumer(store, target)
    with pytest.raises(NoPath, match="hf://org/model@abc"):
        reader.update()
    with pytest.raises(NoPath, match="hf://org/model@abc"):
        list(reader.host_tensors())
    assert all_bits(target) == all_bits(blank(weights))
    assert reader.version is None


@pytest.mark.parametrize("kind", ["other bits", "other names", "other dtypes"])
def test_another_base_is_never_used(
    store: Store, base: Path, weights: State, tmp_path: Path, kind: str
) -> None:
    after = stepped(weights, 1)
    with producer(store, base=base) as out:
        out.publish(after, step=0)
    other = tmp_path / "other"
    other.mkdir()
    wrong = {name: tensor.clone() for name, tensor in weights.items()}
    if kind == "other bits":
        wrong["norm"][3] += 1
    elif kind == "other names":
        wrong["extra"] = torch.ones(2)
    else:
        wrong["norm"] = wrong["norm"].view(torch.int32)
    save_file(wrong, other / "model.safetensors")
    target = blank(weights)
    with pytest.raises(NoPath):
        consumer(store, target, base=other).update()
    assert all_bits(target) == all_bits(blank(weights))
    last = stepped(after, 2)
    with producer(store, base=other) as out:
        info = out.publish(last, step=1).result()
    edge = record(store, info.version).embedded
    assert edge is not None
    assert edge.is_anchor
    assert read(store) == all_bits(last)


def test_names_and_dtypes_are_those_of_the_base(store: Store, base: Path, weights: State) -> None:
    master = {name: tensor.float() + 0.25 for name, tensor in weights.items()}
    with producer(store, base=base) as out:
        with pytest.raises(SchemaMismatch, match="missing: 'proj'"):
            out.publish({n: t for n, t in master.items() if n != "proj"}, step=0)
        out.publish(master, step=0)
    served = {name: tensor.to(weights[name].dtype) for name, tensor in master.items()}
    assert all_bits(consumer(store, base=base).host_tensors()) == all_bits(served)


def test_a_part_may_come_first(store: Store, base: Path, weights: State) -> None:
    with producer(store, base=base) as out:
        out.publish({"norm": weights["norm"] + 1}, step=0, partial=True)
    expected = all_bits({**weights, "norm": weights["norm"] + 1})
    assert all_bits(consumer(store, base=base).host_tensors()) == expected


def test_the_base_itself_changes_nothing(store: Store, base: Path, weights: State) -> None:
    with producer(store, base=base) as out:
        info = out.publish(weights, step=0).result()
    assert info.stats is not None
    assert info.stats.changed == 0
    assert all_bits(consumer(store, base=base).host_tensors()) == all_bits(weights)


def test_a_claim_behind_the_base_is_passed_over(store: Store, base: Path, weights: State) -> None:
    first = producer(store, base=base)
    with pytest.raises(SchemaMismatch):
        first.publish({"other": torch.ones(1)}, step=0)
    after = stepped(weights, 1)
    with producer(store, base=base) as out:
        out.publish(after, step=0)
    edge = record(store, 2).embedded
    assert edge is not None
    assert edge.base == 1
    assert all_bits(consumer(store, base=base).host_tensors()) == all_bits(after)


def test_anchors_of_the_producer_free_servers_from_the_base(store: Store, base: Path, weights: State) -> None:
    state = weights
    with producer(store, base=base, anchors=MaxChain(2)) as out:
        for step in range(4):
            state = stepped(state, step)
            out.publish(state, step=step)
    assert read(store) == all_bits(state)


def test_a_base_that_is_not_there_is_said_at_the_first_publish(store: Store, tmp_path: Path) -> None:
    with producer(store, base=tmp_path) as out, pytest.raises(NotFound, match="no safetensors files"):
        out.publish(small(), step=0)
    assert store.log.newest() is None
