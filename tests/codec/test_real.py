"""A real run: MiniLM under AdamW, as bf16; every codec brings every delta across."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from codec_samples import DELTAS, NONCE, apply, decode, dense, encode
from safetensors import deserialize

from deltastore import codec as codecs
from deltastore.codec.types import SliceSpec, Whole
from deltastore.protocol.digest import Lanes
from deltastore.protocol.dtypes import lane_bytes

ROOT = Path(os.environ.get("DELTASTORE_TEST_DATA", Path(__file__).parents[3] / "shared" / "data"))
RUN = ROOT / "minilm_lr3e-6"
pytestmark = pytest.mark.skipif(not RUN.is_dir(), reason=f"no recorded run at {RUN}")


def read(path: Path) -> list[tuple[str, dict[str, Any]]]:
    tensors: list[tuple[str, dict[str, Any]]] = deserialize(path.read_bytes())  # type: ignore[no-untyped-call]
    return tensors


def full() -> tuple[list[SliceSpec], list[Lanes]]:
    specs, states = [], []
    for name, tensor in read(RUN / "step_010.full.safetensors"):
        lanes = len(tensor["data"]) // lane_bytes(tensor["dtype"])
        spec = SliceSpec(name, tensor["dtype"], tuple(tensor["shape"]), 0, lanes, lanes)
        specs.append(spec)
        states.append(np.frombuffer(tensor["data"], spec.uint))
    return specs, states


def step(path: Path, specs: list[SliceSpec], states: list[Lanes]) -> list[Lanes]:
    """The states after a recorded delta."""
    recorded = {name: tensor["data"] for name, tensor in read(path)}
    after = []
    for spec, state in zip(specs, states, strict=True):
        new = state.copy()
        if f"{spec.name}.indices" in recorded:
            at = np.frombuffer(recorded[f"{spec.name}.indices"], np.int32)
            new[at] = np.frombuffer(recorded[f"{spec.name}.values"], spec.uint)
        after.append(new)
    return after


@pytest.mark.parametrize("codec", DELTAS)
def test_recorded_deltas_come_back_bit_for_bit(codec: str) -> None:
    specs, states = full()
    for path in sorted(RUN.glob("*.coo.safetensors")):
        after = step(path, specs, states)
        pairs = list(zip(specs, states, after, strict=True))
        encoded = encode(codec, pairs)
        found = decode(codec, encoded.data, pairs, raw_size=encoded.raw_size)
        for change, base, new in zip(found.changes, states, after, strict=True):
            np.testing.assert_array_equal(apply(change, base), new)
        total = sum(spec.lanes for spec in specs)
        size = len(encoded.data) / encoded.changed
        print(f"{codec} {path.name}: {encoded.changed / total:.2%}, {size:.3f} B per change")
        assert size < {"ctx": 0.85, "ulp": 1.25, "abs": 2.75, "coo": 6.2}[codec]
        states = after


@pytest.mark.parametrize(("codec", "share"), [("plane", 0.666), ("plain", 1.001)])
def test_the_recorded_model_comes_back_as_an_anchor(codec: str, share: float) -> None:
    specs, states = full()
    denses = [dense(spec, state) for spec, state in zip(specs, states, strict=True)]
    encoded = codecs.ANCHOR[codec].encode(denses, nonce=NONCE)
    found = codecs.ANCHOR[codec].decode(encoded.data, specs, raw_size=encoded.raw_size)
    print(f"{codec}: {len(encoded.data) / encoded.raw_size:.4%}")
    assert len(encoded.data) < share * encoded.raw_size
    for change, state in zip(found.changes, states, strict=True):
        assert isinstance(change, Whole)
        np.testing.assert_array_equal(change.lanes, state)
