"""Successive `ulp` deltas as one, from their shards alone (spec, Skips; Codec ulp).

Steps add up lane by lane, and a whole slice replaces whatever came before it, so no state is needed. The
result is the shard that a comparison of the two ends would be encoded as, byte for byte, but for two slices:
one that became whole on the way stays whole, and one that only the sum of the steps makes dense is not whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from deltastore.codec import gaps, kernels
from deltastore.codec.gaps import Mode, Opened, Written
from deltastore.codec.planes import Take
from deltastore.codec.types import Change, Encoded, SliceSpec, Whole
from deltastore.codec.ulp import VALUES, Steps
from deltastore.errors import BadShard, Unsupported, UsageError
from deltastore.protocol.digest import MASK, Lanes

CODEC: Final = VALUES.codec
"""The only codec whose shards can be merged."""


@dataclass(frozen=True, slots=True)
class Stored:
    """A shard as it is stored, and what its descriptor says of it.

    Attributes:
        data: The file.
        codec: Id of its codec.
        raw_size: Bytes of its streams before compression.
        state_delta: What it adds to the state digest, modulo 2^64.
    """

    data: bytes
    codec: str
    raw_size: int
    state_delta: int


def merge(shards: Sequence[Stored], specs: Sequence[SliceSpec], *, nonce: bytes) -> Encoded:
    """One shard that does what successive ones do.

    Beside them it takes the result, one frame of each of their streams and of each of its own, the streams of
    one slice, and about a megabyte of sums.

    Args:
        shards: Oldest first; each of the same slices, from the state that the one before leads to.
        specs: The slices.
        nonce: 16 random bytes.

    Returns:
        The shard; lanes of whole slices all count as changed.

    Raises:
        Unsupported: A shard is of a codec that cannot be merged.
        BadShard: One breaks a rule, or they cannot be of successive deltas.
        LimitExceeded: One declares more than the limits allow; nothing was allocated for it.
        UsageError: There are none.
    """
    if not shards:
        raise UsageError("a merge of no shards", hint="Pass at least one")
    for one in shards:
        check_codec(one.codec)
    opened = [_open(one, specs) for one in shards]
    return gaps.write(VALUES, _slices(specs, opened), nonce=nonce, gradual=True)


def changed_by(shard: Stored, specs: Sequence[SliceSpec]) -> int:
    """Lanes that a shard sets, counted by reading it whole, a slice at a time; errors as for `merge`."""
    check_codec(shard.codec)
    opened = _open(shard, specs)
    changed = sum(_counted(one, opened.reader.take) for one in opened.slices)
    opened.reader.close()
    return changed


def check_codec(codec_id: str) -> None:
    """Makes sure that shards of a codec can be merged.

    Raises:
        Unsupported: They cannot.
    """
    if codec_id != CODEC:
        raise Unsupported(
            f"deltas of codec {codec_id!r} cannot be merged without the weights",
            hint=f"Only {CODEC!r} can: its steps add up",
            codec=codec_id,
        )


def _open(one: Stored, specs: Sequence[SliceSpec]) -> Opened:
    opened = gaps.read(VALUES, one.data, specs, raw_size=one.raw_size, gradual=True)
    if sum(opened.digests) & MASK != one.state_delta:
        raise BadShard("the slices of a shard do not add up to its descriptor's digest")
    return opened


def _counted(one: gaps.Slice, take: Take) -> int:
    """Lanes that a slice sets, once all that it has in the streams has been read."""
    if one.mode is Mode.UNCHANGED:
        return 0
    if one.mode is Mode.FULL:
        gaps.change_of(VALUES, one, take)
        return one.spec.lanes
    kernels.steps_check(one.spec, VALUES.coded(one, take), one.changed)
    return one.changed


def _slices(specs: Sequence[SliceSpec], opened: Sequence[Opened]) -> Iterator[Written]:
    for number, spec in enumerate(specs):
        yield _slice(spec, number, opened)
    for one in opened:
        one.reader.close()


def _slice(spec: SliceSpec, number: int, opened: Sequence[Opened]) -> Written:
    """One slice of all shards as one; each of its parts is taken, also what a whole slice replaces."""
    digest = sum(one.digests[number] for one in opened) & MASK
    modes = [one.slices[number].mode for one in opened]
    if Mode.FULL in modes:
        changes = (gaps.change_of(VALUES, one.slices[number], one.reader.take) for one in opened)
        return gaps.written_whole(spec, _replaced(spec, changes), digest)
    coded = [
        VALUES.coded(one.slices[number], one.reader.take)
        for one, mode in zip(opened, modes, strict=True)
        if mode is not Mode.UNCHANGED
    ]
    if not coded:
        return Written(Mode.UNCHANGED)
    streams, changed = kernels.steps_merge(spec, coded)
    if not changed and digest:
        raise BadShard(
            f"the steps of slice {spec.label!r} cancel out, but their digests do not",
            hint="These are not successive deltas, or one of them is damaged",
            tensor=spec.name,
        )
    return gaps.written(VALUES, Steps(spec, streams, changed, digest))


def _replaced(spec: SliceSpec, changes: Iterator[Change]) -> Lanes:
    """The lanes after changes of which one at least is whole."""
    lanes: Lanes = np.empty(0, spec.uint)
    for change in changes:
        if isinstance(change, Whole):
            lanes = np.require(change.lanes, requirements="W")
        elif lanes.size:
            lanes[change.positions] += change.values
    return lanes
