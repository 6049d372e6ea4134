"""Coordinates with naive torch: int32 indices and absolute values in safetensors, as TRL's blog has it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from safetensors.torch import load, save

from bench.forms.base import InPlaceForm
from bench.forms.packing import unzstd, zstd1
from bench.model import Bits, Model

Tensors = dict[str, torch.Tensor]


def tensor(bits: Bits) -> torch.Tensor:
    """Bits as torch sees them."""
    return torch.from_numpy(bits.view(np.int16))


@dataclass(frozen=True)
class Coordinates(InPlaceForm[Tensors]):
    """COO, plain or in a zstd-1 frame.

    Attributes:
        compressed: Whether it is in a frame.
    """

    compressed: bool = False

    @property
    def name(self) -> str:
        """For tables."""
        return "COO + zstd-1 (torch)" if self.compressed else "COO (torch)"

    def encode(self, held: Model, new: Model, cores: int) -> bytes:
        """See `InPlaceForm`."""
        torch.set_num_threads(cores)
        found: Tensors = {}
        for name, bits in new.bits.items():
            old, now = tensor(held.bits[name]), tensor(bits)
            at = (old != now).nonzero().flatten()
            if at.numel():
                found[f"{name}.indices"] = at.int()
                found[f"{name}.values"] = now[at].view(torch.bfloat16)
            old.copy_(now)
        data = save(found)
        return zstd1(data, cores) if self.compressed else data

    def decode(self, data: bytes, held: Model, cores: int) -> Tensors:
        """See `InPlaceForm`."""
        del held
        torch.set_num_threads(cores)
        return load(unzstd(data) if self.compressed else data)

    def apply(self, held: Model, changes: Tensors) -> None:
        """See `InPlaceForm`."""
        for key, at in changes.items():
            name, _, kind = key.rpartition(".")
            if kind == "indices":
                tensor(held.bits[name])[at.long()] = changes[f"{name}.values"].view(torch.int16)
