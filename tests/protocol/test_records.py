"""Version records and tombstones: what is stored comes back; what is wrong with one is refused."""

from __future__ import annotations

from dataclasses import fields as fields_of
from dataclasses import replace
from typing import Any

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from record_samples import (
    OTHER,
    SCHEMA,
    STORE,
    anchor,
    body_of,
    buried,
    claim,
    data,
    delta,
    edited,
    sha,
    short_log,
    slot,
)

from deltastore.errors import BadRecord, LimitExceeded
from deltastore.protocol import limits
from deltastore.protocol.descriptors import Descriptor, Part, Run, ShardDescriptor
from deltastore.protocol.edges import Edge
from deltastore.protocol.features import Requires
from deltastore.protocol.records import (
    External,
    Kind,
    Stats,
    Tombstone,
    VersionRecord,
    check_file_name,
    parse_slot,
    stored_user,
)
from deltastore.protocol.wire import Envelope, sha256

N = st.integers(0, limits.MAX_INT)
WORD = st.integers(0, 2**64 - 1)
SHA = st.binary(min_size=32, max_size=32).map(bytes.hex)
DESCRIPTOR = st.builds(Descriptor, SHA, N)
FILE = st.text(
    st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="\\/."), min_size=1, max_size=8
)
FILES = st.dictionaries(FILE, DESCRIPTOR, max_size=3)
FEATURES = st.frozensets(st.text(max_size=5), max_size=3)
REQUIRES = st.builds(Requires, FEATURES, FEATURES, FEATURES)
SLICES = st.lists(
    st.one_of(
        st.builds(Run, N, st.integers(1, limits.MAX_INT)),
        st.tuples(N, st.integers(0, 99), st.integers(1, 99)).map(lambda t: Part(t[0], t[1], t[1] + t[2])),
    ),
    max_size=3,
).map(tuple)
SHARD = st.builds(
    ShardDescriptor, SHA, WORD, st.integers(0, limits.SHARD_BYTES), N, st.text(max_size=9), WORD, SLICES
)
USER = st.dictionaries(
    st.text(max_size=5),
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers(-(2**63), 2**64 - 1)
        | st.floats(allow_nan=False)
        | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3).map(tuple) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
        ),
    ),
    max_size=3,
)


@st.composite
def edges(draw: st.DrawFn, target: int, state: int, *, only_anchors: bool) -> Edge:
    shards = tuple(draw(st.lists(SHARD, min_size=1, max_size=3)))
    base = "none" if only_anchors else draw(st.sampled_from(["none", "external", "number"]))
    start = draw(WORD) if base != "none" else 0
    rest = sum(one.state_delta for one in shards[1:])
    first = replace(shards[0], state_delta=(state - start - rest) % 2**64)
    number = draw(st.integers(0, target - 1)) if base == "number" else base
    return Edge(number, None if base == "none" else start, target, state, (first, *shards[1:]))  # type: ignore[arg-type]


@st.composite
def records(draw: st.DrawFn) -> VersionRecord:
    kind = draw(st.sampled_from(Kind))
    version = draw(st.integers(0 if kind is Kind.CLAIM else 1, limits.MAX_INT))
    weights = kind is not Kind.CLAIM or draw(st.booleans())
    state = draw(WORD) if weights else None
    some_edges: tuple[Edge, ...] = ()
    if kind is not Kind.CLAIM:
        one = edges(version, state or 0, only_anchors=kind is Kind.RESET)
        some_edges = tuple(draw(st.lists(one, min_size=1, max_size=3)))
    starts = {
        Kind.CLAIM: version,
        Kind.RESET: draw(st.integers(0, version)),
        Kind.DATA: draw(st.integers(0, max(0, version - 1))),
    }
    based = version == 0 and weights
    external = draw(st.builds(External, st.text(max_size=9), FILES)) if based else None
    return VersionRecord(
        store=draw(st.binary(min_size=16, max_size=16)).hex(),
        version=version,
        term=draw(N),
        term_start=starts[kind],
        nonce=draw(st.binary(min_size=16, max_size=16)),
        parent=draw(SHA) if version else None,
        kind=kind,
        schema=draw(DESCRIPTOR) if weights else None,
        files=draw(FILES),
        state=state,
        edges=some_edges,
        external=external,
        last_anchor=draw(st.none() | N),
        step=None if kind is Kind.CLAIM else draw(N),
        resumed_from=draw(st.none() | N),
        time=draw(N),
        stats=draw(st.none() | st.builds(Stats, N, N, N, N)),
        user=draw(USER),
        requires=draw(REQUIRES),
    )


@pytest.mark.req("DS-VER-1")
@settings(max_examples=150, deadline=None)
@given(records())
def test_version_records_round_trip(record: VersionRecord) -> None:
    stored = record.to_bytes()
    found = parse_slot(stored, store=record.store, version=record.version)
    assert found.record == record
    assert found.data == stored
    assert found.sha256 == sha256(stored)
    assert record.to_bytes() == stored


@pytest.mark.req("DS-VER-1")
def test_the_fields_stored_are_those_of_the_spec() -> None:
    names = "store spec version term term_start nonce parent kind schema files state edges external"
    names += " last_anchor step resumed_from time stats user requires"
    assert sorted(body_of(short_log()[2].data)) == sorted(names.split())
    assert {f.name for f in fields_of(VersionRecord)} == set(names.split()) - {"spec"}


@pytest.mark.req("DS-TOMB-1", "DS-TOMB-2")
@settings(max_examples=60, deadline=None)
@given(records())
def test_a_tombstone_keeps_what_the_chain_needs(record: VersionRecord) -> None:
    before = slot(record)
    tombstone = Tombstone.of(record, before.sha256)
    found = parse_slot(tombstone.to_bytes(), store=record.store, version=record.version)
    assert found.record == tombstone
    assert found.sha256 == before.sha256
    for name in ("store", "version", "term", "term_start", "parent", "schema", "state", "step"):
        assert getattr(found.record, name) == getattr(record, name)


# --- What a record must be by itself --------------------------------------------------------------------

LOG = short_log()


def refused(record: VersionRecord | Tombstone) -> None:
    with pytest.raises(BadRecord):
        parse_slot(record.to_bytes(), store=STORE, version=record.version)


@pytest.mark.req("DS-VER-2")
@pytest.mark.parametrize(
    "changes",
    [
        {"parent": None},
        {"state": None},
        {"schema": None},
        {"state": None, "schema": None},
        {"step": None},
        {"edges": ()},
        {"term_start": 2},
        {"term_start": 3},
        {"external": External("hf://a/b", {})},
        {"edges": (delta(1, 1001, 3, 1002),)},
        {"edges": (delta(1, 1001, 2, 1003),)},
        {"edges": (delta(1, 1001, 2, 1002), anchor(2, 999))},
        {"kind": Kind.RESET},
        {"kind": Kind.CLAIM},
        {"kind": Kind.CLAIM, "edges": (), "step": None},
    ],
    ids=" ".join,
)
def test_a_data_record_that_breaks_a_rule_of_its_own_is_refused(changes: dict[str, Any]) -> None:
    record = LOG[2].record
    assert isinstance(record, VersionRecord)
    assert parse_slot(record.to_bytes(), store=STORE, version=2).record == record
    refused(replace(record, **changes))


@pytest.mark.req("DS-VER-2", "DS-CLAIM-1")
@pytest.mark.parametrize(
    "changes",
    [
        {"edges": (delta(2, 1002, 3, 1002),)},
        {"edges": (anchor(3, 1002),)},
        {"step": 1},
        {"term_start": 2},
        {"term_start": 4},
        {"parent": None},
        {"state": None},
        {"external": External("hf://a/b", {})},
    ],
    ids=" ".join,
)
def test_a_claim_that_breaks_a_rule_of_its_own_is_refused(changes: dict[str, Any]) -> None:
    record = LOG[3].record
    assert isinstance(record, VersionRecord)
    assert parse_slot(record.to_bytes(), store=STORE, version=3).record == record
    refused(replace(record, **changes))


@pytest.mark.req("DS-VER-2", "DS-CLAIM-1")
def test_version_0_is_a_claim_without_parent() -> None:
    refused(replace(claim(None), parent=sha("x")))
    based = claim(None, schema=SCHEMA, state=5, external=External("hf://a/b", {}))
    assert parse_slot(based.to_bytes(), store=STORE, version=0).record == based
    refused(replace(based, external=None))
    refused(replace(based, schema=None, state=None))
    made = data(LOG[0])
    refused(replace(made, version=0, parent=None, term_start=0, edges=(anchor(0, 1001),)))
    refused(replace(made, version=0, parent=None, term_start=0, edges=(anchor(0, 1001),), kind=Kind.RESET))


@pytest.mark.req("DS-VER-2")
def test_a_reset_holds_anchors_and_may_begin_its_term() -> None:
    reset = data(LOG[2], kind=Kind.RESET, edges=(anchor(3, 1003),), term=2, term_start=3)
    assert parse_slot(reset.to_bytes(), store=STORE, version=3).record == reset
    refused(replace(reset, edges=(anchor(3, 1003), delta(2, 1002, 3, 1003))))
    refused(replace(reset, term_start=4))


@pytest.mark.req("DS-TOMB-1")
@pytest.mark.parametrize(
    "changes",
    [{"parent": None}, {"state": None}, {"schema": None}, {"term_start": 3}, {"version": 0, "term_start": 0}],
    ids=" ".join,
)
def test_a_tombstone_that_breaks_a_rule_of_its_own_is_refused(changes: dict[str, Any]) -> None:
    tombstone = buried(LOG[2]).record
    assert isinstance(tombstone, Tombstone)
    refused(replace(tombstone, **changes))


@pytest.mark.req("DS-TOMB-1")
def test_a_tombstone_is_of_the_kind_collected() -> None:
    stored = edited(buried(LOG[2]).data, lambda body: body.update(kind="data"))
    with pytest.raises(BadRecord, match="kind"):
        parse_slot(stored, store=STORE, version=2)


@pytest.mark.req("DS-VER-3")
@pytest.mark.parametrize("stored", [LOG[2].data, buried(LOG[2]).data], ids=["record", "tombstone"])
def test_a_record_under_another_number_is_refused(stored: bytes) -> None:
    assert parse_slot(stored, store=STORE, version=2).version == 2
    for version in (0, 1, 3, 2**53 - 1):
        with pytest.raises(BadRecord, match="version"):
            parse_slot(stored, store=STORE, version=version)


@pytest.mark.req("DS-STORE-3")
@pytest.mark.parametrize("stored", [LOG[2].data, buried(LOG[2]).data], ids=["record", "tombstone"])
def test_a_record_of_another_store_is_refused(stored: bytes) -> None:
    with pytest.raises(BadRecord, match=STORE):
        parse_slot(stored, store=OTHER, version=2)


@pytest.mark.req("DS-SIG-1")
@pytest.mark.parametrize("type_", ["edge", "ref", "", "Version", "v" * 33])
def test_another_type_in_the_envelope_is_refused(type_: str) -> None:
    envelope = msgpack.unpackb(LOG[2].data)
    envelope["type"] = type_
    with pytest.raises(BadRecord):
        parse_slot(msgpack.packb(envelope), store=STORE, version=2)


@pytest.mark.req("DS-SIG-1")
def test_a_tombstone_is_no_version_record_and_the_other_way_round() -> None:
    for stored, type_ in ((LOG[2].data, "tombstone"), (buried(LOG[2]).data, "version")):
        envelope = msgpack.unpackb(stored)
        envelope["type"] = type_
        with pytest.raises(BadRecord):
            parse_slot(msgpack.packb(envelope), store=STORE, version=2)


# --- Files ----------------------------------------------------------------------------------------------

TRAVERSALS = (
    "", "/", "/etc/passwd", "..", "../x", "a/../../x", "a/..", "./a", "a/.", "a//b", "a/", "a\\b", "..\\x",
    "C:\\x", "a\x00b", "a\nb", "a\x1fb", "a\x7f", "a\x85b", "x" * 1025, "é" * 513,
)  # fmt: skip


@pytest.mark.req("DS-FILE-1")
@pytest.mark.parametrize("name", TRAVERSALS)
def test_file_names_that_lead_out_of_their_directory_are_refused(name: str) -> None:
    with pytest.raises(BadRecord):
        check_file_name(name)
    descriptor = {"sha256": bytes(32), "size": 1}
    based = claim(None, schema=SCHEMA, state=5, external=External("", {})).to_bytes()
    parse_slot(based, store=STORE, version=0)
    for edit in (
        lambda b: b.update(files={name: descriptor}),
        lambda b: b.update(external={"url": "", "files": {name: descriptor}}),
    ):
        with pytest.raises(BadRecord):
            parse_slot(edited(based, edit), store=STORE, version=0)


@pytest.mark.req("DS-FILE-1")
@pytest.mark.parametrize(
    "name", ["config.json", "a/b/c", "...", "..a", "a..", ".gitignore", "x" * 1024, "模型.json", "a b"]
)
def test_plain_file_names_are_allowed(name: str) -> None:
    assert check_file_name(name) == name


# --- What the trainer says ------------------------------------------------------------------------------


@pytest.mark.req("DS-LIMIT-2", "DS-COMMIT-7")
@settings(max_examples=60, deadline=None)
@given(USER)
def test_user_is_stored_as_readers_get_it(user: dict[str, Any]) -> None:
    found = parse_slot(data(LOG[1], user=user).to_bytes(), store=STORE, version=2).record
    assert isinstance(found, VersionRecord)
    assert found.user == stored_user(user)


@pytest.mark.req("DS-LIMIT-2", "DS-COMMIT-7")
def test_a_user_that_no_reader_takes_is_refused_beforehand() -> None:
    deep: Any = 1
    for _ in range(limits.NESTING):
        deep = [deep]
    with pytest.raises(BadRecord):
        stored_user({"deep": deep})
    with pytest.raises(LimitExceeded):
        stored_user({str(i): i for i in range(1025)})
    with pytest.raises(LimitExceeded):
        stored_user({"x": "y" * limits.USER_BYTES})


@pytest.mark.req("DS-COMMIT-6")
def test_a_user_is_copied_deeply() -> None:
    inner = [1, 2]
    kept = stored_user({"a": inner})
    inner.append(3)
    assert kept == {"a": (1, 2)}


@pytest.mark.req("DS-SIG-3")
def test_writers_of_this_release_do_not_sign() -> None:
    for one in (*LOG, buried(LOG[2])):
        assert Envelope.from_bytes(one.data, where="it").signatures == ()
