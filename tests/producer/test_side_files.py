"""Config, tokenizer and chat template: stored once, inherited, changed without a new schema."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest
from support import consumer, failing, new_store, producer, record, reopened, small, stepped

from deltastore import Store
from deltastore.backends.memory import MemoryBackend
from deltastore.errors import BadRecord, NotFound, UsageError
from deltastore.testing import FaultBackend


def content(store: Store, version: int) -> dict[str, bytes]:
    return {n: store.get_object(d.sha256, d.size) for n, d in record(store, version).files.items()}


def test_files_are_named_by_every_version(store: Store, tmp_path: Path) -> None:
    (tmp_path / "t").write_bytes(b"tokens")
    files = {"config.json": b"{}", "sub/tokenizer.json": tmp_path / "t"}
    with producer(store, files=files) as out:
        out.publish(small(), step=0)
        out.publish(small(1), step=1)
        out.reset(small(2), step=2)
    for version in (1, 2, 3):
        assert content(store, version) == {"config.json": b"{}", "sub/tokenizer.json": b"tokens"}


def test_files_are_inherited_and_changed(store: Store) -> None:
    with producer(store, files={"a": b"1", "b": b"2"}) as out:
        out.publish(small(), step=0)
    with producer(store) as out:
        out.publish(small(), step=1)
    assert content(store, 2) == content(store, 3) == {"a": b"1", "b": b"2"}
    with producer(store, files={"a": b"1", "c": b"3"}) as out:
        out.publish(small(), step=2)
    assert content(store, 5) == {"a": b"1", "c": b"3"}
    assert record(store, 5).schema == record(store, 1).schema
    with producer(store) as out:
        out.reset(small(), step=3)
    assert content(store, 7) == {"a": b"1", "c": b"3"}


@pytest.mark.req("DS-OBJ-1")
def test_what_a_live_record_names_is_not_stored_again() -> None:
    store = new_store()
    with producer(store, files={"a": b"1", "b": b"2"}) as out:
        out.publish(small(), step=0)
    backend = FaultBackend(store.access.backend)
    with producer(reopened(store, backend), files={"a": b"1", "b": b"other"}) as out:
        out.publish(stepped(small(), 1), step=1)

    def key(data: bytes) -> str:
        name = hashlib.sha256(data).hexdigest()
        return f"objects/{name[:2]}/{name}"

    stored = [op.key for op in backend.operations if op.name == "put"]
    assert key(b"1") not in stored
    assert key(b"other") in stored


def test_the_files_of_a_checkpoint_directory(store: Store, tmp_path: Path) -> None:
    for name in (
        "config.json",
        "chat_template.jinja",
        "model.safetensors",
        ".gitattributes",
        "deltastore.json",
    ):
        (tmp_path / name).write_text(name)
    with producer(store, files=tmp_path) as out:
        out.publish(small(), step=0)
    assert set(record(store, 1).files) == {"config.json", "chat_template.jinja"}


@pytest.mark.parametrize("name", ["../a", "/a", "a/../b", "", "a//b", "a\\b", "a\nb", ".", "x" * 1025])
def test_names_that_leave_the_directory_are_refused(store: Store, name: str) -> None:
    with pytest.raises(BadRecord, match="not a relative file name"):
        producer(store, files={name: b""})


@pytest.mark.req("DS-DIR-3")
@pytest.mark.parametrize(
    "name",
    [
        "model.safetensors",
        "x.safetensors",
        "Model.SafeTensors",
        "model.safetensors.index.json",
        "deltastore.json",
        "model.safetensors/x",
        "Model.safetensors.index.json/x",
        "deltastore.json/x",
    ],
)
def test_names_of_weights_are_refused(store: Store, name: str) -> None:
    with pytest.raises(UsageError, match="in the place of weights"):
        producer(store, files={name: b""})


@pytest.mark.parametrize("names", [("a", "a/b"), ("a/b/c", "a"), ("a/b", "a/b/c/d")])
def test_a_name_that_is_a_folder_too_is_refused(store: Store, names: tuple[str, str]) -> None:
    with pytest.raises(UsageError, match="cannot be the folder of"):
        producer(store, files=dict.fromkeys(names, b""))


@pytest.mark.parametrize("name", ["x" * 256, "a/" + "é" * 128 + "/b"])
def test_names_that_no_file_system_holds_are_refused(store: Store, name: str) -> None:
    with pytest.raises(UsageError, match="more than 255 bytes"):
        producer(store, files={name: b""})


def test_the_longest_names_and_folders_are_taken(store: Store, tmp_path: Path) -> None:
    files = {"x" * 255: b"1", "a/b": b"2", "a/bc": b"3", "sub/model.safetensors": b"4"}
    with producer(store, files=files) as out:
        out.publish(small(), step=0)
    assert content(store, 1) == files
    consumer(store, tmp_path / "model").update()
    assert all((tmp_path / "model" / name).read_bytes() == data for name, data in files.items())


def test_a_file_that_is_gone_is_named(store: Store, tmp_path: Path) -> None:
    files: dict[str, Any] = {"config.json": tmp_path / "gone"}
    with producer(store, files=files) as out:
        with pytest.raises(NotFound, match="gone"):
            out.publish(small(), step=0)
        (tmp_path / "gone").write_bytes(b"back")
        out.publish(small(), step=0)
    assert content(store, 1) == {"config.json": b"back"}


def test_files_whose_upload_failed_are_stored_at_the_next_try() -> None:
    from deltastore.errors import AuthError

    name = hashlib.sha256(b"{}").hexdigest()
    inner = MemoryBackend()
    new_store(inner)
    plan = failing("put", AuthError("no"), key=f"objects/{name[:2]}/{name}", times=1)
    store = Store.open(FaultBackend(inner, plan))
    with producer(store, files={"config.json": b"{}"}) as out:
        with pytest.raises(AuthError):
            out.publish(small(), step=0)
        out.publish(small(), step=0)
    assert content(store, 1) == {"config.json": b"{}"}
