"""A checkpoint directory as a target: always complete, swapped by rename, mended after crashes."""

from __future__ import annotations

import errno
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from safetensors.torch import load_file
from support import State, all_bits, consumer, mixed, producer, record, shard_keys, small, stepped

from deltastore import Store
from deltastore.consumer import directory
from deltastore.errors import AuthError, BadRecord, Conflict, NoPath, NoSpace, NotFound, Poisoned, UsageError
from deltastore.protocol import keys
from deltastore.testing import FaultBackend


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where the directory will be, in one of its own."""
    return tmp_path / "place" / "model"


def grown(store: Store, count: int = 4, **options: Any) -> list[State]:
    states = [small()]
    for step in range(1, count):
        states.append(stepped(states[-1], step))
    with producer(store, **options) as out:
        for step, state in enumerate(states):
            out.publish(state, step=step)
    return states


def loaded(path: Path) -> dict[str, bytes]:
    """The weights as the safetensors library reads them."""
    found: State = {}
    for file in path.glob("*.safetensors"):
        found |= load_file(file)
    return all_bits(found)


def marker(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((path / "deltastore.json").read_text())
    return found


def everything(path: Path) -> dict[str, bytes]:
    return {str(p.relative_to(path)): p.read_bytes() for p in path.rglob("*") if p.is_file()}


# --- Complete ----------------------------------------------------------------------------------------


def test_it_is_a_complete_checkpoint_of_each_version(store: Store, path: Path) -> None:
    states = grown(store, files={"config.json": b"{}", "onnx/readme.md": b"#"})
    reader = consumer(store, path)
    for version in (1, 2, 4):
        reader.stage(version).commit()
        assert loaded(path) == all_bits(states[version - 1])
        assert (path / "config.json").read_bytes() == b"{}"
        assert (path / "onnx" / "readme.md").read_bytes() == b"#"
        said = marker(path)
        assert said["store"] == store.identity.store
        assert said["record_sha256"] == store.log.require(version).sha256
        assert (said["version"], said["step"]) == (version, version - 1)
        reader.verify()
    assert reader.update() is None
    assert [p.name for p in path.parent.iterdir() if "new" in p.name] == []


def test_every_dtype_and_ties(store: Store, path: Path) -> None:
    weight = torch.randn(5, 5)
    state = {**mixed(), "tied": weight, "head": weight}
    with producer(store) as out:
        out.publish(state, step=0)
        reader = consumer(store, path)
        reader.update()
        weight += 1
        out.publish({**stepped(mixed(), 1), "tied": weight, "head": weight}, step=1)
        reader.update()
    found = loaded(path)
    expected = all_bits({**stepped(mixed(), 1), "tied": weight, "head": weight})
    assert "head" not in found or "tied" not in found
    assert found == {name: expected[name] for name in found}
    assert len(found) == len(expected) - 1


def test_text_paths_are_taken_too(store: Store, path: Path) -> None:
    states = grown(store)
    consumer(store, str(path)).update()
    assert loaded(path) == all_bits(states[3])


def test_only_deltas_are_fetched(store: Store, path: Path) -> None:
    grown(store)
    reader = consumer(store, path)
    reader.stage(3).commit()
    edge = record(store, 4).embedded
    assert edge is not None
    assert reader.stage().bytes_fetched == edge.size


def test_a_new_schema_is_taken(store: Store, path: Path) -> None:
    states = grown(store)
    reader = consumer(store, path)
    reader.update()
    wider = {**states[3], "extra": torch.ones(3)}
    with producer(store) as out:
        out.publish(wider, step=9, new_schema=True)
        reader.update()
        assert loaded(path) == all_bits(wider)
        out.publish(stepped(wider, 1), step=10)
    reader.update()
    assert loaded(path) == all_bits(stepped(wider, 1))


def test_new_side_files_come_also_without_new_weights(store: Store, path: Path) -> None:
    states = grown(store, files={"chat_template.jinja": b"old", "extra.txt": b"x"})
    reader = consumer(store, path)
    reader.update()
    with producer(store, files={"chat_template.jinja": b"new"}) as out:
        out.publish(states[3], step=9)
    staged = reader.stage()
    assert (path / "chat_template.jinja").read_bytes() == b"old"
    staged.commit()
    staged.commit()
    assert (path / "chat_template.jinja").read_bytes() == b"new"
    assert not (path / "extra.txt").exists()
    assert loaded(path) == all_bits(states[3])
    assert marker(path)["version"] == 6
    reader.verify()


def test_a_large_model_is_several_files(store: Store, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from deltastore.tensors import files

    real = files.write_checkpoint
    monkeypatch.setattr(
        directory,
        "write_checkpoint",
        lambda *args: real(*args, file_bytes=1000),
    )
    states = grown(store)
    reader = consumer(store, path)
    reader.stage(2).commit()
    reader.update()
    assert len(list(path.glob("*.safetensors"))) == 2
    assert loaded(path) == all_bits(states[3])
    reader.verify()


# --- Staging -----------------------------------------------------------------------------------------


@pytest.mark.req("DS-DIR-1", "DS-READ-8")
def test_staging_leaves_what_is_served(store: Store, path: Path) -> None:
    states = grown(store)
    reader = consumer(store, path)
    reader.stage(2).commit()
    before = everything(path)
    staged = reader.stage()
    assert everything(path) == before
    staged.discard()
    assert everything(path) == before
    assert len(list(path.parent.iterdir())) <= 2
    reader.update()
    assert loaded(path) == all_bits(states[3])


def test_two_stages_do_not_get_into_each_others_way(store: Store, path: Path) -> None:
    states = grown(store)
    reader = consumer(store, path)
    second, third = reader.stage(2), reader.stage(3)
    second.commit()
    assert loaded(path) == all_bits(states[1])
    assert marker(path)["version"] == 2
    with pytest.raises(Conflict):
        third.commit()
    assert loaded(path) == all_bits(states[1])
    reader.update()
    assert loaded(path) == all_bits(states[3])
    assert [p.name for p in path.parent.iterdir() if "new" in p.name] in ([], [third.prepared.path.name])  # type: ignore[attr-defined]


def test_a_damaged_delta_leaves_the_directory(store: Store, path: Path) -> None:
    states = grown(store)
    reader = consumer(store, path)
    reader.stage(2).commit()
    store.access.backend.delete(shard_keys(store, 3))
    before = everything(path)
    with pytest.raises(NoPath):
        reader.update()
    assert everything(path) == before
    with producer(store) as out:
        out.reset(states[0], step=9)
    reader.update()
    assert loaded(path) == all_bits(states[0])


# --- Foreign directories -----------------------------------------------------------------------------


@pytest.mark.req("DS-DIR-2")
@pytest.mark.parametrize(
    "what", ["a file in it", "a hidden file", "a directory in it", "a file in its place"]
)
def test_what_is_not_ours_is_left_alone(store: Store, path: Path, what: str) -> None:
    grown(store)
    path.parent.mkdir()
    if what == "a file in its place":
        path.write_text("precious")
    else:
        path.mkdir()
        if what == "a directory in it":
            (path / "precious").mkdir()
        else:
            (path / (".precious" if "hidden" in what else "precious")).write_text("precious")
    with pytest.raises(UsageError, match="was not made by deltastore"):
        consumer(store, path)
    assert path.is_file() or len(list(path.iterdir())) == 1


@pytest.mark.req("DS-DIR-2")
def test_a_directory_that_became_foreign_meanwhile_is_left_alone(store: Store, path: Path) -> None:
    grown(store)
    reader = consumer(store, path)
    staged = reader.stage()
    path.mkdir()
    (path / "precious").write_text("precious")
    with pytest.raises((Poisoned, UsageError)):
        staged.commit()
    assert (path / "precious").read_text() == "precious"


def test_an_empty_directory_is_taken(store: Store, path: Path) -> None:
    states = grown(store)
    path.mkdir(parents=True)
    consumer(store, path).update()
    assert loaded(path) == all_bits(states[3])


@pytest.mark.req("DS-DIR-3")
@pytest.mark.parametrize(
    "name", ["model.safetensors", "deltastore.json", "x.safetensors", "model.safetensors.index.json"]
)
def test_a_side_file_cannot_take_the_place_of_weights(store: Store, path: Path, name: str) -> None:
    states = grown(store, files={"config.json": b"{}"})
    reader = consumer(store, path)
    reader.stage(3).commit()
    from dataclasses import replace

    newest = record(store, 4)
    forged = replace(newest, files={name: newest.files["config.json"]})
    store.access.backend.put(keys.version(4), forged.to_bytes())
    before = everything(path)
    with pytest.raises(BadRecord, match="place of weights"):
        reader.update()
    assert everything(path) == before
    assert loaded(path) == all_bits(states[2])


def test_a_side_file_that_is_gone_leaves_the_old_one(store: Store, path: Path) -> None:
    grown(store, files={"config.json": b"{}"})
    reader = consumer(store, path)
    reader.stage(3).commit()
    file = record(store, 4).files["config.json"]
    store.access.backend.delete([keys.object_(file.sha256)])
    before = everything(path)
    with pytest.raises(NotFound):
        reader.update()
    assert everything(path) == before
    assert [p for p in path.parent.iterdir() if "new" in p.name] == []


# --- Full disks --------------------------------------------------------------------------------------


class Usage(NamedTuple):
    total: int
    used: int
    free: int


def test_a_disk_that_is_too_small_is_seen_beforehand(
    store: Store, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    states = grown(store)
    reader = consumer(store, path)
    reader.stage(2).commit()
    before = everything(path)
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "disk_usage", lambda _: Usage(10, 10, 100))
        with pytest.raises(NoSpace, match="has 100 bytes left"):
            reader.update()
    assert everything(path) == before
    assert reader.version == 2
    reader.update()
    assert loaded(path) == all_bits(states[3])


@pytest.mark.parametrize("where", ["weights", "files", "marker", "sync"])
def test_a_disk_that_fills_up_leaves_the_old_one(
    store: Store, path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    states = grown(store, files={"config.json": b"{}"})
    reader = consumer(store, path)
    reader.stage(2).commit()
    before = everything(path)

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        if where == "weights":
            patch.setattr(directory, "write_checkpoint", full)
        elif where == "files":
            patch.setattr(Path, "write_bytes", full)
        elif where == "marker":
            patch.setattr(Path, "write_text", full)
        else:
            patch.setattr(directory, "sync_tree", full)
        with pytest.raises(NoSpace, match="No space left"):
            reader.update()
    assert everything(path) == before
    assert [p for p in path.parent.iterdir() if "new" in p.name] == []
    assert reader.version == 2
    reader.update()
    assert loaded(path) == all_bits(states[3])


# --- Restarts ----------------------------------------------------------------------------------------


@pytest.mark.req("DS-READ-7")
def test_a_restarted_consumer_goes_on_from_its_directory(store: Store, path: Path) -> None:
    states = grown(store)
    consumer(store, path).stage(3).commit()
    backend = FaultBackend(store.access.backend)
    watched = Store.open(backend)
    reader = consumer(watched, path)
    reader = type(reader)(watched, path)
    staged = reader.stage()
    assert reader.version == 3
    edge = record(store, 4).embedded
    assert edge is not None
    assert staged.bytes_fetched == edge.size
    staged.commit()
    assert loaded(path) == all_bits(states[3])


@pytest.mark.req("DS-READ-7")
@pytest.mark.parametrize(
    "damage", ["a bit", "garbage", "gone", "marker garbage", "marker lies", "marker of another"]
)
def test_a_directory_that_was_damaged_is_not_believed(store: Store, path: Path, damage: str) -> None:
    states = grown(store)
    consumer(store, path).stage(3).commit()
    weights = path / "model.safetensors"
    if damage == "a bit":
        data = bytearray(weights.read_bytes())
        data[-3] ^= 4
        weights.write_bytes(data)
    elif damage == "garbage":
        weights.write_bytes(b"garbage")
    elif damage == "gone":
        weights.unlink()
    elif damage == "marker garbage":
        (path / "deltastore.json").write_bytes(b"\xff{")
    else:
        said = marker(path) | {"version": 2 if damage == "marker lies" else 10**9}
        (path / "deltastore.json").write_text(json.dumps(said))
    reader = consumer(store, path)
    reader.stage().commit()
    assert loaded(path) == all_bits(states[3])
    assert marker(path)["version"] == 4


@pytest.mark.parametrize("point", ["before", "between", "after"])
def test_a_crash_in_the_swap_is_mended(
    store: Store, path: Path, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    states = grown(store)
    reader = consumer(store, path)
    reader.stage(2).commit()
    staged = reader.stage()

    class Dead(BaseException):
        pass

    calls = [0]
    real: Callable[..., Path] = Path.rename

    def rename(self: Path, target: Path) -> Path:
        calls[0] += 1
        if calls[0] == {"before": 1, "between": 2, "after": 99}[point] or calls[0] > 2:
            raise Dead
        return real(self, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", rename)
        if point == "after":
            patch.setattr(directory, "sync_directory", lambda _: (_ for _ in ()).throw(Dead()))
        with pytest.raises(Dead):
            staged.commit()
    if point == "between":
        assert not path.exists()
    again = consumer(store, path)
    assert loaded(path) == all_bits(states[3] if point == "after" else states[1])
    again.update()
    assert loaded(path) == all_bits(states[3])
    assert again.version == 4


def test_a_rename_that_fails_puts_the_old_one_back(
    store: Store, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    states = grown(store)
    reader = consumer(store, path)
    reader.stage(2).commit()
    staged = reader.stage()
    real: Callable[..., Path] = Path.rename

    def rename(self: Path, target: Path) -> Path:
        if "new" in self.name:
            raise PermissionError(errno.EACCES, "no")
        return real(self, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", rename)
        with pytest.raises(AuthError):
            staged.commit()
    assert loaded(path) == all_bits(states[1])
    assert reader.version == 2
    reader.update()
    assert loaded(path) == all_bits(states[3])


def test_what_a_crash_left_beside_it_is_removed(store: Store, path: Path) -> None:
    states = grown(store)
    consumer(store, path).stage(2).commit()
    torn = path.with_name(f".{path.name}.new-0123")
    torn.mkdir()
    (torn / "model.safetensors").write_bytes(b"torn")
    consumer(store, path).update()
    assert not torn.exists()
    assert loaded(path) == all_bits(states[3])


@pytest.mark.req("DS-READ-10")
def test_a_directory_that_went_wrong_is_found_and_made_anew(store: Store, path: Path) -> None:
    states = grown(store)
    reader = consumer(store, path)
    reader.update()
    weights = path / "model.safetensors"
    with weights.open("r+b") as file:
        file.seek(-1, 2)
        byte = file.read(1)
        file.seek(-1, 2)
        file.write(bytes([byte[0] ^ 1]))
    with pytest.raises(Poisoned):
        reader.verify()
    reader.update()
    assert loaded(path) == all_bits(states[3])
