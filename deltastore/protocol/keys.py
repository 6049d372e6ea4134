"""Keys of the objects in a store (spec, Keys): one grammar, one normaliser, constructors and parsers."""

from __future__ import annotations

import re
from typing import Final, Literal

from deltastore.errors import BadKey
from deltastore.protocol.limits import KEY_BYTES, MAX_INT

STORE: Final = "STORE.json"
HEAD: Final = "head"
VERSIONS: Final = "versions/"
EDGES: Final = "edges/"
OBJECTS: Final = "objects/"
STATUS: Final = "status/"

Base = int | Literal["none", "external"]
"""Where an edge starts: a version, nothing (an anchor), or the external base."""

_SEGMENT: Final = re.compile(r"[a-z0-9_-][a-z0-9._-]*")
_DIGITS: Final = re.compile(r"[0-9]{20}")
_SHA256: Final = re.compile(r"[0-9a-f]{64}")


def check(key: str) -> str:
    """Returns `key` if the grammar allows it (DS-KEY-1).

    Raises:
        BadKey: An empty, relative, absolute or overlong key, or one with a foreign character.
    """
    if key == STORE:
        return key
    if len(key) <= KEY_BYTES and all(_SEGMENT.fullmatch(part) for part in key.split("/")):
        return key
    raise BadKey(
        f"{key[:80]!r} is not a key",
        hint=f"Segments of [a-z0-9._-], not starting with a dot, at most {KEY_BYTES} bytes",
        key=key[:80],
    )


def check_prefix(prefix: str) -> str:
    """Returns `prefix` if it is empty or a key followed by a slash (DS-KEY-1)."""
    if prefix:
        if not prefix.endswith("/"):
            raise BadKey(f"{prefix[:80]!r} is not a prefix", hint="A prefix ends with a slash")
        check(prefix[:-1])
    return prefix


def version(number: int) -> str:
    """Key of the record of a version (DS-KEY-2)."""
    return f"{VERSIONS}{_number(number)}"


def edge(target: int, base: Base, sha256: str) -> str:
    """Key of an edge record (DS-KEY-3)."""
    match base:
        case "none":
            origin = "anchor"
        case "external":
            origin = base
        case _:
            origin = _number(base)
    return f"{EDGES}{_number(target)}/{origin}-{_sha256(sha256)}"


def edges_of(target: int) -> str:
    """Prefix of the edge records that lead to a version."""
    return f"{EDGES}{_number(target)}/"


def object_(sha256: str) -> str:
    """Key of a content-addressed object (DS-KEY-4)."""
    return f"{OBJECTS}{_sha256(sha256)[:2]}/{sha256}"


def status(holder: str) -> str:
    """Key of what a producer or consumer says of itself."""
    return check(f"{STATUS}{holder}")


def parse_version(key: str) -> int:
    """The number in the key of a version record.

    Raises:
        BadKey: Any other key.
    """
    digits = key.removeprefix(VERSIONS)
    if key.startswith(VERSIONS) and _DIGITS.fullmatch(digits) and int(digits) <= MAX_INT:
        return int(digits)
    raise BadKey(f"{key[:80]!r} is not the key of a version record", key=key[:80])


def parse_edge(key: str) -> tuple[int, Base, str]:
    """Target, base and SHA-256 in the key of an edge record.

    Raises:
        BadKey: Any other key.
    """
    match key.split("/"):
        case ["edges", target, name] if _DIGITS.fullmatch(target):
            origin, _, sha256 = name.partition("-")
            if _SHA256.fullmatch(sha256) and int(target) <= MAX_INT:
                if origin == "anchor":
                    return int(target), "none", sha256
                if origin == "external":
                    return int(target), "external", sha256
                if _DIGITS.fullmatch(origin) and int(origin) < int(target):
                    return int(target), int(origin), sha256
    raise BadKey(f"{key[:80]!r} is not the key of an edge record", key=key[:80])


def _number(value: int) -> str:
    if not 0 <= value <= MAX_INT:
        raise BadKey(f"{value} is not a version number", hint=f"0 to {MAX_INT}")
    return f"{value:020d}"


def _sha256(value: str) -> str:
    if not _SHA256.fullmatch(value):
        raise BadKey(f"{value[:80]!r} is not a SHA-256 in lower-case hexadecimal")
    return value
