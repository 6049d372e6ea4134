"""The probe of a backend: sound ones pass, and each broken promise is found by its own check."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from deltastore.backends import Backend, Buffer, LocalBackend, MemoryBackend, ObjectInfo, Put
from deltastore.backends.base import Capabilities
from deltastore.backends.probe import ProbeReport, Verdict, probe
from deltastore.backends.retry import RetryPolicy
from deltastore.errors import AuthError, NotFound, Unavailable
from deltastore.protocol import keys
from deltastore.runtime import Runtime
from deltastore.testing import Fault, FaultBackend

CHECKS = ["conditional create", "read after write", "listing", "ranged get", "size limit", "clock", "delete"]


def failed(report: ProbeReport) -> list[str]:
    return [finding.name for finding in report.findings if finding.verdict is Verdict.FAIL]


def warned(report: ProbeReport) -> list[str]:
    return [finding.name for finding in report.findings if finding.verdict is Verdict.WARN]


@pytest.fixture(params=["local", "memory"])
def sound(request: pytest.FixtureRequest, tmp_path: Path) -> Backend:
    return LocalBackend(tmp_path / "store") if request.param == "local" else MemoryBackend()


def test_a_sound_backend_passes_every_check(sound: Backend) -> None:
    report = probe(sound)
    assert [(f.name, f.verdict) for f in report.findings] == [(name, Verdict.PASS) for name in CHECKS]
    assert report.sound
    assert report.url == sound.url


def test_nothing_is_left_behind(sound: Backend) -> None:
    sound.put("status/producer-1", b"{}")
    probe(sound)
    assert [info.key for info in sound.list()] == ["status/producer-1"]


def test_objects_of_others_are_neither_touched_nor_in_the_way(sound: Backend) -> None:
    names = ["status/a", "status/probe-", "status/probe-zz", "status/z"]
    for name in names:
        sound.put(name, b"other")
    assert probe(sound).sound
    assert [info.key for info in sound.list()] == names
    assert all(sound.get(name, max_size=9) == b"other" for name in names)


def test_two_probes_at_once_do_not_disturb_each_other() -> None:
    shared = MemoryBackend()
    inner: list[ProbeReport] = []

    def meanwhile(operation: object) -> None:
        if not inner:
            inner.append(probe(shared))

    assert probe(FaultBackend(shared, meanwhile)).sound
    assert inner[0].sound


# --- Broken promises ------------------------------------------------------------------------------------


class Broken(FaultBackend):
    """A sound backend that the tests below break in one place each."""

    def __init__(self, **declared: bool) -> None:
        self.inner = MemoryBackend()
        super().__init__(self.inner)
        self._declared = declared

    @property
    def capabilities(self) -> Capabilities:
        whole = {"put_if_absent": True, "strong_list": True, "ranged_get": True, "server_time": True}
        return Capabilities(**{**whole, **self._declared})


class Overwrites(Broken):
    def put_if_absent(self, key: str, data: Buffer) -> Put:
        self.inner.put(key, data)
        return Put.CREATED


class OverwritesSilently(Broken):
    def put_if_absent(self, key: str, data: Buffer) -> Put:
        outcome = self.inner.put_if_absent(key, data)
        self.inner.put(key, data)
        return outcome


class NeverCreates(Broken):
    def put_if_absent(self, key: str, data: Buffer) -> Put:
        return Put.EXISTS


class CachesAbsence(Broken):
    def __init__(self) -> None:
        super().__init__()
        self.absent: set[str] = set()

    def get(self, key: str, *, max_size: int, start: int = 0, stop: int | None = None) -> bytes:
        if key in self.absent:
            raise NotFound("cached")
        try:
            return super().get(key, max_size=max_size, start=start, stop=stop)
        except NotFound:
            self.absent.add(key)
            raise


class Stale(Broken):
    def put(self, key: str, data: Buffer) -> None:
        self.inner.put_if_absent(key, data)


class MissesOne(Broken):
    def list(self, prefix: str = "", *, start_after: str = "") -> Iterator[ObjectInfo]:
        found = list(self.inner.list(prefix, start_after=start_after))
        return iter(found[:-1])


class IgnoresStart(Broken):
    def list(self, prefix: str = "", *, start_after: str = "") -> Iterator[ObjectInfo]:
        return self.inner.list(prefix)


class Unordered(Broken):
    def list(self, prefix: str = "", *, start_after: str = "") -> Iterator[ObjectInfo]:
        return iter(list(self.inner.list(prefix, start_after=start_after))[::-1])


class IgnoresRange(Broken):
    def get(self, key: str, *, max_size: int, start: int = 0, stop: int | None = None) -> bytes:
        return self.inner.get(key, max_size=4096)


class IgnoresLimit(Broken):
    def get(self, key: str, *, max_size: int, start: int = 0, stop: int | None = None) -> bytes:
        return self.inner.get(key, max_size=4096, start=start, stop=stop)


class KeepsDeleted(Broken):
    def delete(self, keys: object) -> None:
        """Says that it did."""


@pytest.mark.parametrize(
    ("broken", "check"),
    [
        (Overwrites, "conditional create"),
        (OverwritesSilently, "conditional create"),
        (NeverCreates, "conditional create"),
        (CachesAbsence, "read after write"),
        (Stale, "read after write"),
        (MissesOne, "listing"),
        (IgnoresStart, "listing"),
        (Unordered, "listing"),
        (IgnoresRange, "ranged get"),
        (IgnoresLimit, "size limit"),
        (KeepsDeleted, "delete"),
    ],
)
def test_a_broken_promise_is_found(broken: Callable[[], Broken], check: str) -> None:
    backend = broken()
    backend.inner.put("status/a", b"of somebody else")
    report = probe(backend)
    assert check in failed(report)
    assert not report.sound
    assert not any(finding.unreachable for finding in report.findings)


def test_a_probe_goes_on_after_a_check_has_failed() -> None:
    assert [finding.name for finding in probe(Overwrites()).findings] == CHECKS
    assert failed(probe(Overwrites())) == ["conditional create"]


def test_what_is_not_declared_is_only_warned_about() -> None:
    assert warned(probe(MemoryBackend(conditional=False))) == ["conditional create"]
    assert probe(MemoryBackend(conditional=False)).sound
    assert warned(probe(MissesOne(strong_list=False))) == ["listing"]
    assert warned(probe(Broken(server_time=False))) == ["clock"]


def test_reading_a_part_by_reading_all_is_said() -> None:
    details = {finding.name: finding.detail for finding in probe(Broken(ranged_get=False)).findings}
    assert "by reading all" in details["ranged get"]


def test_a_conditional_create_that_is_declared_and_missing_fails() -> None:
    class Claims(Broken):
        def __init__(self) -> None:
            super().__init__()
            self.inner = MemoryBackend(conditional=False)
            self._inner = self.inner

    assert failed(probe(Claims()))[0] == "conditional create"


@pytest.mark.parametrize(
    ("offset", "verdict"), [(0, Verdict.PASS), (20, Verdict.PASS), (90, Verdict.WARN), (-90, Verdict.WARN)]
)
def test_the_clock_of_the_store_is_compared_with_ours(offset: float, verdict: Verdict) -> None:
    backend = MemoryBackend(clock=lambda: 1000.0 + offset)
    (found,) = [f for f in probe(backend, runtime=Runtime(now=lambda: 1000.0)).findings if f.name == "clock"]
    assert found.verdict is verdict
    if verdict is Verdict.WARN:
        assert "90.0 s" in found.detail
        assert ("ahead" if offset > 0 else "behind") in found.detail


def test_storage_that_is_away_is_asked_once_and_no_more() -> None:
    away = FaultBackend(MemoryBackend(), lambda _: Fault(before=AuthError("the token has expired")))
    report = probe(away)
    (finding,) = report.findings
    assert (finding.verdict, finding.unreachable) == (Verdict.FAIL, True)
    assert "the token has expired" in finding.detail


def test_a_passing_trouble_is_no_finding() -> None:
    left = [2]

    def hiccup(operation: object) -> Fault | None:
        name = getattr(operation, "name", "")
        if name == "get" and left[0]:
            left[0] -= 1
            return Fault(before=Unavailable("a hiccup"))
        return None

    quick = Runtime(sleep=lambda _: None)
    assert probe(FaultBackend(MemoryBackend(), hiccup), runtime=quick, retry=RetryPolicy(deadline=60)).sound
    assert left == [0]


def test_names_of_probes_are_keys() -> None:
    asked = FaultBackend(MemoryBackend())
    probe(asked)
    used = {operation.key for operation in asked.operations if operation.name != "list"}
    assert len(used) == 2
    assert all(keys.check(key).startswith("status/probe-") for key in used)
