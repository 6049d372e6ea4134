"""A directory as a target (spec, Directories): a complete checkpoint, swapped by rename."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from deltastore.codec.types import Positions
from deltastore.consumer.swap import Place, Staging
from deltastore.consumer.targets import Changes
from deltastore.errors import BadRecord, Conflict, DeltaStoreError, NoSpace, NotFound
from deltastore.filesystem import map_errors, sync_tree
from deltastore.protocol.digest import Lanes
from deltastore.protocol.limits import SIDE_FILE_BYTES
from deltastore.protocol.schema import Schema
from deltastore.state import HostState, digest_of
from deltastore.tensors.files import (
    MARKER,
    Stamp,
    open_checkpoint,
    stamps,
    taken_for_weights,
    write_checkpoint,
)

_log = logging.getLogger(__name__)
_MARGIN: Final = 1.02


@dataclass(frozen=True, slots=True, eq=False)
class StagedDirectory:
    """A complete checkpoint beside the one that is served.

    Attributes:
        staging: Its directory, held.
        state: Its weights, mapped; None if this machine cannot read them back.
        stamps: What its files were when they had been written.
    """

    staging: Staging
    state: HostState | None
    stamps: Mapping[str, Stamp]

    @property
    def path(self) -> Path:
        """Where it is until it is committed."""
        return self.staging.path


class DirectoryTarget:
    """A checkpoint directory in the layout of Hugging Face, always complete.

    Consumers of several processes may share it: each commit swaps in a whole checkpoint, and `intact` tells
    the others. Beside it stays a small lock file.

    Args:
        path: The directory; created by the first commit, replaced by each later one. A symbolic link is
            followed once, here.

    Raises:
        UsageError: Something else is there, or it is a mount point.
    """

    holds_files: Final = True

    def __init__(self, path: Path) -> None:
        self._place = Place(path)
        self._path = self._place.path
        self._staged: set[StagedDirectory] = set()
        self._place.settle()
        self._load()

    def bind(self, schema: Schema) -> None:
        """A directory takes any schema; what it holds of another one has no state under this one."""

    def intact(self) -> bool:
        """Whether weights and marker are still the files that were loaded or committed.

        After False, once, all that this target says is about what is there now.
        """
        if stamps(self._path) == self._stamps:
            return True
        with self._place.alone(), map_errors(str(self._path)):
            self._place.recover()
            if stamps(self._path) == self._stamps:
                return True
            self._load()
        return False

    def can_read_old(self) -> bool:
        """Whether it holds a checkpoint."""
        return self._state is not None

    def gather(self, name: str, positions: Positions) -> Lanes:
        """Lanes at flat positions, from the mapped file."""
        return self._held().gather(name, positions)

    def read(self, name: str, start: int, stop: int) -> Lanes:
        """Lanes `start` to `stop`, from the mapped file."""
        return self._held().read(name, start, stop)

    def view(self, name: str) -> Lanes | None:
        """All lanes, mapped."""
        return self._held().lanes(name)

    def state(self, schema: Schema) -> int | None:
        """The digest of every byte; None if it holds tensors of another schema, or nothing."""
        if self._state is None or set(self._state.schema.owners) != set(schema.owners):
            return None
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
        staging = self._place.stage()
        try:
            with map_errors(str(staging.path)):
                self._check_room(changes)
                self._write(staging.path, changes)
            staged = StagedDirectory(staging, _opened(staging.path), stamps(staging.path))
        except BaseException:
            staging.remove()
            raise
        self._staged.add(staged)
        return staged

    def commit(self, staged: StagedDirectory) -> None:
        """Swaps the directories by renaming them; a crash in between is mended at the next start.

        Whatever else was staged on what it replaces is removed.

        Raises:
            Conflict: It was discarded, or somebody has changed its files.
        """
        if not self._claim(staged):
            raise Conflict(f"{staged.path} was discarded or committed before", hint="Stage it again")
        try:
            self._swap(staged)
        except BaseException:
            self._staged.add(staged)
            raise
        staged.staging.release()
        for other in list(self._staged):
            self.discard(other)

    def _swap(self, staged: StagedDirectory) -> None:
        with self._place.alone(), map_errors(str(self._path)):
            if stamps(staged.path) != staged.stamps:
                raise Conflict(
                    f"{staged.path} was removed or changed since it was staged", hint="Stage it again"
                )
            self._place.swap(staged.path)
            self._state, self._stamps = staged.state, staged.stamps

    def discard(self, staged: StagedDirectory) -> None:
        """Removes what was staged, unless it was committed."""
        if self._claim(staged):
            staged.staging.remove()

    def _claim(self, staged: StagedDirectory) -> bool:
        """Whether it was still to be had; of a commit and a discard at once, one gets it."""
        try:
            self._staged.remove(staged)
        except KeyError:
            return False
        return True

    def _check_room(self, changes: Changes) -> None:
        files = sum(file.size for file in changes.files.values())
        needed = int((changes.schema.nbytes + files) * _MARGIN)
        free = shutil.disk_usage(self._path.parent).free
        if needed > free:
            raise NoSpace(f"{self._path.parent} has {free} bytes left, {needed} are needed", hint="Make room")

    def _write(self, staged: Path, changes: Changes) -> None:
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
        self._stamps = stamps(self._path)
        self._state = _opened(self._path) if MARKER in self._stamps else None


def _opened(path: Path) -> HostState | None:
    try:
        with map_errors(str(path)):
            return open_checkpoint(path)
    except DeltaStoreError as error:
        _log.warning("the checkpoint cannot be read", extra={"path": str(path), "error": str(error)})
        return None


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
