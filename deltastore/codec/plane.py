"""Codec `plane` (spec, Codec plane): whole slices as byte planes: the small anchor.

Two thirds of the size of bf16 weights: their exponents compress to a third, their mantissas not at all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

from deltastore.codec import planes
from deltastore.codec.streams import DIGESTS, Reader, Writer
from deltastore.codec.types import Decoded, Dense, Encoded, SliceSpec, Whole


class Plane:
    """Planes of whole slices, each in the form that is smaller."""

    id: Final = "plane"
    kind: Final = "anchor"

    def encode(self, denses: Sequence[Dense], *, nonce: bytes) -> Encoded:
        """See `AnchorCodec.encode`."""
        writer = Writer(planes.FULL, planes=planes.FULL)
        for dense in denses:
            dense.spec.check(dense.lanes)
            writer.add(planes.split(dense.spec, dense.lanes))
        return writer.finish(
            [dense.digest for dense in denses if dense.spec.lanes],
            changed=sum(dense.spec.lanes for dense in denses),
            codec=self.id,
            nonce=nonce,
        )

    def decode(self, data: bytes, specs: Sequence[SliceSpec], *, raw_size: int) -> Decoded:
        """See `AnchorCodec.decode`."""
        reader = Reader(data, specs, codec=self.id, raw_size=raw_size, tables=(DIGESTS,), planes=planes.FULL)
        digests = reader.digests([spec.lanes > 0 for spec in specs])
        sizes = Counter(dict.fromkeys(planes.FULL, 0))
        for spec in specs:
            sizes.update(planes.sizes(spec, spec.lanes))
        reader.inflate(sizes)
        whole = [Whole(planes.join(spec, spec.lanes, reader.take)) for spec in specs]
        reader.close()
        return Decoded([*whole], [*digests])
