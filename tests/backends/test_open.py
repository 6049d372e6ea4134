from __future__ import annotations

from collections.abc import Mapping
from importlib import metadata
from pathlib import Path

import pytest

import deltastore.backends
from deltastore.backends import (
    GROUP,
    Backend,
    Driver,
    LocalBackend,
    MemoryBackend,
    open_backend,
)
from deltastore.errors import BadURL, UsageError


class Elsewhere:
    """A driver of another distribution, which keeps everything in memory."""

    @classmethod
    def from_url(cls, url: str, *, options: Mapping[str, str]) -> Backend:
        backend = MemoryBackend()
        backend.put("asked", f"{url} {dict(options)}".encode())
        return backend


driver: type[Driver] = Elsewhere


def install(monkeypatch: pytest.MonkeyPatch, scheme: str, value: str) -> None:
    """Makes an entry point the only one there is."""
    points = metadata.EntryPoints([metadata.EntryPoint(scheme, value, GROUP)])
    monkeypatch.setattr(deltastore.backends, "entry_points", points.select)


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("file:///srv/store", "/srv/store"),
        ("FILE:///srv/store/", "/srv/store"),
        ("file://localhost/srv/store", "/srv/store"),
        ("file:///srv/with%20space%23%3F%C3%A9", "/srv/with space#?é"),
        ("/srv/plain?#%20", "/srv/plain?#%20"),
    ],
)
def test_path_of_a_file_url(url: str, path: str) -> None:
    backend = open_backend(url)
    assert isinstance(backend, LocalBackend)
    assert backend.url == Path(path).as_uri()
    assert open_backend(backend.url).url == backend.url


def test_plain_path_may_be_relative_to_where_it_was_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    backend = open_backend("some/where")
    monkeypatch.chdir("/")
    backend.put("a", b"1")
    assert (tmp_path / "some/where/a").read_bytes() == b"1"


def test_opening_makes_nothing(tmp_path: Path) -> None:
    backend = open_backend(str(tmp_path / "new"))
    assert list(backend.list()) == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "url",
    [
        "",
        "file://relative/path",
        "file://",
        "file:relative",
        "file:/single",
        "file:///a?region=x",
        "file:///a#b",
        "file:///a%00b",
        "a\0b",
    ],
)
def test_bad_file_url_is_refused(url: str) -> None:
    with pytest.raises(BadURL):
        open_backend(url)


def test_memory_is_shared_by_name() -> None:
    open_backend("memory://opened").put("a", b"1")
    backend = open_backend("memory://opened", options={"conditional": "false"})
    assert backend.get("a", max_size=1) == b"1"
    assert not backend.capabilities.put_if_absent
    assert backend.url == "memory://opened"


def test_unknown_option_is_refused() -> None:
    with pytest.raises(UsageError, match="regoin"):
        open_backend("/srv/store", options={"regoin": "x"})


def test_other_schemes_come_from_entry_points(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, "elsewhere", f"{__name__}:Elsewhere")
    backend = open_backend("elsewhere://bucket/prefix", options={"region": "x"})
    assert backend.get("asked", max_size=99) == b"elsewhere://bucket/prefix {'region': 'x'}"


def test_a_driver_that_does_not_load_says_what_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, "s3", "a_module_that_is_not_installed:Driver")
    with pytest.raises(BadURL, match=r"s3://bucket/prefix.*a_module_that_is_not_installed"):
        open_backend("s3://bucket/prefix")


def test_unknown_scheme_names_those_known(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, "elsewhere", f"{__name__}:Elsewhere")
    with pytest.raises(BadURL, match=r"ftp://host.*elsewhere, file, memory"):
        open_backend("ftp://host/path")
