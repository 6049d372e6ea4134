"""Bytes in and out: the canonical form, and what is refused before anything is made of it."""

from __future__ import annotations

import math

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from record_samples import claim, edited, slot

from deltastore.errors import BadRecord, LimitExceeded
from deltastore.protocol.limits import MAX_INT, NESTING, RECORD_BYTES
from deltastore.protocol.records import parse_slot
from deltastore.protocol.wire import (
    Envelope,
    Fields,
    Signature,
    Value,
    open_record,
    pack,
    sha256,
    signed_bytes,
    unpack,
)

LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**64 - 1),
    st.floats(allow_nan=False),
    st.text(max_size=12),
    st.binary(max_size=12),
)
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4),
)
MAPS = st.dictionaries(st.text(max_size=6), VALUES, max_size=5)


def read(data: bytes, most: int = RECORD_BYTES) -> Fields:
    return unpack(data, where="it", max_bytes=most)


def tuples(value: object) -> object:
    if isinstance(value, list):
        return tuple(tuples(item) for item in value)
    if isinstance(value, dict):
        return {key: tuples(item) for key, item in value.items()}
    return value


@pytest.mark.req("DS-REC-1", "DS-REC-2")
@settings(max_examples=150, deadline=None)
@given(MAPS)
def test_maps_round_trip(value: dict[str, Value]) -> None:
    assert read(pack(value)).raw() == tuples(value)


@pytest.mark.req("DS-REC-2")
@settings(max_examples=150, deadline=None)
@given(MAPS)
def test_packing_does_not_depend_on_the_order_of_insertion(value: dict[str, Value]) -> None:
    assert pack(dict(reversed(value.items()))) == pack(value)


@pytest.mark.req("DS-REC-2")
def test_the_canonical_form_byte_by_byte() -> None:
    value: dict[str, Value] = {
        "é": 1,
        "z": [0, 127, 128, -32, -33, 65536],
        "a": b"\x01",
        "aa": 1.5,
        "b": None,
    }
    expected = (
        b"\x85"
        b"\xa1a\xc4\x01\x01"
        b"\xa2aa\xcb\x3f\xf8\x00\x00\x00\x00\x00\x00"
        b"\xa1b\xc0"
        b"\xa1z\x96\x00\x7f\xcc\x80\xe0\xd0\xdf\xce\x00\x01\x00\x00"
        b"\xa2\xc3\xa9\x01"
    )
    assert pack(value) == expected


@pytest.mark.req("DS-REC-2")
def test_keys_are_ordered_by_their_utf8_bytes_and_not_by_utf16() -> None:
    high, astral = "\uffff", "\U00010000"
    assert astral.encode("utf-16-be") < high.encode("utf-16-be")
    assert pack({astral: 1, high: 2}) == b"\x82\xa3" + high.encode() + b"\x02\xa4" + astral.encode() + b"\x01"


REFUSED = {
    "nothing": b"",
    "not a map": b"\x91\x01",
    "a scalar": b"\x01",
    "nil": b"\xc0",
    "two messages": b"\x80\x80",
    "trailing byte": b"\x80\x00",
    "a key twice": b"\x82\xa1a\x01\xa1a\x02",
    "a key twice inside": b"\x81\xa1a\x82\xa1b\x01\xa1b\x01",
    "integer key": b"\x81\x01\x01",
    "nil key": b"\x81\xc0\x01",
    "bytes key": b"\x81\xc4\x01a\x01",
    "bytes key inside": b"\x81\xa1a\x81\xc4\x01b\x01",
    "array key inside": b"\x81\xa1a\x81\x91\x01\x01",
    "extension": b"\x81\xa1a\xd4\x05\x00",
    "timestamp": msgpack.packb({"a": msgpack.Timestamp(1, 2)}),
    "timestamp in an array": msgpack.packb({"a": [1, [msgpack.Timestamp(1, 2)]]}),
    "malformed timestamp": b"\x81\xa1a\xc7\x03\xff\x00\x00\x00",
    "not UTF-8": b"\x81\xa1a\xa1\xff",
    "key not UTF-8": b"\x81\xa1\xff\x01",
    "surrogate": b"\x81\xa1a\xa3\xed\xa0\x80",
    "overlong UTF-8": b"\x81\xa1a\xa2\xc0\xaf",
    "reserved byte": b"\x81\xa1a\xc1",
    "cut short": b"\x81\xa1a",
    "array of 2^32 - 1": b"\x81\xa1a\xdd\xff\xff\xff\xff",
    "map of 2^32 - 1": b"\x81\xa1a\xdf\xff\xff\xff\xff",
    "bytes of 2^32 - 1": b"\x81\xa1a\xc6\xff\xff\xff\xff",
    "text of 2^32 - 1": b"\x81\xa1a\xdb\xff\xff\xff\xff",
    "extension of 2^32 - 1": b"\x81\xa1a\xc9\xff\xff\xff\xff\x01",
}


@pytest.mark.req("DS-REC-1")
@pytest.mark.parametrize("name", REFUSED)
def test_malformed_bytes_are_refused(name: str) -> None:
    with pytest.raises(BadRecord):
        read(REFUSED[name])


@pytest.mark.req("DS-REC-1", "DS-LIMIT-1")
@pytest.mark.parametrize("opening", [b"\x91", b"\x81\xa1k"], ids=["arrays", "maps"])
def test_nesting_is_bounded(opening: bytes) -> None:
    def nested(depth: int) -> bytes:
        return b"\x81\xa1a" + opening * (depth - 1) + b"\xc0"

    assert read(nested(NESTING)).names() == ["a"]
    for depth in (NESTING + 1, 100, 512, 600, 1022, 1023, 1024, 5000, 100_000):
        with pytest.raises(BadRecord):
            read(nested(depth))


@pytest.mark.req("DS-REC-1", "DS-LIMIT-1")
def test_size_is_checked_before_content() -> None:
    assert read(b"\x80", 1).names() == []
    with pytest.raises(LimitExceeded):
        read(b"\xc1" * 17, 16)


@pytest.mark.req("DS-LIMIT-1")
def test_lengths_inside_lengths_are_refused_before_anything_is_made_of_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each of 300 arrays claims half a million items that are not there.

    msgpack 1.0.8 allocates 1.2 GB for this mebibyte before it finds out; later releases do not.
    """

    def unpackb(*_: object, **__: object) -> None:
        raise AssertionError("it was unpacked")

    monkeypatch.setattr(msgpack, "unpackb", unpackb)
    size = 1 << 20
    head = b"\x81\xa1u" + (b"\xdd" + (size // 2).to_bytes(4, "big")) * 300
    with pytest.raises(BadRecord):
        read(head + bytes(size - len(head)))
    with pytest.raises(AssertionError):
        read(b"\x80")


@pytest.mark.req("DS-REC-1")
@settings(max_examples=400, deadline=None)
@given(st.binary(max_size=200))
def test_noise_is_refused_by_a_typed_error_or_is_a_map(data: bytes) -> None:
    try:
        found = read(data)
    except (BadRecord, LimitExceeded):
        return
    assert all(isinstance(name, str) for name in found.names())


@pytest.mark.req("DS-REC-3")
@pytest.mark.parametrize(
    "value", [None, True, False, -1, 1.0, math.nan, MAX_INT + 1, 2**64 - 1, "1", b"1", (1,), {}]
)
def test_an_integer_is_an_integer_from_0_to_2_53(value: Value) -> None:
    with pytest.raises(BadRecord, match="'n'"):
        read(pack({"n": value})).integer("n")
    with pytest.raises(BadRecord):
        read(b"\x80").integer("n")


@pytest.mark.req("DS-REC-3")
@pytest.mark.parametrize("number", [0, 1, 127, 128, 2**32, MAX_INT])
def test_integers_of_every_width_are_read(number: int) -> None:
    assert read(pack({"n": number})).integer("n") == number
    assert read(b"\x81\xa1n\xcf" + number.to_bytes(8, "big")).integer("n") == number


@pytest.mark.req("DS-REC-3")
def test_texts_blobs_arrays_and_maps_are_bounded() -> None:
    fields = read(pack({"t": "ä" * 8, "b": b"1234", "a": [1, 2], "m": {"x": 1, "y": 2}, "s": ["a", 1]}))
    assert fields.text("t", most=16) == "ä" * 8
    assert fields.blob("b", size=4) == fields.blob_up_to("b", most=4) == b"1234"
    assert fields.array("a", most=2) == (1, 2)
    assert fields.map("m", most=2).names() == ["x", "y"]
    with pytest.raises(BadRecord):
        fields.text("t", most=15)
    for size in (3, 5):
        with pytest.raises(BadRecord):
            fields.blob("b", size=size)
    with pytest.raises(BadRecord):
        fields.blob_up_to("b", most=3)
    with pytest.raises(LimitExceeded):
        fields.array("a", most=1)
    with pytest.raises(LimitExceeded):
        fields.map("m", most=1)
    with pytest.raises(BadRecord):
        fields.texts("s", most=2)
    for name in ("t", "b", "m", "absent"):
        with pytest.raises(BadRecord):
            fields.array(name, most=9)
    for name in ("t", "b", "a", "absent"):
        with pytest.raises(BadRecord):
            fields.map(name, most=9)


@pytest.mark.req("DS-REC-3")
def test_a_field_that_may_be_nil_must_be_there() -> None:
    assert read(pack({"n": None})).optional("n", lambda _: 1) is None
    assert read(pack({"n": 3})).optional("n", read(pack({"n": 3})).integer) == 3
    with pytest.raises(BadRecord, match="missing"):
        read(b"\x80").optional("n", lambda _: 1)


def test_a_64_bit_word_is_big_endian() -> None:
    assert read(pack({"w": b"\x01" + bytes(6) + b"\x02"})).word("w") == (1 << 56) + 2


# --- The envelope ---------------------------------------------------------------------------------------


@pytest.mark.req("DS-SIG-1", "DS-SIG-3")
def test_an_envelope_round_trips_with_its_signatures() -> None:
    signatures = tuple(Signature(f"key {i}", "ed25519", bytes([i]) * 64) for i in range(16))
    envelope = Envelope("version", b"\x80", signatures)
    assert Envelope.from_bytes(envelope.to_bytes(), where="it") == envelope


@pytest.mark.req("DS-SIG-3", "DS-LIMIT-1")
@pytest.mark.parametrize(
    "signatures",
    [
        [{"algorithm": "a", "key": "k", "value": b""}] * 17,
        [{"algorithm": "a", "key": "k", "value": bytes(4097)}],
        [{"algorithm": "a" * 65, "key": "k", "value": b""}],
        [{"algorithm": "a", "key": "k" * 257, "value": b""}],
        [{"algorithm": "a", "key": "k", "value": "text"}],
        [{"algorithm": "a", "key": "k"}],
        [["a", "k", b""]],
        {},
        None,
    ],
)
def test_malformed_or_too_many_signatures_are_refused(signatures: Value) -> None:
    with pytest.raises((BadRecord, LimitExceeded)):
        Envelope.from_bytes(pack({"body": b"", "signatures": signatures, "type": "version"}), where="it")


@pytest.mark.req("DS-SIG-3")
def test_a_signed_record_is_read_and_its_hash_covers_the_signature() -> None:
    plain = slot(claim(None))
    envelope = msgpack.unpackb(plain.data)
    envelope["signatures"] = [{"algorithm": "none", "key": "k", "value": b"forged"}]
    signed = msgpack.packb(envelope)
    found = parse_slot(signed, store=plain.record.store, version=0)
    assert found.record == plain.record
    assert found.sha256 == sha256(signed) != plain.sha256


@pytest.mark.req("DS-SIG-2")
def test_what_is_signed_is_as_in_the_spec() -> None:
    assert signed_bytes("edge", b"abc") == b"deltastore/1 4 edge 3 abc"
    assert signed_bytes("é", b"") == b"deltastore/1 2 \xc3\xa9 0 "


@pytest.mark.req("DS-SIG-2")
@settings(max_examples=100, deadline=None)
@given(
    st.tuples(st.text(max_size=6), st.binary(max_size=12)),
    st.tuples(st.text(max_size=6), st.binary(max_size=12)),
)
def test_no_two_records_are_signed_alike(one: tuple[str, bytes], other: tuple[str, bytes]) -> None:
    assert (signed_bytes(*one) == signed_bytes(*other)) == (one == other)


@pytest.mark.req("DS-REC-4")
@pytest.mark.parametrize("spec", [0, 2, None, "1", 1.0, True])
def test_another_spec_version_is_refused(spec: Value) -> None:
    stored = edited(slot(claim(None)).data, lambda body: body.update(spec=spec))
    with pytest.raises(BadRecord, match="spec"):
        open_record(stored, "it")


@pytest.mark.req("DS-REC-5")
def test_a_record_in_another_form_keeps_the_hash_of_its_own_bytes() -> None:
    """Not canonical, but well-formed: its SHA-256 is of these bytes, not of what we would have written."""
    plain = slot(claim(None))
    other = edited(plain.data, lambda body: body.update(unknown=1))
    found = parse_slot(other, store=plain.record.store, version=0)
    assert found.record == plain.record
    assert found.data == other
    assert found.sha256 == sha256(other) != sha256(found.record.to_bytes())
