"""What the library writes, read by a reader that was written from the specification alone."""

from __future__ import annotations

from pathlib import Path

import plain_ctx
import pytest
import torch
from plain_reader import PlainReader, container
from support import all_bits, bits, mixed, producer, small, stepped

from deltastore import Store
from deltastore.maintenance.anchors import add_anchor


@pytest.mark.req("DS-PLAIN-1", "DS-KEY-2", "DS-KEY-3", "DS-KEY-4", "DS-SIG-1", "DS-GALLOP-1", "DS-CHAIN-1")
@pytest.mark.req("DS-CTX-1", "DS-CTX-2", "DS-PLANE-1", "DS-PLANE-2", "DS-PLANE-3", "DS-STREAM-1")
@pytest.mark.parametrize("codec", ["ulp", "ctx", "abs", "coo"])
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
    assert {shard["codec"] for shard in reader.shards()} == {codec, "plane"}
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


@pytest.mark.req("DS-CTX-1", "DS-CTX-2")
def test_ctx_of_steps_of_adamw_is_read(tmp_path: Path) -> None:
    states = trained(4)
    with producer(Store.create(str(tmp_path / "store")), codec="ctx") as trainer:
        for step, state in enumerate(states):
            trainer.publish(state, step=step).result()
    reader = PlainReader(tmp_path / "store")
    deltas = [container(reader.object(shard)) for shard in reader.shards() if shard["codec"] == "ctx"]
    dense = [plain_ctx.opened(meta, tensors["S"].tobytes()).data["M"][-1] for meta, tensors in deltas]
    assert len(dense) == 3
    assert min(dense) > 0
    found = reader.read(reader.newest())
    assert {name: lanes.tobytes() for name, lanes in found.items()} == all_bits(states[-1])


def trained(count: int) -> list[dict[str, torch.Tensor]]:
    """States of a matrix of more than one block and a vector of scales, one step of AdamW apart."""
    rng = torch.Generator().manual_seed(0)
    master = {
        "scale": torch.ones(515),
        "weight": torch.randn(515, 515, generator=rng) * 0.02,
    }
    optimizer = torch.optim.AdamW(master.values(), lr=2e-5)
    states = []
    for _ in range(count):
        for tensor in master.values():
            tensor.grad = torch.randn(tensor.shape, generator=rng)
        optimizer.step()
        states.append({name: tensor.bfloat16() for name, tensor in master.items()})
    return states
