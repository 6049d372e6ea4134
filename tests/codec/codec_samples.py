"""Slices, pairs of states and the one round trip that all codecs are held to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import safetensors
from numpy.typing import NDArray

from deltastore import codec as codecs
from deltastore.codec import kernels
from deltastore.codec.types import Change, Decoded, Dense, Encoded, InMemory, SliceSpec, Sparse, Whole
from deltastore.protocol.digest import MASK, Lanes, digest, tensor_key
from deltastore.protocol.dtypes import BITS, lane_bytes

NONCE = bytes(range(16))
DTYPES = tuple(BITS)
DELTAS = tuple(codecs.DELTA)
STYLES = ("steps", "random", "special")
Pair = tuple[SliceSpec, Lanes, Lanes]


def whole_spec(dtype: str, lanes: int, name: str = "w") -> SliceSpec:
    """A whole tensor of about so many lanes: more where packed elements would not fill them."""
    if BITS[dtype] == 6:
        lanes += -lanes % 3
    elements = lanes * 8 * lane_bytes(dtype) // BITS[dtype]
    return SliceSpec(name, dtype, (elements,), 0, lanes, lanes)


def part_spec(dtype: str, start: int, stop: int, total: int, name: str = "w") -> SliceSpec:
    elements = total * 8 * lane_bytes(dtype) // BITS[dtype]
    return SliceSpec(name, dtype, (elements,), start, stop, total)


def random_lanes(rng: np.random.Generator, spec: SliceSpec) -> Lanes:
    return np.frombuffer(rng.bytes(spec.nbytes), spec.uint).copy()


def pair(rng: np.random.Generator, spec: SliceSpec, density: float, style: str) -> Pair:
    """A slice before and after a step that changes a share of its lanes."""
    base = random_lanes(rng, spec)
    new = base.copy()
    where = np.flatnonzero(rng.random(spec.lanes) < density)
    bits = 8 * spec.lane_bytes
    if style == "steps":
        steps = rng.choice([-1, 1, -1, 1, -1, 1, 2, -2, 127, -200, 130], where.size)
        new[where] += steps.astype(np.int64).astype(spec.uint)
    elif style == "random":
        new[where] = random_lanes(rng, spec)[where]
    else:
        # Zeros of both signs, infinities, and quiet and signalling NaNs of the common formats.
        patterns = [0, 1 << (bits - 1), (1 << bits) - 1, (1 << (bits - 1)) - 1, 0x7F80, 0x7F81]
        patterns += [0x7FC0, 0xFFC1, 0x7C00, 0x7F800001, 0xFFC00001]
        table = np.array([p & ((1 << bits) - 1) for p in patterns], spec.uint)
        base = table[rng.integers(0, table.size, spec.lanes)]
        new = base.copy()
        new[where] = table[rng.integers(0, table.size, where.size)]
    return spec, base, new


def digest_of(spec: SliceSpec, lanes: Lanes) -> int:
    return digest(lanes, tensor_key(spec.name), spec.first_word)


def apply(change: Change, base: Lanes) -> Lanes:
    if isinstance(change, Whole):
        return change.lanes
    result = base.copy()
    result[change.positions] = kernels.new_bits(change, base[change.positions])
    return result


def diff(codec: str, spec: SliceSpec, base: Lanes, new: Lanes) -> Any:
    """What changed, in the form that a codec takes; the base stays as it is."""
    return codecs.DELTA[codec].diff(spec, base.copy(), new)


def declared(change: Change, spec: SliceSpec, base: Lanes) -> int:
    """What a change really adds to the digest."""
    if isinstance(change, Whole):
        return (digest_of(spec, change.lanes) - digest_of(spec, base)) & MASK

    def read(at: NDArray[np.int64]) -> Lanes:
        lanes: Lanes = base[at]
        return lanes

    new = kernels.new_bits(change, base[change.positions])
    return kernels.gather_words(spec, read, change.positions).delta(new)


def assert_delta_roundtrip(codec: str, pairs: Sequence[Pair]) -> Encoded:
    """Encode the pairs as one shard, read it back, and check all that a consumer relies on."""
    encoded = encode(codec, pairs)
    safetensors.deserialize(encoded.data)  # type: ignore[no-untyped-call]
    decoded = decode(codec, encoded.data, pairs, raw_size=encoded.raw_size)
    assert len(decoded.changes) == len(decoded.changed) == len(decoded.deltas) == len(pairs)
    for (spec, base, new), change, changed, delta in zip(
        pairs, decoded.changes, decoded.changed, decoded.deltas, strict=True
    ):
        np.testing.assert_array_equal(apply(change, base), new)
        assert changed == (spec.lanes if isinstance(change, Whole) else np.count_nonzero(base != new))
        assert declared(change, spec, base) == (digest_of(spec, new) - digest_of(spec, base)) & MASK
        assert delta == (declared(change, spec, base) if codec != "ctx" else None)
        if isinstance(change, Sparse):
            assert change.positions.dtype in {np.dtype(np.int32), np.dtype(np.int64)}
            assert change.values.dtype == spec.uint
    assert encoded.changed == sum(np.count_nonzero(base != new) for _, base, new in pairs)
    assert encoded.state_delta == total(decoded, pairs)
    return encoded


def total(decoded: Decoded, pairs: Sequence[Pair]) -> int:
    """What all changes really add to the digest."""
    changes = zip(pairs, decoded.changes, strict=True)
    return sum(declared(change, spec, base) for (spec, base, _), change in changes) & MASK


def encode(codec: str, pairs: Sequence[Pair], *, nonce: bytes = NONCE) -> Encoded:
    """A shard of what changed in some slices."""
    deltas = [diff(codec, *item) for item in pairs]
    return codecs.DELTA[codec].encode(deltas, nonce=nonce, base=InMemory([after for _, _, after in pairs]))


def decode(codec: str, data: bytes, pairs: Sequence[Pair], *, raw_size: int) -> Decoded:
    """What a shard says of slices whose lanes before are known; of either kind of codec."""
    return codecs.decode(
        codec,
        data,
        [spec for spec, _, _ in pairs],
        raw_size=raw_size,
        base=InMemory([before for _, before, _ in pairs]),
    )


def dense(spec: SliceSpec, lanes: Lanes) -> Dense:
    return Dense(spec, lanes, digest_of(spec, lanes))
