"""STORE.json: read back as written, strict about what it needs, and never an error of another kind."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from record_samples import OTHER, STORE

from deltastore.errors import BadRecord, LimitExceeded
from deltastore.protocol.features import Requires
from deltastore.protocol.identity import Ancestor, CommitMode, Identity
from deltastore.protocol.limits import MAX_INT, STORE_BYTES

IDS = st.binary(min_size=16, max_size=16).map(bytes.hex)
N = st.integers(0, MAX_INT)
NAMES = st.frozensets(st.text(st.characters(exclude_categories=["Cs"]), max_size=5), max_size=3)
FULL = Identity(
    store=STORE,
    first_version=3,
    grace=7,
    requires=Requires(gc=frozenset({"x"})),
    lineage=(Ancestor(OTHER, 9),),
    replica_of=OTHER,
)


def edited(edit: Callable[[dict[str, Any]], object]) -> bytes:
    value = json.loads(FULL.to_bytes())
    edit(value)
    return json.dumps(value).encode()


@pytest.mark.req("DS-STORE-1")
@settings(max_examples=100, deadline=None)
@given(
    st.builds(
        Identity,
        store=IDS,
        first_version=N,
        commit=st.sampled_from(CommitMode),
        grace=N,
        requires=st.builds(Requires, NAMES, NAMES, NAMES),
        lineage=st.lists(st.builds(Ancestor, IDS, N), max_size=3).map(tuple),
        replica_of=st.none() | IDS,
    )
)
def test_an_identity_round_trips(identity: Identity) -> None:
    assert Identity.from_bytes(identity.to_bytes()) == identity


@pytest.mark.req("DS-STORE-1")
def test_the_example_of_the_spec_is_read() -> None:
    text = """{"format": "deltastore", "spec": 1, "store": "00112233445566778899aabbccddeeff",
 "first_version": 0, "commit": "conditional", "grace": 86400,
 "requires": {"read": [], "write": [], "gc": []}, "lineage": [], "replica_of": null}"""
    assert Identity.from_bytes(text.encode()) == Identity(
        store="00112233445566778899aabbccddeeff", grace=86400
    )


@pytest.mark.req("DS-STORE-1")
@pytest.mark.parametrize(
    "name", ["format", "spec", "store", "first_version", "commit", "grace", "requires", "lineage"]
)
def test_a_missing_field_is_refused(name: str) -> None:
    with pytest.raises(BadRecord):
        Identity.from_bytes(edited(lambda v: v.pop(name)))


@pytest.mark.req("DS-STORE-1")
def test_a_replica_need_not_be_mentioned_and_unknown_fields_are_ignored() -> None:
    assert Identity.from_bytes(edited(lambda v: v.pop("replica_of"))).replica_of is None
    assert Identity.from_bytes(edited(lambda v: v.update(later=[{"x": 1.5}]))) == FULL


WRONG: dict[str, list[Any]] = {
    "format": ["", "Deltastore", "delta", None, 1, ["deltastore"], "\ud800"],
    "spec": [0, 2, "1", 1.0, True, None, -1],
    "store": [
        "",
        STORE[:-1],
        STORE + "0",
        STORE.upper(),
        "g" * 32,
        STORE + "\n",
        None,
        0,
        "٣" * 32,
        "\udfff" * 32,
    ],
    "first_version": [-1, 2**53, 0.0, "0", None, True, [0]],
    "commit": ["", "Conditional", "both", None, 1, ["conditional"]],
    "grace": [-1, 2**53, 1.5, "1", None, False, 1e999],
    "requires": [
        None,
        [],
        {},
        {"read": [], "write": []},
        {"read": [1], "write": [], "gc": []},
        {"read": "x", "write": [], "gc": []},
    ],
    "lineage": [
        None,
        {},
        [1],
        [{"store": STORE}],
        [{"last": 1}],
        [{"store": "x", "last": 1}],
        [{"store": STORE, "last": -1}],
    ],
    "replica_of": ["", 0, False, [], STORE[:-1]],
}


@pytest.mark.req("DS-STORE-1")
@pytest.mark.parametrize("name", WRONG)
def test_a_field_of_another_type_or_value_is_refused(name: str) -> None:
    for value in WRONG[name]:
        with pytest.raises(BadRecord):
            Identity.from_bytes(edited(lambda v, value=value: v.update({name: value})))  # type: ignore[misc]


@pytest.mark.req("DS-STORE-1")
@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"null",
        b"[]",
        b'"deltastore"',
        b"1",
        b"{",
        b"\xff\xfe",
        b'{"format": "deltastore", "format": "deltastore"}',
        b"{'format': 'deltastore'}",
        b'\x00{"format": 1}',
    ],
)
def test_what_is_not_an_object_of_json_is_refused(data: bytes) -> None:
    with pytest.raises(BadRecord):
        Identity.from_bytes(data)


@pytest.mark.req("DS-STORE-1")
def test_a_key_twice_is_refused_at_any_depth() -> None:
    text = FULL.to_bytes().decode()
    for key in ('"store":', '"gc":', '"last":'):
        at = text.index(key)
        doubled = text[:at] + f"{key} null, " + text[at:]
        assert json.loads(doubled)
        with pytest.raises(BadRecord):
            Identity.from_bytes(doubled.encode())


@pytest.mark.req("DS-STORE-1", "DS-LIMIT-1")
@pytest.mark.parametrize("depth", [100, 450, 600, 990, 5000, 30_000])
def test_deep_nesting_makes_no_other_error(depth: int) -> None:
    nested = b"[" * depth + b"]" * depth
    with suppress(BadRecord):
        Identity.from_bytes(FULL.to_bytes().replace(b'"spec"', b'"x": ' + nested + b', "spec"'))


@pytest.mark.req("DS-STORE-1")
@pytest.mark.parametrize("number", [b"NaN", b"Infinity", b"-Infinity", b"1e400", b"9" * 5000, b"-0", b"7.0"])
def test_numbers_that_are_no_counts_are_refused(number: bytes) -> None:
    data = FULL.to_bytes()
    assert data.count(b'"grace": 7') == 1
    if number == b"-0":
        assert Identity.from_bytes(data.replace(b'"grace": 7', b'"grace": -0')).grace == 0
        return
    with pytest.raises(BadRecord):
        Identity.from_bytes(data.replace(b'"grace": 7', b'"grace": ' + number))


@pytest.mark.req("DS-STORE-1")
def test_half_a_surrogate_pair_is_refused_wherever_it_is() -> None:
    for edit in (
        lambda v: v["requires"].update(read=["\ud800"]),
        lambda v: v.update({"\ud800": 1}),
        lambda v: v.update(later={"x": ["\udc00"]}),
    ):
        with pytest.raises(BadRecord):
            Identity.from_bytes(edited(edit))


@pytest.mark.req("DS-STORE-1")
@settings(max_examples=300, deadline=None)
@given(st.data())
def test_no_mutation_makes_another_error(draw: st.DataObject) -> None:
    data = FULL.to_bytes()
    at = draw.draw(st.integers(0, len(data)))
    put = draw.draw(st.binary(max_size=6))
    with suppress(BadRecord, LimitExceeded):
        Identity.from_bytes(data[:at] + put + data[at + draw.draw(st.integers(0, 6)) :])


@pytest.mark.req("DS-STORE-1")
def test_no_truncation_is_read() -> None:
    data = FULL.to_bytes()
    for size in range(len(data) - 2):
        with pytest.raises(BadRecord):
            Identity.from_bytes(data[:size])


@pytest.mark.req("DS-LIMIT-1", "DS-STORE-1")
def test_sizes_and_counts_are_bounded() -> None:
    data = FULL.to_bytes()
    assert Identity.from_bytes(data + b" " * (STORE_BYTES - len(data))) == FULL
    with pytest.raises(LimitExceeded):
        Identity.from_bytes(data + b" " * (STORE_BYTES - len(data) + 1))
    with pytest.raises(LimitExceeded):
        Identity.from_bytes(edited(lambda v: v["requires"].update(read=[str(i) for i in range(65)])))


@pytest.mark.req("DS-STORE-3")
def test_records_carry_the_id_of_the_store_that_they_were_written_to() -> None:
    first, second = "01" * 16, "02" * 16
    identity = Identity(store=STORE, lineage=(Ancestor(first, 4), Ancestor(second, 9)))
    expected = [first] * 5 + [second] * 5 + [STORE] * 3
    assert [identity.store_of(version) for version in range(13)] == expected
    assert Identity(store=STORE).store_of(0) == STORE
