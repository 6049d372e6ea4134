"""The grammar of keys: one normaliser, and no way out of it."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deltastore.errors import BadKey
from deltastore.protocol import keys
from deltastore.protocol.limits import KEY_BYTES, MAX_INT

SHA = "0123456789abcdef" * 4
HOSTILE = [
    "",
    "/",
    "/a",
    "a/",
    "a//b",
    ".",
    "..",
    "a/../b",
    "a/./b",
    ".hidden",
    "a/.b",
    "A",
    "x/STORE.json",
    "STORE.json/x",
    "STORE.json ",
    "a b",
    "a\n",
    "a\x00b",
    "a\\b",
    "a%2fb",
    "é",
    "e\u0301",
    "٣",
    "a:b",
    "a?b",
    "~",
    "a/" * 256 + "a",
]


@pytest.mark.req("DS-KEY-1")
@pytest.mark.parametrize("key", HOSTILE)
def test_foreign_keys_are_refused(key: str) -> None:
    with pytest.raises(BadKey):
        keys.check(key)


@pytest.mark.req("DS-KEY-1")
@pytest.mark.parametrize(
    "key", ["STORE.json", "head", "a", "-", "_", "a.b", "a..", "x/y/z", "0/1", "a" * KEY_BYTES]
)
def test_keys_of_the_grammar_pass_unchanged(key: str) -> None:
    assert keys.check(key) == key


@pytest.mark.req("DS-KEY-1", "DS-LIMIT-1")
def test_a_key_has_at_most_512_bytes() -> None:
    assert keys.check("a" * 512)
    with pytest.raises(BadKey):
        keys.check("a" * 513)


@pytest.mark.req("DS-KEY-1")
@settings(max_examples=300, deadline=None)
@given(st.one_of(st.text(max_size=20), st.text(alphabet="ab.-_/A\n\u00e9", max_size=12)))
def test_the_grammar_is_what_the_spec_says(text: str) -> None:
    allowed = text == "STORE.json" or re.fullmatch(
        r"[a-z0-9_-][a-z0-9._-]*(/[a-z0-9_-][a-z0-9._-]*)*", text, re.ASCII
    )
    if allowed:
        assert keys.check(text) == text
        assert keys.check_prefix(text + "/") == text + "/"
    else:
        with pytest.raises(BadKey):
            keys.check(text)
        with pytest.raises(BadKey):
            keys.check_prefix(text + "/")


@pytest.mark.req("DS-KEY-1")
def test_a_prefix_is_empty_or_ends_with_a_slash() -> None:
    assert keys.check_prefix("") == ""
    for prefix in ("a", "/", "../", "a//"):
        with pytest.raises(BadKey):
            keys.check_prefix(prefix)


@pytest.mark.req("DS-KEY-2")
@given(st.integers(0, MAX_INT))
def test_a_version_has_twenty_digits_and_sorts_as_numbers_do(number: int) -> None:
    key = keys.version(number)
    assert key == "versions/" + str(number).zfill(20)
    assert keys.parse_version(key) == number
    assert number == 0 or keys.version(number - 1) < key


@pytest.mark.req("DS-KEY-2")
@pytest.mark.parametrize(
    "key",
    [
        "versions/1",
        "versions/" + "1" * 21,
        "versions/-0000000000000000001",
        "versions/" + "9" * 20,
        "versions/" + "0" * 19 + "٣",
        "versions/" + "0" * 20 + "\n",
        "0" * 20,
        "x/versions/" + "0" * 20,
        "versions/" + "0" * 20 + "/a",
    ],
)
def test_other_keys_are_no_versions(key: str) -> None:
    with pytest.raises(BadKey):
        keys.parse_version(key)


@pytest.mark.req("DS-KEY-2")
@pytest.mark.parametrize("number", [-1, MAX_INT + 1])
def test_numbers_out_of_range_have_no_key(number: int) -> None:
    with pytest.raises(BadKey):
        keys.version(number)


@pytest.mark.req("DS-KEY-3")
def test_the_key_of_an_edge_says_target_base_and_hash() -> None:
    assert keys.edge(7, "none", SHA) == f"edges/{7:020d}/anchor-{SHA}"
    assert keys.edge(7, "external", SHA) == f"edges/{7:020d}/external-{SHA}"
    assert keys.edge(7, 3, SHA) == f"edges/{7:020d}/{3:020d}-{SHA}"
    assert keys.edges_of(7) == f"edges/{7:020d}/"
    bases: list[keys.Base] = ["none", "external", 3]
    for base in bases:
        assert keys.parse_edge(keys.edge(7, base, SHA)) == (7, base, SHA)


@pytest.mark.req("DS-KEY-3")
@pytest.mark.parametrize(
    "name",
    [
        f"{7:020d}-{SHA}",
        f"{8:020d}-{SHA}",
        f"3-{SHA}",
        f"none-{SHA}",
        f"Anchor-{SHA}",
        f"anchor-{SHA[:-1]}",
        f"anchor-{SHA.upper()}",
        f"anchor-{SHA}\n",
        f"anchor{SHA}",
        f"-{SHA}",
        f"anchor-{SHA}/x",
        "garbage",
        "",
    ],
)
def test_other_names_are_no_edges(name: str) -> None:
    with pytest.raises(BadKey):
        keys.parse_edge(f"edges/{7:020d}/{name}")


@pytest.mark.req("DS-KEY-3")
@pytest.mark.parametrize(
    "sha256", ["", "../" + SHA, SHA[:-1], SHA + "0", SHA.upper(), SHA[:-1] + "g", SHA + "\n"]
)
def test_only_a_sha256_names_an_object_or_an_edge(sha256: str) -> None:
    with pytest.raises(BadKey):
        keys.object_(sha256)
    with pytest.raises(BadKey):
        keys.edge(1, "none", sha256)


@pytest.mark.req("DS-KEY-4")
@given(st.binary(min_size=32, max_size=32))
def test_the_key_of_an_object_is_its_hash(raw: bytes) -> None:
    assert keys.object_(raw.hex()) == f"objects/{raw.hex()[:2]}/{raw.hex()}"


@pytest.mark.req("DS-KEY-1")
@given(st.text(max_size=30))
def test_a_holder_cannot_write_outside_status(holder: str) -> None:
    try:
        key = keys.status(holder)
    except BadKey:
        return
    assert key == f"status/{holder}"
    assert ".." not in key.split("/")
