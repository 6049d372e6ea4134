"""Edge records beside the log: under their own hash, believed only where key and content agree."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import pytest
from log_samples import holding, opened
from record_samples import OTHER, SCHEMA, STORE, anchor, claim, delta, slot

from deltastore.backends.memory import MemoryBackend
from deltastore.errors import BadKey, BadRecord, LimitExceeded, NotFound, Unavailable, UnknownFeature
from deltastore.protocol import keys
from deltastore.protocol.edges import Edge, EdgeRecord
from deltastore.protocol.features import Requires
from deltastore.protocol.identity import Ancestor
from deltastore.protocol.limits import RECORD_BYTES
from deltastore.testing import Fault, FaultBackend

SKIP = EdgeRecord(store=STORE, schema=SCHEMA.sha256, edge=delta(1, 5, 9, 8))
ANCHOR = EdgeRecord(store=STORE, schema=SCHEMA.sha256, edge=anchor(9, 8))
EXTERNAL = EdgeRecord(store=STORE, schema=SCHEMA.sha256, edge=replace(delta(0, 5, 9, 8), base="external"))


def key_of(record: EdgeRecord, data: bytes | None = None) -> str:
    return keys.edge(
        record.edge.target, record.edge.base, hashlib.sha256(data or record.to_bytes()).hexdigest()
    )


@pytest.mark.req("DS-EDGE-3", "DS-KEY-3")
@pytest.mark.parametrize("record", [SKIP, ANCHOR, EXTERNAL], ids=["skip", "anchor", "external"])
def test_an_edge_is_added_under_the_hash_of_its_record(record: EdgeRecord) -> None:
    backend = holding()
    store = opened(backend)
    key = store.add_edge(record)
    assert key == key_of(record)
    assert backend.get(key, max_size=1 << 20) == record.to_bytes()
    assert store.edge(key) == record
    assert store.add_edge(record) == key
    assert store.edge_keys(0, 20) == {9: [key]}


@pytest.mark.req("DS-EDGE-3")
def test_adding_an_edge_leaves_the_log_alone() -> None:
    backend = FaultBackend(holding())
    opened(backend).add_edge(ANCHOR)
    assert [op.key.partition("/")[0] for op in backend.operations if op.name == "put"] == ["edges"]


@pytest.mark.req("DS-EDGE-4")
def test_an_edge_under_another_key_than_its_own_is_refused() -> None:
    backend = holding()
    data = SKIP.to_bytes()
    sha = hashlib.sha256(data).hexdigest()
    for key in (
        keys.edge(8, 1, sha),
        keys.edge(9, 2, sha),
        keys.edge(9, "none", sha),
        keys.edge(9, "external", sha),
        keys.edge(9, 1, hashlib.sha256(b"other").hexdigest()),
    ):
        backend.put(key, data)
        with pytest.raises(BadRecord):
            opened(backend).edge(key)


@pytest.mark.req("DS-EDGE-4", "DS-SIG-1")
@pytest.mark.parametrize("data", [b"", b"garbage", SKIP.to_bytes()[:-1], slot(claim(None)).data])
def test_a_malformed_edge_is_refused_though_its_hash_is_right(data: bytes) -> None:
    backend = holding()
    key = keys.edge(9, 1, hashlib.sha256(data).hexdigest())
    backend.put(key, data)
    with pytest.raises(BadRecord):
        opened(backend).edge(key)


@pytest.mark.req("DS-LIMIT-1")
def test_an_edge_over_the_limit_is_not_read() -> None:
    backend = holding()
    key = key_of(SKIP)
    backend.put(key, bytes(RECORD_BYTES + 1))
    with pytest.raises(LimitExceeded):
        opened(backend).edge(key)


def test_an_edge_that_is_gone_is_not_found_and_no_other_key_is_asked_for() -> None:
    with pytest.raises(NotFound):
        opened(holding()).edge(key_of(SKIP))
    with pytest.raises(BadKey):
        opened(holding()).edge("edges/x")


@pytest.mark.req("DS-STORE-3", "DS-EDGE-4")
def test_an_edge_of_another_store_is_refused() -> None:
    backend = holding()
    foreign = replace(SKIP, store=OTHER)
    backend.put(key_of(foreign), foreign.to_bytes())
    with pytest.raises(BadRecord, match=OTHER):
        opened(backend).edge(key_of(foreign))


@pytest.mark.req("DS-STORE-3")
def test_an_edge_carries_the_id_that_the_record_of_its_target_carries() -> None:
    store = opened(holding(lineage=(Ancestor(OTHER, 9),)))
    old = replace(SKIP, store=OTHER)
    assert store.edge(store.add_edge(old)) == old
    with pytest.raises(BadRecord):
        store.edge(store.add_edge(SKIP))
    later = replace(SKIP, edge=delta(1, 5, 10, 8))
    assert store.edge(store.add_edge(later)) == later


@pytest.mark.req("DS-FEAT-1", "DS-FEAT-3")
def test_an_edge_that_needs_an_unknown_feature_is_refused_by_name() -> None:
    store = opened(holding())
    key = store.add_edge(replace(SKIP, requires=Requires(read=frozenset({"sparse-heads"}))))
    with pytest.raises(UnknownFeature, match="sparse-heads"):
        store.edge(key)
    other = replace(SKIP, requires=Requires(gc=frozenset({"x"})))
    assert store.edge(store.add_edge(other)) == other


def many() -> tuple[MemoryBackend, dict[int, list[str]]]:
    backend = holding()
    store = opened(backend)
    found: dict[int, list[str]] = {}
    for target in (1, 2, 5, 9, 10, 64, 2**53 - 1):
        edges: list[Edge] = [anchor(target, 3), delta(0, 1, target, 3)]
        found[target] = sorted(
            store.add_edge(EdgeRecord(store=STORE, schema=SCHEMA.sha256, edge=e)) for e in edges
        )
    return backend, found


@pytest.mark.parametrize(
    ("low", "high"),
    [(0, 2**53 - 1), (0, 0), (1, 1), (2, 9), (3, 4), (5, 5), (9, 10), (10, 9), (11, 2**53 - 1), (64, 64)],
)
def test_edges_are_listed_between_two_versions_both_included(low: int, high: int) -> None:
    backend, added = many()
    assert opened(backend).edge_keys(low, high) == {
        v: keys_ for v, keys_ in added.items() if low <= v <= high
    }


@pytest.mark.req("DS-KEY-5", "DS-EDGE-4")
def test_foreign_names_among_the_edges_are_ignored() -> None:
    backend, added = many()
    for name in (
        "x",
        "00000000000000000005",
        "00000000000000000005/notes.txt",
        "5/anchor-" + "0" * 64,
        "zzz/anchor-0",
    ):
        backend.put(f"edges/{name}", b"mine")
    backend.put(f"edges/{5:020d}/{7:020d}-{'0' * 64}", b"backwards")
    backend.put(f"edges/{5:020d}/anchor-{'0' * 63}", b"short")
    assert opened(backend).edge_keys(0, 2**53 - 1) == added


@pytest.mark.req("DS-BACK-4")
def test_a_listing_that_fails_is_an_error_and_not_an_empty_one() -> None:
    backend, _ = many()
    for fault in (Fault(before=Unavailable("down")), Fault(after=Unavailable("cut off"))):
        faulty = FaultBackend(backend, lambda op, fault=fault: fault if op.name == "list" else None)  # type: ignore[misc]
        with pytest.raises(Unavailable):
            opened(faulty).edge_keys(0, 2**53 - 1)
