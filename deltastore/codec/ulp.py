"""Codec `ulp` (spec, Codec ulp): gaps, and the difference of bit patterns; the default delta.

The step of a changed lane is new - old modulo 2^width: -1 and 1 are 2-bit codes in `U`, others escape to a
byte in `X`, and from there to the full width in `Y`. Steps of successive deltas add.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from deltastore.codec import gaps, kernels
from deltastore.codec.kernels import Bytes, Counts
from deltastore.codec.types import Decoded, Diff, Encoded, SliceSpec
from deltastore.errors import BadShard, UsageError
from deltastore.protocol.digest import Lanes

_ESCAPE: Final = 2
_FIRST: Final = 3
"""The smallest zigzag number that is an escape; 1 and 2 are the steps -1 and 1."""
_LARGEST: Final = 255
"""What stands in `X` for a step that is in `Y`."""


class _Steps:
    """Values as steps."""

    codec = "ulp"
    relative = True
    columns = 2
    streams: tuple[str, ...] = ("U", "X", "Y")

    def encode(self, diff: Diff, changes: Counts) -> tuple[dict[str, Bytes], Counts]:
        steps = diff.new - diff.old
        if not steps.all():
            raise UsageError(f"a diff of {diff.spec.label!r} lists a lane that did not change")
        one = steps.dtype.type(1)
        codes = np.full(steps.size, _ESCAPE, np.uint8)
        codes[steps == ~(one - one)] = 0
        codes[steps == one] = 1
        escapes = np.flatnonzero(codes == _ESCAPE)
        far = steps[escapes]
        numbers = kernels.zigzag(far) - steps.dtype.type(_FIRST)
        near = np.minimum(numbers, steps.dtype.type(_LARGEST)).astype(np.uint8)
        full = near == _LARGEST
        ends = np.cumsum(changes)
        counts = np.column_stack((kernels.per_block(escapes, ends), kernels.per_block(escapes[full], ends)))
        parts = {"U": kernels.pack2(codes, changes), "X": near, "Y": far[full].view(np.uint8)}
        return parts, counts

    def sizes(self, spec: SliceSpec, changes: Counts, counts: Counts) -> dict[str, int]:
        near, full = counts.T
        if (near > changes).any() or (full > near).any():
            raise BadShard(f"the escapes of slice {spec.label!r} are more than its changes")
        return {
            "U": int(((changes + 3) // 4).sum()),
            "X": int(near.sum()),
            "Y": int(full.sum()) * spec.lane_bytes,
        }

    def decode(self, spec: SliceSpec, changes: Counts, counts: Counts, take: gaps.Take) -> Lanes:
        sizes = self.sizes(spec, changes, counts)
        codes = kernels.unpack2(take("U", sizes["U"]), changes)
        near = take("X", sizes["X"])
        far: Lanes = take("Y", sizes["Y"]).view(spec.uint)
        escapes = np.flatnonzero(codes == _ESCAPE)
        full = near == _LARGEST
        if (codes > _ESCAPE).any():
            raise BadShard(f"slice {spec.label!r} has a step with the code 3")
        ends = np.cumsum(changes)
        near_counts, full_counts = counts.T
        if not np.array_equal(kernels.per_block(escapes, ends), near_counts) or not np.array_equal(
            kernels.per_block(escapes[full], ends), full_counts
        ):
            raise BadShard(f"slice {spec.label!r} has other escapes than its table says")
        steps = np.array([-1, 1, 0], np.int8).astype(spec.uint)[codes]
        steps[escapes] = _far_steps(spec, near, full, far)
        return steps


def _far_steps(spec: SliceSpec, near: Bytes, full: Bytes, far: Lanes) -> Lanes:
    """Steps of the escapes, each in the one form that it has."""
    widest = (1 << 8 * spec.lane_bytes) - 1
    if (near[~full] > widest - _FIRST).any() or (kernels.zigzag(far) < _FIRST + _LARGEST).any():
        raise BadShard(f"slice {spec.label!r} has a step that is not in its shortest form")
    numbers = near.astype(spec.uint)
    numbers += spec.uint.type(_FIRST)
    steps = kernels.unzigzag(numbers)
    steps[full] = far
    return steps


class Ulp:
    """Gaps and steps: 1.0 to 1.6 bytes per changed weight; applying needs the exact base."""

    id: Final = "ulp"
    kind: Final = "delta"

    def encode(self, diffs: Sequence[Diff], *, nonce: bytes) -> Encoded:
        """See `DeltaCodec.encode`."""
        return gaps.encode(_STEPS, diffs, nonce=nonce)

    def decode(self, data: bytes, specs: Sequence[SliceSpec], *, raw_size: int) -> Decoded:
        """See `DeltaCodec.decode`; sparse changes are relative."""
        return gaps.decode(_STEPS, data, specs, raw_size=raw_size)


_STEPS: Final = _Steps()
