"""What the library writes, read by a reader that was written from the specification alone."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from plain_reader import PlainReader
from support import bits, mixed, producer, small, stepped

from deltastore import Store
from deltastore.maintenance.anchors import add_anchor


@pytest.mark.req("DS-PLAIN-1", "DS-KEY-2", "DS-KEY-3", "DS-KEY-4", "DS-SIG-1", "DS-GALLOP-1", "DS-CHAIN-1")
@pytest.mark.parametrize("codec", ["ulp", "abs", "coo"])
@pytest.mark.parametrize("weights", [small(), mixed()], ids=["small", "mixed"])
def test_every_version_is_read(tmp_path: Path, codec: str, weights: dict[str, torch.Tensor]) -> None:
    root = tmp_path / "store"
    states = [weights]
    with producer(Store.create(str(root)), codec=codec, shard_bytes=2000) as trainer:
        trainer.publish(weights, step=0).result()
        for step, share in enumerate([0.001, 0.02, 0.3, 1.0, 0.05], 1):
            states.append(stepped(states[-1], step, share=share))
            trainer.publish(states[-1], step=step).result()
    reader = PlainReader(root)
    assert reader.newest() == len(states)
    for version, state in enumerate(states, 1):
        found = reader.read(version)
        assert {name: lanes.tobytes() for name, lanes in found.items()} == {
            name: bits(tensor) for name, tensor in state.items()
        }


@pytest.mark.req("DS-EDGE-3", "DS-ANCHOR-1", "DS-CHAIN-5")
def test_claims_and_added_anchors_are_read(tmp_path: Path) -> None:
    store = Store.create(str(tmp_path / "store"))
    one, two = small(), stepped(small(), 1)
    for step, state in enumerate([one, two]):
        with producer(store) as trainer:
            trainer.publish(state, step=step).result()
    add_anchor(store, store.log.require(3))
    found = PlainReader(tmp_path / "store")
    assert found.newest() == 3
    assert {name: lanes.tobytes() for name, lanes in found.read(3).items()} == {
        n: bits(t) for n, t in two.items()
    }
    assert {name: lanes.tobytes() for name, lanes in found.read(2).items()} == {
        n: bits(t) for n, t in one.items()
    }
