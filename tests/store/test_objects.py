"""Objects by their SHA-256: what comes back is what was asked for, or nothing of it is used."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from log_samples import holding, opened

from deltastore.backends.memory import MemoryBackend
from deltastore.errors import BadKey, BadObject, BadRecord, LimitExceeded, NotFound
from deltastore.protocol import keys, limits
from deltastore.protocol.descriptors import Descriptor
from deltastore.protocol.schema import Schema, TensorSpec
from deltastore.store import Store
from deltastore.testing import Fault, FaultBackend, flip_bit, truncate

DATA = b"some bytes of a shard" * 7
NAME = hashlib.sha256(DATA).hexdigest()


def with_object(stored: bytes = DATA) -> MemoryBackend:
    backend = holding()
    backend.put(f"objects/{NAME[:2]}/{NAME}", stored)
    return backend


@pytest.mark.req("DS-OBJ-1", "DS-OBJ-2", "DS-KEY-4")
@settings(max_examples=50, deadline=None)
@given(st.binary(max_size=100))
def test_what_was_put_is_got_under_its_own_hash(data: bytes) -> None:
    backend = holding()
    store = opened(backend)
    descriptor = store.put_object(data)
    assert descriptor == Descriptor(hashlib.sha256(data).hexdigest(), len(data))
    assert backend.get(keys.object_(descriptor.sha256), max_size=1000) == data
    assert store.get_object(descriptor.sha256, descriptor.size) == data


@pytest.mark.req("DS-OBJ-1")
def test_the_same_bytes_twice_are_one_object_and_put_twice() -> None:
    backend = FaultBackend(holding())
    store = opened(backend)
    assert store.put_object(DATA) == store.put_object(DATA)
    assert len(list(backend.list("objects/"))) == 1
    assert [op.name for op in backend.operations if op.key.startswith("objects/")][:2] == ["put", "put"]


@pytest.mark.req("DS-OBJ-2")
@pytest.mark.parametrize(
    "stored",
    [
        b"",
        DATA[:-1],
        DATA + b"\0",
        flip_bit(5)(DATA),
        flip_bit(8 * len(DATA) - 1)(DATA),
        DATA[::-1],
        bytes(len(DATA)),
    ],
    ids=["empty", "shorter", "longer", "first byte", "last byte", "reversed", "zeros"],
)
def test_other_bytes_under_the_name_are_refused(stored: bytes) -> None:
    with pytest.raises((BadObject, LimitExceeded), match=NAME):
        opened(with_object(stored)).get_object(NAME, len(DATA))


@pytest.mark.req("DS-OBJ-2")
@pytest.mark.parametrize("alter", [flip_bit(3), truncate(5), truncate(0), lambda data: data + data])
def test_bytes_that_change_on_the_way_are_refused(alter: Callable[[bytes], bytes]) -> None:
    faulty = FaultBackend(
        with_object(), lambda op: Fault(alter=alter) if op.key.startswith("objects/") else None
    )
    with pytest.raises(BadObject, match=NAME):
        opened(faulty).get_object(NAME, len(DATA))


@pytest.mark.req("DS-OBJ-2", "DS-DESC-1")
@pytest.mark.parametrize("size", [0, 1, len(DATA) - 1, len(DATA) + 1, 10**9])
def test_a_size_that_is_not_the_descriptors_is_refused(size: int) -> None:
    with pytest.raises((BadObject, LimitExceeded)):
        opened(with_object()).get_object(NAME, size)


def test_a_missing_object_is_missing() -> None:
    with pytest.raises(NotFound, match=NAME):
        opened(holding()).get_object(NAME, 1)


@pytest.mark.req("DS-DESC-1", "DS-LIMIT-1")
def test_an_object_over_its_limit_is_refused_before_it_is_fetched() -> None:
    faulty = FaultBackend(with_object())
    store = opened(faulty)
    before = len(faulty.operations)
    with pytest.raises(LimitExceeded):
        store.get_object(NAME, limits.SHARD_BYTES + 1)
    with pytest.raises(LimitExceeded):
        store.get_object(NAME, len(DATA), most=len(DATA) - 1)
    assert len(faulty.operations) == before
    assert store.get_object(NAME, len(DATA), most=len(DATA)) == DATA


@pytest.mark.req("DS-KEY-4")
@pytest.mark.parametrize("name", ["", "..", "../" * 20, NAME.upper(), NAME[:-1], f"../{NAME}", NAME + "/x"])
def test_no_name_leads_out_of_objects(name: str) -> None:
    faulty = FaultBackend(holding())
    store = opened(faulty)
    before = len(faulty.operations)
    with pytest.raises(BadKey):
        store.get_object(name, 1)
    assert len(faulty.operations) == before


def schema_store(data: bytes) -> tuple[Store, FaultBackend, Descriptor]:
    backend = FaultBackend(holding())
    store = opened(backend)
    return store, backend, store.put_object(data)


@pytest.mark.req("DS-SCHEMA-1")
def test_a_schema_is_fetched_once() -> None:
    schema = Schema.of([TensorSpec("a", "BF16", (4,))])
    store, backend, descriptor = schema_store(schema.data)
    assert store.schema(descriptor) == schema
    before = len(backend.operations)
    assert store.schema(descriptor).sha256 == descriptor.sha256
    assert len(backend.operations) == before


@pytest.mark.req("DS-SCHEMA-1", "DS-DESC-1", "DS-LIMIT-1")
def test_an_object_that_is_no_schema_or_too_large_for_one_is_refused() -> None:
    store, _, descriptor = schema_store(b"\x81\xa7tensors\xdc\x00\x00")
    with pytest.raises(BadRecord):
        store.schema(descriptor)
    with pytest.raises(LimitExceeded):
        store.schema(Descriptor(descriptor.sha256, limits.SCHEMA_BYTES + 1))
