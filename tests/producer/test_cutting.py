"""Tiny shards and parts of tensors through the whole path: publish, anchors, every codec, every reader."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support import all_bits, blank, consumer, mixed, producer, read, record, shard_keys, stepped

from deltastore import Consumer, MaxChain, Store
from deltastore.errors import NoPath
from deltastore.maintenance import anchors as maintenance
from deltastore.parallel import Workers
from deltastore.producer import snapshot
from deltastore.protocol.descriptors import Part
from deltastore.slicing import cut as real_cut
from deltastore.testing import FaultBackend


@pytest.fixture(params=[(256, 64), (3000, 10**9), (40, 10**9), (10**9, 200)])
def sizes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> tuple[int, int]:
    """Bytes per shard and per part, also for anchors that are added later (which are cut otherwise)."""
    shard, part = request.param

    def cutting(*, more: int) -> Callable[..., Any]:
        def cut(schema: Any, *, shard_bytes: int = shard) -> Any:
            return real_cut(schema, shard_bytes=shard_bytes * more, part_bytes=part * more)

        return cut

    monkeypatch.setattr(snapshot, "cut", cutting(more=1))
    monkeypatch.setattr(maintenance, "cut", cutting(more=3))
    return shard, part


@pytest.mark.req("DS-DESC-3", "DS-DESC-4", "DS-DIGEST-2")
@pytest.mark.parametrize(
    ("codec", "threads"), [("ulp", 0), ("ulp", 3), ("ctx", 0), ("ctx", 3), ("abs", 0), ("coo", 0)]
)
def test_every_version_comes_through(
    store: Store, sizes: tuple[int, int], codec: str, threads: int, tmp_path: Path
) -> None:
    options: dict[str, Any] = {"codec": codec, "shard_bytes": sizes[0], "workers": Workers(threads)}
    states = [mixed()]
    target = blank(states[0])
    readers = [consumer(store, target, workers=Workers(threads)), consumer(store, tmp_path / "model")]
    with producer(store, anchors=MaxChain(3), **options) as out:
        out.publish(states[0], step=0).result(20)
        for step, share in enumerate((0.03, 0.5, 1.0, 0.0, 0.01, 0.2), 1):
            states.append(stepped(states[-1], step, share=share))
            out.publish(states[-1], step=step).result(20)
            for reader in readers:
                reader.update()
            assert all_bits(target) == all_bits(states[-1])
    for step, state in enumerate(states):
        assert read(store, step + 1) == all_bits(state)
    late = blank(states[0])
    consumer(store, late).update()
    assert all_bits(late) == all_bits(states[-1])
    assert all_bits(readers[1].host_tensors()) == all_bits(states[-1])


def test_parts_do_occur(store: Store, sizes: tuple[int, int]) -> None:
    with producer(store, shard_bytes=sizes[0]) as out:
        out.publish(mixed(), step=0)
        out.publish(stepped(mixed(), 1), step=1)
    edge = record(store, 1).embedded
    assert edge is not None
    slices = [one for shard in edge.shards for one in shard.slices]
    assert any(isinstance(one, Part) for one in slices) == (sizes[1] < 10**9)
    assert (len(edge.shards) > 2) == (sizes[0] < 10**9)


def test_one_lost_shard_of_many_spoils_the_edge_only(store: Store, sizes: tuple[int, int]) -> None:
    states = [mixed(), stepped(mixed(), 1), stepped(mixed(), 2)]
    with producer(store, shard_bytes=sizes[0]) as out:
        for step, state in enumerate(states):
            out.publish(state, step=step)
        target = blank(states[0])
        reader = consumer(store, target)
        reader.stage(1).commit()
        store.access.backend.delete(shard_keys(store, 2)[-1:])
        with pytest.raises(NoPath):
            reader.update()
        assert all_bits(target) == all_bits(states[0])
        out.reset(states[2], step=3)
    reader.update()
    assert all_bits(target) == all_bits(states[2])


def test_names_fetch_only_the_shards_that_hold_them(store: Store, sizes: tuple[int, int]) -> None:
    state = mixed()
    with producer(store, shard_bytes=sizes[0]) as out:
        out.publish(state, step=0)
        state = stepped(state, 1)
        out.publish(state, step=1)
    backend = FaultBackend(store.access.backend)
    reader = Consumer(Store.open(backend))
    names = ["i64", "scalar", "nothing"]
    found = dict(reader.tensors(names=names))
    assert list(found) == names
    assert all_bits(found) == {name: all_bits(state)[name] for name in names}
    needed = set()
    for version in (1, 2):
        edge, descriptor = record(store, version).embedded, record(store, version).schema
        assert edge is not None
        assert descriptor is not None
        schema = store.schema(descriptor)
        positions = {schema.index(name) for name in names}
        for shard in edge.shards:
            for one in shard.slices:
                first = one.tensor if isinstance(one, Part) else one.first
                count = 1 if isinstance(one, Part) else one.count
                if positions & set(range(first, first + count)):
                    needed.add(f"objects/{shard.sha256[:2]}/{shard.sha256}")
    fetched = {op.key for op in backend.operations if op.name == "get" and op.key.startswith("objects/")}
    assert fetched - {_schema_key(store)} == needed


def _schema_key(store: Store) -> str:
    schema = record(store, 1).schema
    assert schema is not None
    return f"objects/{schema.sha256[:2]}/{schema.sha256}"


@pytest.mark.parametrize("codec", ["ulp", "ctx"])
def test_one_tensor_can_be_read_out_of_shards_that_hold_others(store: Store, codec: str) -> None:
    states = [mixed()]
    with producer(store, codec=codec, anchors=None) as out:
        out.publish(states[0], step=0).result(20)
        for step in range(1, 4):
            states.append(stepped(states[-1], step, share=0.2))
            out.publish(states[-1], step=step).result(20)
    expected = all_bits(states[-1])
    for name in states[0]:
        assert all_bits(dict(Consumer(store).tensors(4, [name]))) == {name: expected[name]}
