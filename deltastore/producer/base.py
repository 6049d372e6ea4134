"""What a producer starts from besides weights (spec, External base, side files, schema)."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path, PurePosixPath
from typing import Final

from deltastore.errors import NotFound, Unsupported, UsageError
from deltastore.producer.term import Genesis
from deltastore.protocol.descriptors import Descriptor
from deltastore.protocol.limits import SIDE_FILE_BYTES
from deltastore.protocol.records import External, check_file_name
from deltastore.state import HostState
from deltastore.store import Store
from deltastore.tensors.files import open_checkpoint, side_files, taken_for_weights, weight_files

Files = Mapping[str, bytes | Path]

_COMPONENT_BYTES: Final = 255
"""Of each part of the name of a side file: what file systems allow."""


@dataclass(frozen=True, slots=True)
class ExternalBase:
    """A checkpoint that everybody has already: version 0 of a new store, without an upload.

    Attributes:
        directory: This machine's copy.
        url: How others know it, such as `hf://org/model@commit`; the directory's own by default.
    """

    directory: Path
    url: str | None = None

    def state(self) -> HostState:
        """Its weights, mapped."""
        return open_checkpoint(self.directory)

    def genesis(self, store: Store, state: HostState) -> Genesis:
        """What version 0 says of it: the schema, its digest, and the SHA-256 of each of its files."""
        names = [*weight_files(self.directory), *side_files(self.directory)]
        files = {name: _descriptor(self.directory / name) for name in sorted(names)}
        url = self.url or self.directory.resolve().as_uri()
        schema = store.put_object(state.schema.data)
        return Genesis(schema=schema, state=state.digest(), external=External(url, files))


def gather_files(files: Files | str | PathLike[str] | None) -> dict[str, bytes | Path]:
    """Side files by name: as given, or those of a checkpoint directory.

    Raises:
        UsageError: A directory could not hold them all beside its weights.
    """
    if files is None:
        return {}
    found: Files = files if isinstance(files, Mapping) else side_files(Path(files))
    for name in found:
        check_file_name(name)
        if taken_for_weights(name):
            raise UsageError(
                f"side file {name!r} would stand in the place of weights",
                hint="Leave it out: weights are published as tensors",
                file=name,
            )
        if any(len(part.encode()) > _COMPONENT_BYTES for part in name.split("/")):
            raise UsageError(
                f"side file {name[:80]!r}... has a part of more than {_COMPONENT_BYTES} bytes",
                hint="Shorten it: file systems cannot hold it",
                file=name[:80],
            )
        if folder := next((str(above) for above in PurePosixPath(name).parents if str(above) in found), None):
            raise UsageError(
                f"side file {folder!r} cannot be the folder of {name!r} too",
                hint="Rename one of them",
                file=folder,
            )
    return dict(found)


def store_files(store: Store, files: Files, known: Mapping[str, Descriptor]) -> dict[str, Descriptor]:
    """Stores side files and describes them; what a live record names already is not stored again.

    Raises:
        NotFound: A path that does not exist.
        Unsupported: A file over the limit.
    """
    described = {}
    for name, content in files.items():
        data = _read(content) if isinstance(content, Path) else content
        if len(data) > SIDE_FILE_BYTES:
            raise Unsupported(f"side file {name!r} has {len(data)} bytes, at most {SIDE_FILE_BYTES} may be")
        found = Descriptor(hashlib.sha256(data).hexdigest(), len(data))
        described[name] = found if known.get(name) == found else store.put_object(data)
    return described


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError as error:
        raise NotFound(f"side file {path} does not exist", hint="Pass a path that does") from error


def _descriptor(path: Path) -> Descriptor:
    with path.open("rb") as file:
        return Descriptor(hashlib.file_digest(file, "sha256").hexdigest(), path.stat().st_size)
