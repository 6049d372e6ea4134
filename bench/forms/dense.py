"""Dense forms: the XOR of whole tensors, and whole models, through general compressors."""

from __future__ import annotations

import importlib
from importlib.util import find_spec
from typing import Any, Final

import numpy as np

from bench.forms.base import InPlaceForm, Message, Missing, each
from bench.forms.packing import Header, framed, unframed, unzstd, zstd1
from bench.model import Bits, Model

Pieces = dict[str, Bits]


class XorZstd(InPlaceForm[Pieces]):
    """Dense XOR, one zstd-1 frame per tensor: slime, miles, SkyRL."""

    name = "dense XOR + zstd-1"

    def encode(self, held: Model, new: Model, cores: int) -> bytes:
        """See `InPlaceForm`."""

        def one(name: str) -> bytes:
            frame = zstd1((held.bits[name] ^ new.bits[name]).tobytes(), 1)
            held.bits[name][:] = new.bits[name]
            return frame

        frames = each(cores, one, new.bits)
        header: Header = [[name, len(frame)] for name, frame in zip(new.bits, frames, strict=True)]
        return framed(header, b"".join(frames))

    def decode(self, data: bytes, held: Model, cores: int) -> Pieces:
        """See `InPlaceForm`."""
        del held
        header, payload = unframed(data)
        at, frames = 0, []
        for name, size in header:
            if not (isinstance(name, str) and isinstance(size, int)):
                raise TypeError(f"a header row is not name and size: {name!r}")
            frames.append((name, payload[at : at + size]))
            at += size
        pieces = each(cores, lambda item: np.frombuffer(unzstd(item[1]), np.uint16), frames)
        return {name: piece for (name, _), piece in zip(frames, pieces, strict=True)}

    def apply(self, held: Model, changes: Pieces) -> None:
        """See `InPlaceForm`."""
        for name, piece in changes.items():
            held.bits[name][:] ^= piece


class XorZipnn(InPlaceForm[Bits]):
    """Dense XOR of the whole model through the zipnn library."""

    name = "dense XOR + zipnn"

    def require(self) -> None:
        """See `DeltaForm`."""
        require_zipnn()

    def encode(self, held: Model, new: Model, cores: int) -> bytes:
        """See `InPlaceForm`."""
        data = zipnn_pack(held.flat ^ new.flat, cores)
        held.overwrite(new)
        return data

    def decode(self, data: bytes, held: Model, cores: int) -> Bits:
        """See `InPlaceForm`."""
        del held
        return zipnn_unpack(data, cores)

    def apply(self, held: Model, changes: Bits) -> None:
        """See `InPlaceForm`."""
        np.bitwise_xor(held.flat, changes, out=held.flat)


class ZstdAnchor:
    """The model's bytes in zstd-1 frames, one per tensor."""

    name: Final = "zstd-1"
    ours: Final = False

    def require(self) -> None:
        """See `DeltaForm`."""

    def pack(self, model: Model, cores: int) -> Message:
        """See `AnchorForm`."""
        return Message(tuple(each(cores, lambda bits: zstd1(bits.tobytes(), 1), model.bits.values())))

    def unpack(self, message: Message, into: Model, cores: int) -> None:
        """See `AnchorForm`."""

        def one(item: tuple[Bits, bytes]) -> None:
            item[0][:] = np.frombuffer(unzstd(item[1]), np.uint16)

        each(cores, one, zip(into.bits.values(), message.parts, strict=True))


class ZipnnAnchor:
    """The whole model through the zipnn library."""

    name: Final = "zipnn"
    ours: Final = False

    def require(self) -> None:
        """See `DeltaForm`."""
        require_zipnn()

    def pack(self, model: Model, cores: int) -> Message:
        """See `AnchorForm`."""
        return Message((zipnn_pack(model.flat, cores),))

    def unpack(self, message: Message, into: Model, cores: int) -> None:
        """See `AnchorForm`."""
        np.copyto(into.flat, zipnn_unpack(message.parts[0], cores))


def require_zipnn() -> None:
    """Makes sure that the library is there.

    Raises:
        Missing: It is not.
    """
    if find_spec("zipnn") is None:
        raise Missing("the package zipnn is not installed")


def zipnn_pack(bits: Bits, cores: int) -> bytes:
    """Compresses; the library may scramble its input, so it gets a copy."""
    return bytes(_zipnn(cores).compress(bits.tobytes()))


def zipnn_unpack(data: bytes, cores: int) -> Bits:
    """Undoes `zipnn_pack`."""
    return np.frombuffer(_zipnn(cores).decompress(data), np.uint16)


def _zipnn(cores: int) -> Any:
    # By name: only the bench's own environment has it.
    library = importlib.import_module("zipnn")
    return library.ZipNN(input_format="byte", bytearray_dtype="bfloat16", threads=cores)
