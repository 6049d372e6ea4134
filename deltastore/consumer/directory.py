"""A directory as a target (spec, Directories): a complete checkpoint, swapped by rename."""

from __future__ import annotations

import glob
import json
import logging
import secrets
import shutil
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from deltastore.codec.types import Positions
from deltastore.consumer.targets import Changes
from deltastore.errors import BadRecord, DeltaStoreError, NoSpace, NotFound, UsageError
from deltastore.filesystem import map_errors, sync_directory, sync_tree
from deltastore.protocol.digest import Lanes
from deltastore.protocol.limits import SIDE_FILE_BYTES
from deltastore.protocol.schema import Schema
from deltastore.state import HostState, digest_of
from deltastore.tensors.files import MARKER, open_checkpoint, taken_for_weights, write_checkpoint

_log = logging.getLogger(__name__)
_MARGIN: Final = 1.02


@dataclass(frozen=True, slots=True)
class StagedDirectory:
    """A complete checkpoint beside the one that is served."""

    path: Path


class DirectoryTarget:
    """A checkpoint directory in the layout of Hugging Face, always complete.

    Args:
        path: The directory; created by the first commit, replaced by each later one. It has one consumer.

    Raises:
        UsageError: Something else is there.
    """

    holds_files: Final = True

    def __init__(self, path: Path) -> None:
        self._path = path.absolute()
        self._staged: set[Path] = set()
        self._recover()
        self._check_ours()
        self._state: HostState | None = None
        self._load()

    def bind(self, schema: Schema) -> None:
        """A directory takes any schema; what it holds of another one is not read."""
        if self._state is not None and set(self._state.schema.owners) != set(schema.owners):
            self._state = None
        if self._state is not None:
            self._state = HostState(schema, {t.name: self._state.lanes(t.name) for t in schema.owners})

    def can_read_old(self) -> bool:
        """Whether it holds a checkpoint."""
        return self._state is not None

    def gather(self, name: str, positions: Positions) -> Lanes:
        """Lanes at flat positions, from the mapped file."""
        return self._held().gather(name, positions)

    def read(self, name: str, start: int, stop: int) -> Lanes:
        """Lanes `start` to `stop`, from the mapped file."""
        return self._held().read(name, start, stop)

    def state(self, schema: Schema) -> int | None:
        """The digest of every byte."""
        return digest_of(self, schema)

    def hint(self) -> int | None:
        """The version in its marker."""
        try:
            version = json.loads((self._path / MARKER).read_bytes())["version"]
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return version if type(version) is int and version >= 0 else None

    def stage(self, changes: Changes) -> StagedDirectory:
        """Writes the whole checkpoint into a directory beside this one.

        Raises:
            BackendError: The disk is full or does not take it; nothing is left behind.
        """
        self._check_ours()
        self._sweep()
        staged = self._beside(f"new-{secrets.token_hex(8)}")
        self._staged.add(staged)
        try:
            with map_errors(str(staged)):
                self._path.parent.mkdir(parents=True, exist_ok=True)
                self._check_room(changes)
                self._write(staged, changes)
        except BaseException:
            self.discard(StagedDirectory(staged))
            raise
        return StagedDirectory(staged)

    def commit(self, staged: StagedDirectory) -> None:
        """Swaps the directories by renaming them; a crash in between is mended at the next start."""
        self._check_ours()
        with map_errors(str(self._path)):
            self._swap(staged.path)
        self._staged.discard(staged.path)
        with suppress(OSError):  # the swap is done, whatever becomes of it in a power cut
            sync_directory(self._path.parent)
        shutil.rmtree(self._beside("old"), ignore_errors=True)
        self._load()

    def _swap(self, new: Path) -> None:
        old = self._beside("old")
        shutil.rmtree(old, ignore_errors=True)
        had = self._path.exists()
        if had:
            self._path.rename(old)
        try:
            new.rename(self._path)
        except BaseException:
            if had:
                old.rename(self._path)
            raise

    def discard(self, staged: StagedDirectory) -> None:
        """Removes what was staged."""
        shutil.rmtree(staged.path, ignore_errors=True)
        self._staged.discard(staged.path)

    def _check_room(self, changes: Changes) -> None:
        files = sum(file.size for file in changes.files.values())
        needed = int((changes.schema.nbytes + files) * _MARGIN)
        free = shutil.disk_usage(self._path.parent).free
        if needed > free:
            raise NoSpace(f"{self._path.parent} has {free} bytes left, {needed} are needed", hint="Make room")

    def _write(self, staged: Path, changes: Changes) -> None:
        staged.mkdir()
        write_checkpoint(staged, changes.schema, partial(self._new, changes))
        for name, file in changes.files.items():
            if taken_for_weights(name):
                raise _in_place_of_weights(name)
            data = changes.store.get_object(file.sha256, file.size, most=SIDE_FILE_BYTES)
            (staged / name).parent.mkdir(parents=True, exist_ok=True)
            (staged / name).write_bytes(data)
        (staged / MARKER).write_text(_marker(changes))
        sync_tree(staged)

    def _new(self, changes: Changes, name: str) -> Lanes:
        patch = changes.patches.get(name)
        if patch is not None and patch.positions is None:
            return patch.values
        lanes = self._held().lanes(name)
        if patch is None:
            return lanes
        lanes = lanes.copy()
        patch.write_to(lanes)
        return lanes

    def _held(self) -> HostState:
        if self._state is None:
            raise NotFound(f"{self._path} holds no checkpoint yet")
        return self._state

    def _load(self) -> None:
        self._state = None
        if (self._path / MARKER).is_file():
            try:
                self._state = open_checkpoint(self._path)
            except DeltaStoreError as error:
                _log.warning(
                    "the checkpoint cannot be read", extra={"path": str(self._path), "error": str(error)}
                )

    def _check_ours(self) -> None:
        """Refuses to replace what somebody else has put there (DS-DIR-2)."""
        if self._path.exists() and not (self._path / MARKER).is_file() and not _is_empty(self._path):
            raise UsageError(
                f"{self._path} is not empty and was not made by deltastore",
                hint="Choose another directory; nothing in it was touched",
            )

    def _recover(self) -> None:
        """After a crash between the two renames of a commit: the old checkpoint comes back."""
        old = self._beside("old")
        if old.exists() and not self._path.exists():
            old.rename(self._path)

    def _sweep(self) -> None:
        """Removes what crashes have left of directories that were being written."""
        for path in self._path.parent.glob(f".{glob.escape(self._path.name)}.new-*"):
            if path not in self._staged:
                shutil.rmtree(path, ignore_errors=True)

    def _beside(self, role: str) -> Path:
        return self._path.with_name(f".{self._path.name}.{role}")


def _marker(changes: Changes) -> str:
    info = changes.info
    said = {
        "store": changes.store.identity.store,
        "url": changes.store.url,
        "version": info.version,
        "step": info.step,
        "record_sha256": info.record_sha256,
        "schema": info.schema,
        "state": None if info.state is None else f"{info.state:016x}",
    }
    return json.dumps(said, indent=2) + "\n"


def _in_place_of_weights(name: str) -> BadRecord:
    return BadRecord(
        f"side file {name!r} would stand in the place of weights",
        hint="Publish it under another name, or in a folder of its own",
        file=name,
    )


def _is_empty(path: Path) -> bool:
    return path.is_dir() and not any(path.iterdir())
