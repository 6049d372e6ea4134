"""When the producer's own log needs an anchor, and making it in the background (spec, Anchors)."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from deltastore.errors import DeltaStoreError, NoPath
from deltastore.maintenance.anchors import add_anchor
from deltastore.parallel import Workers
from deltastore.protocol import keys
from deltastore.protocol.anchoring import AnchorPolicy, Chain
from deltastore.protocol.edges import Edge
from deltastore.protocol.records import Slot
from deltastore.replay import plan
from deltastore.state import HostState
from deltastore.store import Store

_log = logging.getLogger(__name__)
REFRESH = 64
"""Versions after which anchors that others have added are looked for."""


class Anchors:
    """Keeps account of the log since the last anchor, and adds one when the policy wants it.

    Args:
        store: Where the log is.
        policy: When; None leaves anchors to others.
        codec: An anchor codec.
        external: Opens the external base, where this machine has it.
        workers: With 0 threads anchors are made at once, in the caller's thread.
    """

    def __init__(
        self,
        store: Store,
        policy: AnchorPolicy | None,
        *,
        codec: str,
        external: Callable[[], HostState] | None,
        workers: Workers,
        shard_bytes: int,
    ) -> None:
        self._store = store
        self._policy = policy
        self._codec = codec
        self._external = external
        self._workers = workers
        self._shard_bytes = shard_bytes
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._deltas: dict[int, int] = {}
        self._anchor_bytes = 0
        self.last: int | None = None

    def resume(self, head: Slot) -> None:
        """Takes stock of the log behind a claim."""
        record = head.record
        if record.schema is None:
            return
        self._anchor_bytes = self._store.schema(record.schema).nbytes
        try:
            path = plan(self._store, head, held={"none"})
        except NoPath:
            path = None
        if path is not None and path.edges:
            self.last, self._anchor_bytes = path.edges[0].target, path.edges[0].size
            self._deltas = {edge.target: edge.size for edge in path.edges[1:] if edge.shards}

    def committed(self, slot: Slot, edge: Edge) -> None:
        """Takes account of a commit; adds an anchor if one is due."""
        with self._lock:
            if edge.is_anchor:
                self._anchored(edge)
            else:
                self._deltas[slot.version] = edge.size
            if slot.version % REFRESH == 0:
                self._refresh(slot.version)
            chain = Chain(len(self._deltas), sum(self._deltas.values()), self._anchor_bytes)
            due = self._policy is not None and self._policy.due(chain)
            busy = self._thread is not None and self._thread.is_alive()
        if due and self._workers.threads == 0:
            self._add(slot)
        elif due and not busy:
            self._thread = threading.Thread(
                target=self._add, args=(slot,), name="deltastore-anchor", daemon=True
            )
            self._thread.start()

    def join(self, timeout: float | None) -> None:
        """Waits for an anchor in the making."""
        if self._thread is not None:
            self._thread.join(timeout)

    def _add(self, slot: Slot) -> None:
        """A failed anchor costs nobody a version: it is tried again when the next one is due."""
        try:
            base = self._external() if self._external else None
            edge = add_anchor(
                self._store,
                slot,
                codec=self._codec,
                external=base,
                workers=self._workers,
                shard_bytes=self._shard_bytes,
            )
        except Exception as error:  # noqa: BLE001 - nothing here may hurt the log, nor the end of the process
            if not isinstance(error, RuntimeError):  # what threads say when the interpreter ends
                _log.warning(
                    "no anchor was added to version %d: %s; the next one is tried", slot.version, error
                )
            return
        with self._lock:
            self._anchored(edge)

    def _anchored(self, edge: Edge) -> None:
        if self.last is None or edge.target > self.last:
            self.last, self._anchor_bytes = edge.target, edge.size
            self._deltas = {v: size for v, size in self._deltas.items() if v > edge.target}

    def _refresh(self, version: int) -> None:
        """Looks for anchors that a compactor has added."""
        try:
            found = self._store.edge_keys(0 if self.last is None else self.last + 1, version)
            anchors = [key for group in found.values() for key in group if keys.parse_edge(key)[1] == "none"]
            for key in reversed(anchors):
                edge = self._store.edge(key).edge
                if edge.state == self._store.log.require(edge.target).record.state:
                    self._anchored(edge)
                    break
        except DeltaStoreError as error:
            _log.warning("edges could not be listed", extra={"error": str(error)})
