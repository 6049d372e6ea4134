"""Target `shards`: any shard, read by every codec of the tables with both sets of kernels.

The first byte of an input chooses the slices, the rest is the shard. What the descriptor would say of it is
made up so that it fits.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from functools import cache, partial

import numpy as np
from fuzz_container import Parts
from fuzz_kernels import KERNELS, REFUSALS, using, with_each
from fuzz_noise import Noise
from fuzz_target import Target

from deltastore import codec as codecs
from deltastore.codec import kernels, shard
from deltastore.codec.types import Change, Decoded, Dense, Encoded, InMemory, SliceSpec, Sparse
from deltastore.protocol.digest import MASK, Lanes, digest, tensor_key

NONCE = bytes(16)
LAYOUTS: tuple[tuple[SliceSpec, ...], ...] = (
    (
        SliceSpec("a", "BF16", (30, 10), 0, 300, 300),
        SliceSpec("b", "BF16", (12,), 0, 12, 12),
        SliceSpec("c", "F32", (900,), 0, 900, 900),
        SliceSpec("d", "U8", (11,), 0, 11, 11),
    ),
    (
        SliceSpec("e", "F16", (200,), 64, 128, 200),
        SliceSpec("f", "F64", (5,), 0, 5, 5),
        SliceSpec("g", "F4", (38,), 8, 19, 19),
        SliceSpec("h", "F8_E4M3", (0,), 0, 0, 0),
        SliceSpec("i", "I32", (), 0, 1, 1),
    ),
    (),
    (SliceSpec("j", "BF16", (2**18 + 7,), 0, 2**18 + 7, 2**18 + 7), SliceSpec("k", "U64", (3,), 0, 3, 3)),
)
"""Slices of several widths, whole and in part, empty, packed, and of more than one block."""
_LARGE = 3


@cache
def _base(spec: SliceSpec) -> Lanes:
    return np.random.default_rng(spec.lanes).integers(0, 2**64, spec.lanes, np.uint64).astype(spec.uint)


@cache
def _sample(codec: str, layout: int) -> Encoded:
    """A valid shard: slices that did not change, a little, much, and all over."""
    rng = np.random.default_rng(layout)
    shares = (0.05, 0.0, 0.001, 1.0, 0.0) if layout != _LARGE else (0.0001, 0.3)
    states = []
    for spec, share in zip(LAYOUTS[layout], shares, strict=False):
        steps = rng.choice(np.array([-1, 1, 2, -130, 400]), spec.lanes).astype(np.int64).astype(spec.uint)
        states.append((spec, _base(spec), _base(spec) + steps * (rng.random(spec.lanes) < share)))
    return _encoded(codec, [(spec, base, np.ascontiguousarray(new, spec.uint)) for spec, base, new in states])


def _encoded(codec: str, states: Sequence[tuple[SliceSpec, Lanes, Lanes]]) -> Encoded:
    if codec in codecs.ANCHOR:
        denses = [Dense(spec, new, _digest(spec, new)) for spec, _, new in states]
        return codecs.ANCHOR[codec].encode(denses, nonce=NONCE)
    delta = codecs.DELTA[codec]
    deltas = [delta.diff(spec, base.copy(), new) for spec, base, new in states]
    return delta.encode(deltas, nonce=NONCE, base=InMemory([after for _, _, after in states]))


class _Elsewhere(InMemory):
    """Slices that can be read, but do not lie in host memory."""

    def view(self, index: int) -> None:
        """See `Base.view`."""


def decode(
    codec: str, stored: bytes, specs: Sequence[SliceSpec], *, raw_size: int, bases: type[InMemory] = InMemory
) -> Decoded:
    """What a shard says of slices whose lanes before are those of `_base`."""
    base = bases([_base(spec) for spec in specs])
    return codecs.decode(codec, stored, specs, raw_size=raw_size, base=base)


def _digest(spec: SliceSpec, lanes: Lanes) -> int:
    return digest(lanes, tensor_key(spec.name), spec.first_word)


def seeds() -> Iterable[bytes]:
    """A shard of every codec and layout; none of a large anchor, which teaches nothing and is slow."""
    for codec in (*codecs.DELTA, *codecs.ANCHOR):
        for layout in range(len(LAYOUTS)):
            if layout != _LARGE or codec in codecs.DELTA:
                yield bytes([layout]) + _sample(codec, layout).data


# --- What must hold ----------------------------------------------------------------------------------


def check(data: bytes) -> None:
    """Codecs refuse the shard, or read with both sets of kernels what can be applied and written again."""
    specs, stored = LAYOUTS[data[0] % len(LAYOUTS) if data else 0], data[1:]
    try:
        file = shard.parse(stored)
    except REFUSALS:
        file = None
    raw = raw_size(file) if file else len(stored)
    for codec in (*codecs.DELTA, *codecs.ANCHOR):
        if file is not None and file.meta.codec != codec:
            continue
        read = partial(decode, codec, stored, specs, raw_size=raw)
        found, apart = with_each(read, _same), with_each(partial(read, bases=_Elsewhere), _same)
        assert (found is None) == (apart is None)
        if found is not None and apart is not None:
            assert file is not None, "a shard without a container"
            for spec, change, other in zip(specs, found.changes, apart.changes, strict=True):
                assert _same_lanes(_applied(spec, change), _applied(spec, other))
            _check_decoded(codec, specs, found)


def raw_size(file: shard.ShardFile) -> int:
    """What the descriptor of a shard must say."""
    return sum(file.meta.raw.get(name, len(tensor.data)) for name, tensor in file.tensors.items())


def _same(one: Decoded, two: Decoded) -> bool:
    return (
        len(one.changes) == len(two.changes)
        and one.deltas == two.deltas
        and all(map(_same_change, one.changes, two.changes))
    )


def _same_change(one: Change, two: Change) -> bool:
    if isinstance(one, Sparse) and isinstance(two, Sparse):
        alike = np.array_equal(one.positions, two.positions) and one.relative == two.relative
        return alike and _same_lanes(one.values, two.values)
    return not isinstance(one, Sparse) and not isinstance(two, Sparse) and _same_lanes(one.lanes, two.lanes)


def _same_lanes(one: Lanes, two: Lanes) -> bool:
    return one.dtype == two.dtype and np.array_equal(one, two)


def _check_decoded(codec: str, specs: Sequence[SliceSpec], found: Decoded) -> None:
    assert len(found.changes) == len(found.deltas) == len(specs)
    states = [
        (spec, _base(spec), _applied(spec, change)) for spec, change in zip(specs, found.changes, strict=True)
    ]
    again = with_each(lambda: _encoded(codec, states), lambda one, two: one == two)
    assert again is not None
    for name in KERNELS:
        with using(name):
            decoded = decode(codec, again.data, specs, raw_size=again.raw_size)
        for (spec, base, new), change, delta in zip(states, decoded.changes, decoded.deltas, strict=True):
            assert _same_lanes(_applied(spec, change), new), "what was written again is something else"
            before = 0 if codec in codecs.ANCHOR else _digest(spec, base)
            assert delta in {None, (_digest(spec, new) - before) & MASK}


def _applied(spec: SliceSpec, change: Change) -> Lanes:
    """The base after a change; both sets of kernels apply it alike, and the digest moves as they say."""
    base = _base(spec)
    if not isinstance(change, Sparse):
        spec.check(change.lanes)
        return change.lanes
    at = change.positions
    assert at.dtype in {np.dtype(np.int32), np.dtype(np.int64)}
    assert change.values.dtype == spec.uint
    assert change.values.size == at.size
    assert (np.diff(at, prepend=-1) > 0).all()
    assert (at < spec.lanes).all()
    results = []
    for name in KERNELS:
        with using(name):
            values, delta = kernels.patch(spec, base, change)
            lanes = base.copy()
            kernels.scatter(lanes, at, values)
        assert delta == (_digest(spec, lanes) - _digest(spec, base)) & MASK
        assert change.delta in {None, delta}
        results.append(lanes)
    assert all(_same_lanes(results[0], other) for other in results[1:])
    expected = base.copy()
    expected[at] = kernels.new_bits(change, base[at])
    assert _same_lanes(results[0], expected)
    return results[0]


# --- How to damage one -------------------------------------------------------------------------------


def mutate(data: bytes, rng: random.Random, noise: Noise) -> bytes:
    """Damages the header or inflated streams, and makes the rest fit again; or any bytes at all."""
    parts = Parts.of(data[1:])
    if parts is None or rng.random() < 0.1:
        return noise(data, len(data) + 64)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        parts.damage(rng, noise)
    layout = data[:1] if rng.random() < 0.95 else rng.randbytes(1)
    return layout + parts.to_bytes()


TARGET = Target(seeds, check, mutate)
