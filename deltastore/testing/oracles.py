"""What must hold in every interleaving (spec, The log): oracles for `explore`, and what actors tell them.

They read the raw storage, never a client's view of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from deltastore.backends.memory import MemoryBackend
from deltastore.errors import BadKey
from deltastore.protocol import chain, keys
from deltastore.protocol.identity import Identity
from deltastore.protocol.records import Slot, Tombstone, VersionRecord, parse_slot
from deltastore.testing.stage import World


class Wrong(AssertionError):
    """A history that must not be."""


@dataclass(frozen=True, slots=True)
class Claimed:
    """A producer believes that its term has begun."""

    term: int
    version: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """A producer believes that this record is committed."""

    version: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Failed:
    """A producer was told for certain that content was not committed, and might publish other content.

    Attributes:
        tag: What the content has under `tag` in `user`.
    """

    tag: str


@dataclass(frozen=True, slots=True)
class Fenced:
    """A producer knows that its term is over."""


@dataclass(frozen=True, slots=True)
class Polling:
    """A reader begins to look for the newest version."""


@dataclass(frozen=True, slots=True)
class Seen:
    """A reader has found that this is the newest version."""

    version: int
    sha256: str


def slots_of(storage: MemoryBackend) -> dict[int, Slot]:
    """What is stored under the keys of versions."""
    objects = storage.snapshot()
    identity = _identity(objects[keys.STORE][0])
    found = {}
    for key, (data, _) in objects.items():
        try:
            version = keys.parse_version(key)
        except BadKey:
            continue
        found[version] = _slot(data, identity.store_of(version), version)
    return dict(sorted(found.items()))


class LogOracle:
    """One record per slot for ever, slots without gaps, a valid chain, each term begun once."""

    def __init__(self) -> None:
        self._before: dict[int, Slot] | None = None

    def moved(self, world: World) -> None:
        """Compares the slots with those before."""
        before = self._before
        if before is not None and not (world.moves and world.moves[-1].writes):
            return
        after = slots_of(world.storage)
        for version, old in (before or {}).items():
            new = after.get(version)
            if new is None:
                raise Wrong(f"version {version} was freed")
            if new.data != old.data and not _buries(new, old):
                raise Wrong(f"version {version} became another record")
        first = _identity(world.storage.snapshot()[keys.STORE][0]).first_version
        if list(after) != list(range(first, first + len(after))):
            raise Wrong(f"slots have gaps: {list(after)}")
        for version, slot in after.items():
            if version > first:
                chain.check_successor(after[version - 1], slot)
        self._before = after

    def ended(self, world: World) -> None:
        """Compares once more."""
        self._before = None if not world.moves else self._before
        self.moved(world)


class ClaimsOracle:
    """What producers and readers believe is so."""

    def __init__(self) -> None:
        self._heard = 0
        self._committed: dict[int, tuple[str, str]] = {}
        self._terms: dict[int, str] = {}
        self._fenced: set[str] = set()
        self._newest = -1
        self._floors: dict[str, int] = {}
        self._seen: dict[str, int] = {}

    def moved(self, world: World) -> None:
        """Hears the notes that are new."""
        for note in world.notes[self._heard :]:
            self._hear(note.actor, note.what)
        self._heard = len(world.notes)

    def ended(self, world: World) -> None:
        """Compares the notes with the log."""
        self.moved(world)
        slots = slots_of(world.storage)
        for version, (actor, sha256) in self._committed.items():
            slot = slots.get(version)
            if slot is None:
                raise Wrong(f"{actor} committed version {version}, which is not there")
            if slot.sha256 != sha256:
                raise Wrong(f"{actor} committed another version {version} than is there")
        tags = {tag for slot in slots.values() if (tag := _tag(slot)) is not None}
        for note in world.said(Failed):
            if isinstance(note.what, Failed) and note.what.tag in tags:
                raise Wrong(f"{note.actor} was told that {note.what.tag} failed; it is there")

    def _hear(self, actor: str, what: object) -> None:
        match what:
            case Claimed(term, version, sha256):
                owner = self._terms.setdefault(term, actor)
                if owner != actor:
                    raise Wrong(f"{owner} and {actor} both hold term {term}")
                self._commit(actor, version, sha256)
            case Acknowledged(version, sha256):
                self._commit(actor, version, sha256)
            case Fenced():
                self._fenced.add(actor)
            case Polling():
                self._floors[actor] = self._newest
            case Seen(version, sha256):
                before = self._seen.get(actor, -1)
                if version < before:
                    raise Wrong(f"{actor} saw version {before} and then {version}")
                floor = self._floors.get(actor, -1)
                if version < floor:
                    raise Wrong(f"{actor} saw version {version} after {floor} was committed")
                committed = self._committed.get(version)
                if committed is not None and committed[1] != sha256:
                    raise Wrong(f"{actor} saw another version {version}")
                self._seen[actor] = version
            case _:
                return

    def _commit(self, actor: str, version: int, sha256: str) -> None:
        if actor in self._fenced:
            raise Wrong(f"{actor} was fenced and has committed version {version}")
        owner = self._committed.setdefault(version, (actor, sha256))
        if owner != (actor, sha256):
            raise Wrong(f"{owner[0]} and {actor} both have committed version {version}")
        self._newest = max(self._newest, version)


@lru_cache(256)
def _identity(data: bytes) -> Identity:
    return Identity.from_bytes(data)


@lru_cache(4096)
def _slot(data: bytes, store: str, version: int) -> Slot:
    """The same bytes come again in every run."""
    return parse_slot(data, store=store, version=version)


def _buries(new: Slot, old: Slot) -> bool:
    return isinstance(new.record, Tombstone) and not chain.collected(old) and new.sha256 == old.sha256


def _tag(slot: Slot) -> object:
    return slot.record.user.get("tag") if isinstance(slot.record, VersionRecord) else None
