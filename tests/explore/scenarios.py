"""Actors and scenarios of one log: producers that claim and commit, readers that poll, a collector."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache

from record_samples import SCHEMA, anchor, delta

from deltastore.backends.memory import MemoryBackend
from deltastore.backends.retry import RetryPolicy
from deltastore.consumer.follow import Follower
from deltastore.errors import BackendError, Collected, Conflict, Fenced, NoSuchVersion, OutcomeUnknown
from deltastore.producer.holder import Process
from deltastore.producer.term import Content, Term
from deltastore.protocol import keys
from deltastore.protocol.records import Slot, Stats, Tombstone, VersionRecord
from deltastore.runtime import Runtime
from deltastore.store import Store
from deltastore.testing import oracles
from deltastore.testing.explore import Actor, Oracle, Scenario, Stage

QUIET = ("status/", "STORE.json", "head")
"""Advice and hints, and what never changes here."""
ONCE = RetryPolicy(deadline=0)
FIXED = Runtime(
    now=lambda: 1e9, monotonic=lambda: 0.0, sleep=lambda _: None, random_bytes=lambda n: bytes(range(n))
)


def opened(stage: Stage) -> Store:
    return Store.open(stage.backend, runtime=stage.runtime, retry=ONCE)


def content(term: Term, tag: str) -> Content:
    """The next version's, made up; its state depends on the tag."""
    last = term.last
    assert last is not None
    version, state = term.next_version, sum(tag.encode()) * 1000 + term.next_version
    old = last.record.state
    edge = anchor(version, state) if old is None else delta(last.version, old, version, state)
    return Content(
        schema=SCHEMA,
        files={},
        state=state,
        edge=edge,
        step=version,
        last_anchor=None,
        resumed_from=None,
        stats=Stats(1, 2, 3, 4),
        user={"tag": tag},
    )


def begin(stage: Stage, store: Store) -> Term | None:
    """Claims; tries again while nobody knows, gives way to whoever was faster."""
    for _ in range(4):
        try:
            term = Term.begin(store, takeover=True, process=Process(stage.name, 1))
        except Conflict:
            return None
        except BackendError:
            continue
        assert term.last is not None
        stage.note(oracles.Claimed(term.number, term.start, term.last.sha256))
        return term
    return None


def publish(stage: Stage, term: Term, tag: str) -> bool:
    """Commits; the same content while nobody knows, and other content only after a certain no."""
    made = content(term, tag)
    for attempt in range(4):
        try:
            slot = term.commit(made)
        except Fenced:
            stage.note(oracles.Fenced())
            return False
        except OutcomeUnknown:
            continue
        except BackendError:
            stage.note(oracles.Failed(tag))
            tag = f"{tag}, attempt {attempt}"
            made = content(term, tag)
            continue
        stage.note(oracles.Acknowledged(slot.version, slot.sha256))
        return True
    return False


def producer(*tags: str) -> Actor:
    """Claims and commits."""

    def actor(stage: Stage) -> None:
        term = begin(stage, opened(stage))
        if term is not None:
            for tag in tags:
                if not publish(stage, term, f"{stage.name} {tag}"):
                    return

    return actor


def zombie(*tags: str) -> Actor:
    """Holds the term that `running` began, and goes on committing."""

    def actor(stage: Stage) -> None:
        slots = _running()
        claim = slots[0].record
        assert isinstance(claim, VersionRecord)
        term = Term(opened(stage), claim, slots[1], Process(stage.name, 1))
        for tag in tags:
            if not publish(stage, term, f"{stage.name} {tag}"):
                return

    return actor


def reader(polls: int) -> Actor:
    """Looks for the newest version, as consumers do."""

    def actor(stage: Stage) -> None:
        follower = Follower(opened(stage), cache=None, min_version=None)
        for _ in range(polls):
            stage.note(oracles.Polling())
            try:
                slot = follower.newest()
            except (NoSuchVersion, Collected, BackendError):
                continue
            stage.note(oracles.Seen(slot.version, slot.sha256))

    return actor


def collector(version: int, *, patience: int) -> Actor:
    """Buries a version once it is not the newest any more."""

    def actor(stage: Stage) -> None:
        store = opened(stage)
        for _ in range(patience):
            with suppress(BackendError):
                after, slot = store.log.slot(version + 1), store.log.slot(version)
                if slot is not None and after is not None and isinstance(slot.record, VersionRecord):
                    tombstone = Tombstone.of(slot.record, slot.sha256)
                    stage.backend.put(keys.version(version), tombstone.to_bytes())
                    return

    return actor


def empty(storage: MemoryBackend) -> None:
    """A store without versions."""
    Store.create(storage, runtime=FIXED)


def running(storage: MemoryBackend) -> None:
    """A store with a claim and one data record."""
    empty(storage)
    term = Term.begin(Store.open(storage, runtime=FIXED), process=Process("first", 1))
    term.commit(content(term, "first"))


@cache
def _running() -> Mapping[int, Slot]:
    storage = MemoryBackend()
    running(storage)
    return oracles.slots_of(storage)


def both() -> tuple[Oracle, ...]:
    return oracles.LogOracle(), oracles.ClaimsOracle()


def scenario(actors: Mapping[str, Actor], prepare: Callable[[MemoryBackend], None] = empty) -> Scenario:
    return Scenario(actors, prepare, both, quiet=QUIET)
