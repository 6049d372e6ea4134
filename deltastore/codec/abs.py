"""Codec `abs` (spec, Codec abs): gaps, and the new bits of changed lanes in byte planes `V0` to `V7`.

Applying twice does no harm, and needs no exact base.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from deltastore.codec import gaps, kernels
from deltastore.codec.kernels import Bytes, Counts
from deltastore.codec.types import Decoded, Diff, Encoded, SliceSpec
from deltastore.protocol.digest import Lanes


class _Bits:
    """Values as they are."""

    codec = "abs"
    relative = False
    columns = 0
    streams = tuple(f"V{i}" for i in range(8))

    def encode(self, diff: Diff, changes: Counts) -> tuple[dict[str, Bytes], Counts]:
        planes = kernels.split_planes(diff.new)
        parts = dict(zip(self.streams, planes, strict=False))
        return parts, np.empty((changes.size, 0), np.int64)

    def sizes(self, spec: SliceSpec, changes: Counts, _counts: Counts) -> dict[str, int]:
        return dict.fromkeys(self.streams[: spec.lane_bytes], int(changes.sum()))

    def decode(self, spec: SliceSpec, changes: Counts, counts: Counts, take: gaps.Take) -> Lanes:
        sizes = self.sizes(spec, changes, counts)
        return kernels.merge_planes([take(name, size) for name, size in sizes.items()])


class Abs:
    """Gaps and absolute values: about twice the bytes of `ulp`, but idempotent."""

    id: Final = "abs"
    kind: Final = "delta"

    def encode(self, diffs: Sequence[Diff], *, nonce: bytes) -> Encoded:
        """See `DeltaCodec.encode`."""
        return gaps.encode(_BITS, diffs, nonce=nonce)

    def decode(self, data: bytes, specs: Sequence[SliceSpec], *, raw_size: int) -> Decoded:
        """See `DeltaCodec.decode`; sparse changes are absolute."""
        return gaps.decode(_BITS, data, specs, raw_size=raw_size)


_BITS: Final = _Bits()
