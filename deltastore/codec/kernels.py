"""The hot loops of the codecs (spec, Codecs; State digest): compiled where they were built, else in numpy.

Both write the same bytes. `DELTASTORE_KERNELS=numpy` asks for numpy.
"""

from __future__ import annotations

import importlib.util
import os
from typing import Final

from deltastore.codec.twin import (
    BLOCK,
    Bytes,
    Counts,
    block_ends,
    blocks,
    gap_decode,
    gap_encode,
    gather_words,
    new_bits,
    per_block,
)

NAME: Final = (
    "numpy"
    if os.environ.get("DELTASTORE_KERNELS") == "numpy"
    or importlib.util.find_spec("deltastore.codec._native") is None
    else "native"
)
"""Which are in use: `native` or `numpy`."""

if NAME == "native":
    from deltastore.codec.native import (
        ctx_count,
        ctx_decode,
        ctx_encode,
        diff,
        digest,
        gather,
        merge_planes,
        patch,
        scatter,
        split_planes,
        steps_check,
        steps_decode,
        steps_diff,
        steps_encode,
        steps_merge,
        steps_patch,
        widen,
    )
else:
    from deltastore.codec.twin import diff, gather, merge_planes, patch, scatter, split_planes
    from deltastore.codec.twin_ctx import ctx_count, ctx_decode, ctx_encode
    from deltastore.codec.twin_steps import (
        steps_check,
        steps_decode,
        steps_diff,
        steps_encode,
        steps_merge,
        steps_patch,
        widen,
    )
    from deltastore.protocol.digest import digest

__all__ = [
    "BLOCK",
    "NAME",
    "Bytes",
    "Counts",
    "block_ends",
    "blocks",
    "ctx_count",
    "ctx_decode",
    "ctx_encode",
    "diff",
    "digest",
    "gap_decode",
    "gap_encode",
    "gather",
    "gather_words",
    "merge_planes",
    "new_bits",
    "patch",
    "per_block",
    "scatter",
    "split_planes",
    "steps_check",
    "steps_decode",
    "steps_diff",
    "steps_encode",
    "steps_merge",
    "steps_patch",
    "widen",
]
