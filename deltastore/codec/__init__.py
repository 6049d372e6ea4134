"""Codecs (spec, Codecs): how changes and whole weights become shards.

A codec that is not in these tables does not exist: an edge of one is passed over.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from deltastore.codec.abs import Abs
from deltastore.codec.coo import Coo
from deltastore.codec.plain import Plain
from deltastore.codec.plane import Plane
from deltastore.codec.types import AnchorCodec, DeltaCodec
from deltastore.codec.ulp import Ulp
from deltastore.errors import Unsupported

DELTA: Final[Mapping[str, DeltaCodec[Any]]] = MappingProxyType({"ulp": Ulp(), "abs": Abs(), "coo": Coo()})
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
