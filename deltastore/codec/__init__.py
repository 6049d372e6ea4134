"""Codecs (spec, Codecs): how changes and whole weights become shards.

A codec that is not in these tables does not exist: an edge of one is passed over.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

from deltastore.codec.abs import Abs
from deltastore.codec.coo import Coo
from deltastore.codec.ctx import Ctx
from deltastore.codec.interface import AnchorCodec, DeltaCodec
from deltastore.codec.plain import Plain
from deltastore.codec.plane import Plane
from deltastore.codec.types import Base, Decoded, SliceSpec
from deltastore.codec.ulp import Ulp
from deltastore.errors import Unsupported

DELTA: Final[Mapping[str, DeltaCodec[Any]]] = MappingProxyType(
    {"ulp": Ulp(), "ctx": Ctx(), "abs": Abs(), "coo": Coo()}
)
ANCHOR: Final[Mapping[str, AnchorCodec]] = MappingProxyType({"plane": Plane(), "plain": Plain()})


def get(codec_id: str) -> DeltaCodec[Any] | AnchorCodec:
    """The codec of this id.

    Raises:
        Unsupported: This release has none.
    """
    codec = DELTA.get(codec_id) or ANCHOR.get(codec_id)
    if codec is None:
        known = ", ".join([*DELTA, *ANCHOR])
        raise Unsupported(
            f"this release has no codec {codec_id!r}",
            hint=f"It has {known}; upgrade, or take another edge",
            codec=codec_id,
        )
    return codec


def reads_base(codec_id: str) -> bool:
    """Whether reading a shard of this codec needs the base; not if there is no such codec."""
    return codec_id in DELTA and DELTA[codec_id].reads_base


def decode(
    codec_id: str, data: bytes, specs: Sequence[SliceSpec], *, raw_size: int, base: Base | None
) -> Decoded:
    """Reads a shard of either kind of codec; arguments and errors as for `DeltaCodec.decode` and `get`."""
    delta = DELTA.get(codec_id)
    if delta is not None:
        return delta.decode(data, specs, raw_size=raw_size, base=base)
    return get(codec_id).decode(data, specs, raw_size=raw_size)
