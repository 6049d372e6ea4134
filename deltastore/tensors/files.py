"""Checkpoint directories as Hugging Face lays them out: safetensors files, an index, and side files."""

from __future__ import annotations

import json
import mmap
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from safetensors import SafetensorError, safe_open

from deltastore.errors import BadObject, BadRecord, NotFound, SchemaMismatch
from deltastore.protocol.digest import Lanes
from deltastore.protocol.limits import HEADER_BYTES, SCHEMA_BYTES
from deltastore.protocol.records import check_file_name
from deltastore.protocol.schema import Schema, TensorSpec
from deltastore.state import HostState
from deltastore.tensors.host import HostTensor

WEIGHTS: Final = "model.safetensors"
INDEX: Final = "model.safetensors.index.json"
MARKER: Final = "deltastore.json"
"""What says which version a directory holds."""
FILE_BYTES: Final = 5 * 1000**3
"""Bytes of weights after which `write_checkpoint` begins another file."""

Stamp = tuple[int, int, int, int]
"""Device, inode, size and time of the last change of a file."""

_WEIGHT_ENDINGS: Final = (".safetensors", ".bin", ".pt", ".pth", ".gguf", ".h5", ".msgpack", ".index.json")


def open_checkpoint(directory: Path) -> HostState:
    """The weights of a checkpoint directory, mapped into memory and read only.

    Raises:
        NotFound: No safetensors files there.
        BadObject: A file is not one, or an index names a file outside the directory.
        SchemaMismatch: Two files hold a tensor of the same name.
    """
    specs: dict[str, TensorSpec] = {}
    lanes = {}
    for file in weight_files(directory):
        for name, tensor in read_file(directory / file):
            if name in specs:
                raise SchemaMismatch(f"tensor {name!r} is in two files of {directory}", tensor=name)
            specs[name] = TensorSpec(name, tensor.dtype, tensor.shape)
            lanes[name] = tensor.lanes
    if absent := sorted(_weight_map(directory).keys() - specs.keys()):
        raise BadObject(f"{directory}: its index names tensor {absent[0]!r}, which no file has")
    return HostState(Schema.of(specs.values()), lanes)


def weight_files(directory: Path) -> list[str]:
    """Names of the safetensors files of a checkpoint: those that its index names, else all of them."""
    if (directory / INDEX).is_file():
        return sorted(set(_weight_map(directory).values()))
    names = sorted(path.name for path in directory.glob("*.safetensors"))
    if not names:
        raise NotFound(
            f"there are no safetensors files in {directory}", hint="Pass the directory of a checkpoint"
        )
    return names


def _weight_map(directory: Path) -> dict[str, str]:
    """File by tensor as an index has it; empty where there is none."""
    index = directory / INDEX
    if not index.is_file():
        return {}
    if index.stat().st_size > SCHEMA_BYTES:
        raise BadObject(f"{index} is too large to be an index")
    try:
        found = json.loads(index.read_bytes())["weight_map"].items()
        return {str(name): check_file_name(str(file)) for name, file in found}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, BadRecord) as error:
        raise BadObject(f"{index} is not an index of weights: {error}") from error


def side_files(directory: Path) -> dict[str, Path]:
    """The files of a checkpoint that are not weights: config, tokenizer, chat template."""
    return {
        path.name: path
        for path in sorted(directory.iterdir())
        if path.is_file()
        and not path.name.startswith(".")
        and not path.name.endswith(_WEIGHT_ENDINGS)
        and path.name != MARKER
    }


def taken_for_weights(name: str) -> bool:
    """Whether a loader of the directory, or a reader of its marker, would fall for a side file (DS-DIR-3).

    What decides is where it begins: a folder can stand in the place of weights too.
    """
    first = name.lower().partition("/")[0]
    return first == MARKER or first.endswith((".safetensors", ".safetensors.index.json"))


def stamps(directory: Path) -> dict[str, Stamp]:
    """What tells one marker, index and set of weight files from another, by name; of those that are there."""
    found = {}
    weights: list[str] = []
    with suppress(OSError):  # it may be gone for the moment of a swap
        weights = sorted(path.name for path in directory.iterdir() if path.suffix == ".safetensors")
    for name in (MARKER, INDEX, *weights):
        with suppress(OSError):
            status = (directory / name).stat()
            found[name] = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
    return found


def read_file(path: Path) -> Iterator[tuple[str, HostTensor]]:
    """Names and bits of a safetensors file; views of a read-only mapping.

    Raises:
        NotFound: It is not there.
        BadObject: It is not a safetensors file.
    """
    try:
        with safe_open(path, framework="numpy"):
            pass
        with path.open("rb") as file:
            data = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    except FileNotFoundError as error:
        raise NotFound(f"{path} does not exist") from error
    except (SafetensorError, OSError, ValueError) as error:
        raise BadObject(f"{path} is not a safetensors file: {error}") from error
    length = int.from_bytes(data[:8], "little")
    if length > HEADER_BYTES:
        raise BadObject(f"{path} has a header of {length} bytes")
    body = data[8 + length :]
    for name, entry in json.loads(bytes(data[8 : 8 + length])).items():
        if name != "__metadata__":
            begin, end = entry["data_offsets"]
            yield name, HostTensor.of_bytes(entry["dtype"], tuple(entry["shape"]), body[begin:end])


def write_file(
    path: Path, tensors: Sequence[TensorSpec], lanes: Callable[[str], Lanes], *, metadata: Mapping[str, str]
) -> None:
    """Writes a safetensors file and flushes it to the disk; wider lanes first, so that all are aligned.

    Args:
        path: Where.
        tensors: What it holds.
        lanes: Gives the bits of one tensor; called once for each, so that one at a time is in memory.
        metadata: Of the file.
    """
    order = sorted(tensors, key=lambda tensor: (-tensor.lane_bytes, tensor.name))
    header: dict[str, object] = {"__metadata__": dict(metadata)}
    at = 0
    for tensor in order:
        end = at + tensor.nbytes
        header[tensor.name] = {"dtype": tensor.dtype, "shape": list(tensor.shape), "data_offsets": [at, end]}
        at = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for tensor in order:
            file.write(lanes(tensor.name).tobytes())
        file.flush()
        os.fsync(file.fileno())


def write_checkpoint(
    directory: Path, schema: Schema, lanes: Callable[[str], Lanes], *, file_bytes: int = FILE_BYTES
) -> None:
    """Writes weights as `save_pretrained` does: one file, or several and an index; tied tensors once."""
    groups = list(_group(schema.owners, file_bytes))
    metadata = {"format": "pt"}
    if len(groups) == 1:
        write_file(directory / WEIGHTS, groups[0], lanes, metadata=metadata)
        return
    weight_map = {}
    for number, group in enumerate(groups, 1):
        name = f"model-{number:05d}-of-{len(groups):05d}.safetensors"
        write_file(directory / name, group, lanes, metadata=metadata)
        weight_map.update({tensor.name: name for tensor in group})
    index = {"metadata": {"total_size": schema.nbytes}, "weight_map": weight_map}
    (directory / INDEX).write_text(json.dumps(index, indent=2, sort_keys=True) + "\n")


def _group(tensors: Iterable[TensorSpec], most: int) -> Iterator[list[TensorSpec]]:
    group: list[TensorSpec] = []
    size = 0
    for tensor in tensors:
        if group and size + tensor.nbytes > most:
            yield group
            group, size = [], 0
        group.append(tensor)
        size += tensor.nbytes
    yield group
