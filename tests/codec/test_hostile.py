"""No damage to a shard passes: it is an error of ours, or the digests that the shard declares do not fit."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from codec_samples import NONCE, Pair, declared, decode, dense, encode, pair, whole_spec
from hypothesis import given, settings
from hypothesis import strategies as st

from deltastore import codec as codecs
from deltastore.codec import shard
from deltastore.codec.types import Change, Decoded, Encoded, Sparse
from deltastore.errors import BadShard, LimitExceeded, Unsupported

OURS = (BadShard, LimitExceeded, Unsupported)
CODECS = (*codecs.DELTA, *codecs.ANCHOR)


def sample(codec: str) -> tuple[Encoded, list[Pair]]:
    """A small shard with slices of several widths and, where the codec has modes, of all modes."""
    rng = np.random.default_rng(4)
    pairs = [
        pair(rng, whole_spec("BF16", 300, "a"), 0.03, "steps"),
        pair(rng, whole_spec("BF16", 12, "b"), 0.0, "steps"),
        pair(rng, whole_spec("F32", 900, "c"), 0.001, "steps"),
        pair(rng, whole_spec("U8", 11, "d"), 1.0, "random"),
    ]
    if codec in codecs.ANCHOR:
        denses = [dense(spec, new) for spec, _, new in pairs[1::2]]
        return codecs.ANCHOR[codec].encode(denses, nonce=NONCE), pairs[1::2]
    return encode(codec, pairs), pairs


def same(one: Change, two: Change) -> bool:
    if isinstance(one, Sparse) and isinstance(two, Sparse):
        return np.array_equal(one.positions, two.positions) and np.array_equal(one.values, two.values)
    if isinstance(one, Sparse) or isinstance(two, Sparse):
        return False
    return np.array_equal(one.lanes, two.lanes)


def check(found: Decoded, true: Decoded, codec: str, pairs: Sequence[Pair], encoded: Encoded) -> None:
    """What has been read is what was written, or the digests give it away."""
    fits, total = True, 0
    for (spec, base, _), change, delta in zip(pairs, found.changes, found.deltas, strict=True):
        if isinstance(change, Sparse):
            assert (np.diff(change.positions, prepend=-1) > 0).all()
            assert (change.positions < spec.lanes).all()
            assert change.values.size == change.positions.size
        before = np.zeros_like(base) if codec in codecs.ANCHOR else base
        zero = dense(spec, before).digest if codec in codecs.ANCHOR else 0
        real = (declared(change, spec, before) + zero) % 2**64
        fits &= delta in {None, real}
        total += real
    if fits and total % 2**64 == encoded.state_delta:
        assert found.deltas == true.deltas
        assert all(map(same, found.changes, true.changes))


def test_the_sample_has_every_mode() -> None:
    for codec in ("ulp", "abs"):
        file = shard.parse(sample(codec)[0].data)
        assert set(bytes(file.tensors["M"].data)) == {0, 1, 2, 3}
        assert len(file.tensors["D"].data) == 8 * 3


@pytest.mark.req("DS-SHARD-1")
@pytest.mark.parametrize("codec", CODECS)
def test_a_shard_cut_anywhere_is_refused(codec: str) -> None:
    encoded, pairs = sample(codec)
    for size in range(len(encoded.data)):
        with pytest.raises(OURS):
            decode(codec, encoded.data[:size], pairs, raw_size=encoded.raw_size)
    with pytest.raises(OURS):
        decode(codec, encoded.data + b"\0", pairs, raw_size=encoded.raw_size)


@pytest.mark.parametrize("codec", CODECS)
def test_no_flipped_bit_passes(codec: str) -> None:
    encoded, pairs = sample(codec)
    true = decode(codec, encoded.data, pairs, raw_size=encoded.raw_size)
    check(true, true, codec, pairs, encoded)
    refused = 0
    for bit in range(8 * len(encoded.data)):
        data = bytearray(encoded.data)
        data[bit // 8] ^= 1 << bit % 8
        try:
            found = decode(codec, bytes(data), pairs, raw_size=encoded.raw_size)
        except OURS:
            refused += 1
        else:
            check(found, true, codec, pairs, encoded)
    assert refused > 4 * len(encoded.data)


@pytest.mark.parametrize("codec", CODECS)
@given(seed=st.integers(0, 2**32), count=st.integers(2, 40))
@settings(max_examples=150, deadline=None)
def test_no_overwritten_bytes_pass(codec: str, seed: int, count: int) -> None:
    rng = np.random.default_rng(seed)
    encoded, pairs = sample(codec)
    true = decode(codec, encoded.data, pairs, raw_size=encoded.raw_size)
    data = bytearray(encoded.data)
    at = int(rng.integers(0, len(data) - count))
    data[at : at + count] = rng.bytes(count)
    try:
        found = decode(codec, bytes(data), pairs, raw_size=encoded.raw_size)
    except OURS:
        return
    check(found, true, codec, pairs, encoded)


@pytest.mark.parametrize("codec", CODECS)
@given(data=st.binary(max_size=200))
@settings(max_examples=50, deadline=None)
def test_noise_is_refused(codec: str, data: bytes) -> None:
    _, pairs = sample(codec)
    for head in (b"", len(data).to_bytes(8, "little") + b"{"):
        with pytest.raises(OURS):
            decode(codec, head + data, pairs, raw_size=100)


@pytest.mark.req("DS-SHARD-3")
@pytest.mark.parametrize("codec", CODECS)
def test_a_shard_of_other_slices_is_refused(codec: str) -> None:
    encoded, pairs = sample(codec)
    for others in ([], pairs[:-1], [*pairs, pairs[0]]):
        with pytest.raises(OURS):
            decode(codec, encoded.data, others, raw_size=encoded.raw_size)


@pytest.mark.req("DS-SHARD-3")
@pytest.mark.parametrize("codec", CODECS)
def test_a_shard_of_another_codec_is_refused(codec: str) -> None:
    encoded, pairs = sample(codec)
    for other in {*CODECS} - {codec}:
        with pytest.raises(BadShard, match="codec"):
            decode(other, encoded.data, pairs, raw_size=encoded.raw_size)
