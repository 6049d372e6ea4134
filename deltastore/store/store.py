"""A store at a root: its identity, objects and edges (spec, STORE.json); its log is in `log`.

Everything here is one backend operation and the rules about its outcome; who may write what, and why, is the
producer's business.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from typing import Self

from deltastore.backends import open_backend
from deltastore.backends.base import Backend, Put
from deltastore.backends.retry import RetryPolicy, call
from deltastore.errors import (
    BadKey,
    BadObject,
    BadRecord,
    LimitExceeded,
    NotFound,
    StoreExists,
    StoreReplaced,
    Unsupported,
    UsageError,
)
from deltastore.protocol import features, keys, limits
from deltastore.protocol.descriptors import Descriptor
from deltastore.protocol.edges import EdgeRecord, parse_edge
from deltastore.protocol.identity import DEFAULT_GRACE, CommitMode, Identity
from deltastore.protocol.schema import Schema
from deltastore.protocol.wire import sha256
from deltastore.runtime import SYSTEM, Runtime
from deltastore.store.access import Access
from deltastore.store.log import Log, VersionInfo


class Store:
    """One lineage of one model under one root URL.

    Attributes:
        access: Backend, identity, time and retries.
        log: Its versions.
    """

    def __init__(self, access: Access) -> None:
        self.access = access
        self.log = Log(access)
        self._schemas: dict[str, Schema] = {}

    @classmethod
    def create(
        cls,
        url: str | Backend,
        *,
        commit: CommitMode | None = None,
        grace: int = DEFAULT_GRACE,
        options: Mapping[str, str] | None = None,
        runtime: Runtime = SYSTEM,
        retry: RetryPolicy | None = None,
    ) -> Self:
        """Makes an empty store.

        Args:
            url: Its root, or a backend that is open there.
            commit: How writers commit; None takes what the backend can do.
            grace: Seconds for which a collector leaves young objects alone; longer than any upload.
            options: For the backend.
            runtime: Time and randomness.
            retry: How long transient errors are tried again.

        Raises:
            StoreExists: One is already there.
            Unsupported: Conditional commits on a backend that has no conditional create.
            UsageError: A grace that STORE.json cannot hold.
        """
        if type(grace) is not int or not 0 <= grace <= limits.MAX_INT:
            raise UsageError(f"a grace of {grace} is not a whole number of seconds", hint="Pass seconds")
        backend = open_backend(url, options=options) if isinstance(url, str) else url
        conditional = backend.capabilities.put_if_absent
        mode = commit or (CommitMode.CONDITIONAL if conditional else CommitMode.SINGLE_WRITER)
        if mode is CommitMode.CONDITIONAL and not conditional:
            raise _no_conditional_create(backend)
        identity = Identity(store=runtime.random_bytes(16).hex(), commit=mode, grace=grace)
        store = cls(Access(backend, identity, runtime, retry or RetryPolicy()))
        store._put_identity(identity.to_bytes())
        return store

    @classmethod
    def open(
        cls,
        url: str | Backend,
        *,
        options: Mapping[str, str] | None = None,
        runtime: Runtime = SYSTEM,
        retry: RetryPolicy | None = None,
    ) -> Self:
        """Opens the store at a root.

        Raises:
            NotFound: There is none.
            BadRecord: STORE.json is not one.
            UnknownFeature: It requires what this release does not know.
        """
        backend = open_backend(url, options=options) if isinstance(url, str) else url
        policy = retry or RetryPolicy()
        try:
            data = call(
                partial(backend.get, keys.STORE, max_size=limits.STORE_BYTES), policy=policy, runtime=runtime
            )
        except NotFound as error:
            hint = "Check the URL, or make one with `deltastore init`"
            raise NotFound(f"there is no store at {backend.url}", hint=hint, url=backend.url) from error
        identity = Identity.from_bytes(data)
        features.check(identity.requires, "read", where="STORE.json")
        return cls(Access(backend, identity, runtime, policy))

    @classmethod
    def ensure(
        cls,
        url: str | Backend,
        *,
        options: Mapping[str, str] | None = None,
        runtime: Runtime = SYSTEM,
        retry: RetryPolicy | None = None,
    ) -> Self:
        """Opens the store at a root, or makes an empty one where there is none; for scripts that restart."""
        try:
            return cls.open(url, options=options, runtime=runtime, retry=retry)
        except NotFound:
            with suppress(StoreExists):  # somebody else was faster
                return cls.create(url, options=options, runtime=runtime, retry=retry)
            return cls.open(url, options=options, runtime=runtime, retry=retry)

    @property
    def url(self) -> str:
        """Its root."""
        return self.access.backend.url

    @property
    def identity(self) -> Identity:
        """What STORE.json said when it was opened."""
        return self.access.identity

    @property
    def runtime(self) -> Runtime:
        """Time and randomness."""
        return self.access.runtime

    def close(self) -> None:
        """Releases the backend."""
        self._backend.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- Identity ---------------------------------------------------------------------------------------

    def check_identity(self) -> None:
        """Re-reads STORE.json (DS-STORE-2).

        Raises:
            StoreReplaced: Another store, or none, is at the root now.
        """
        try:
            found = Identity.from_bytes(self.access.get(keys.STORE, most=limits.STORE_BYTES)).store
        except NotFound:
            found = "nothing"
        if found != self.identity.store:
            raise StoreReplaced(
                f"{self.url} held store {self.identity.store} and now holds {found}",
                hint="Stop everything that still uses the old one, then open it anew",
                url=self.url,
            )

    def check_writable(self) -> None:
        """Refuses what this client must not write to (DS-STORE-4).

        Raises:
            Unsupported: A replica, or a backend without the conditional create that the store is used with.
            UnknownFeature: A feature that writers must know.
        """
        features.check(self.identity.requires, "write", where="STORE.json")
        if self.identity.replica_of is not None:
            hint = "Publish to the original, or promote the replica"
            raise Unsupported(f"{self.url} is a replica of {self.identity.replica_of}", hint=hint)
        if self.identity.commit is CommitMode.CONDITIONAL and not self._backend.capabilities.put_if_absent:
            raise _no_conditional_create(self._backend)

    def find(self, *, version: int | None = None, step: int | None = None) -> VersionInfo:
        """A version by number or step, or the newest; see `Log.find`."""
        return self.log.find(version=version, step=step)

    # --- Objects ----------------------------------------------------------------------------------------

    def put_object(self, data: bytes) -> Descriptor:
        """Stores bytes under their SHA-256; the same bytes twice are one object (DS-OBJ-1)."""
        name = sha256(data)
        self.access.call(partial(self._backend.put, keys.object_(name), data))
        return Descriptor(name, len(data))

    def get_object(self, name: str, size: int, *, most: int = limits.SHARD_BYTES) -> bytes:
        """Fetches an object and checks its length and SHA-256, never an ETag (DS-OBJ-2).

        Args:
            name: Its SHA-256.
            size: What its descriptor says.
            most: The limit for this kind of object.

        Raises:
            NotFound: It is gone.
            BadObject: It is not what its name says.
            LimitExceeded: `size` is over `most`.
        """
        key = keys.object_(name)
        if size > most:
            raise LimitExceeded(f"{key} is declared with {size} bytes, over the limit of {most}", key=key)
        data = self.access.get(key, most=size)
        if len(data) != size or sha256(data) != name:
            raise BadObject(
                f"{key} has {len(data)} bytes with SHA-256 {sha256(data)}, not {size} bytes of its name",
                hint="Run `deltastore doctor`; a mirror may still hold it",
                key=key,
            )
        return data

    def schema(self, descriptor: Descriptor) -> Schema:
        """Fetches a schema, once."""
        known = self._schemas.get(descriptor.sha256)
        if known is None:
            data = self.get_object(descriptor.sha256, descriptor.size, most=limits.SCHEMA_BYTES)
            known = self._schemas[descriptor.sha256] = Schema.from_bytes(data)
        return known

    # --- Edges ------------------------------------------------------------------------------------------

    def add_edge(self, record: EdgeRecord) -> str:
        """Adds an anchor or a skip to an existing version; the same edge twice is one (DS-EDGE-3).

        Returns:
            Its key.
        """
        data = record.to_bytes()
        key = keys.edge(record.edge.target, record.edge.base, sha256(data))
        self.access.call(partial(self._backend.put, key, data))
        return key

    def edge_keys(self, low: int, high: int) -> dict[int, list[str]]:
        """Keys of the edge records that lead to versions from `low` to `high`, by version."""
        return self.access.call(partial(self._edge_keys, low, high))

    def _edge_keys(self, low: int, high: int) -> dict[int, list[str]]:
        found: dict[int, list[str]] = {}
        for info in self._backend.list(keys.EDGES, start_after=keys.edges_of(low)):
            try:
                target, _, _ = keys.parse_edge(info.key)
            except BadKey:
                continue
            if target > high:
                break
            found.setdefault(target, []).append(info.key)
        return found

    def edge(self, key: str) -> EdgeRecord:
        """Fetches an edge record and checks it against its key.

        Raises:
            NotFound: It is gone.
            BadRecord: It is malformed, or not what its key says.
        """
        target, base, name = keys.parse_edge(key)
        data = self.access.get(key, most=limits.RECORD_BYTES)
        record = parse_edge(data, store=self.identity.store_of(target))
        if sha256(data) != name or (record.edge.target, record.edge.base) != (target, base):
            raise BadRecord(f"{key} holds another edge than its name says", key=key)
        features.check(record.requires, "read", where=key)
        return record

    def _put_identity(self, data: bytes) -> None:
        taken = StoreExists(f"{self.url} already holds a store", hint="Open it, or choose another root")
        if self.identity.commit is CommitMode.CONDITIONAL:
            if self.access.call(partial(self._backend.put_if_absent, keys.STORE, data)) is Put.CREATED:
                return
            if self.access.get(keys.STORE, most=limits.STORE_BYTES) != data:
                raise taken
            return
        try:
            self.access.call(partial(self._backend.head, keys.STORE))
        except NotFound:
            self.access.call(partial(self._backend.put, keys.STORE, data))
            return
        raise taken

    @property
    def _backend(self) -> Backend:
        return self.access.backend


def _no_conditional_create(backend: Backend) -> Unsupported:
    return Unsupported(
        f"{backend.url} has no conditional create, which commits of several writers need",
        hint="Make the store with commit='single-writer', or use a backend that has it",
        url=backend.url,
    )
