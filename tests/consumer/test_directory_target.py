"""A checkpoint directory as a target: always complete, swapped by rename, mended after crashes."""

from __future__ import annotations

import errno
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from safetensors.torch import load_file
from support import NO_RETRY, State, all_bits, consumer, mixed, producer, record, shard_keys, small, stepped

from deltastore import Store
from deltastore.consumer import directory, swap
from deltastore.consumer.directory import DirectoryTarget
from deltastore.consumer.reading import Reading
from deltastore.consumer.targets import Changes
from deltastore.errors import (
    AuthError,
    BadRecord,
    Conflict,
    DeltaStoreError,
    NoPath,
    NoSpace,
    NotFound,
    Poisoned,
    Unavailable,
    Unsupported,
    UsageError,
)
from deltastore.parallel import INLINE
from deltastore.protocol import keys
from deltastore.replay import schema_of
from deltastore.testing import Fault, FaultBackend, Operation


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
    bits: dict[str, bytes] = all_bits(found)
    return bits


def marker(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((path / "deltastore.json").read_text())
    return found


def everything(path: Path) -> dict[str, bytes]:
    return {str(p.relative_to(path)): p.read_bytes() for p in path.rglob("*") if p.is_file()}


def beside(path: Path) -> set[str]:
    return {p.name for p in path.parent.iterdir()} - {path.name}


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
    assert beside(path) == {".model.deltastore.lock"}
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
    assert beside(path) == {".model.deltastore.lock"}


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
    with pytest.raises(UsageError, match=r"was not made by deltastore|is not a directory"):
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
    "name",
    [
        "model.safetensors",
        "deltastore.json",
        "x.safetensors",
        "model.safetensors.index.json",
        "x.safetensors/y",
    ],
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


# --- Whatever else moves the directory ---------------------------------------------------------------


def replaced(path: Path) -> None:
    data = (path / "model.safetensors").read_bytes()
    (path / "other").write_bytes(data)
    (path / "other").rename(path / "model.safetensors")


def cut_short(path: Path) -> None:
    with (path / "model.safetensors").open("r+b") as file:
        file.truncate(100)


@pytest.mark.req("DS-DIR-5")
@pytest.mark.parametrize(
    ("how", "readable"),
    [
        (shutil.rmtree, False),
        (replaced, True),
        (cut_short, False),
        (lambda path: (path / "model.safetensors").unlink(), False),
        (lambda path: (path / "deltastore.json").unlink(), False),
        (lambda path: (path / "deltastore.json").write_text("{}"), True),
    ],
    ids=["gone", "replaced", "cut short", "weights gone", "marker gone", "marker written"],
)
def test_a_directory_that_was_moved_by_others_says_so_once(
    store: Store, path: Path, how: Callable[[Path], None], readable: bool
) -> None:
    grown(store)
    consumer(store, path).update()
    target = DirectoryTarget(path)
    schema = schema_of(store, store.log.require(4))
    assert target.intact()
    assert target.state(schema) == record(store, 4).state
    how(path)
    assert not target.intact()
    assert target.intact()
    assert target.can_read_old() == readable
    assert target.state(schema) == (record(store, 4).state if readable else None)


@pytest.mark.req("DS-DIR-5")
def test_a_target_reads_what_another_one_has_swapped_in(store: Store, path: Path) -> None:
    grown(store)
    consumer(store, path).stage(2).commit()
    target = DirectoryTarget(path)
    consumer(store, path).update()
    assert not target.intact()
    assert target.hint() == 4
    assert target.state(schema_of(store, store.log.require(4))) == record(store, 4).state


def test_its_own_commits_do_not_make_it_doubt(store: Store, path: Path) -> None:
    grown(store)
    target = DirectoryTarget(path)
    reader = type(consumer(store, path))(store, target)
    for version in (1, 2, 4):
        reader.stage(version).commit()
        assert target.intact()
        assert target.can_read_old()


def test_a_new_schema_that_was_only_staged_leaves_what_is_held(store: Store, path: Path) -> None:
    states = grown(store)
    reader = consumer(store, path)
    reader.update()
    with producer(store) as out:
        out.publish({**states[3], "extra": torch.ones(3)}, step=9, new_schema=True)
    reader.stage().discard()
    reader.verify()
    with (path / "model.safetensors").open("r+b") as file:
        file.seek(-1, 2)
        file.write(b"\x55")
    with pytest.raises(Poisoned):
        reader.verify()


def test_what_it_holds_has_no_state_under_another_schema(store: Store, path: Path) -> None:
    states = grown(store)
    reader = consumer(store, path)
    reader.update()
    with producer(store) as out:
        out.publish({**states[3], "extra": torch.ones(3)}, step=9, new_schema=True)
    target = DirectoryTarget(path)
    old, new = (schema_of(store, store.log.require(v)) for v in (4, 6))
    target.bind(new)
    assert target.state(new) is None
    assert target.state(old) == record(store, 4).state


# --- Several processes -------------------------------------------------------------------------------


@pytest.mark.req("DS-DIR-4")
def test_what_another_one_is_writing_is_not_swept(store: Store, path: Path) -> None:
    states = grown(store)
    one, other = consumer(store, path), consumer(store, path)
    staged = one.stage(2)
    theirs = other.stage()
    theirs.discard()
    staged.commit()
    assert loaded(path) == all_bits(states[1])
    assert beside(path) == {".model.deltastore.lock"}


@pytest.mark.req("DS-DIR-4")
@pytest.mark.parametrize(
    "name", [".model.old", ".model.new-0123", ".model.deltastore", ".model2.deltastore-new-1"]
)
def test_what_others_have_beside_it_is_not_touched(store: Store, path: Path, name: str) -> None:
    grown(store)
    mine = path.with_name(name)
    mine.mkdir(parents=True)
    (mine / "precious").write_text("precious")
    reader = consumer(store, path)
    for version in (1, 2, 4):
        reader.stage(version).commit()
    assert (mine / "precious").read_text() == "precious"


@pytest.mark.req("DS-DIR-4")
def test_what_is_in_the_way_of_the_swap_is_not_removed(store: Store, path: Path) -> None:
    states = grown(store)
    reader = consumer(store, path)
    reader.stage(2).commit()
    mine = path.with_name(".model.deltastore-old")
    mine.mkdir()
    (mine / "precious").write_text("precious")
    with pytest.raises(UsageError, match="is in the way"):
        reader.update()
    assert (mine / "precious").read_text() == "precious"
    assert loaded(path) == all_bits(states[1])
    shutil.rmtree(mine)
    reader.update()
    assert loaded(path) == all_bits(states[3])


def test_a_swap_of_another_one_is_waited_for(store: Store, path: Path) -> None:
    states = grown(store)
    consumer(store, path).stage(2).commit()
    place = swap.Place(path)
    away = path.with_name(".model.deltastore-old")
    with place.alone():
        path.rename(away)
        path.mkdir()
        (path / "half").write_text("as if it were somebody else's")
        opening = ThreadPoolExecutor(1)
        later = opening.submit(consumer, store, path)
        with pytest.raises(TimeoutError):
            later.result(0.1)
        shutil.rmtree(path)
        away.rename(path)
    reader = later.result(10)
    opening.shutdown()
    reader.update()
    assert loaded(path) == all_bits(states[3])


MATERIALIZE = """
import sys
from deltastore import Consumer, Store
from deltastore.errors import Conflict

store = Store.open(sys.argv[1])
done = 0
for _ in range(12):
    for version in (1, 2, 3, 4):
        try:
            with Consumer(store, sys.argv[2]) as reader:
                reader.stage(version).commit()
                done += 1
        except Conflict:
            pass
        except Exception as error:
            if "older than" not in str(error):
                raise
print(done)
"""


@pytest.mark.req("DS-DIR-1", "DS-DIR-4")
def test_two_processes_on_one_directory_both_end_well(tmp_path: Path, path: Path) -> None:
    store = Store.create(str(tmp_path / "store"))
    states = grown(store)
    command = [sys.executable, "-c", MATERIALIZE, str(tmp_path / "store"), str(path)]
    both = [
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in "12"
    ]
    for process in both:
        said, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors
        assert int(said) > 0
    assert loaded(path) == all_bits(states[marker(path)["version"] - 1])
    assert beside(path) == {".model.deltastore.lock"}


# --- What was staged ---------------------------------------------------------------------------------


def test_what_was_staged_and_never_committed_goes_with_the_next_commit(store: Store, path: Path) -> None:
    grown(store)
    reader = consumer(store, path)
    kept = [reader.stage(version) for version in (1, 2, 3)]
    assert len([name for name in beside(path) if "-new-" in name]) == 3
    reader.stage().commit()
    assert beside(path) == {".model.deltastore.lock"}
    for staged in kept:
        with pytest.raises(Conflict):
            staged.commit()
        staged.discard()


def changes_of(store: Store, version: int) -> Changes:
    slot = store.log.require(version)
    schema = schema_of(store, slot)
    patches = Reading(store, base=None, cache=None, workers=INLINE).changes(slot, schema)
    return Changes(store.find(version=version), schema, patches, {}, store)


def test_what_was_discarded_cannot_be_committed(store: Store, path: Path) -> None:
    grown(store)
    target = DirectoryTarget(path)
    staged = target.stage(changes_of(store, 2))
    target.discard(staged)
    with pytest.raises(Conflict, match="was discarded"):
        target.commit(staged)
    assert not path.exists()
    again = target.stage(changes_of(store, 2))
    target.commit(again)
    target.discard(again)
    assert marker(path)["version"] == 2


@pytest.mark.parametrize("how", [shutil.rmtree, cut_short], ids=["gone", "cut short"])
def test_what_was_damaged_beside_it_is_not_swapped_in(
    store: Store, path: Path, how: Callable[[Path], None]
) -> None:
    states = grown(store)
    target = DirectoryTarget(path)
    target.commit(target.stage(changes_of(store, 1)))
    staged = target.stage(changes_of(store, 2))
    how(staged.path)
    with pytest.raises(Conflict, match="removed or changed"):
        target.commit(staged)
    assert loaded(path) == all_bits(states[0])


# --- Paths -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dangling", [False, True])
def test_a_link_is_followed_once(store: Store, path: Path, dangling: bool) -> None:
    states = grown(store)
    path.parent.mkdir()
    real = path.with_name("real")
    if not dangling:
        real.mkdir()
    path.symlink_to(real)
    reader = consumer(store, path)
    for version in (1, 2, 4):
        reader.stage(version).commit()
        assert path.is_symlink()
        assert loaded(real) == all_bits(states[version - 1])
    reader.verify()


@pytest.mark.req("DS-DIR-2")
def test_a_link_that_takes_its_place_later_is_left_alone(store: Store, path: Path) -> None:
    grown(store)
    reader = consumer(store, path)
    reader.stage(2).commit()
    staged = reader.stage()
    path.rename(path.with_name("elsewhere"))
    path.symlink_to("elsewhere")
    with pytest.raises((Conflict, UsageError)):
        staged.commit()
    with pytest.raises(UsageError, match="was not made by deltastore"):
        reader.update()
    assert path.is_symlink()


def test_a_mount_point_is_refused(store: Store, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    grown(store)
    with pytest.raises(UsageError, match="Use a directory below it"):
        consumer(store, "/")
    reader = consumer(store, path)
    reader.stage(2).commit()
    staged = reader.stage()

    def busy(self: Path, target: Path) -> Path:
        raise OSError(errno.EBUSY, "busy")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", busy)
        with pytest.raises(UsageError, match="is a mount point"):
            staged.commit()
    assert marker(path)["version"] == 2


@pytest.mark.parametrize("where", ["constructor", "stage", "commit"])
def test_errors_of_the_system_are_typed_and_name_the_path(store: Store, path: Path, where: str) -> None:
    grown(store)
    if where == "constructor":
        path.mkdir(parents=True)
        with pytest.raises(Unsupported, match="x" * 300):
            consumer(store, path / ("x" * 300))
        return
    reader = consumer(store, path / "model")
    if where == "commit":
        staged = reader.stage()
        shutil.rmtree(path)
        path.write_text("a file where the parent was")
        with pytest.raises(DeltaStoreError):
            staged.commit()
        staged.discard()
    else:
        path.parent.mkdir()
        path.write_text("a file where the parent was")
        with pytest.raises(DeltaStoreError, match=str(path)):
            reader.stage()


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
def test_an_outage_while_looking_costs_no_anchor(store: Store, path: Path) -> None:
    states = grown(store)
    consumer(store, path).stage(1).commit()
    down = [False]

    def plan(operation: Operation) -> Fault | None:
        return Fault(before=Unavailable("network")) if down[0] and operation.key == keys.version(1) else None

    watched = Store.open(FaultBackend(store.access.backend, plan), retry=NO_RETRY)
    reader = consumer(watched, path)
    down[0] = True
    with pytest.raises(Unavailable):
        reader.stage()
    down[0] = False
    staged = reader.stage(3)
    assert reader.version == 1
    edges = [record(store, version).embedded for version in (2, 3)]
    assert staged.bytes_fetched == sum(edge.size for edge in edges if edge is not None)
    staged.commit()
    assert loaded(path) == all_bits(states[2])


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
            patch.setattr(swap, "sync_directory", lambda _: (_ for _ in ()).throw(Dead()))
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
    torn = path.with_name(f".{path.name}.deltastore-new-0123")
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
