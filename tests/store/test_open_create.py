"""Making and opening stores: once, by who can, and refused by name where it must be."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from record_samples import OTHER

from deltastore.backends.memory import MemoryBackend
from deltastore.backends.retry import RetryPolicy
from deltastore.errors import (
    AuthError,
    BadRecord,
    NotFound,
    StoreExists,
    StoreReplaced,
    Unavailable,
    UnknownFeature,
    Unsupported,
    UsageError,
)
from deltastore.protocol import keys
from deltastore.protocol.identity import CommitMode, Identity
from deltastore.runtime import Runtime
from deltastore.store import Store
from deltastore.testing import Fault, FaultBackend, Operation

ONCE = RetryPolicy(deadline=0)
HASTY = Runtime(sleep=lambda _: None)


def stored(backend: MemoryBackend) -> bytes:
    return backend.get(keys.STORE, max_size=1 << 20)


def with_identity(edit: Callable[[dict[str, Any]], object], *, conditional: bool = True) -> MemoryBackend:
    backend = MemoryBackend(conditional=conditional)
    value = json.loads(Identity(store="ab" * 16).to_bytes())
    edit(value)
    backend.put(keys.STORE, json.dumps(value).encode())
    return backend


@pytest.mark.req("DS-STORE-5")
def test_a_store_is_created_once() -> None:
    backend = MemoryBackend()
    store = Store.create(backend)
    before = stored(backend)
    with pytest.raises(StoreExists):
        Store.create(backend)
    assert stored(backend) == before
    assert Store.open(backend).identity == store.identity == Identity.from_bytes(before)
    assert store.identity.commit is CommitMode.CONDITIONAL
    assert len(store.identity.store) == 32
    assert Store.create(MemoryBackend()).identity.store != store.identity.store


@pytest.mark.req("DS-STORE-5")
def test_of_two_creators_at_once_one_is_told_that_it_exists() -> None:
    backend = MemoryBackend()

    def between(operation: Operation) -> Fault | None:
        if operation.name == "put_if_absent" and operation.index == 0:
            Store.create(backend)
        return None

    with pytest.raises(StoreExists):
        Store.create(FaultBackend(backend, between))


@pytest.mark.req("DS-STORE-5")
@pytest.mark.parametrize("fault", [Fault(after=Unavailable("lost")), Fault(before=Unavailable("lost"))])
@pytest.mark.parametrize("conditional", [True, False])
def test_a_lost_reply_to_the_creation_is_read_back(fault: Fault, conditional: bool) -> None:
    backend = MemoryBackend(conditional=conditional)
    writes = ("put", "put_if_absent")
    faulty = FaultBackend(backend, lambda op: fault if op.name in writes and op.index < 2 else None)
    store = Store.create(faulty, runtime=HASTY)
    assert Identity.from_bytes(stored(backend)) == store.identity
    assert Store.open(backend).identity == store.identity


@pytest.mark.req("DS-BACK-5", "DS-STORE-5")
def test_without_a_conditional_create_a_store_has_a_single_writer() -> None:
    backend = MemoryBackend(conditional=False)
    assert Store.create(backend).identity.commit is CommitMode.SINGLE_WRITER
    before = stored(backend)
    with pytest.raises(StoreExists):
        Store.create(backend)
    assert stored(backend) == before
    both = MemoryBackend()
    assert Store.create(both, commit=CommitMode.SINGLE_WRITER).identity.commit is CommitMode.SINGLE_WRITER


@pytest.mark.req("DS-BACK-5", "DS-STORE-4")
def test_a_conditional_store_is_neither_made_nor_written_without_a_conditional_create() -> None:
    backend = MemoryBackend(conditional=False)
    with pytest.raises(Unsupported, match="conditional"):
        Store.create(backend, commit=CommitMode.CONDITIONAL)
    assert not backend.snapshot()
    backend = with_identity(lambda _: None, conditional=False)
    store = Store.open(backend)
    assert store.log.newest() is None
    with pytest.raises(Unsupported, match="conditional"):
        store.check_writable()


@pytest.mark.req("DS-LIMIT-2")
@pytest.mark.parametrize("grace", [-1, 2**53, 1.5, True])
def test_a_grace_that_nobody_could_read_is_refused(grace: Any) -> None:
    backend = MemoryBackend()
    with pytest.raises(UsageError):
        Store.create(backend, grace=grace)
    assert not backend.snapshot()
    assert Store.open(Store.create(backend, grace=0).access.backend).identity.grace == 0


@pytest.mark.req("DS-STORE-1", "DS-READ-1")
def test_where_there_is_no_store_none_is_opened() -> None:
    with pytest.raises(NotFound, match="no store at memory://"):
        Store.open(MemoryBackend())


@pytest.mark.req("DS-STORE-1", "DS-READ-1")
@pytest.mark.parametrize("data", [b"", b"{}", b"[]", b"\xff", b'{"format": "delta"}'])
def test_another_file_under_the_name_is_refused(data: bytes) -> None:
    backend = MemoryBackend()
    backend.put(keys.STORE, data)
    with pytest.raises(BadRecord):
        Store.open(backend)


@pytest.mark.req("DS-FEAT-1", "DS-STORE-4")
@pytest.mark.parametrize(
    ("operation", "opens", "writes"), [("read", False, False), ("write", True, False), ("gc", True, True)]
)
def test_an_unknown_feature_is_refused_by_name_for_its_operation(
    operation: str, opens: bool, writes: bool
) -> None:
    backend = with_identity(lambda v: v["requires"].update({operation: ["sparse-heads"]}))
    if not opens:
        with pytest.raises(UnknownFeature, match="sparse-heads"):
            Store.open(backend)
        return
    store = Store.open(backend)
    if writes:
        store.check_writable()
        return
    with pytest.raises(UnknownFeature, match="sparse-heads"):
        store.check_writable()


@pytest.mark.req("DS-STORE-4")
def test_a_replica_is_read_and_not_written() -> None:
    store = Store.open(with_identity(lambda v: v.update(replica_of=OTHER)))
    assert store.log.newest() is None
    with pytest.raises(Unsupported, match=OTHER):
        store.check_writable()


@pytest.mark.req("DS-STORE-2")
def test_a_store_that_was_replaced_or_removed_is_noticed() -> None:
    backend = MemoryBackend()
    store = Store.create(backend)
    store.check_identity()
    backend.put(keys.STORE, Identity(store=OTHER).to_bytes())
    with pytest.raises(StoreReplaced, match=OTHER):
        store.check_identity()
    backend.delete([keys.STORE])
    with pytest.raises(StoreReplaced, match="nothing"):
        store.check_identity()


def test_opening_waits_for_a_store_that_does_not_answer_and_not_for_one_that_refuses() -> None:
    backend = MemoryBackend()
    Store.create(backend)
    faulty = FaultBackend(backend, lambda op: Fault(before=Unavailable("down")) if op.index < 3 else None)
    assert Store.open(faulty, runtime=HASTY).log.newest() is None
    assert [op.key for op in faulty.operations[:4]] == [keys.STORE] * 4
    refusing = FaultBackend(backend, lambda _: Fault(before=AuthError("no")))
    with pytest.raises(AuthError):
        Store.open(refusing, runtime=HASTY)
    assert len(refusing.operations) == 1


def test_a_store_is_opened_by_url_and_closed_by_its_context() -> None:
    with Store.create("memory://test-open-create") as store, Store.open("memory://test-open-create") as again:
        assert again.identity == store.identity
        assert again.url == "memory://test-open-create"
        assert again.runtime is store.runtime


def test_ensure_makes_a_store_once(tmp_path: Path) -> None:
    first = Store.ensure(str(tmp_path / "store"))
    again = Store.ensure(str(tmp_path / "store"))
    assert again.identity == first.identity
