"""Real pairs: a recorded run if there is one at hand, else a short one that is trained here."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from bench.model import Model, Pair
from bench.training import train

RUN: Final = "minilm_lr3e-6"
_DTYPES: Final = {"BF16": "<u2", "I32": "<i4", "I64": "<i8"}

Arrays = Mapping[str, tuple[tuple[int, ...], NDArray[Any]]]


def pairs(most: int) -> Iterator[Pair]:
    """Pairs of successive states of a real run, one in memory at a time.

    Raises:
        NoModel: There is neither a recorded run nor the model to train one.
    """
    folder = _recorded()
    if folder is not None:
        yield from _replay(folder, most)
    else:
        yield from train(most)


def _recorded() -> Path | None:
    root = Path(os.environ.get("DELTASTORE_TEST_DATA", Path(__file__).parents[2] / "shared" / "data"))
    found = (folder for folder in (root, root / RUN) if any(folder.glob("step_*.full.safetensors")))
    return next(found, None)


def _replay(folder: Path, most: int) -> Iterator[Pair]:
    first = next(folder.glob("step_*.full.safetensors"))
    arrays = _read(first)
    old = Model.empty({name: shape for name, (shape, _) in arrays.items()})
    for name, (_, data) in arrays.items():
        old.bits[name][:] = data
    at = first.name[:8]
    for file in sorted(folder.glob("step_*.coo.safetensors"))[:most]:
        new = old.copy()
        changes = _read(file)
        for name, bits in new.bits.items():
            if f"{name}.indices" in changes:
                bits[changes[f"{name}.indices"][1]] = changes[f"{name}.values"][1]
        yield Pair(f"{folder.name} {at[5:]}-{file.name[5:8]}", old, new, real=True)
        old, at = new, file.name[:8]


def _read(path: Path) -> Arrays:
    """A safetensors file as bit patterns: numpy has no bf16."""
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    header.pop("__metadata__", None)
    start = 8 + length
    arrays: dict[str, tuple[tuple[int, ...], NDArray[Any]]] = {}
    for name, entry in header.items():
        low, high = entry["data_offsets"]
        raw = np.frombuffer(data[start + low : start + high], _DTYPES[entry["dtype"]])
        arrays[name] = tuple(entry["shape"]), raw
    return arrays
