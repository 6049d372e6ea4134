"""The trainer's side (spec, Writing): publish weights, step by step, as the versions of a store."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Literal, Self, TypeVar

from deltastore.errors import Broken, DeltaStoreError, UsageError
from deltastore.parallel import DEFAULT, Workers
from deltastore.producer.anchors import Anchors
from deltastore.producer.base import ExternalBase, Files, gather_files, store_files
from deltastore.producer.holder import Process
from deltastore.producer.pipeline import Job, Pipeline, Publication
from deltastore.producer.private import PrivateState
from deltastore.producer.rebuild import rebuild
from deltastore.producer.saying import Saying
from deltastore.producer.snapshot import Make, Making, Snapshot
from deltastore.producer.sources import Intake, OnNonFinite, no_part
from deltastore.producer.term import Content, Term
from deltastore.protocol import anchoring
from deltastore.protocol.descriptors import Descriptor
from deltastore.protocol.edges import Edge, EdgeRecord
from deltastore.protocol.keys import Base
from deltastore.protocol.records import Slot, Stats, VersionRecord
from deltastore.protocol.schema import Schema, TensorSpec
from deltastore.protocol.wire import Value
from deltastore.shards import Shard
from deltastore.slicing import SHARD_BYTES
from deltastore.store import Store
from deltastore.tensors.bits import Bits
from deltastore.tensors.convert import Compare, stable

if TYPE_CHECKING:
    from deltastore.tensors.convert import Weights

T = TypeVar("T")
_log = logging.getLogger(__name__)
HEAD_EVERY = 64  # versions after which the hint for galloping is written
_PATIENCE = 30.0
"""Seconds that leaving a `with` block by an error waits for what was published before it."""


class Producer:
    """Publishes weights as the versions of a store.

    Nothing is written before the first publish, which claims the log. One producer serves one training
    process; its methods may be called from any thread, one at a time.

    Args:
        store: Where to.
        base: A checkpoint that everybody has already: version 0 of a new store, names and dtypes of it.
        files: Side files by name, or the checkpoint directory that holds them; None keeps those of the head.
        dtypes: `"base"` keeps the dtypes of the base checkpoint, the head, or the first publish; a map from
            patterns of names to dtypes of safetensors changes them for a new store.
        export: Maps the trainer's names to the checkpoint's; None leaves a tensor out.
        codec: Of deltas: `ulp`, `ctx`, `abs`, `coo`; `auto` is `ctx` over a slow link, else `ulp`.
        link: Bytes per second of the slowest link from the store to a server, for `auto`; None: not slow.
        anchor_codec: Of anchors: `plane` or `plain`.
        anchors: When to add anchors in the background; None leaves it to others.
        takeover: Claim even if the last producer may be alive.
        on_nonfinite: `"raise"` refuses NaN and infinity; `"allow"` publishes them as they are.
        compare: Where torch tensors are compared, and their base is held: on their `"device"`, in memory of
            the `"host"`, or `"auto"`: on the device, for those that do not lie in host memory.
        check: Decode every shard before it is committed.
        depth: Publications that may wait for their commit.
        workers: Shards on their way to the store at once; cores bound how many are encoded.
        shard_bytes: Bytes of weights per shard.
        process: Who this is, for the advice on takeovers.

    Raises:
        Unsupported: The store is a replica, or cannot be written to from here, or a codec is unknown.
        UsageError: An option that it does not know.
    """

    def __init__(
        self,
        store: Store,
        *,
        base: ExternalBase | str | PathLike[str] | None = None,
        files: Files | str | PathLike[str] | None = None,
        dtypes: Literal["base"] | Mapping[str, str] = "base",
        export: Callable[[str], str | None] | None = None,
        codec: str = "auto",
        link: float | None = None,
        anchor_codec: str = "plane",
        anchors: anchoring.AnchorPolicy | None = anchoring.DEFAULT,
        takeover: bool = False,
        on_nonfinite: OnNonFinite = "raise",
        compare: Compare = "auto",
        check: bool = True,
        depth: int = 2,
        workers: Workers = DEFAULT,
        shard_bytes: int = SHARD_BYTES,
        process: Process | None = None,
    ) -> None:
        if not isinstance(store, Store):
            raise UsageError(f"{store!r} is not a store", hint="Pass Store.open(...) or Store.ensure(...)")
        store.check_writable()
        if depth < 1:
            raise UsageError(f"depth={depth}: no publication could wait", hint="At least 1")
        self._store = store
        self._external = base if isinstance(base, ExternalBase | None) else ExternalBase(Path(base))
        self._given_files = gather_files(files)
        self._intake = Intake({} if dtypes == "base" else dtypes, export, on_nonfinite, compare)
        self._making = Making(codec, anchor_codec, check, lambda: store.runtime.random_bytes(16), link)
        self._takeover = takeover
        self._depth = depth
        self._workers = workers
        self._shard_bytes = shard_bytes
        self._process = process or Process()
        opens = self._external.state if self._external else None
        self._anchors = Anchors(
            store, anchors, codec=anchor_codec, external=opens, workers=workers, shard_bytes=shard_bytes
        )
        self._lock = threading.Lock()
        self._closed = False
        self._term: Term | None = None
        self._pipeline: Pipeline | None = None
        self._files: dict[str, Descriptor] = {}
        self._snapshot: Snapshot | None = None
        self._step = 0
        self._queued = 0

    def publish(
        self,
        weights: Weights,
        *,
        step: int,
        user: Mapping[str, Value] | None = None,
        partial: bool = False,
        new_schema: bool = False,
    ) -> Publication:
        """Publishes weights; returns as soon as the caller may change them again.

        Args:
            weights: A module, a state dict, or an iterable of (name, tensor) pairs, which is drained at once.
            step: The training step; may not fall.
            user: A small map for the trainer's own use.
            partial: Tensors that are not among `weights` stay as they are.
            new_schema: Names, dtypes or shapes may differ from those before; costs an anchor.

        Raises:
            SchemaMismatch: The tensors are not those of the schema; the message lists them.
            NonFinite: A tensor holds NaN or infinity.
            StepWentBack: `step` is below that of the publish before.
            Fenced: Another producer has taken over. Terminal.
            Broken: An earlier publish failed; open a new producer.
            TakeoverRefused: Another producer may be alive (first publish only).
        """
        with self._lock:
            saying = self._ready(step, user)
            if partial and new_schema:
                hint = "A new schema needs all of its tensors"
                raise UsageError("partial and new_schema do not go together", hint=hint)
            first = partial and self._term is None and self._external is None
            if first and self._store.log.newest_number() is None:
                raise no_part()
            term = self._begin(weights)
            if self._snapshot is None:
                return self._first(term, weights, saying, partial=partial, new_schema=new_schema)
            if new_schema:
                candidate = self._intake.collect(weights)
                if candidate.schema != self._snapshot.base.schema:
                    return self._anchor(candidate, saying)
                return self._delta(term, candidate.drain(), saying, keep=True)
            tensors = self._intake.conform(weights, self._snapshot.base.schema, partial=partial)
            return self._delta(term, tensors, saying, keep=stable(weights))

    def reset(self, weights: Weights, *, step: int, user: Mapping[str, Value] | None = None) -> Publication:
        """Publishes an anchor-only version, which depends on nothing before it; else like `publish`."""
        with self._lock:
            saying = self._ready(step, user)
            term = self._begin(weights)
            if self._snapshot is not None:
                return self._anchor(self._intake.whole(weights, self._snapshot.base.schema), saying)
            self._load_files(term)
            head = term.last.record if term.last is not None else None
            if head is None or head.schema is None:
                return self._anchor(self._intake.collect(weights), saying)
            return self._anchor(self._intake.whole(weights, self._store.schema(head.schema)), saying)

    def close(self, timeout: float | None = None) -> None:
        """Waits until everything is committed, and says that this producer is done.

        Args:
            timeout: Seconds after which what is not committed fails; None waits as long as it takes.
        """
        if self._pipeline is not None and self._pipeline.forked:
            return  # The producer of the parent process goes on.
        with self._lock:
            if self._closed:
                return
            self._closed = True
            if self._pipeline is not None:
                self._pipeline.close(timeout)
            self._anchors.join(timeout)
            if self._term is not None:
                self._term.end()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(None if error is None else _PATIENCE)

    # --- Taking over the log ----------------------------------------------------------------------------

    def _ready(self, step: int, user: Mapping[str, Value] | None) -> Saying:
        """Checks whatever can be checked before anything moves."""
        if self._closed:
            raise Broken("this producer is closed", hint="Open a new one")
        if self._pipeline is not None:
            self._pipeline.check()
            self._pipeline.wait_encoded()
        return Saying.of(step, user, last=self._step)

    def _begin(self, weights: Weights) -> Term:
        """Claims the log, once, unless it can be seen that the weights have names that no schema holds."""
        if self._term is not None:
            return self._term
        self._intake.check_names(weights)
        genesis = None
        if self._external is not None and self._store.log.newest_number() is None:
            genesis = self._external.genesis(self._store, self._external.state())
        term = Term.begin(self._store, takeover=self._takeover, process=self._process, genesis=genesis)
        self._queued = term.next_version - 1
        self._pipeline = Pipeline(
            self._store, term, workers=self._workers, depth=self._depth, committed=self._committed
        )
        self._term = term
        return term

    def _first(
        self, term: Term, weights: Weights, saying: Saying, *, partial: bool, new_schema: bool
    ) -> Publication:
        """The first publish: an anchor on an empty log, else a delta from the head."""
        self._load_files(term)
        head = term.last
        if head is None or head.record.schema is None or head.record.state is None:
            if partial:
                raise no_part()
            return self._anchor(self._intake.collect(weights), saying)
        schema = self._store.schema(head.record.schema)
        tensors: Iterable[tuple[TensorSpec, Bits]] = self._intake.conform(weights, schema, partial=partial)
        if new_schema:
            candidate = self._intake.collect(weights)
            if candidate.schema != schema:
                return self._anchor(candidate, saying)
            tensors = candidate.drain()
        self._anchors.resume(head)
        return self._resume(term, head, schema, tensors, saying, partial=partial, keep=stable(weights))

    def _resume(
        self,
        term: Term,
        head: Slot,
        schema: Schema,
        tensors: Iterable[tuple[TensorSpec, Bits]],
        saying: Saying,
        *,
        partial: bool,
        keep: bool,
    ) -> Publication:
        """Goes on behind a head that has weights."""
        found = rebuild(
            self._store,
            head,
            tensors,
            schema,
            step=saying.step,
            partial=partial,
            external=self._external.state() if self._external else None,
            workers=self._workers,
        )
        saying = Saying(saying.step, saying.user, found.resumed_from)
        if found.base is None:
            candidate = _given(found.candidate)
            for spec, bits in candidate.tensors():
                self._intake.check_finite(spec.name, bits)
            return self._anchor(candidate, saying)
        descriptor, state = _given(head.record.schema), _given(head.record.state)
        self._snapshot = Snapshot(found.base, descriptor, state, shard_bytes=self._shard_bytes)
        if found.candidate is not None:
            tensors = () if found.candidate is found.base else found.candidate.drain()
        return self._delta(term, tensors, saying, keep=keep)

    def _load_files(self, term: Term) -> None:
        known = term.before.files if isinstance(term.before, VersionRecord) else {}
        given = self._given_files
        self._files = store_files(self._store, given, known) if given else dict(known)

    # --- Making a version -------------------------------------------------------------------------------

    def _delta(
        self, term: Term, tensors: Iterable[tuple[TensorSpec, Bits]], saying: Saying, *, keep: bool
    ) -> Publication:
        """A version that follows from the one before it."""
        snapshot = _given(self._snapshot)
        before, base = snapshot.state, self._before(term)
        with self._moving():
            move = snapshot.move(tensors, self._making, self._intake.check_count, keep=keep)
            try:
                making = self._making.settled(move)
                makes = snapshot.deltas(move, making)
            except BaseException:
                move.undo()
                snapshot.state = before
                raise
            # Not undone from here on: shards may be encoded from the base already, whatever comes in between.
            return self._submit(makes, saying, base=base, base_state=before, reads_base=making.reads_base)

    def _anchor(self, state: PrivateState, saying: Saying) -> Publication:
        """A version that depends on nothing; its shards are encoded from the base, which waits for them."""
        known = self._snapshot
        if known is not None and known.base.schema == state.schema:
            schema = known.schema
        else:
            schema = self._store.put_object(state.schema.data)
        with self._moving():
            try:
                self._snapshot = Snapshot(state, schema, state.digest(), shard_bytes=self._shard_bytes)
                makes = self._snapshot.anchors(self._making)
                return self._submit(makes, saying, base="none", base_state=None, reads_base=True)
            except BaseException:
                self._snapshot = known
                raise

    @contextmanager
    def _moving(self) -> Iterator[None]:
        """While the base moves: after an interrupt it is not known how far, and nothing is built on it."""
        try:
            with self._workers.scope():
                yield
        except BaseException as error:
            if isinstance(error, Broken) or not isinstance(error, Exception):
                _given(self._pipeline).stop(error)
            raise

    def _before(self, term: Term) -> Base:
        """What the next version's delta starts from, as edges name it."""
        last = term.last
        if self._queued == 0 and last is not None and isinstance(last.record, VersionRecord):
            return 0 if last.record.external is None else "external"
        return self._queued

    def _submit(
        self, makes: list[Make], saying: Saying, *, base: Base, base_state: int | None, reads_base: bool
    ) -> Publication:
        snapshot, pipeline = _given(self._snapshot), _given(self._pipeline)
        version, state, files = self._queued + 1, snapshot.state, self._files

        def content(shards: list[Shard]) -> Content:
            stored = sum(shard.descriptor.size for shard in shards)
            changed = sum(shard.changed for shard in shards)
            schema = snapshot.base.schema
            return Content(
                schema=snapshot.schema,
                files=files,
                state=state,
                edge=Edge(base, base_state, version, state, tuple(shard.descriptor for shard in shards)),
                step=saying.step,
                last_anchor=version if base == "none" else self._anchors.last,
                resumed_from=saying.resumed_from,
                stats=Stats(changed, schema.lanes, schema.nbytes, stored),
                user=saying.user,
            )

        publication = Publication(version)
        try:
            pipeline.submit(Job(publication, makes, content, reads_base=reads_base))
            self._queued, self._step = version, saying.step
        except BaseException as error:
            pipeline.stop(error)  # The job may be in the queue, and not be counted.
            raise
        return publication

    def _committed(self, slot: Slot, edge: Edge) -> None:
        """Whatever follows a commit; none of it can undo it."""
        store, record = self._store, slot.record
        if edge.is_anchor and record.schema is not None:
            added = EdgeRecord(store=store.identity.store, schema=record.schema.sha256, edge=edge)
            try:
                store.add_edge(added)
            except DeltaStoreError as error:
                _log.warning("the anchor has no record of its own", extra={"error": str(error)})
        self._anchors.committed(slot, edge)
        if slot.version % HEAD_EVERY == 0:
            store.log.write_head(slot.version)


def _given(value: T | None) -> T:
    """A value that the steps before have set."""
    if value is None:
        raise AssertionError("a producer's first publish sets this")
    return value
