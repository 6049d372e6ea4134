from __future__ import annotations

import pytest

from deltastore.backends import Backend, MemoryBackend, Put
from deltastore.errors import BadKey, NotFound, Unavailable
from deltastore.testing import CrashNow, Fault, FaultBackend, Operation, flip_bit, truncate

BIG = 1 << 20
LOST = Fault(after=Unavailable("reply lost"))
DOWN = Fault(before=Unavailable("down"))


def test_without_a_plan_it_is_the_backend_itself() -> None:
    inner = MemoryBackend("faults-without-a-plan", conditional=False)
    backend: Backend = FaultBackend(inner)
    assert backend.url == inner.url
    assert backend.capabilities == inner.capabilities
    backend.put("a", b"12")
    assert backend.get("a", max_size=BIG, start=1, stop=2) == b"2"
    assert [info.key for info in backend.list(start_after="0")] == ["a"]
    backend.close()


def test_operations_are_recorded_in_order() -> None:
    backend = FaultBackend(MemoryBackend())
    backend.put("a", b"")
    backend.put_if_absent("b", b"")
    backend.get("a", max_size=BIG)
    backend.head("a")
    listing = backend.list("x/")
    backend.delete(["a", "b"])
    list(listing)
    assert backend.operations == (
        Operation("put", "a", 0),
        Operation("put_if_absent", "b", 1),
        Operation("get", "a", 2),
        Operation("head", "a", 3),
        Operation("delete", "a", 4),
        Operation("delete", "b", 5),
        Operation("list", "x/", 6),
    )


def test_failure_before_leaves_things_as_they_were() -> None:
    inner = MemoryBackend()
    backend = FaultBackend(inner, lambda _: DOWN)
    with pytest.raises(Unavailable, match="down"):
        backend.put("a", b"")
    with pytest.raises(Unavailable, match="down"):
        backend.put_if_absent("a", b"")
    assert inner.snapshot() == {}
    inner.put("a", b"")
    with pytest.raises(Unavailable, match="down"):
        backend.delete(["a"])
    assert inner.head("a").size == 0


def test_lost_reply_leaves_the_effect() -> None:
    inner = MemoryBackend()
    backend = FaultBackend(inner, lambda op: LOST if op.index < 2 else None)
    with pytest.raises(Unavailable, match="reply lost"):
        backend.put_if_absent("a", b"1")
    with pytest.raises(Unavailable, match="reply lost"):
        backend.put("b", b"2")
    assert backend.put_if_absent("a", b"1") is Put.EXISTS
    assert inner.get("b", max_size=BIG) == b"2"


def test_errors_of_the_backend_go_before_a_lost_reply() -> None:
    backend = FaultBackend(MemoryBackend(), lambda _: LOST)
    with pytest.raises(NotFound):
        backend.get("nothing", max_size=BIG)


def test_delete_can_stop_in_the_middle() -> None:
    inner = MemoryBackend()
    for key in "abc":
        inner.put(key, b"")
    backend = FaultBackend(inner, lambda op: DOWN if op.key == "b" else None)
    with pytest.raises(Unavailable):
        backend.delete(["a", "b", "c"])
    assert sorted(inner.snapshot()) == ["b", "c"]


def test_listing_fails_where_it_would_have_ended() -> None:
    inner = MemoryBackend()
    inner.put("a", b"")
    listing = FaultBackend(inner, lambda _: LOST).list()
    assert next(listing).key == "a"
    with pytest.raises(Unavailable):
        next(listing)


def test_listing_checks_its_arguments_at_once() -> None:
    with pytest.raises(BadKey):
        FaultBackend(MemoryBackend()).list("../")


def test_bytes_are_altered_on_the_way() -> None:
    inner = MemoryBackend()
    inner.put("a", b"\x00\x00\x00")
    flipped = FaultBackend(inner, lambda _: Fault(alter=flip_bit(9)))
    assert flipped.get("a", max_size=BIG) == b"\x00\x02\x00"
    short = FaultBackend(inner, lambda _: Fault(alter=truncate(2)))
    assert short.get("a", max_size=BIG) == b"\x00\x00"
    assert inner.get("a", max_size=BIG) == b"\x00\x00\x00"
    assert flip_bit(3)(b"") == b""


def test_no_handler_of_errors_survives_a_crash() -> None:
    backend = FaultBackend(MemoryBackend(), lambda _: Fault(before=CrashNow()))

    def robust() -> None:
        try:
            backend.put("a", b"")
        except Exception:  # noqa: BLE001
            pytest.fail("it outlived its death")

    with pytest.raises(CrashNow):
        robust()
