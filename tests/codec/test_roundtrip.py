"""Every codec brings every bit pattern of every dtype across."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from codec_samples import (
    DELTAS,
    DTYPES,
    NONCE,
    STYLES,
    Pair,
    assert_delta_roundtrip,
    dense,
    encode,
    pair,
    part_spec,
    random_lanes,
    whole_spec,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors import safe_open

from deltastore import codec as codecs
from deltastore.codec.interface import AnchorCodec
from deltastore.codec.types import SliceSpec, Whole
from deltastore.errors import Unsupported
from deltastore.protocol.digest import MASK
from deltastore.protocol.dtypes import lane_bytes

BLOCK = 1 << 18
SIZES = (0, 1, 2, 3, 4, 5, 7, 8, 9, 64, 383, 385, 1000, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK + 7)
quick = settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@st.composite
def slices(draw: st.DrawFn) -> list[SliceSpec]:
    """A few slices of different tensors; parts of a tensor may begin beyond 2^32 lanes."""
    specs = []
    for number in range(draw(st.integers(0, 4))):
        dtype, name = draw(st.sampled_from(DTYPES)), f"layer.{number}.weight"
        spec = whole_spec(dtype, draw(st.sampled_from(SIZES)), name)
        if draw(st.booleans()):
            step = 8 // lane_bytes(dtype)
            start = step * draw(st.sampled_from((0, 1, 5, 2**29, 2**33)))
            tail = step * draw(st.sampled_from((0, 3, 2**33)))
            lanes = spec.lanes + (-spec.lanes % step if tail else 0)
            spec = part_spec(dtype, start, start + lanes, start + lanes + tail, name)
        specs.append(spec)
    return specs


@st.composite
def steps(draw: st.DrawFn) -> list[Pair]:
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    density = st.sampled_from((0.0, 1e-5, 0.001, 0.01, 0.1, 0.3, 0.7, 1.0))
    return [pair(rng, spec, draw(density), draw(st.sampled_from(STYLES))) for spec in draw(slices())]


@pytest.mark.parametrize("codec", DELTAS)
@given(pairs=steps())
@quick
def test_deltas_come_back_bit_for_bit(codec: str, pairs: list[Pair]) -> None:
    assert_delta_roundtrip(codec, pairs)


@pytest.mark.parametrize("density", [0.0, 0.002, 0.05, 0.5, 1.0])
@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("codec", DELTAS)
def test_one_shard_holds_slices_of_all_dtypes(codec: str, style: str, density: float) -> None:
    rng = np.random.default_rng(7)
    assert_delta_roundtrip(
        codec,
        [pair(rng, whole_spec(dtype, 1003, dtype), density, style) for dtype in DTYPES],
    )


@pytest.mark.parametrize("codec", codecs.ANCHOR)
@given(specs=slices(), seed=st.integers(0, 2**32))
@quick
def test_anchors_come_back_bit_for_bit(codec: str, specs: list[SliceSpec], seed: int) -> None:
    rng = np.random.default_rng(seed)
    denses = [dense(spec, random_lanes(rng, spec)) for spec in specs]
    encoded = codecs.ANCHOR[codec].encode(denses, nonce=NONCE)
    decoded = codecs.ANCHOR[codec].decode(encoded.data, specs, raw_size=encoded.raw_size)
    for item, change in zip(denses, decoded.changes, strict=True):
        assert isinstance(change, Whole)
        np.testing.assert_array_equal(change.lanes, item.lanes)
    assert decoded.deltas == [item.digest for item in denses]
    assert decoded.changed == [item.spec.lanes for item in denses]
    digests = sum(8 for item in denses if item.spec.lanes) if codec == "plane" else 0
    assert encoded.raw_size - digests == sum(item.spec.nbytes for item in denses)
    assert encoded.changed == sum(decoded.changed)
    assert encoded.state_delta == sum(delta or 0 for delta in decoded.deltas) & MASK


@pytest.mark.parametrize("codec", [*DELTAS, *codecs.ANCHOR])
def test_safe_open_reads_every_shard(tmp_path: Path, codec: str) -> None:
    rng = np.random.default_rng(3)
    pairs = [pair(rng, whole_spec(dtype, 96, dtype), 0.2, "random") for dtype in DTYPES]
    found = codecs.get(codec)
    if codec in codecs.ANCHOR:
        denses = [dense(spec, new) for spec, _, new in pairs]
        encoded = codecs.ANCHOR[codec].encode(denses, nonce=NONCE)
    else:
        encoded = encode(codec, pairs)
    path = tmp_path / "shard.safetensors"
    path.write_bytes(encoded.data)
    with safe_open(path, "np") as file:
        assert file.keys()
        assert set(file.metadata()) == {"deltastore"} | ({"format"} if codec == "plain" else set())
    assert found.id == codec


@pytest.mark.parametrize("codec", DELTAS)
def test_the_same_diffs_and_nonce_give_the_same_bytes(codec: str) -> None:
    rng = np.random.default_rng(5)
    pairs = [pair(rng, whole_spec("BF16", 5000), 0.02, "steps")]
    once = encode(codec, pairs)
    assert encode(codec, pairs) == once
    assert encode(codec, pairs, nonce=bytes(16)).data != once.data


def test_kinds_are_those_of_the_tables() -> None:
    assert {codec.kind for codec in codecs.DELTA.values()} == {"delta"}
    anchors: list[AnchorCodec] = list(codecs.ANCHOR.values())
    assert {codec.kind for codec in anchors} == {"anchor"}
    assert all(codecs.get(name).id == name for name in (*codecs.DELTA, *codecs.ANCHOR))


def test_an_unknown_codec_is_refused_by_name() -> None:
    with pytest.raises(Unsupported, match="'lz77'"):
        codecs.get("lz77")
