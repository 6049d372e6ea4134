"""The container (spec, Shards): a strict reader and a deterministic writer of safetensors files.

What is ours is compact JSON under the one key `deltastore` of the metadata. Numbers in the header are
integers from 0 to 2^53 - 1, keys are unique, and the tensors tile the data section without holes.
"""

from __future__ import annotations

import json
import math
import re
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NoReturn, cast

import numpy as np

from deltastore.codec.types import SliceSpec
from deltastore.errors import BadShard, LimitExceeded, Unsupported, UsageError
from deltastore.protocol import dtypes, limits
from deltastore.protocol.digest import MASK, Lanes

FORMAT: Final = 1
KEY: Final = "deltastore"
_METADATA: Final = "__metadata__"
_NONCE = re.compile(r"[0-9a-f]{32}")
_DIGEST = re.compile(r"[0-9a-f]{16}")


@dataclass(frozen=True, slots=True)
class Meta:
    """What the metadata of a shard says.

    Attributes:
        codec: Id of the codec.
        nonce: 32 hexadecimal digits.
        digest: What each slice adds to the state digest, modulo 2^64; none where the stream `D` says it.
        frames: Stored sizes of the frames of each compressed stream.
        raw: Raw size of each compressed stream.
    """

    codec: str
    nonce: str
    digest: Sequence[int] = ()
    frames: Mapping[str, Sequence[int]] = field(default_factory=dict)
    raw: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor of the container.

    Attributes:
        dtype: A name of safetensors.
        shape: In elements.
        data: Its bytes; a view of the file when read.
    """

    dtype: str
    shape: tuple[int, ...]
    data: bytes | memoryview

    def lanes(self, uint: np.dtype[np.unsignedinteger]) -> Lanes:
        """The data as unsigned integers: a read-only view, or a copy where the bytes are not aligned."""
        view: Lanes = np.frombuffer(self.data, uint)
        return view if view.flags.aligned else view.copy()


@dataclass(frozen=True, slots=True)
class ShardFile:
    """A shard that has been read: every size in it fits."""

    meta: Meta
    tensors: Mapping[str, Tensor]


# --- Writing -----------------------------------------------------------------------------------------


def nonce_text(nonce: bytes) -> str:
    """A nonce as it is written.

    Raises:
        UsageError: Not 16 bytes.
    """
    if len(nonce) != 16:
        raise UsageError(f"a nonce has 16 bytes, not {len(nonce)}")
    return nonce.hex()


def build(
    meta: Meta,
    tensors: Sequence[tuple[str, Tensor]],
    *,
    extra: Mapping[str, str] | None = None,
) -> bytes:
    """Writes a shard; the same arguments give the same bytes.

    Args:
        meta: What goes under our key.
        tensors: Names and tensors; wider elements are laid down first, so that all are aligned.
        extra: Metadata for other tools.

    Raises:
        Unsupported: Two tensors of one name, or a name that safetensors cannot hold.
        LimitExceeded: The header or the file would be larger than the limits.
    """
    order = sorted(tensors, key=lambda item: -dtypes.lane_bytes(item[1].dtype))
    header: dict[str, object] = {_METADATA: {**(extra or {}), KEY: _meta_text(meta)}}
    at = 0
    for name, tensor in order:
        if name in header:
            raise Unsupported(
                f"two tensors of a shard would have the name {name!r}",
                hint="Use another codec, or rename the tensor",
                tensor=name,
            )
        stop = at + len(tensor.data)
        header[name] = {
            "dtype": tensor.dtype,
            "shape": list(tensor.shape),
            "data_offsets": [at, stop],
        }
        at = stop
    try:
        text = _compact(header).encode()
    except UnicodeEncodeError as error:
        raise Unsupported("the name of a tensor is not valid Unicode") from error
    text += b" " * (-len(text) % 8)
    _within(len(text), limits.HEADER_BYTES, "header")
    _within(8 + len(text) + at, limits.SHARD_BYTES, "shard")
    return b"".join((struct.pack("<Q", len(text)), text, *(tensor.data for _, tensor in order)))


def _meta_text(meta: Meta) -> str:
    fields: dict[str, object] = {
        "format": FORMAT,
        "codec": meta.codec,
        "nonce": meta.nonce,
    }
    if meta.digest:
        fields["digest"] = [f"{value & MASK:016x}" for value in meta.digest]
    if meta.frames:
        fields["frames"] = {name: list(sizes) for name, sizes in meta.frames.items()}
        fields["raw"] = dict(meta.raw)
    return _compact(fields)


def _compact(value: object) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def _within(size: int, limit: int, what: str) -> None:
    if size > limit:
        raise LimitExceeded(f"a {what} of {size} bytes; the limit is {limit}", size=size, limit=limit)


# --- Reading -----------------------------------------------------------------------------------------


def open_shard(data: bytes, *, codec: str, digests: int) -> ShardFile:
    """Reads a shard that must be of this codec.

    Args:
        data: The file.
        codec: Id of the codec.
        digests: How many its metadata must have: one per slice, or none where a tensor holds them.

    Raises:
        BadShard: It breaks a rule of the container, or is of another codec or of other slices.
        LimitExceeded: The header or the file is larger than the limits.
    """
    file = parse(data)
    meta = file.meta
    if meta.codec != codec:
        raise BadShard(f"the shard is of codec {meta.codec!r}, not {codec!r}")
    if len(meta.digest) != digests:
        raise BadShard(f"the metadata have {len(meta.digest)} digests, where {digests} are needed")
    return file


def check_idle(spec: SliceSpec, digest: int) -> None:
    """Refuses a slice of which no lane changes, but which would change the digest.

    Raises:
        BadShard: It does.
    """
    if digest:
        raise BadShard(f"slice {spec.label!r} changes no lane, but declares the digest {digest:016x}")


def check_raw_size(raw_size: int, actual: int, specs: Sequence[SliceSpec]) -> None:
    """Compares what the descriptor declares with what the shard does and with the limit.

    Raises:
        BadShard: They differ.
        LimitExceeded: More than such slices can honestly need.
    """
    limit = limits.max_raw(sum(spec.nbytes for spec in specs), len(specs))
    _within(max(raw_size, actual), limit, "raw size")
    if actual != raw_size:
        raise BadShard(f"the raw size is {actual}, the descriptor says {raw_size}")


def parse(data: bytes) -> ShardFile:
    """Reads a shard of any codec; tensors are views of `data`.

    Raises:
        BadShard: It breaks a rule of the container.
        LimitExceeded: The header or the file is larger than the limits.
    """
    _within(len(data), limits.SHARD_BYTES, "shard")
    if len(data) < 8:
        raise BadShard(f"a file of {len(data)} bytes is no shard")
    (length,) = struct.unpack_from("<Q", data)
    _within(length, limits.HEADER_BYTES, "header")
    view = memoryview(data)
    text, body = view[8 : 8 + length], view[8 + length :]
    if len(text) != length or bytes(text[:1]) != b"{":
        raise BadShard("the header is cut short, or does not begin with '{'")
    header = _json(bytes(text), "header")
    metadata = header.pop(_METADATA, None)
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        raise BadShard("the header has no metadata, or metadata that are not strings")
    ours = metadata.get(KEY)
    if ours is None:
        raise BadShard(f"the metadata have no {KEY!r}: not a shard")
    meta = _parse_meta(_json(cast(str, ours).encode("utf-8", "surrogatepass"), "metadata"))
    return ShardFile(meta, _parse_tensors(header, body))


def _parse_tensors(header: Mapping[str, object], body: memoryview) -> dict[str, Tensor]:
    spans = sorted(_span(name, entry) for name, entry in header.items())
    tensors: dict[str, Tensor] = {}
    at = 0
    for start, stop, name, dtype, shape in spans:
        if start != at:
            raise BadShard(f"tensor {name!r} begins at {start}, where {at} is free")
        tensors[name] = Tensor(dtype, shape, body[start:stop])
        at = stop
    if at != len(body):
        raise BadShard(f"the tensors end at {at} of {len(body)} bytes")
    return tensors


def _span(name: str, entry: object) -> tuple[int, int, str, str, tuple[int, ...]]:
    if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
        raise BadShard(f"the entry of tensor {name!r} is not a dtype, a shape and offsets")
    dtype = entry["dtype"]
    shape = _ints(entry["shape"], f"the shape of {name!r}")
    offsets = _ints(entry["data_offsets"], f"the offsets of {name!r}")
    if not isinstance(dtype, str) or dtype not in dtypes.BITS:
        raise BadShard(f"tensor {name!r} has a dtype that is not known")
    if len(shape) > limits.DIMENSIONS or len(offsets) != 2:
        raise BadShard(f"tensor {name!r} has {len(shape)} dimensions and {len(offsets)} offsets")
    start, stop = offsets
    if dtypes.byte_length(dtype, math.prod(shape)) != stop - start:
        raise BadShard(f"tensor {name!r} has {stop - start} bytes, which its shape does not fill")
    return start, stop, name, dtype, shape


def _parse_meta(fields: Mapping[str, object]) -> Meta:
    version = fields.get("format")
    if type(version) is not int or version != FORMAT:
        raise BadShard(
            f"the shard has format {version!r}, this release reads {FORMAT}",
            hint="Upgrade deltastore",
        )
    codec, nonce = fields.get("codec"), fields.get("nonce")
    if not isinstance(codec, str) or not isinstance(nonce, str) or not _NONCE.fullmatch(nonce):
        raise BadShard("the codec or the nonce of a shard is malformed")
    digests = fields.get("digest", [])
    if not isinstance(digests, list):
        raise BadShard("the digests of a shard are not a list")
    if not all(isinstance(text, str) and _DIGEST.fullmatch(text) for text in digests):
        raise BadShard("a digest of a shard is not 16 hexadecimal digits")
    frames, raw = fields.get("frames", {}), fields.get("raw", {})
    if not isinstance(frames, dict) or not isinstance(raw, dict) or frames.keys() != raw.keys():
        raise BadShard("frames and raw sizes are not of the same streams")
    return Meta(
        codec=codec,
        nonce=nonce,
        digest=tuple(int(text, 16) for text in digests),
        frames={name: _ints(sizes, f"the frames of {name!r}") for name, sizes in frames.items()},
        raw=dict(zip(raw, _ints(list(raw.values()), "raw"), strict=True)),
    )


def _ints(value: object, what: str) -> tuple[int, ...]:
    # `_json` lets through no number but integers in range; bool is an int to isinstance.
    if not isinstance(value, list) or not all(type(item) is int for item in value):
        raise BadShard(f"{what} of a shard: not a list of integers")
    return tuple(value)


def _json(text: bytes, what: str) -> dict[str, object]:
    try:
        value = _DECODER.decode(text.decode())
    except (ValueError, RecursionError) as error:
        raise BadShard(f"the {what} of a shard is not strict JSON: {error}") from error
    if not isinstance(value, dict):
        raise BadShard(f"the {what} of a shard is not a JSON object")
    return value


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise ValueError("a key occurs twice")
    return result


def _integer(text: str) -> int:
    if text[0] == "-" or len(text) > 16 or int(text) > limits.MAX_INT:
        raise ValueError(f"{text[:20]} is not from 0 to 2^53 - 1")
    return int(text)


def _refuse(text: str) -> NoReturn:
    raise ValueError(f"{text[:20]} is not an integer")


_refuse_number: Callable[[str], float] = _refuse
_DECODER: Final = json.JSONDecoder(
    object_pairs_hook=_unique,
    parse_int=_integer,
    parse_float=_refuse_number,
    parse_constant=_refuse_number,
)
