"""Codec `ctx` (spec, Codec ctx): changes by the exponent of the old value; the small delta for slow links.

Writing and reading scan the base once. A shard has no digests of its slices: its descriptor has the sum.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np

from deltastore import threads
from deltastore.codec import bundle, ctx_reading, gaps, kernels, planes
from deltastore.codec.contexts import (
    DENSE,
    EXPONENTS,
    Changes,
    CodedSegment,
    Mode,
    Part,
    Run,
    field_of,
    origins,
    segments,
)
from deltastore.codec.kernels import Bytes, Counts
from deltastore.codec.types import Base, CopyWhole, Decoded, Diff, Encoded, SliceSpec, Stream
from deltastore.codec.ulp import VALUES, Steps, Ulp
from deltastore.errors import BadShard, UsageError
from deltastore.protocol.digest import Lanes

_ULP: Final = Ulp()


class Ctx:
    """Changes by class: about three quarters of the bytes of `ulp`; both ways need the exact base."""

    id: Final = "ctx"
    kind: Final = "delta"
    reads_base: Final = True

    def diff(self, spec: SliceSpec, base: Lanes, new: Lanes) -> Steps:
        """See `DeltaCodec.diff`."""
        return _ULP.diff(spec, base, new)

    def of(self, spec: SliceSpec, parts: Iterable[Diff], whole: CopyWhole) -> Steps:
        """See `DeltaCodec.of`."""
        return _ULP.of(spec, parts, whole)

    def unchanged(self, spec: SliceSpec) -> Steps:
        """See `DeltaCodec.unchanged`."""
        return _ULP.unchanged(spec)

    def encode(self, deltas: Sequence[Steps], *, nonce: bytes, base: Base | None = None) -> Encoded:
        """See `DeltaCodec.encode`."""
        if base is None:
            raise UsageError("a shard of codec 'ctx' is not written without its base", hint="Pass `base`")
        modes = [_mode(delta) for delta in deltas]
        encoder = _Encoder(deltas, modes, base)
        writer = bundle.Writer()
        for name, parts in encoder.streams().items():
            writer.add(name, parts, compressed=name != "L")
        return writer.finish(
            codec=self.id,
            nonce=nonce,
            state_delta=sum(delta.state_delta for delta in deltas),
            changed=sum(delta.changed for delta in deltas),
        )

    def decode(
        self, data: bytes, specs: Sequence[SliceSpec], *, raw_size: int, base: Base | None = None
    ) -> Decoded:
        """See `DeltaCodec.decode`; sparse changes are relative, and no slice has a digest."""
        if base is None:
            raise BadShard("a shard of codec 'ctx' cannot be read without a base, and this edge has none")
        reader = bundle.Reader(data, specs, codec=self.id, names=ctx_reading.STREAMS, raw_size=raw_size)
        return ctx_reading.read(reader, specs, base)


def _mode(delta: Steps) -> Mode:
    """Whole where `ulp` would store it so: what is larger than `ulp` is never worth it."""
    if not delta.changed:
        return Mode.UNCHANGED
    whole = delta.whole is not None and gaps.written(VALUES, delta).mode is gaps.Mode.FULL
    return Mode.FULL if whole else Mode.CODED


class _Encoder:
    """Writes the streams of one shard.

    Args:
        deltas: Of all slices.
        modes: Of all slices.
        base: Their lanes after the deltas.
    """

    def __init__(self, deltas: Sequence[Steps], modes: Sequence[Mode], base: Base) -> None:
        self._specs = [delta.spec for delta in deltas]
        self._modes = modes
        self._base = base
        self._whole = [delta for delta, mode in zip(deltas, modes, strict=True) if mode is Mode.FULL]
        coded = [i for i, mode in enumerate(modes) if mode is Mode.CODED]
        self._changes = {
            i: kernels.steps_decode(self._specs[i], deltas[i].coded(), deltas[i].changed) for i in coded
        }
        self._segments = list(segments(self._specs, coded))

    def streams(self) -> dict[str, Sequence[Stream]]:
        """The parts of each stream, in the order in which they are stored."""
        origin, dense = self._origins()
        done = threads.spread(lambda segment: self._encode(segment, origin, dense), self._segments)
        parts: dict[str, Sequence[Stream]] = {
            "M": [bytes([*self._modes, dense])] if self._modes else [],
            "T": [one.row.pack() for one in done],
            "E": [origin.data],
            **{name: [one.dense[k] for one in done] for k, name in enumerate(DENSE[:dense])},
            "G": [one.unary for one in done],
            "U": [one.codes for one in done],
            "X": [one.near for one in done],
            **self._planes(),
            "L": [one.low for one in done],
            "Y": [one.far for one in done],
            "W": [one.wide for one in done],
        }
        return parts

    def _origins(self) -> tuple[Bytes, int]:
        counts = threads.spread(self._count, [part for segment in self._segments for part in segment])
        none: Counts = np.empty((0, EXPONENTS), np.int64)
        lanes = np.concatenate([none, *(seen for seen, _ in counts)])
        return origins(lanes, np.concatenate([none, *(changed for _, changed in counts)]))

    def _count(self, part: Part) -> tuple[Counts, Counts]:
        lanes = self._base.read(part.index, part.start, part.stop)
        return kernels.ctx_count(lanes, field_of(self._specs[part.index].dtype), self._within(part))

    def _encode(self, segment: Sequence[Part], origin: Bytes, dense: int) -> CodedSegment:
        runs = [
            Run(
                self._base.read(part.index, part.start, part.stop),
                field_of(self._specs[part.index].dtype),
                part.of(origin),
            )
            for part in segment
        ]
        return kernels.ctx_encode(runs, [self._within(part) for part in segment], dense)

    def _within(self, part: Part) -> Changes:
        """The changes of a part, in positions of the part."""
        positions, steps = self._changes[part.index]
        low, high = np.searchsorted(positions, (part.start, part.stop))
        found = positions[low:high]
        return found - part.start if part.start else found, steps[low:high]

    def _planes(self) -> dict[str, Sequence[Stream]]:
        whole = [planes.split(one.spec, one.whole) for one in self._whole if one.whole is not None]
        return {name: [part[name] for part in whole if name in part] for name in planes.FULL}
