from __future__ import annotations

import pickle

import pytest

from deltastore.backends import MemoryBackend, Put
from deltastore.errors import BadURL, NotFound, Unsupported, UsageError

BIG = 1 << 20


def test_one_name_is_one_set_of_objects() -> None:
    first = MemoryBackend.from_url("memory://shared-by-name", options={})
    first.put("a", b"1")
    first.close()
    assert MemoryBackend("shared-by-name").get("a", max_size=BIG) == b"1"
    with pytest.raises(NotFound):
        MemoryBackend("another-name").get("a", max_size=BIG)


def test_without_a_name_nothing_is_shared() -> None:
    first = MemoryBackend()
    first.put("a", b"1")
    assert list(MemoryBackend().list()) == []


def test_clock_stamps_what_is_written() -> None:
    now = 5.0
    backend = MemoryBackend(clock=lambda: now)
    backend.put("a", b"")
    now = 9.0
    assert backend.put_if_absent("a", b"") is Put.EXISTS
    assert backend.put_if_absent("b", b"") is Put.CREATED
    assert [info.modified for info in backend.list()] == [5.0, 9.0]


def test_without_conditional_puts_they_are_refused() -> None:
    backend = MemoryBackend(conditional=False)
    assert not backend.capabilities.put_if_absent
    with pytest.raises(Unsupported):
        backend.put_if_absent("a", b"")
    assert list(backend.list()) == []


def test_conditional_puts_are_switched_by_an_option() -> None:
    url = "memory://optional"
    off = MemoryBackend.from_url(url, options={"conditional": "false"})
    assert not off.capabilities.put_if_absent
    assert MemoryBackend.from_url(url, options={"conditional": "true"}).capabilities.put_if_absent
    with pytest.raises(UsageError, match="conditional=no"):
        MemoryBackend.from_url(url, options={"conditional": "no"})
    with pytest.raises(UsageError, match="condition: not an option"):
        MemoryBackend.from_url(url, options={"condition": "false"})


def test_snapshot_is_left_alone_and_restored_whole() -> None:
    backend = MemoryBackend(clock=lambda: 3.0)
    backend.put("a", b"1")
    snapshot = backend.snapshot()
    backend.put("a", b"2")
    backend.put("b", b"3")
    assert snapshot == {"a": (b"1", 3.0)}
    backend.restore(snapshot)
    assert backend.snapshot() == snapshot
    backend.delete(["a"])
    assert snapshot == {"a": (b"1", 3.0)}
    other = MemoryBackend()
    other.restore(snapshot)
    assert other.get("a", max_size=BIG) == b"1"


def test_listing_shows_one_moment() -> None:
    backend = MemoryBackend()
    backend.put("a", b"")
    backend.put("c", b"")
    listing = backend.list()
    assert next(listing).key == "a"
    backend.put("b", b"")
    assert [info.key for info in listing] == ["c"]


@pytest.mark.parametrize("url", ["memory://", "memory:", "file:///tmp"])
def test_url_without_a_name_is_refused(url: str) -> None:
    with pytest.raises(BadURL, match="memory://NAME"):
        MemoryBackend.from_url(url, options={})


def test_is_not_silently_empty_in_another_process() -> None:
    with pytest.raises(TypeError):
        pickle.dumps(MemoryBackend("pickled"))
