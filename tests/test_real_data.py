"""A recorded training run, from the first upload to the last weights, compared bit for bit."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import load_file
from support import consumer, producer, record

from deltastore import Store
from deltastore.parallel import Workers
from deltastore.tensors.files import read_file
from deltastore.tensors.host import HostTensor

ROOT = Path(os.environ.get("DELTASTORE_TEST_DATA", Path(__file__).parents[2] / "shared" / "data"))
RUN = ROOT / "minilm_lr3e-6"
pytestmark = pytest.mark.skipif(not RUN.is_dir(), reason=f"no recorded run at {RUN}")

Arrays = dict[str, NDArray[Any]]


def first() -> dict[str, HostTensor]:
    """The weights that are recorded whole, read by us: plain numpy has no bfloat16."""
    return dict(read_file(RUN / "step_010.full.safetensors"))


def deltas() -> list[tuple[int, Arrays]]:
    """Step and indices and values of each later record, as bit patterns."""
    found = []
    for path in sorted(RUN.glob("*.coo.safetensors")):
        tensors = {name: host.lanes for name, host in read_file(path)}
        indices = {n: t.view("<i4") if n.endswith(".indices") else t for n, t in tensors.items()}
        found.append((int(path.name[5:8]), indices))
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
            changed = sum(np.count_nonzero(delta[n]) * 0 + delta[n].size for n in delta if "values" in n)
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


def test_the_recording_is_what_other_tools_read() -> None:
    some = load_file(RUN / "step_011.coo.safetensors") if _plain_numpy_can() else {}
    assert all(len(some[n]) == len(some[n.replace("indices", "values")]) for n in some if "indices" in n)


def _plain_numpy_can() -> bool:
    try:
        load_file(RUN / "step_011.coo.safetensors")
    except (TypeError, KeyError, AttributeError):
        return False
    return True
