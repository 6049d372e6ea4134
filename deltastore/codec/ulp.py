"""Codec `ulp` (spec, Codec ulp): gaps, and the difference of bit patterns; the default delta."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import numpy as np

from deltastore.codec import gaps, kernels
from deltastore.codec.kernels import Counts
from deltastore.codec.planes import Take
from deltastore.codec.types import (
    Base,
    Change,
    Coded,
    CopyWhole,
    Decoded,
    Diff,
    Encoded,
    Over,
    ReadLanes,
    SliceSpec,
    Sparse,
    Stream,
    Streams,
    Whole,
    overwritten,
    whole_copy,
)
from deltastore.protocol.digest import MASK, Lanes


@dataclass(frozen=True, slots=True, eq=False)
class Steps:
    """What changed in one slice, as the streams that will be stored: about a byte per change.

    Attributes:
        spec: The slice.
        streams: With 8-bit gaps.
        changed: Lanes that changed.
        state_delta: What the change adds to the state digest, modulo 2^64.
        nonfinite: New values that are NaN or infinite.
        whole: All lanes after, where so many changed that the slice may be stored whole.
    """

    spec: SliceSpec
    streams: Streams
    changed: int
    state_delta: int
    nonfinite: int = 0
    whole: Lanes | None = None

    def coded(self, *, wide: bool = False) -> Coded:
        """The streams as they are stored, with 8-bit or 16-bit gaps."""
        return kernels.widen(self.streams) if wide else self.streams.coded()

    def undo(self, base: Lanes) -> None:
        """Puts the old bits back into a base that has moved with this delta."""
        if self.changed:
            positions, steps = kernels.steps_decode(self.spec, self.coded(), self.changed)
            base[positions] -= steps

    def before(self, after: Lanes) -> ReadLanes:
        """The lanes before this delta, given those after it."""
        if not self.changed:
            return lambda start, stop: after[start:stop]
        positions, steps = kernels.steps_decode(self.spec, self.coded(), self.changed)
        return overwritten(after, positions, after[positions] - steps)

    def reverse(self) -> Sparse:
        """The change that puts the old bits back."""
        if not self.changed:
            return Sparse(np.empty(0, np.int64), np.empty(0, self.spec.uint), relative=True)
        positions, steps = kernels.steps_decode(self.spec, self.coded(), self.changed)
        return Sparse(positions, np.negative(steps), relative=True)

    def says(self, change: Change) -> bool:
        """Whether a change is exactly this one."""
        if isinstance(change, Whole):
            return self.whole is not None and np.array_equal(change.lanes, self.whole)
        if not self.changed:
            return change.positions.size == 0
        positions, steps = kernels.steps_decode(self.spec, self.coded(), self.changed)
        same = np.array_equal(change.positions, positions) and np.array_equal(change.values, steps)
        return change.relative and same


class _Values:
    """Steps as values of the gap code."""

    codec = "ulp"
    columns = 2
    streams: tuple[str, ...] = ("U", "X", "Y")
    planes: tuple[str, ...] = ()

    def parts(self, delta: Steps, *, wide: bool) -> dict[str, Stream]:
        table, low, high, codes, near, far = delta.coded(wide=wide)
        symbols = {"H": low, "I": high} if wide else {"G": low}
        return {"T": table, "U": codes, "X": near, "Y": far, **symbols}

    def impossible(self, changes: Counts, counts: Counts) -> gaps.Flags:
        near, full = counts.T
        found: gaps.Flags = (near > changes) | (full > near)
        return found

    def sizes(self, changes: Counts, counts: Counts, widths: Counts) -> list[Counts]:
        near, full = counts.T
        return [(changes + 3) // 4, near, full * widths]

    def decode(self, item: gaps.Slice, take: Take, over: Over | None) -> gaps.Pending:
        spec, coded, changed = item.spec, self.coded(item, take), item.changed

        def steps() -> Change:
            return Sparse(*kernels.steps_decode(spec, coded, changed), relative=True)

        def new_bits(over: Over) -> Change:
            delta = kernels.steps_patch(spec, coded, over)
            return Sparse(over.positions, over.values, relative=False, delta=delta)

        return steps if over is None else partial(new_bits, over)

    def coded(self, item: gaps.Slice, take: Take) -> Coded:
        """The streams of a sparse slice, as they are stored."""
        low, high = item.planes(take)
        codes, near, far = [take(name, item.sizes[name]) for name in self.streams]
        return Coded(item.table, low, high, codes, near, far)


VALUES: Final = _Values()
_NONE: Final = Streams(b"", b"", b"", b"", b"")


class Ulp:
    """Gaps and steps: 1.0 to 1.6 bytes per changed weight; applying needs the exact base."""

    id: Final = "ulp"
    kind: Final = "delta"
    reads_base: Final = False

    def diff(self, spec: SliceSpec, base: Lanes, new: Lanes) -> Steps:
        """See `DeltaCodec.diff`."""
        found = kernels.steps_diff(spec, base, new)
        whole = whole_copy(base, found.changed)
        return Steps(spec, found.streams, found.changed, found.state_delta, found.nonfinite, whole)

    def of(self, spec: SliceSpec, parts: Iterable[Diff], whole: CopyWhole) -> Steps:
        """See `DeltaCodec.of`; each part is encoded before the next one is asked for."""
        changed, delta, nonfinite = 0, 0, 0
        streams = [_NONE]
        for part in parts:
            streams.append(kernels.steps_encode(part.spec, part.positions, part.new - part.old))
            changed += part.changed
            delta += part.state_delta
            nonfinite += part.nonfinite
        joined = Streams(*map(b"".join, zip(*streams, strict=True)))
        return Steps(spec, joined, changed, delta & MASK, nonfinite, whole(changed))

    def unchanged(self, spec: SliceSpec) -> Steps:
        """See `DeltaCodec.unchanged`."""
        return Steps(spec, _NONE, 0, 0)

    def encode(self, deltas: Sequence[Steps], *, nonce: bytes, base: Base | None = None) -> Encoded:
        """See `DeltaCodec.encode`."""
        return gaps.encode(VALUES, deltas, nonce=nonce)

    def decode(
        self, data: bytes, specs: Sequence[SliceSpec], *, raw_size: int, base: Base | None = None
    ) -> Decoded:
        """See `DeltaCodec.decode`; sparse changes are relative where the base is not seen."""
        return gaps.decode(VALUES, data, specs, raw_size=raw_size, base=base)
