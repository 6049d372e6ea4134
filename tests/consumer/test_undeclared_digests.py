"""A codec that declares what a shard adds to the digest as a whole, in its descriptor, and of no slice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from support import all_bits, blank, consumer, new_store, producer, record, small, stepped

from deltastore import Store, codec
from deltastore.codec.types import Decoded, Encoded, SliceSpec
from deltastore.errors import BadShard, NoPath
from deltastore.protocol import keys
from deltastore.protocol.digest import MASK

ULP = codec.DELTA["ulp"]


class Silent:
    """`ulp`, but for what it declares.

    Attributes:
        off: By how much its descriptors are wrong.
    """

    id = "ulp"
    kind = "delta"
    reads_base = False
    diff = staticmethod(ULP.diff)
    unchanged = staticmethod(ULP.unchanged)

    def __init__(self, off: int = 0) -> None:
        self.off = off

    def encode(self, deltas: Sequence[Any], *, nonce: bytes, base: object = None) -> Encoded:
        encoded = ULP.encode(deltas, nonce=nonce)
        return replace(encoded, state_delta=(encoded.state_delta + self.off) & MASK)

    def decode(
        self, data: bytes, specs: Sequence[SliceSpec], *, raw_size: int, base: object = None
    ) -> Decoded:
        changes = ULP.decode(data, specs, raw_size=raw_size).changes
        return Decoded(changes, [None] * len(changes))


@pytest.fixture(autouse=True)
def silent(monkeypatch: pytest.MonkeyPatch) -> Silent:
    chosen = Silent()
    monkeypatch.setattr(codec, "DELTA", {**codec.DELTA, "ulp": chosen})
    return chosen


def grown(store: Store) -> list[dict[str, torch.Tensor]]:
    states = [small(), stepped(small(), 1), stepped(small(), 2)]
    with producer(store) as out:
        for step, state in enumerate(states):
            out.publish(state, step=step).result(0)
    return states


@pytest.mark.req("DS-READ-4")
def test_such_deltas_are_published_checked_and_read(store: Store) -> None:
    states = grown(store)
    target = blank(states[0])
    consumer(store, target).update()
    assert all_bits(target) == all_bits(states[2])


@pytest.mark.req("DS-READ-4")
def test_a_sum_that_the_descriptor_does_not_say_fails(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    states = grown(store)
    edge = record(store, 3).embedded
    assert edge is not None
    (shard,) = edge.shards
    state = (edge.state + 1) & MASK
    wrong = replace(edge, state=state, shards=(replace(shard, state_delta=(shard.state_delta + 1) & MASK),))
    forged = replace(record(store, 3), state=state, edges=(wrong,))
    store.access.backend.put(keys.version(3), forged.to_bytes())
    target = blank(states[0])
    reader = consumer(store, target)
    reader.stage(2).commit()
    with pytest.raises(NoPath):
        reader.update()
    assert any("would not get the bits" in str(vars(entry)) for entry in caplog.records)
    assert all_bits(target) == all_bits(states[1])


@pytest.mark.req("DS-READ-4")
def test_a_base_that_is_not_what_it_should_be_is_seen(store: Store) -> None:
    states = [{"w": torch.arange(1000, dtype=torch.float32), "x": torch.zeros(50)}]
    with producer(store) as out:
        for step in range(3):
            out.publish(states[-1], step=step).result(0)
            states.append({name: tensor.clone() for name, tensor in states[-1].items()})
            states[-1]["w"][100] += 1
    target = blank(states[0])
    reader = consumer(store, target)
    reader.stage(2).commit()
    target["w"].view(torch.int32)[101] ^= 8
    # The word that holds element 101 changes; the way round by the anchor of version 1 reads nothing held.
    reader.update()
    assert all_bits(target) == all_bits(states[2])


@pytest.mark.req("DS-READ-4")
def test_some_tensors_alone_are_read(store: Store) -> None:
    states = grown(store)
    (name, *_) = states[2]
    with consumer(store, blank(states[0])) as reader:
        ((found, host),) = reader.host_tensors(3, [name])
    assert found == name
    assert host.lanes.tobytes() == all_bits(states[2])[name]
    assert np.any(host.lanes)


def test_a_producer_finds_that_it_added_up_wrongly(silent: Silent) -> None:
    store = new_store()
    with producer(store) as out:
        out.publish(small(), step=0).result(0)
        silent.off = 1
        with pytest.raises(BadShard, match="added up"):
            out.publish(stepped(small(), 1), step=1).result(0)
    assert store.find().version == 1
