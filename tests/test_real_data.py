"""A recorded training run, from the first upload to the last weights, compared bit for bit."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors import deserialize
from support import consumer, producer, record

from deltastore import Store
from deltastore.parallel import Workers
from deltastore.tensors.host import HostTensor

ROOT = Path(os.environ.get("DELTASTORE_TEST_DATA", Path(__file__).parents[2] / "shared" / "data"))
RUN = ROOT / "minilm_lr3e-6"
pytestmark = pytest.mark.skipif(not RUN.is_dir(), reason=f"no recorded run at {RUN}")

Arrays = dict[str, NDArray[Any]]


def read(path: Path) -> dict[str, dict[str, Any]]:
    """Tensors by name as the safetensors library gives them: dtype, shape, data."""
    return dict(deserialize(path.read_bytes()))  # type: ignore[no-untyped-call]


def first() -> dict[str, HostTensor]:
    """The weights that are recorded whole."""
    found = read(RUN / "step_010.full.safetensors").items()
    return {n: HostTensor.of_bytes(t["dtype"], tuple(t["shape"]), t["data"]) for n, t in found}


def deltas() -> list[tuple[int, Arrays]]:
    """Step and indices and values of each later record, as bit patterns."""
    found = []
    for path in sorted(RUN.glob("*.coo.safetensors")):
        width = {"I32": "<i4", "BF16": "<u2"}
        tensors = {n: np.frombuffer(t["data"], width[t["dtype"]]) for n, t in read(path).items()}
        found.append((int(path.name[5:8]), tensors))
    return found


def applied(state: Arrays, delta: Arrays) -> Arrays:
    after = {name: array.copy() for name, array in state.items()}
    for name, array in after.items():
        if f"{name}.indices" in delta:
            array[delta[f"{name}.indices"]] = delta[f"{name}.values"]
    return after


@pytest.mark.parametrize("codec", ["ulp", "abs", "coo"])
def test_a_real_run_arrives_bit_for_bit(codec: str, capsys: pytest.CaptureFixture[str]) -> None:
    whole = first()
    state: Arrays = {name: host.lanes.copy() for name, host in whole.items()}
    store = Store.create(f"memory://real-{codec}")
    target = {n: HostTensor(h.dtype, h.shape, np.zeros_like(h.lanes)) for n, h in whole.items()}
    reader = consumer(store, target)
    with producer(store, codec=codec, workers=Workers(2), shard_bytes=8_000_000) as out:
        for step, delta in [(10, {}), *deltas()]:
            state = applied(state, delta)
            given = {n: HostTensor(h.dtype, h.shape, state[n].copy()) for n, h in whole.items()}
            info = out.publish(given, step=step).result()
            reader.update()
            assert all(np.array_equal(target[name].lanes, state[name]) for name in state)
            changed = sum(array.size for name, array in delta.items() if name.endswith(".values"))
            assert info.stats is not None
            assert step == 10 or info.stats.changed == changed
            with capsys.disabled():
                ratio = info.stats.stored / info.stats.raw
                each = info.stats.stored / max(1, info.stats.changed)
                print(f"\n{codec} step {step}: {ratio:.4f} of the model, {each:.2f} B per change", end="")
    reader.verify()
    late = {n: HostTensor(h.dtype, h.shape, np.zeros_like(h.lanes)) for n, h in whole.items()}
    consumer(store, late).update()
    assert all(np.array_equal(late[name].lanes, state[name]) for name in state)
    sizes = [e.size for v in range(2, 8) if (e := record(store, v).embedded) is not None]
    assert max(sizes) < 0.3 * sum(host.lanes.nbytes for host in whole.values())
