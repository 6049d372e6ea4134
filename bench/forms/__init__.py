"""The tables of what is compared: a codec of deltastore appears by itself, a peer is one entry here."""

from __future__ import annotations

from typing import Final

from bench.forms.base import AnchorForm, DeltaForm
from bench.forms.coordinates import Coordinates
from bench.forms.dense import XorZipnn, XorZstd, ZipnnAnchor, ZstdAnchor
from bench.forms.gaps import Grail, Nemo
from bench.forms.ours import Ours, our_anchors, ours
from bench.forms.pulsept import PulsePt

DELTAS: Final[tuple[DeltaForm, ...]] = (
    *ours(),
    Coordinates(),
    Coordinates(compressed=True),
    XorZstd(),
    XorZipnn(),
    Grail(),
    Nemo(),
    PulsePt(1),
    PulsePt(2),
    PulsePt(3),
)
SELF_CHECKED: Final[DeltaForm] = Ours("ulp", check=True)
"""The default as a producer runs it unless told otherwise: the same bytes, another speed."""
ANCHORS: Final[tuple[AnchorForm, ...]] = (*our_anchors(), ZstdAnchor(), ZipnnAnchor())
