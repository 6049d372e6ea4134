"""Codec `abs` (spec, Codec abs): gaps, and the new bits of changed lanes in the planes `V0` to `V7`.

Applying twice does no harm, and needs no exact base.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np

from deltastore.codec import gaps, kernels, planes
from deltastore.codec.kernels import Counts
from deltastore.codec.planes import Take
from deltastore.codec.types import Base, CopyWhole, Decoded, Diff, Encoded, Over, SliceSpec, Sparse, Stream
from deltastore.protocol.digest import Lanes


class _Values:
    """New bits as values of the gap code."""

    codec = "abs"
    columns = 0
    streams: tuple[str, ...] = tuple(f"V{i}" for i in range(8))
    planes = streams

    def parts(self, delta: Diff, *, wide: bool) -> dict[str, Stream]:
        changes = kernels.per_block(delta.positions, kernels.block_ends(delta.spec.lanes))
        symbols, counts = kernels.gap_encode(delta.positions, changes, 2 if wide else 1)
        table = np.column_stack((counts, changes)).astype("<u4")
        low_high = kernels.split_planes(symbols)
        return {
            "T": table.tobytes(),
            **{name: plane.data for name, plane in zip("HI" if wide else "G", low_high, strict=True)},
            **planes.split(delta.spec, delta.new, self.streams),
        }

    def impossible(self, changes: Counts, _counts: Counts) -> gaps.Flags:
        return np.zeros(changes.size, np.bool_)

    def sizes(self, changes: Counts, _counts: Counts, widths: Counts) -> list[Counts]:
        return [changes * (widths > plane) for plane in range(len(self.streams))]

    def decode(self, item: gaps.Slice, take: Take, _over: Over | None) -> gaps.Pending:
        parts = [np.frombuffer(plane, np.uint8) for plane in item.planes(take) if len(plane)]
        counts, changes = np.frombuffer(item.table, "<u4").reshape(-1, 2).astype(np.int64).T
        positions = kernels.gap_decode(kernels.merge_planes(parts), counts, changes, item.spec.lanes)
        values = planes.join(item.spec, positions.size, take, self.streams)
        return lambda: Sparse(positions, values, relative=False)


_VALUES: Final = _Values()


class Abs:
    """Gaps and absolute values: about twice the bytes of `ulp`, but idempotent."""

    id: Final = "abs"
    kind: Final = "delta"
    reads_base: Final = False

    def diff(self, spec: SliceSpec, base: Lanes, new: Lanes) -> Diff:
        """See `DeltaCodec.diff`."""
        return kernels.diff(spec, base, new)

    def of(self, spec: SliceSpec, parts: Iterable[Diff], whole: CopyWhole) -> Diff:
        """See `DeltaCodec.of`."""
        return Diff.joined(spec, parts, whole)

    def unchanged(self, spec: SliceSpec) -> Diff:
        """See `DeltaCodec.unchanged`."""
        return Diff.none(spec)

    def encode(self, deltas: Sequence[Diff], *, nonce: bytes, base: Base | None = None) -> Encoded:
        """See `DeltaCodec.encode`."""
        return gaps.encode(_VALUES, deltas, nonce=nonce)

    def decode(
        self, data: bytes, specs: Sequence[SliceSpec], *, raw_size: int, base: Base | None = None
    ) -> Decoded:
        """See `DeltaCodec.decode`; sparse changes are absolute."""
        return gaps.decode(_VALUES, data, specs, raw_size=raw_size)
