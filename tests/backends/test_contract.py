"""What every backend must do: one suite, run on each by a subclass that gives it `backend` and `other`."""

from __future__ import annotations

import os
import threading
import time
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from deltastore.backends import Backend, Buffer, LocalBackend, MemoryBackend, ObjectInfo, Put
from deltastore.errors import BadKey, LimitExceeded, NotFound, UsageError

SMALL = 1 << 20
BAD_KEYS = ["", "/", "/a", "a/", "a//b", "..", "a/../b", ".hidden", "a/.tmp-1", "A", "a b", "a\\b", "é"]
BAD_PREFIXES = ["a", "/", "../", "a//", ".a/", "A/"]

# Characters on both sides of "/" in ASCII, where a walk by directory and a sort by key fall apart.
segments = st.text("-.0_az", min_size=1, max_size=3).filter(lambda text: not text.startswith("."))
names = st.lists(segments, min_size=1, max_size=4).map("/".join)
# One test serves several subclasses, and its examples share a backend: both are meant.
relaxed = settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[
        HealthCheck.function_scoped_fixture,
        HealthCheck.differing_executors,
    ],
)


def without_directories(keys: set[str]) -> set[str]:
    """The keys that are not also the directory of another one."""
    return {key for key in keys if not any(other.startswith(f"{key}/") for other in keys)}


def keys_of(listing: list[ObjectInfo]) -> list[str]:
    return [info.key for info in listing]


class BackendContract:
    """Subclass it, override both fixtures, and every test here runs on your backend."""

    @pytest.fixture
    def backend(self, tmp_path: Path) -> Backend:
        """An empty backend."""
        raise NotImplementedError

    @pytest.fixture
    def other(self, backend: Backend) -> Backend:
        """A second handle on the same objects."""
        raise NotImplementedError

    # --- put and get

    @pytest.mark.parametrize(
        "data",
        [
            b"",
            b"bytes",
            bytearray(b"bytearray"),
            memoryview(b"view")[1:3],
            memoryview(b"strided")[::2],
            memoryview(bytearray(24)).cast("d"),
            memoryview(bytearray(range(12))).cast("B", (3, 4)),
            memoryview(b""),
        ],
        ids=["empty", "bytes", "bytearray", "part", "strided", "doubles", "matrix", "nothing"],
    )
    def test_what_was_put_is_got(self, backend: Backend, data: Buffer) -> None:
        backend.put("objects/aa/x", data)
        assert backend.put_if_absent("versions/0", data) is Put.CREATED
        expected = data.tobytes() if isinstance(data, memoryview) else bytes(data)
        assert backend.get("objects/aa/x", max_size=SMALL) == expected
        assert backend.get("versions/0", max_size=SMALL) == expected

    def test_later_changes_of_the_buffer_do_not_reach_the_store(self, backend: Backend) -> None:
        data = bytearray(b"before")
        backend.put("a", data)
        data[:] = b"after!"
        assert backend.get("a", max_size=SMALL) == b"before"

    def test_put_replaces(self, backend: Backend) -> None:
        backend.put("head", b"a long first value")
        backend.put("head", b"second")
        assert backend.get("head", max_size=SMALL) == b"second"
        assert backend.head("head").size == 6

    def test_missing_object_is_not_found(self, backend: Backend) -> None:
        backend.put("a/b", b"x")
        for key in ["nothing", "a/nothing", "deep/er/nothing", "STORE.json"]:
            with pytest.raises(NotFound, match=key):
                backend.get(key, max_size=SMALL)
            with pytest.raises(NotFound, match=key):
                backend.head(key)

    @pytest.mark.req("DS-BACK-3")
    def test_another_handle_sees_every_change_at_once(self, backend: Backend, other: Backend) -> None:
        for value in [b"1", b"22", b"333"]:
            backend.put("a/b", value)
            assert other.get("a/b", max_size=SMALL) == value
            assert [info.size for info in other.list("a/")] == [len(value)]
        backend.delete(["a/b"])
        with pytest.raises(NotFound):
            other.get("a/b", max_size=SMALL)
        assert list(other.list()) == []

    # --- ranges and limits

    @relaxed
    @given(data=st.binary(max_size=40), start=st.integers(0, 50), length=st.integers(0, 50))
    def test_range_is_what_a_slice_is(self, backend: Backend, data: bytes, start: int, length: int) -> None:
        backend.put("a", data)
        stop = start + length
        assert backend.get("a", max_size=SMALL, start=start, stop=stop) == data[start:stop]
        assert backend.get("a", max_size=SMALL, start=start) == data[start:]

    @pytest.mark.parametrize(("start", "stop"), [(-1, None), (0, -1), (3, 2)])
    def test_impossible_range_is_refused(self, backend: Backend, start: int, stop: int | None) -> None:
        backend.put("a", b"data")
        with pytest.raises(UsageError, match="range"):
            backend.get("a", max_size=SMALL, start=start, stop=stop)

    def test_limit_holds_for_what_is_asked(self, backend: Backend) -> None:
        backend.put("a", bytes(100))
        assert len(backend.get("a", max_size=100)) == 100
        assert len(backend.get("a", max_size=10, start=90, stop=500)) == 10
        assert backend.get("a", max_size=0, start=7, stop=7) == b""
        with pytest.raises(LimitExceeded, match=r"\ba holds 100 .* 99\b"):
            backend.get("a", max_size=99)
        with pytest.raises(LimitExceeded):
            backend.get("a", max_size=10, start=89)

    # --- conditional put

    @pytest.mark.req("DS-BACK-1")
    def test_first_conditional_put_wins(self, backend: Backend, other: Backend) -> None:
        assert backend.put_if_absent("versions/0", b"first") is Put.CREATED
        assert other.put_if_absent("versions/0", b"second") is Put.EXISTS
        assert backend.put_if_absent("versions/0", b"first") is Put.EXISTS
        assert other.get("versions/0", max_size=SMALL) == b"first"

    @pytest.mark.req("DS-BACK-1")
    def test_conditional_put_respects_a_plain_one(self, backend: Backend) -> None:
        backend.put("a", b"plain")
        assert backend.put_if_absent("a", b"conditional") is Put.EXISTS
        assert backend.get("a", max_size=SMALL) == b"plain"

    def test_conditional_put_after_a_delete_creates(self, backend: Backend) -> None:
        backend.put_if_absent("a", b"1")
        backend.delete(["a"])
        assert backend.put_if_absent("a", b"2") is Put.CREATED

    @pytest.mark.req("DS-BACK-1")
    def test_one_of_racing_threads_creates(self, backend: Backend, other: Backend) -> None:
        threads, rounds = 8, 60
        start = threading.Barrier(threads)

        def contend(me: int) -> list[Put]:
            outcomes = []
            for turn in range(rounds):
                start.wait(30)
                handle = backend if me % 2 else other
                outcomes.append(handle.put_if_absent(f"race/{turn}", bytes([me]) * 500))
            return outcomes

        with ThreadPoolExecutor(threads) as pool:
            results = list(pool.map(contend, range(threads)))
        for turn in range(rounds):
            winners = [me for me in range(threads) if results[me][turn] is Put.CREATED]
            assert len(winners) == 1
            assert backend.get(f"race/{turn}", max_size=SMALL) == bytes(winners) * 500

    # --- concurrency of readers and writers

    @pytest.mark.req("DS-BACK-2")
    def test_readers_never_see_a_torn_object(self, backend: Backend, other: Backend) -> None:
        size, readers, replacements = 1 << 20, 3, 20
        backend.put("big", bytes(size))
        deadline = time.monotonic() + 60

        def read() -> int:
            """Reads till it has seen so many replacements, or it is too late."""
            seen = {0}
            while len(seen) <= replacements and time.monotonic() < deadline:
                data = other.get("big", max_size=size)
                assert len(data) == size
                assert data == data[:1] * size
                seen.add(data[0])
            return len(seen) - 1

        with ThreadPoolExecutor(readers) as pool:
            running = [pool.submit(read) for _ in range(readers)]
            turn = 0
            while not all(reader.done() for reader in running):
                turn += 1
                backend.put("big", bytes([turn % 256]) * size)
            assert [reader.result() for reader in running] == [replacements] * readers

    def test_listing_misses_nothing_while_objects_are_replaced(
        self, backend: Backend, other: Backend
    ) -> None:
        expected = [f"versions/{number:03d}" for number in range(200)]
        for key in expected:
            backend.put(key, b"record")
        done = threading.Event()

        def replace() -> None:
            while not done.is_set():
                for key in expected[::7]:
                    backend.put(key, b"tombstone")

        with ThreadPoolExecutor(1) as pool:
            writer = pool.submit(replace)
            try:
                until = time.monotonic() + 0.5
                while time.monotonic() < until:
                    assert keys_of(list(other.list("versions/"))) == expected
            finally:
                done.set()
            writer.result()

    # --- head

    def test_head_tells_size_and_time(self, backend: Backend) -> None:
        backend.put("a/b", b"12345")
        first = backend.head("a/b")
        assert (first.key, first.size) == ("a/b", 5)
        assert abs(first.modified - time.time()) < 60
        time.sleep(1.1)  # HTTP tells times in whole seconds
        backend.put("a/b", b"1234567")
        second = backend.head("a/b")
        assert second.size == 7
        assert second.modified > first.modified
        (listed,) = backend.list()
        assert (listed.key, listed.size) == (second.key, second.size)
        assert abs(listed.modified - second.modified) < 1

    # --- list

    def test_empty_backend_lists_nothing(self, backend: Backend) -> None:
        assert list(backend.list()) == []
        assert list(backend.list("versions/")) == []

    def test_prefix_is_a_directory_and_not_a_beginning(self, backend: Backend) -> None:
        for key in ["a/b/c", "a/b-c", "a/bc/d", "ab/c"]:
            backend.put(key, b"")
        assert keys_of(list(backend.list("a/b/"))) == ["a/b/c"]
        assert keys_of(list(backend.list("a/"))) == ["a/b-c", "a/b/c", "a/bc/d"]
        assert list(backend.list("a/b/c/")) == []

    @pytest.mark.req("DS-BACK-4")
    @relaxed
    @given(
        stored=st.dictionaries(names, st.binary(max_size=4), max_size=12),
        prefix=st.one_of(st.just(""), names.map(lambda name: f"{name}/")),
        start_after=st.one_of(st.just(""), names, names.map(lambda name: f"{name}/")),
        data=st.data(),
    )
    def test_listing_is_that_of_a_sorted_dict(
        self,
        backend: Backend,
        stored: dict[str, bytes],
        prefix: str,
        start_after: str,
        data: st.DataObject,
    ) -> None:
        backend.delete(keys_of(list(backend.list())))
        model = {key: stored[key] for key in without_directories(set(stored))}
        if model:  # often enough something that is there, and a directory of it
            start_after = data.draw(st.one_of(st.just(start_after), st.sampled_from(sorted(model))))
            within = {key.rpartition("/")[0] for key in model} - {""}
            prefix = data.draw(st.sampled_from([prefix, "", *sorted(f"{name}/" for name in within)]))
        # A segment that is a file in one example and a directory in the next is no business of a store.
        root = f"x/{zlib.crc32(' '.join(sorted(model)).encode())}/"
        for key, value in model.items():
            backend.put(root + key, value)
        listed = list(backend.list(root + prefix, start_after=root + start_after))
        expected = sorted(k for k in model if k.startswith(prefix) and k > start_after)
        assert [(info.key, info.size) for info in listed] == [
            (root + key, len(model[key])) for key in expected
        ]

    @pytest.mark.req("DS-BACK-4")
    def test_listing_goes_on_over_many_pages(self, backend: Backend) -> None:
        expected = [f"objects/{number % 7}/{number:04d}" for number in range(1100)]
        for key in expected:
            backend.put(key, b"")
        assert keys_of(list(backend.list())) == sorted(expected)
        half = sorted(expected)[550]
        assert keys_of(list(backend.list("objects/", start_after=half))) == sorted(expected)[551:]

    def test_objects_may_be_deleted_while_they_are_listed(self, backend: Backend) -> None:
        expected = [f"a/{number}/{part}" for number in range(5) for part in "xyz"]
        for key in expected:
            backend.put(key, b"")
        seen = []
        for info in backend.list():
            seen.append(info.key)
            backend.delete([info.key])
        assert seen == expected
        assert list(backend.list()) == []

    # --- delete

    def test_delete_takes_what_is_there(self, backend: Backend) -> None:
        for key in ["a/1", "a/2", "b"]:
            backend.put(key, b"")
        backend.delete(iter(["a/1", "nothing", "a/nothing/more", "b", "b"]))
        assert keys_of(list(backend.list())) == ["a/2"]
        backend.delete([])

    def test_delete_checks_all_keys_first(self, backend: Backend) -> None:
        backend.put("a", b"")
        with pytest.raises(BadKey):
            backend.delete(["a", "../b"])
        assert keys_of(list(backend.list())) == ["a"]

    def test_delete_refuses_a_text_in_place_of_a_list(self, backend: Backend) -> None:
        backend.put("a", b"")
        with pytest.raises(UsageError, match="list of keys"):
            backend.delete("a")
        assert backend.head("a").size == 0

    # --- keys

    @pytest.mark.req("DS-KEY-1")
    @pytest.mark.parametrize("key", BAD_KEYS)
    def test_bad_key_is_refused_everywhere(self, backend: Backend, key: str) -> None:
        with pytest.raises(BadKey):
            backend.put(key, b"")
        with pytest.raises(BadKey):
            backend.put_if_absent(key, b"")
        with pytest.raises(BadKey):
            backend.get(key, max_size=SMALL)
        with pytest.raises(BadKey):
            backend.head(key)
        with pytest.raises(BadKey):
            backend.delete([key])
        assert list(backend.list()) == []

    @pytest.mark.req("DS-KEY-1")
    @pytest.mark.parametrize("prefix", BAD_PREFIXES)
    def test_bad_prefix_is_refused_before_the_first_step(self, backend: Backend, prefix: str) -> None:
        with pytest.raises(BadKey):
            backend.list(prefix)

    def test_bad_start_is_refused_before_the_first_step(self, backend: Backend) -> None:
        with pytest.raises(BadKey):
            backend.list(start_after="../a")

    # --- the rest

    def test_declares_what_it_can(self, backend: Backend) -> None:
        assert backend.capabilities.put_if_absent
        assert backend.capabilities.strong_list
        assert backend.capabilities.ranged_get
        assert backend.capabilities.server_time

    def test_close_may_be_called_twice(self, backend: Backend) -> None:
        backend.put("a", b"")
        backend.close()
        backend.close()


class TestMemoryContract(BackendContract):
    @pytest.fixture
    def backend(self, tmp_path: Path) -> Backend:
        return MemoryBackend(str(tmp_path))

    @pytest.fixture
    def other(self, backend: Backend, tmp_path: Path) -> Backend:
        return MemoryBackend(str(tmp_path))


class TestLocalContract(BackendContract):
    @pytest.fixture
    def backend(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Backend:
        # Syncs are slow and nothing here can see them; test_local.py looks at them.
        monkeypatch.setattr(os, "fsync", lambda _: None)
        return LocalBackend(tmp_path / "not" / "yet")

    @pytest.fixture
    def other(self, backend: Backend, tmp_path: Path) -> Backend:
        return LocalBackend(tmp_path / "not" / "yet")
