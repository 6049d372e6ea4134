"""Whether a store is sound, as far as its newest records and the sizes of objects can say; reads only."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice, pairwise
from typing import Final

from deltastore.backends.base import Backend
from deltastore.backends.probe import Finding, Verdict
from deltastore.backends.retry import RetryPolicy
from deltastore.cli import text
from deltastore.errors import BackendError, DeltaStoreError, IntegrityError, NoPath, NotFound, Unsupported
from deltastore.parallel import DEFAULT
from deltastore.protocol import chain, keys
from deltastore.protocol.descriptors import ShardDescriptor
from deltastore.protocol.identity import Identity
from deltastore.protocol.planning import Plan
from deltastore.protocol.records import Slot, Tombstone, VersionRecord
from deltastore.replay import plan, schema_of
from deltastore.store import Store

_PATIENCE: Final = RetryPolicy(deadline=10.0)
_CHAIN: Final = 32
"""Newest records that are checked against each other."""
_OBJECTS: Final = 256
"""Objects of a plan whose presence is checked."""


def check_store(backend: Backend) -> tuple[Store | None, list[Finding]]:
    """Looks at the store of a backend.

    Returns:
        The store, if it can be opened, and what was found; nothing but a `UsageError` is raised.
    """
    try:
        store = Store.open(backend, retry=_PATIENCE)
    except (BackendError, IntegrityError) as error:
        return None, [_failed("STORE.json", error)]
    return store, [_identity(store.identity), *_guarded("log", store, _log)]


def _identity(identity: Identity) -> Finding:
    said = f"store {identity.store}, commits: {identity.commit.value}, grace {text.age(identity.grace)}"
    if identity.replica_of is not None:
        said += f", a replica of {identity.replica_of}: nobody publishes here"
    return Finding("STORE.json", Verdict.PASS, said)


def _log(store: Store) -> Iterator[Finding]:
    try:
        store.check_writable()
        yield Finding("writable", Verdict.PASS, "nothing is in the way of a producer here")
    except Unsupported as error:
        yield Finding("writable", Verdict.WARN, str(error))
    number = store.log.newest_number()
    if number is None:
        yield Finding("newest version", Verdict.PASS, "there is none yet")
        return
    low = max(store.log.first, number - _CHAIN + 1)
    slots = list(DEFAULT.map(partial(_slot, store), range(low, number + 1)))
    newest = slots[-1]
    step = "" if newest.record.step is None else f", step {newest.record.step}"
    yield Finding("newest version", Verdict.PASS, f"{number}, term {newest.record.term}{step}")
    for before, after in pairwise(slots):
        chain.check_successor(before, after)
    collected = sum(chain.collected(slot) for slot in slots)
    rest = f"; {collected} of them collected" if collected else ""
    yield Finding("chain", Verdict.PASS, f"versions {low} to {number} follow each other{rest}")
    yield from _guarded("schema", store, partial(_schema, newest=newest))
    yield from _guarded("way from nothing", store, partial(_plan, newest=newest))


def _slot(store: Store, version: int) -> Slot:
    found = store.log.slot(version)
    if found is None:
        raise IntegrityError(f"version {version} is missing among others", hint="Slots are never freed")
    return found


def _schema(store: Store, *, newest: Slot) -> Iterator[Finding]:
    if newest.record.schema is not None:
        schema = schema_of(store, newest)
        said = f"{text.plural(len(schema.tensors), 'tensor')}, {text.size(schema.nbytes)} of weights"
        yield Finding("schema", Verdict.PASS, said)


def _plan(store: Store, *, newest: Slot) -> Iterator[Finding]:
    name = "way from nothing"
    if newest.record.state is None:
        yield Finding(name, Verdict.PASS, "no weights were published yet")
        return
    if isinstance(newest.record, Tombstone):
        yield Finding(name, Verdict.FAIL, "the newest version is collected, which retention never does")
        return
    try:
        found = plan(store, newest, held={"none"})
    except NoPath:
        external = _external(store)
        if external is None:
            raise
        found = plan(store, newest, held={"external"})
        said = f"only on top of {external}: {_cost(found)}"
        yield Finding(name, Verdict.WARN, said)
    else:
        yield Finding(name, Verdict.PASS, f"{_cost(found)} for a fresh server")
    yield from _guarded("objects", store, partial(_objects, chosen=found))


def _external(store: Store) -> str | None:
    first = store.log.slot(store.log.first)
    record = None if first is None else first.record
    return record.external.url if isinstance(record, VersionRecord) and record.external else None


def _cost(found: Plan) -> str:
    edges = [edge for edge in found.edges if edge.shards]
    objects = sum(len(edge.shards) for edge in edges)
    return f"{text.size(found.size)} in {text.plural(objects, 'object')} of {text.plural(len(edges), 'edge')}"


def _objects(store: Store, *, chosen: Plan) -> Iterator[Finding]:
    """Whether the objects of a plan are there with their sizes; newest edges first, all servers need them."""
    shards = [shard for edge in reversed(chosen.edges) for shard in edge.shards]
    looked = list(islice(shards, _OBJECTS))
    problems = [problem for problem in DEFAULT.map(partial(_problem, store), looked) if problem]
    if problems:
        more = f"; and {len(problems) - 1} more" if len(problems) > 1 else ""
        yield Finding("objects", Verdict.FAIL, f"{problems[0]}{more}")
        return
    part = "all" if len(looked) == len(shards) else f"{len(looked)} of {len(shards)}"
    yield Finding("objects", Verdict.PASS, f"{part} are there with their sizes; their bytes were not read")


def _problem(store: Store, shard: ShardDescriptor) -> str:
    key = keys.object_(shard.sha256)
    try:
        size = store.access.call(partial(store.access.backend.head, key)).size
    except NotFound:
        return f"{key} is gone"
    return "" if size == shard.size else f"{key} has {size} bytes, not {shard.size}"


def _guarded(name: str, store: Store, check: Callable[[Store], Iterator[Finding]]) -> Iterator[Finding]:
    """The findings of a check; what it raises is the last of them."""
    try:
        yield from check(store)
    except DeltaStoreError as error:
        yield _failed(name, error)


def _failed(name: str, error: DeltaStoreError) -> Finding:
    unreachable = isinstance(error, BackendError)
    return Finding(name, Verdict.FAIL, f"{type(error).__name__}: {error}", unreachable)
