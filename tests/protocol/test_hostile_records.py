"""Stored bytes that somebody else made: wrong types, cut, flipped, spliced, too many, too deep."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from record_samples import (
    SCHEMA,
    STORE,
    body_of,
    buried,
    data,
    delta,
    edited,
    short_log,
    slot,
    with_body,
)

from deltastore.errors import BadRecord, LimitExceeded, UnknownFeature, Unsupported
from deltastore.protocol import limits
from deltastore.protocol.edges import EdgeRecord, parse_edge
from deltastore.protocol.features import Requires
from deltastore.protocol.records import (
    Slot,
    parse_slot,
)

REFUSALS = (BadRecord, LimitExceeded, Unsupported, UnknownFeature)
LOG = short_log()

HOSTILE: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 1.5, math.nan, math.inf, 2**53 - 1, 2**53, 2**64 - 1, "", "x", "x" * 5000,
    b"", b"x", bytes(8), bytes(16), bytes(32), bytes(33), [], [1], [[]], [[1, 2, 3, 4]], {}, {"x": 1},
    [None] * 70_000,
)  # fmt: skip


def is_n(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**53


def is_sha(value: Any) -> bool:
    return isinstance(value, bytes) and len(value) == 32


def is_word(value: Any) -> bool:
    return isinstance(value, bytes) and len(value) == 8


def is_16(value: Any) -> bool:
    return isinstance(value, bytes) and len(value) == 16


def is_map(value: Any) -> bool:
    return isinstance(value, dict)


def is_list(value: Any) -> bool:
    return isinstance(value, list)


def is_text(value: Any) -> bool:
    return isinstance(value, str)


def nil_or(check: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: value is None or check(value)


TYPES: dict[str, Callable[[Any], bool]] = {
    "store": is_16,
    "spec": is_n,
    "version": is_n,
    "term": is_n,
    "term_start": is_n,
    "nonce": is_16,
    "parent": nil_or(is_sha),
    "kind": is_text,
    "schema": nil_or(is_map),
    "files": is_map,
    "state": nil_or(is_word),
    "edges": is_list,
    "external": nil_or(is_map),
    "last_anchor": nil_or(is_n),
    "step": nil_or(is_n),
    "resumed_from": nil_or(is_n),
    "time": is_n,
    "stats": nil_or(is_map),
    "user": is_map,
    "requires": is_map,
    "schema.sha256": is_sha,
    "schema.size": is_n,
    "edges.0": is_map,
    "edges.0.base": lambda value: is_n(value) or value in ("none", "external"),
    "edges.0.base_state": nil_or(is_word),
    "edges.0.target": is_n,
    "edges.0.state": is_word,
    "edges.0.shards": is_list,
    "edges.0.shards.0": is_map,
    "edges.0.shards.0.sha256": is_sha,
    "edges.0.shards.0.xxh3": is_word,
    "edges.0.shards.0.size": is_n,
    "edges.0.shards.0.raw_size": is_n,
    "edges.0.shards.0.codec": is_text,
    "edges.0.shards.0.state_delta": is_word,
    "edges.0.shards.0.slices": is_list,
    "edges.0.shards.0.slices.0": is_list,
    "edges.0.shards.0.slices.0.0": is_n,
    "edges.0.shards.0.slices.0.1": is_n,
    "stats.changed": is_n,
    "stats.total": is_n,
    "stats.raw": is_n,
    "stats.stored": is_n,
    "requires.read": is_list,
    "requires.write": is_list,
    "requires.gc": is_list,
    "files.a.json": is_map,
    "files.a.json.sha256": is_sha,
    "files.a.json.size": is_n,
}


def rich() -> Slot:
    """A record in which every field is set."""
    return slot(
        data(
            LOG[1],
            files={"a.json": SCHEMA},
            last_anchor=1,
            resumed_from=1,
            user={"loss": 0.5},
            requires=Requires(),
        )
    )


def steps(path: str) -> list[Any]:
    parts = path.replace("a.json", "a/json").split(".")
    return [int(p) if p.isdigit() else p.replace("/", ".") for p in parts]


def holder(body: Any, path: str) -> tuple[Any, Any]:
    *way, last = steps(path)
    for part in way:
        body = body[part]
    return body, last


@pytest.mark.req("DS-REC-3")
def test_every_field_of_a_record_is_tried_below() -> None:
    def walk(value: Any, path: str) -> Iterator[str]:
        items = (
            value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
        )
        for key, inner in items:
            where = f"{path}.{key}".lstrip(".")
            yield where
            if where != "user":
                yield from walk(inner, where)

    assert set(walk(body_of(rich().data), "")) == set(TYPES)


@pytest.mark.req("DS-REC-3", "DS-LIMIT-1")
@pytest.mark.parametrize("path", TYPES)
def test_a_field_of_another_type_or_out_of_range_is_refused(path: str) -> None:
    body = body_of(rich().data)
    for value in HOSTILE:
        changed = copy.deepcopy(body)
        inner, last = holder(changed, path)
        inner[last] = value
        stored = with_body(rich().data, changed)
        if TYPES[path](value):
            with suppress(*REFUSALS):
                parse_slot(stored, store=STORE, version=2)
        else:
            with pytest.raises((BadRecord, LimitExceeded)):
                parse_slot(stored, store=STORE, version=2)


@pytest.mark.req("DS-REC-3")
@pytest.mark.parametrize(
    "path", [path for path in TYPES if not path.rpartition(".")[2].isdigit() and path[-6:] != "a.json"]
)
def test_a_missing_field_is_refused(path: str) -> None:
    body = body_of(rich().data)
    inner, last = holder(body, path)
    del inner[last]
    with pytest.raises(BadRecord):
        parse_slot(with_body(rich().data, body), store=STORE, version=2)


@pytest.mark.req("DS-REC-3")
@pytest.mark.parametrize(
    "where", ["", "schema", "edges.0", "edges.0.shards.0", "stats", "requires", "files.a.json"]
)
def test_unknown_fields_are_ignored(where: str) -> None:
    body = body_of(rich().data)
    inner = body
    for part in steps(where) if where else []:
        inner = inner[part]
    inner["a field of a later release"] = [1, {"x": b"y"}]
    assert parse_slot(with_body(rich().data, body), store=STORE, version=2).record == rich().record


@pytest.mark.req("DS-REC-3", "DS-TOMB-1")
@pytest.mark.parametrize("name", sorted(body_of(buried(LOG[2]).data)))
def test_fields_of_a_tombstone_are_checked_like_those_of_a_record(name: str) -> None:
    stored = buried(LOG[2]).data
    types = {**TYPES, "record_sha256": is_sha}
    body = body_of(stored)
    del body[name]
    with pytest.raises(BadRecord):
        parse_slot(with_body(stored, body), store=STORE, version=2)
    for value in HOSTILE:
        if not types[name](value):
            with pytest.raises((BadRecord, LimitExceeded)):
                parse_slot(edited(stored, lambda b, v=value: b.update({name: v})), store=STORE, version=2)  # type: ignore[misc]


KINDS: dict[str, tuple[bytes, Callable[[bytes], object]]] = {
    "version": (rich().data, lambda d: parse_slot(d, store=STORE, version=2)),
    "tombstone": (buried(LOG[2]).data, lambda d: parse_slot(d, store=STORE, version=2)),
    "edge": (
        EdgeRecord(store=STORE, schema=SCHEMA.sha256, edge=delta(1, 5, 2, 9)).to_bytes(),
        lambda d: parse_edge(d, store=STORE),
    ),
}


@pytest.mark.req("DS-REC-1")
@pytest.mark.parametrize("kind", KINDS)
def test_a_record_cut_short_anywhere_is_refused(kind: str) -> None:
    stored, parse = KINDS[kind]
    parse(stored)
    for size in range(len(stored)):
        with pytest.raises(BadRecord):
            parse(stored[:size])
    with pytest.raises(BadRecord):
        parse(stored + b"\x00")


@pytest.mark.req("DS-REC-1", "DS-REC-3")
@pytest.mark.parametrize("kind", KINDS)
def test_no_flipped_bit_makes_another_error(kind: str) -> None:
    stored, parse = KINDS[kind]
    survived = 0
    for bit in range(8 * len(stored)):
        changed = bytearray(stored)
        changed[bit // 8] ^= 1 << bit % 8
        try:
            parse(bytes(changed))
            survived += 1
        except REFUSALS:
            pass
    assert survived < 8 * len(stored)


@pytest.mark.req("DS-REC-1", "DS-REC-3")
@settings(max_examples=200, deadline=None)
@given(st.sampled_from(sorted(KINDS)), st.data())
def test_spliced_bytes_make_no_other_error(kind: str, draw: st.DataObject) -> None:
    stored, parse = KINDS[kind]
    at = draw.draw(st.integers(0, len(stored)))
    gone = draw.draw(st.integers(0, 8))
    put = draw.draw(st.binary(max_size=8))
    inside = draw.draw(st.booleans())
    if inside:
        body = msgpack.unpackb(stored)["body"]
        at = min(at, len(body))
        changed = with_body(stored, body[:at] + put + body[at + gone :])
    else:
        changed = stored[:at] + put + stored[at + gone :]
    with suppress(*REFUSALS):
        parse(changed)


@pytest.mark.req("DS-REC-1")
@pytest.mark.parametrize(
    "user",
    [
        b"\x81\xa1a" + b"\x91" * 600 + b"\xc0",
        b"\x81\xa1a" + b"\x81\xa1a" * 600 + b"\xc0",
        b"\x81\xa1a\x81\xc4\x01b\x01",
        b"\x82\xa1a\x01\xa1a\x01",
        b"\x81\xa1a\xd6\xff\x00\x00\x00\x00",
        b"\x81\xa1a\xa1\xff",
        b"\x81\x01\x01",
    ],
    ids=["deep arrays", "deep maps", "bytes key", "key twice", "timestamp", "not UTF-8", "integer key"],
)
def test_what_the_user_says_is_held_to_the_rules_of_messages(user: bytes) -> None:
    body = msgpack.unpackb(rich().data)["body"]
    plain = msgpack.packb({"loss": 0.5})
    assert body.count(plain) == 1
    with pytest.raises(BadRecord):
        parse_slot(with_body(rich().data, body.replace(plain, user)), store=STORE, version=2)


@pytest.mark.req("DS-LIMIT-1")
@pytest.mark.parametrize(
    "edit",
    [
        lambda b: b.update(user={"x": "y" * limits.USER_BYTES}),
        lambda b: b.update(user={str(i): i for i in range(1025)}),
        lambda b: b.update(edges=b["edges"] * 17),
        lambda b: b["requires"].update(read=[str(i) for i in range(65)]),
        lambda b: b.update(files={f"f{i}": b["schema"] for i in range(4097)}),
        lambda b: b["edges"][0].update(shards=b["edges"][0]["shards"] * (limits.SHARDS_PER_EDGE + 1)),
        lambda b: b["edges"][0]["shards"][0].update(slices=[[0, 1]] * (limits.SLICES_PER_SHARD + 1)),
        lambda b: b.update(padding=bytes(limits.RECORD_BYTES)),
    ],
    ids=["user bytes", "user fields", "edges", "features", "files", "shards", "slices", "record bytes"],
)
def test_counts_and_sizes_over_the_limit_are_refused(edit: Callable[[dict[str, Any]], object]) -> None:
    with pytest.raises(LimitExceeded):
        parse_slot(edited(rich().data, edit), store=STORE, version=2)


@pytest.mark.req("DS-DESC-1", "DS-LIMIT-1")
def test_a_shard_over_its_limit_is_refused_when_the_record_is_read() -> None:
    def edit(size: int) -> bytes:
        return edited(rich().data, lambda b: b["edges"][0]["shards"][0].update(size=size))

    parse_slot(edit(limits.SHARD_BYTES), store=STORE, version=2)
    with pytest.raises(BadRecord):
        parse_slot(edit(limits.SHARD_BYTES + 1), store=STORE, version=2)
