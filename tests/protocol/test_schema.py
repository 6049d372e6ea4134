"""Schemas: one list of tensors has one SHA-256, ties lead to owners, and sizes are bounded before use."""

from __future__ import annotations

import math
from typing import Any

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deltastore.errors import BadRecord, LimitExceeded, Unsupported
from deltastore.protocol import limits
from deltastore.protocol.dtypes import BITS
from deltastore.protocol.schema import Schema, TensorSpec
from deltastore.protocol.wire import Value, pack, sha256

REFUSALS = (BadRecord, LimitExceeded, Unsupported)
NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=6)
SPEC_BITS = {4: "F4", 6: "F6_E2M3 F6_E3M2", 8: "BOOL U8 I8 F8_E5M2 F8_E4M3 F8_E8M0 F8_E4M3FNUZ F8_E5M2FNUZ"}
SPEC_BITS |= {16: "I16 U16 F16 BF16", 32: "I32 U32 F32", 64: "C64 F64 I64 U64"}


def read(*rows: object) -> Schema:
    return Schema.from_bytes(pack({"tensors": rows}))  # type: ignore[dict-item]


@st.composite
def schemas(draw: st.DrawFn) -> Schema:
    names = draw(st.lists(NAMES, unique=True, max_size=6))
    specs: list[TensorSpec] = []
    for name in names:
        owners = [t for t in specs if t.alias_of is None]
        tied = draw(st.booleans())
        if owners and tied:
            owner = draw(st.sampled_from(owners))
            specs.append(TensorSpec(name, owner.dtype, owner.shape, owner.name))
        else:
            shape = (*draw(st.lists(st.integers(0, 2**20), max_size=2)), 4)
            specs.append(TensorSpec(name, draw(st.sampled_from(sorted(BITS))), shape))
    return Schema.of(specs)


@pytest.mark.req("DS-SCHEMA-1")
@settings(max_examples=150, deadline=None)
@given(schemas())
def test_schemas_round_trip_and_have_one_hash(schema: Schema) -> None:
    assert Schema.from_bytes(schema.data) == schema
    assert Schema.of(reversed(schema.tensors)).sha256 == schema.sha256 == sha256(schema.data)
    names = [t.name.encode() for t in schema.tensors]
    assert names == sorted(names)
    assert [schema.index(t.name) for t in schema.tensors] == list(range(len(schema.tensors)))


@pytest.mark.req("DS-SCHEMA-1")
def test_the_stored_form_is_that_of_the_spec() -> None:
    schema = Schema.of([TensorSpec("b", "BF16", (2, 3), "a"), TensorSpec("a", "BF16", (2, 3))])
    assert msgpack.unpackb(schema.data) == {
        "tensors": [["a", "BF16", [2, 3], None], ["b", "BF16", [2, 3], "a"]]
    }


@pytest.mark.req("DS-SCHEMA-1")
@pytest.mark.parametrize(
    "names", [["b", "a"], ["a", "a"], [""], ["x" * 1025], ["é" * 513], ["\U00010000", "\uffff"]], ids=range(6)
)
def test_names_out_of_order_doubled_empty_or_too_long_are_refused(names: list[str]) -> None:
    with pytest.raises(BadRecord):
        read(*[[name, "U8", [1], None] for name in names])
    assert read(*[[name, "U8", [1], None] for name in ["\uffff", "\U00010000"]])["\uffff"].nbytes == 1


@pytest.mark.req("DS-SCHEMA-1")
def test_no_tensor_is_called_what_safetensors_keeps_for_itself() -> None:
    with pytest.raises(Unsupported, match="__metadata__"):
        read(["__metadata__", "U8", [1], None])
    with pytest.raises(Unsupported, match="__metadata__"):
        Schema.of([TensorSpec("__metadata__", "U8", (1,)), TensorSpec("a", "U8", (1,))])
    assert read(["a.__metadata__", "U8", [1], None]).nbytes == 1


@pytest.mark.req("DS-SCHEMA-1", "DS-REC-2")
@pytest.mark.parametrize(
    "data",
    [
        msgpack.packb({"tensors": [["a", "U8", [1], None]], "z": 1}),
        b"\x81\xa7tensors\xdc\x00\x01\x94\xa1a\xa2U8\x91\x01\xc0",
        b"\x81\xa7tensors\x91\x94\xa1a\xa2U8\x91\xcc\x01\xc0",
        b"\x81\xd9\x07tensors\x91\x94\xa1a\xa2U8\x91\x01\xc0",
        b"\xde\x00\x01\xa7tensors\x91\x94\xa1a\xa2U8\x91\x01\xc0",
    ],
    ids=["another field", "long array", "long integer", "long string", "long map"],
)
def test_bytes_that_are_not_canonical_are_refused(data: bytes) -> None:
    assert Schema.from_bytes(b"\x81\xa7tensors\x91\x94\xa1a\xa2U8\x91\x01\xc0").nbytes == 1
    with pytest.raises(BadRecord):
        Schema.from_bytes(data)


@pytest.mark.req("DS-SCHEMA-2")
def test_an_alias_needs_an_owner_of_the_same_dtype_and_shape() -> None:
    owner, good = ["a", "F32", [2, 3], None], ["b", "F32", [2, 3], "a"]
    schema = read(owner, good)
    assert [t.name for t in schema.owners] == ["a"]
    assert schema.nbytes == 24
    assert schema.lanes == 6
    for bad in (
        ["b", "F32", [3, 2], "a"],
        ["b", "F32", [6], "a"],
        ["b", "I32", [2, 3], "a"],
        ["b", "F32", [2, 3], "b"],
        ["b", "F32", [2, 3], "c"],
        ["b", "F32", [2, 3], ""],
    ):
        with pytest.raises(BadRecord):
            read(owner, bad)
    with pytest.raises(BadRecord):
        read(owner, good, ["c", "F32", [2, 3], "b"])
    assert read(["a", "F32", [1], "b"], ["b", "F32", [1], None]).owners[0].name == "b"


@pytest.mark.req("DS-SCHEMA-3")
def test_the_dtypes_are_those_of_the_spec() -> None:
    assert {name: bits for bits, names in SPEC_BITS.items() for name in names.split()} == BITS
    for dtype in ("", "bf16", "BF16 ", "F128", "E" * 5000):
        with pytest.raises(Unsupported):
            read(["a", dtype, [1], None])


@pytest.mark.req("DS-SCHEMA-3")
@pytest.mark.parametrize("dtype", sorted(BITS))
@pytest.mark.parametrize("count", [0, 1, 2, 3, 4, 5, 7, 8])
def test_elements_fill_whole_bytes_and_lanes(dtype: str, count: int) -> None:
    bits = BITS[dtype] * count
    if bits % 8:
        with pytest.raises(Unsupported):
            read(["a", dtype, [count], None])
        return
    tensor = read(["a", dtype, [count], None])["a"]
    assert tensor.nbytes == bits // 8
    assert tensor.lane_bytes == max(1, BITS[dtype] // 8)
    assert tensor.lanes * tensor.lane_bytes == tensor.nbytes


@pytest.mark.req("DS-SCHEMA-3")
def test_a_scalar_has_one_element() -> None:
    assert read(["a", "F64", [], None])["a"].nbytes == 8
    with pytest.raises(Unsupported):
        read(["a", "F4", [], None])


@pytest.mark.req("DS-SCHEMA-3", "DS-LIMIT-1")
@pytest.mark.parametrize(
    "shape",
    [[2**50 + 1], [2**26, 2**26], [2**53 - 1], [2**40] * 64, [1] * 65, [0] * 65],
    ids=["2^50 + 1", "2^52", "2^53 - 1", "2^2560", "65 dims", "65 empty dims"],
)
def test_huge_shapes_are_refused(shape: list[int]) -> None:
    with pytest.raises(LimitExceeded):
        read(["a", "U8", shape, None])


@pytest.mark.req("DS-SCHEMA-3")
def test_more_than_2_32_elements_are_counted_exactly() -> None:
    tensor = read(["a", "BF16", [2**20, 2**13 + 1], None])["a"]
    assert tensor.lanes == 2**20 * (2**13 + 1) > 2**32
    assert tensor.nbytes == 2 * tensor.lanes
    assert read(["a", "C64", [(2**53 - 1) // 8], None])["a"].nbytes == (2**53 - 1) // 8 * 8


@pytest.mark.req("DS-SCHEMA-3")
@pytest.mark.parametrize("n", [-1, 1.0, True, None, "1", 2**53, 2**64 - 1, [1]])
def test_a_dimension_is_an_integer_in_range(n: Value) -> None:
    with pytest.raises(REFUSALS):
        read(["a", "U8", [n], None])


@pytest.mark.req("DS-SCHEMA-1")
@pytest.mark.parametrize(
    "row",
    [
        None, [], {}, "a", ["a"], ["a", "U8"], ["a", "U8", [1]], ["a", "U8", [1], None, None],
        [b"a", "U8", [1], None], ["a", b"U8", [1], None], ["a", "U8", 1, None], ["a", "U8", {}, None],
        ["a", "U8", [1], 0],
        ["a", "U8", [1], b"a"], ["a", "U8", [1], False], [["a"], "U8", [1], None],
    ],
    ids=str,
)  # fmt: skip
def test_other_rows_are_refused(row: object) -> None:
    with pytest.raises(BadRecord):
        read(row)


@pytest.mark.req("DS-SCHEMA-1")
@pytest.mark.parametrize(
    "value", [{}, {"tensors": None}, {"tensors": {}}, {"tensors": b""}, {"Tensors": []}], ids=str
)
def test_a_schema_is_a_map_with_tensors(value: dict[str, Any]) -> None:
    with pytest.raises(BadRecord):
        Schema.from_bytes(pack(value))
    assert Schema.from_bytes(pack({"tensors": []})).nbytes == 0


@pytest.mark.req("DS-LIMIT-1")
def test_sizes_and_counts_of_a_schema_are_bounded() -> None:
    with pytest.raises(LimitExceeded):
        Schema.from_bytes(bytes(limits.SCHEMA_BYTES + 1))
    with pytest.raises(LimitExceeded):
        Schema.from_bytes(
            b"\x81\xa7tensors\xdd" + (limits.TENSORS + 1).to_bytes(4, "big") + b"\xc0" * (limits.TENSORS + 1)
        )


@pytest.mark.req("DS-SCHEMA-1")
def test_no_flipped_bit_of_a_schema_makes_another_error_or_the_same_schema() -> None:
    schema = Schema.of([TensorSpec("a.b", "BF16", (300, 2)), TensorSpec("tied", "BF16", (300, 2), "a.b")])
    for bit in range(8 * len(schema.data)):
        changed = bytearray(schema.data)
        changed[bit // 8] ^= 1 << bit % 8
        try:
            other = Schema.from_bytes(bytes(changed))
        except REFUSALS:
            continue
        assert other != schema
        assert other.data == bytes(changed)
    for size in range(len(schema.data)):
        with pytest.raises(BadRecord):
            Schema.from_bytes(schema.data[:size])


@settings(max_examples=100, deadline=None)
@given(schemas())
def test_sizes_count_owners_once(schema: Schema) -> None:
    owners = [t for t in schema.tensors if t.alias_of is None]
    assert schema.nbytes == sum(BITS[t.dtype] * math.prod(t.shape) // 8 for t in owners)
    assert all(name in schema for name in (t.name for t in schema.tensors))
    assert "\0 no such tensor" not in schema
