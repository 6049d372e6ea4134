"""PULSEPT1, versions 1 to 3, through the codec in the package `basilica-sdk`: its own code, as it is."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, Final

import torch

from bench.forms.base import Message, Missing
from bench.forms.coordinates import tensor
from bench.model import Model

_MODULE: Final = "basilica._pulse.codec"


@dataclass(frozen=True)
class PulsePt:
    """One version of the format; sender and receiver hold the SDK's `Snapshot`.

    Attributes:
        version: 1, 2 or 3.
    """

    version: int
    ours: bool = False
    digest: str = "xxh3-128 of all bytes, in apply"

    @property
    def name(self) -> str:
        """For tables."""
        return f"PULSEPT1 v{self.version} (basilica-sdk)"

    def require(self) -> None:
        """See `DeltaForm`."""
        if find_spec("basilica") is None or find_spec(_MODULE) is None:
            raise Missing("the package basilica-sdk with its module basilica._pulse is not installed")
        native = importlib.import_module("basilica._basilica")
        if self.version == 3 and not hasattr(native, "_pulse_expctx_encode"):
            raise Missing("this basilica-sdk has no native coder for version 3")

    def sender(self, held: Model, cores: int) -> _Sender:
        """See `DeltaForm`."""
        return _Sender(self.version, held, cores)

    def receiver(self, held: Model, cores: int) -> _Receiver:
        """See `DeltaForm`; the SDK applies on one thread, but for the indices of version 3."""
        del cores
        return _Receiver(held)


def _tensors(model: Model) -> dict[str, torch.Tensor]:
    return {
        name: tensor(bits).view(torch.bfloat16).reshape(model.shapes[name])
        for name, bits in model.bits.items()
    }


class _Holder:
    """A snapshot; it copies what it is given."""

    def __init__(self, held: Model) -> None:
        self._codec: Any = importlib.import_module(_MODULE)
        self._snapshot: Any = self._codec.Snapshot(_tensors(held))

    def holds(self, model: Model) -> bool:
        """Whether the snapshot is these bits."""
        return all(
            torch.equal(self._snapshot.tensor(name).reshape(-1).view(torch.int16), tensor(bits))
            for name, bits in model.bits.items()
        )


class _Sender(_Holder):
    def __init__(self, version: int, held: Model, cores: int) -> None:
        super().__init__(held)
        self._version, self._cores = version, cores

    def send(self, new: Model) -> Message:
        patch, _ = self._snapshot.encode_step(
            _tensors(new).items(),
            step=1,
            base_step=0,
            model=self._codec.ModelMeta("bench", "", new.weights),
            workers=self._cores,
            format_version=self._version,
        )
        self._snapshot.commit_step()
        return Message((patch,))


class _Receiver(_Holder):
    def stage(self, message: Message) -> None:
        self._patch = self._codec.parse_patch(message.parts[0])

    def commit(self) -> None:
        self._snapshot.apply_patch(self._patch)
