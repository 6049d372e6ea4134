"""Digests of slices in the stream `D`, and what slices change, of which nothing is declared."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest
from codec_samples import NONCE, dense, diff, whole_spec

from deltastore import codec as codecs
from deltastore.codec import frames, shard
from deltastore.codec.types import Decoded, Encoded, Sparse, Whole
from deltastore.errors import BadShard, LimitExceeded
from deltastore.protocol.digest import Lanes

SPARSE = ("ulp", "abs")
STREAMED = (*SPARSE, "plane")
SPECS = [
    whole_spec("BF16", 500, "few"),
    whole_spec("BF16", 90, "none"),
    whole_spec("F32", 0, "empty"),
    whole_spec("F32", 8, "all"),
]


def states() -> list[tuple[Lanes, Lanes]]:
    """Before and after: some lanes of one slice, none of another, of one without lanes, most of the last."""
    before: list[Lanes] = [np.full(spec.lanes, 500, spec.uint) for spec in SPECS]
    after = [lanes.copy() for lanes in before]
    after[0][[3, 77, 400]] += 1
    after[3][3:] += 100_000
    return list(zip(before, after, strict=True))


def sample(codec: str) -> tuple[Encoded, list[int]]:
    """A shard, and what each of its slices adds to the digest."""
    if codec == "plane":
        denses = [dense(spec, new) for spec, (_, new) in zip(SPECS, states(), strict=True)]
        return codecs.ANCHOR[codec].encode(denses, nonce=NONCE), [item.digest for item in denses]
    diffs = [diff(codec, spec, *pair) for spec, pair in zip(SPECS, states(), strict=True)]
    return codecs.DELTA[codec].encode(diffs, nonce=NONCE), [item.state_delta for item in diffs]


def decode(codec: str, encoded: Encoded) -> Decoded:
    return codecs.get(codec).decode(encoded.data, SPECS, raw_size=encoded.raw_size)


def altered(encoded: Encoded, meta: shard.Meta | None = None, **streams: bytes | None) -> Encoded:
    """The shard with other metadata, or with some of its streams as given or left out."""
    file = shard.parse(encoded.data)
    tensors = dict(file.tensors)
    raw_size = encoded.raw_size
    for name, data in streams.items():
        raw_size -= len(tensors.pop(name).data) if name in tensors else 0
        if data is not None:
            tensors[name] = shard.Tensor("U8", (len(data),), data)
            raw_size += len(data)
    return replace(encoded, data=shard.build(meta or file.meta, list(tensors.items())), raw_size=raw_size)


@pytest.mark.req("DS-STREAM-1")
@pytest.mark.parametrize("codec", STREAMED)
def test_slices_that_are_not_empty_have_8_bytes(codec: str) -> None:
    encoded, expected = sample(codec)
    stored = expected if codec == "plane" else [expected[0], expected[3]]
    words = b"".join(word.to_bytes(8, "little") for word in stored if word)
    assert bytes(shard.parse(encoded.data).tensors["D"].data) == words
    assert decode(codec, encoded).deltas == expected
    assert shard.parse(encoded.data).meta.digest == ()


@pytest.mark.parametrize("codec", STREAMED)
def test_what_is_replaced_follows_from_the_streams(codec: str) -> None:
    encoded, _ = sample(codec)
    decoded = decode(codec, encoded)
    assert [type(change) for change in decoded.changes[2:]] == [Whole if codec == "plane" else Sparse, Whole]
    whole = codec == "plane"
    assert decoded.changed == ([500, 90, 0, 8] if whole else [3, 0, 0, 8])
    assert encoded.changed == (598 if whole else 3 + 5)


@pytest.mark.req("DS-STREAM-2")
@pytest.mark.parametrize("codec", STREAMED)
@pytest.mark.parametrize("words", [-16, -8, -1, 1, 8, 16, None])
def test_another_number_of_digests_is_refused(codec: str, words: int | None) -> None:
    encoded, _ = sample(codec)
    good = bytes(shard.parse(encoded.data).tensors["D"].data)
    other = None if words is None else (good + bytes(16))[: len(good) + words] or None
    assert decode(codec, altered(encoded, D=good)).deltas
    with pytest.raises(BadShard, match="'D'"):
        decode(codec, altered(encoded, D=other))


@pytest.mark.req("DS-STREAM-2")
@pytest.mark.parametrize("codec", STREAMED)
def test_digests_beyond_what_slices_can_need_are_refused(codec: str) -> None:
    encoded, _ = sample(codec)
    with pytest.raises(LimitExceeded):
        decode(codec, altered(encoded, D=bytes(1 << 20)))


@pytest.mark.req("DS-STREAM-2", "DS-PLANE-2")
@pytest.mark.parametrize(("codec", "name"), [*((c, "D") for c in STREAMED), *((c, "M") for c in SPARSE)])
def test_modes_and_digests_are_never_compressed(codec: str, name: str) -> None:
    encoded, _ = sample(codec)
    file = shard.parse(encoded.data)
    good = bytes(file.tensors[name].data)
    stored, sizes = frames.compress(good)
    listed: Mapping[str, int] = {**file.meta.raw, name: len(good)}
    meta = replace(file.meta, frames={**file.meta.frames, name: sizes}, raw=listed)
    with pytest.raises(BadShard, match="metadata list"):
        decode(codec, replace(altered(encoded, meta, **{name: stored}), raw_size=encoded.raw_size))


@pytest.mark.req("DS-SHARD-3")
@pytest.mark.parametrize("codec", STREAMED)
def test_digests_in_the_metadata_too_are_refused(codec: str) -> None:
    encoded, expected = sample(codec)
    meta = replace(shard.parse(encoded.data).meta, digest=expected)
    with pytest.raises(BadShard, match="digests"):
        decode(codec, altered(encoded, meta))


@pytest.mark.req("DS-STREAM-1")
@pytest.mark.parametrize("codec", STREAMED)
def test_a_change_that_adds_nothing_to_the_digest_is_legal(codec: str) -> None:
    # A sum can come out as 0; whoever applies the change compares.
    encoded, expected = sample(codec)
    zeros = bytes(len(shard.parse(encoded.data).tensors["D"].data))
    decoded = decode(codec, altered(encoded, D=zeros))
    assert decoded.deltas == [0] * len(expected)
    assert decoded.changed == decode(codec, encoded).changed


@pytest.mark.req("DS-STREAM-1")
@pytest.mark.parametrize("codec", STREAMED)
def test_a_shard_of_empty_slices_has_no_digests(codec: str) -> None:
    spec = SPECS[2]
    none = np.empty(0, spec.uint)
    if codec == "plane":
        encoded = codecs.ANCHOR[codec].encode([dense(spec, none)], nonce=NONCE)
    else:
        encoded = codecs.DELTA[codec].encode([diff(codec, spec, none, none)], nonce=NONCE)
    assert shard.parse(encoded.data).tensors.keys() == ({"M"} if codec in SPARSE else set())
    decoded = codecs.get(codec).decode(encoded.data, [spec], raw_size=encoded.raw_size)
    assert (decoded.deltas, decoded.changed) == ([0], [0])
    forged = altered(encoded, D=bytes(8))
    with pytest.raises(BadShard, match="'D'"):
        codecs.get(codec).decode(forged.data, [spec], raw_size=forged.raw_size)


@pytest.mark.req("DS-GAP-1")
@pytest.mark.parametrize("codec", SPARSE)
@pytest.mark.parametrize("mode", [1, 2, 3, 4])
def test_a_slice_without_lanes_does_not_change(codec: str, mode: int) -> None:
    encoded, _ = sample(codec)
    file = shard.parse(encoded.data)
    modes, digests = bytes(file.tensors["M"].data), bytes(file.tensors["D"].data)
    forged = altered(encoded, M=modes[:2] + bytes([mode]) + modes[3:], D=digests + bytes(8))
    with pytest.raises(BadShard, match=f"'empty' of 0 lanes has mode {mode}"):
        decode(codec, forged)
