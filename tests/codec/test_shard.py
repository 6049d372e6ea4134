"""The container: what the writer lays down, and what the reader refuses."""

from __future__ import annotations

import json
import struct
from typing import cast

import pytest

from deltastore.codec import shard
from deltastore.errors import BadShard, DeltaStoreError, LimitExceeded, Unsupported
from deltastore.protocol import limits

META = shard.Meta("ulp", "00" * 16, (2**64 - 1, 0), {"G": (3,)}, {"G": 9})
OURS = shard.build(META, [])
BODY = bytes(range(12))
Json = dict[str, object]


def entry(dtype: str, shape: list[int], start: int, stop: int) -> Json:
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, stop]}


def fields(**changes: object) -> Json:
    """Our metadata, with some fields changed."""
    good: Json = {
        "format": 1,
        "codec": "ulp",
        "nonce": "0" * 32,
        "digest": ["0" * 16],
    }
    return {**good, **changes}


def file(header: object, body: bytes = BODY, *, raw: bool = False) -> bytes:
    text = cast(str, header) if raw else json.dumps(header)
    data = text.encode()
    return struct.pack("<Q", len(data)) + data + body


def header(ours: object = None, **tensors: object) -> Json:
    text = ours if isinstance(ours, str) else json.dumps(ours or fields())
    return {"__metadata__": {"deltastore": text}, **tensors}


GOOD = header(a=entry("U32", [2], 0, 8), b=entry("U8", [4], 8, 12))


def test_a_shard_comes_back_with_wide_tensors_first_and_aligned() -> None:
    tensors = [
        ("small", shard.Tensor("U8", (3,), b"abc")),
        ("wide", shard.Tensor("F64", (2,), bytes(16))),
        ("none", shard.Tensor("BF16", (0, 4), b"")),
        ("packed", shard.Tensor("F4", (2, 2), b"xy")),
    ]
    data = shard.build(META, tensors, extra={"format": "pt"})
    (length,) = struct.unpack_from("<Q", data)
    assert length % 8 == 0
    parsed = shard.parse(data)
    assert list(parsed.tensors) == ["wide", "none", "small", "packed"]
    assert {name: (t.dtype, t.shape, bytes(t.data)) for name, t in parsed.tensors.items()} == {
        name: (t.dtype, t.shape, t.data) for name, t in tensors
    }
    assert parsed.meta == META


def test_the_metadata_are_compact_json_under_one_key() -> None:
    (length,) = struct.unpack_from("<Q", OURS)
    text = OURS[8 : 8 + length].decode()
    assert json.loads(text)["__metadata__"] == {
        "deltastore": '{"format":1,"codec":"ulp","nonce":"00000000000000000000000000000000",'
        '"digest":["ffffffffffffffff","0000000000000000"],'
        '"frames":{"G":[3]},"raw":{"G":9}}'
    }
    assert text == text.rstrip(" ") + " " * (-len(text.rstrip(" ")) % 8)


def test_what_there_is_none_of_is_not_written() -> None:
    data = shard.build(shard.Meta("ulp", "00" * 16), [])
    (length,) = struct.unpack_from("<Q", data)
    assert json.loads(json.loads(data[8 : 8 + length])["__metadata__"]["deltastore"]) == {
        "format": 1,
        "codec": "ulp",
        "nonce": "0" * 32,
    }
    assert shard.parse(data).meta == shard.Meta("ulp", "00" * 16)


def test_tensors_are_views_of_the_file() -> None:
    data = file(GOOD)
    assert shard.parse(data).tensors["a"].data.obj is data  # type: ignore[union-attr]


@pytest.mark.req("DS-SHARD-2")
def test_unknown_fields_and_foreign_metadata_are_ignored() -> None:
    ours = json.dumps(fields(later={"x": [1, "y", None, True]}))
    data = file({"__metadata__": {"deltastore": ours, "format": "pt"}}, b"")
    assert shard.parse(data).meta.codec == "ulp"


@pytest.mark.parametrize("name", ["a", "__metadata__"])
def test_a_name_that_is_taken_is_not_written(name: str) -> None:
    one = shard.Tensor("U8", (0,), b"")
    with pytest.raises(Unsupported, match=name):
        shard.build(META, [("a", one), (name, one)])


def test_a_name_that_is_not_unicode_is_not_written() -> None:
    with pytest.raises(Unsupported):
        shard.build(META, [("\ud800", shard.Tensor("U8", (0,), b""))])


@pytest.mark.req("DS-SHARD-2")
def test_another_format_says_to_upgrade() -> None:
    with pytest.raises(BadShard, match="Upgrade"):
        shard.parse(file(header(fields(format=2)), b""))


@pytest.mark.req("DS-LIMIT-1")
def test_the_header_is_limited_before_it_is_read() -> None:
    data = struct.pack("<Q", limits.HEADER_BYTES + 1) + b"{"
    with pytest.raises(LimitExceeded, match="header"):
        shard.parse(data)
    with pytest.raises(LimitExceeded, match="header"):
        shard.parse(b"\xff" * 8 + b"{}")


def test_a_header_over_the_limit_is_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "HEADER_BYTES", 100)
    with pytest.raises(LimitExceeded, match="header"):
        shard.build(META, [])


@pytest.mark.req("DS-LIMIT-1", "DS-LIMIT-2")
def test_a_shard_over_the_limit_is_neither_written_nor_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SHARD_BYTES", 400)
    with pytest.raises(LimitExceeded, match="shard"):
        shard.build(META, [("a", shard.Tensor("U8", (400,), bytes(400)))])
    with pytest.raises(LimitExceeded, match="shard"):
        shard.parse(file(GOOD) + bytes(400))


OFFSETS: dict[str, Json] = {
    "hole": header(a=entry("U8", [4], 0, 4), b=entry("U8", [4], 8, 12)),
    "hole at 0": header(a=entry("U8", [4], 4, 8), b=entry("U8", [4], 8, 12)),
    "overlap": header(a=entry("U8", [8], 0, 8), b=entry("U8", [8], 4, 12)),
    "same bytes": header(a=entry("U8", [12], 0, 12), b=entry("U8", [12], 0, 12)),
    "trailing": header(a=entry("U8", [8], 0, 8)),
    "no tensor": header(),
    "beyond": header(a=entry("U8", [13], 0, 13)),
    "far beyond": header(a=entry("U8", [2**53 - 1], 0, 2**53 - 1)),
    "backwards": header(a=entry("U8", [12], 12, 0)),
    "empty inside": header(a=entry("U8", [12], 0, 12), b=entry("U8", [0], 5, 5)),
    "empty beyond": header(a=entry("U8", [12], 0, 12), b=entry("U8", [0], 13, 13)),
    "three offsets": header(a={"dtype": "U8", "shape": [12], "data_offsets": [0, 12, 12]}),
    "one offset": header(a={"dtype": "U8", "shape": [12], "data_offsets": [12]}),
    "count": header(a=entry("U8", [11], 0, 12)),
    "width": header(a=entry("U16", [12], 0, 12)),
    "huge": header(a=entry("U8", [2**53 - 1] * 64, 0, 12)),
    "deep": header(a=entry("U8", [1] * 64 + [12], 0, 12)),
    "negative": header(a=entry("U8", [-3, -4], 0, 12)),
    "bool": header(a=entry("U8", [True, 12], 0, 12)),
    "float": header(a=entry("U8", [12.0], 0, 12)),  # type: ignore[list-item]
    "half byte": header(a=entry("F4", [25], 0, 12)),
    "dtype": header(a=entry("U7", [12], 0, 12)),
    "dtype type": header(a={"dtype": ["U8"], "shape": [12], "data_offsets": [0, 12]}),
    "shape type": header(a={"dtype": "U8", "shape": 12, "data_offsets": [0, 12]}),
    "missing": header(a={"dtype": "U8", "shape": [12]}),
    "more": header(a={**entry("U8", [12], 0, 12), "strides": [1]}),
    "entry": header(a=[]),
    "no metadata": {"a": entry("U8", [12], 0, 12)},
    "metadata type": {"__metadata__": []},
    "metadata value": {"__metadata__": {"deltastore": json.dumps(fields()), "x": 1}},
    "not ours": {"__metadata__": {"format": "pt"}, "a": entry("U8", [12], 0, 12)},
}


@pytest.mark.req("DS-SHARD-1")
@pytest.mark.parametrize("name", OFFSETS)
def test_a_header_that_does_not_describe_the_file_is_refused(name: str) -> None:
    shard.parse(file(GOOD))
    with pytest.raises(BadShard):
        shard.parse(file(OFFSETS[name]))


TEXTS = {
    "good": '{"__metadata__":{"deltastore":"%s"}}  ',
    "twice": '{"__metadata__":{"deltastore":"%s"},"a":1,"a":1}',
    "nan": '{"__metadata__":{"deltastore":"%s"},"a":NaN}',
    "float": '{"__metadata__":{"deltastore":"%s"},"a":1e3}',
    "large": '{"__metadata__":{"deltastore":"%s"},"a":9007199254740992}',
    "larger": '{"__metadata__":{"deltastore":"%s"},"a":' + "9" * 5000 + "}",
    "space": ' {"__metadata__":{"deltastore":"%s"}}',
    "array": '[{"__metadata__":{"deltastore":"%s"}}]',
    "cut": '{"__metadata__":{"deltastore":"%s"}',
    "rest": '{"__metadata__":{"deltastore":"%s"}}x',
    "control": '{"__metadata__":{"deltastore":"%s","\n":""}}',
    "deep": '{"a":' + "[" * 200_000,
    "empty": "",
}


@pytest.mark.req("DS-SHARD-1")
@pytest.mark.parametrize("name", [name for name in TEXTS if name != "good"])
def test_a_header_that_is_not_strict_json_is_refused(name: str) -> None:
    ours = json.dumps(json.dumps(fields()))[1:-1]
    shard.parse(file(TEXTS["good"].replace("%s", ours), b"", raw=True))
    with pytest.raises(BadShard):
        shard.parse(file(TEXTS[name].replace("%s", ours), b"", raw=True))


@pytest.mark.req("DS-SHARD-1")
def test_a_header_that_is_not_utf8_is_refused() -> None:
    data = file(header(), b"").replace(b"deltastore", b"deltastor\xff", 1)
    with pytest.raises(BadShard, match="strict JSON"):
        shard.parse(data)


META_FIELDS: dict[str, Json] = {
    "no format": {"format": None},
    "format bool": {"format": True},
    "format text": {"format": "1"},
    "codec": {"codec": 1},
    "nonce": {"nonce": "0" * 31},
    "nonce case": {"nonce": "A" * 32},
    "nonce line": {"nonce": "0" * 32 + "\n"},
    "nonce type": {"nonce": 0},
    "digest none": {"digest": None},
    "digest type": {"digest": {"0": "0" * 16}},
    "digest": {"digest": "0" * 16},
    "digest short": {"digest": ["0" * 15]},
    "digest sign": {"digest": ["+" + "0" * 15]},
    "digest number": {"digest": [0]},
    "frames": {"frames": []},
    "raw": {"raw": []},
    "frames without raw": {"frames": {"G": [1]}},
    "raw without frames": {"raw": {"G": 1}},
    "raw float": {"frames": {"G": [1]}, "raw": {"G": 1.5}},
    "raw list": {"frames": {"G": [1]}, "raw": {"G": [1]}},
    "sizes": {"frames": {"G": 1}, "raw": {"G": 1}},
    "sizes bool": {"frames": {"G": [False]}, "raw": {"G": 1}},
    "sizes negative": {"frames": {"G": [-1]}, "raw": {"G": 1}},
    "sizes large": {"frames": {"G": [2**53]}, "raw": {"G": 1}},
    "unknown float": {"later": 0.5},
}


@pytest.mark.req("DS-SHARD-2", "DS-SHARD-3")
@pytest.mark.parametrize("name", META_FIELDS)
def test_malformed_metadata_are_refused(name: str) -> None:
    with pytest.raises(BadShard):
        shard.parse(file(header(fields(**META_FIELDS[name])), b""))


@pytest.mark.req("DS-SHARD-2")
@pytest.mark.parametrize("text", ["", "[]", "1", "{", '{"format":1,"format":1}', "\ud800"])
def test_metadata_that_are_no_strict_object_are_refused(text: str) -> None:
    with pytest.raises(BadShard):
        shard.parse(file({"__metadata__": {"deltastore": text}}, b""))


@pytest.mark.req("DS-SHARD-1")
@pytest.mark.parametrize("data", [b"", b"{}", b"\x02\0\0\0\0\0\0", b"\x03\0\0\0\0\0\0\0{}"])
def test_a_file_cut_short_is_refused(data: bytes) -> None:
    with pytest.raises(BadShard):
        shard.parse(data)


def test_errors_are_ours_at_every_cut() -> None:
    data = file(GOOD)
    for size in range(len(data)):
        with pytest.raises(DeltaStoreError):
            shard.parse(data[:size])
