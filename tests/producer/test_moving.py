"""The base moves in several threads: all of it or nothing, whatever breaks off, however weights come."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from support import new_store

from deltastore import Consumer, Producer, threads
from deltastore.codec.ulp import Steps, Ulp
from deltastore.errors import Broken, NonFinite
from deltastore.parallel import INLINE
from deltastore.producer.private import PrivateState
from deltastore.producer.snapshot import Making, Snapshot
from deltastore.protocol.descriptors import Descriptor
from deltastore.protocol.digest import Lanes
from deltastore.protocol.schema import Schema, TensorSpec
from deltastore.state import HostState
from deltastore.tensors.host import HostTensor

WAIT = 60.0
NAMES = [f"t{i:02d}" for i in range(12)]
LANES = 3000
MAKING = Making("ulp", "plain", check=True, nonce=lambda: bytes(16))
Tensors = Iterator[tuple[TensorSpec, HostTensor]]


@pytest.fixture(autouse=True)
def _four_threads_and_small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DELTASTORE_THREADS", "4")
    monkeypatch.setattr(threads, "PIECE", 2 * LANES)


class Model:
    """A base, and new weights for it."""

    def __init__(self) -> None:
        rng = np.random.default_rng(1)
        schema = Schema.of(TensorSpec(name, "BF16", (LANES,)) for name in NAMES)
        self.base = HostState(schema, {n: rng.integers(0, 2**14, LANES, dtype=np.uint16) for n in NAMES})
        self.old = {name: self.base.lanes(name).copy() for name in NAMES}
        self.new = {name: lanes + (rng.random(LANES) < 0.05) for name, lanes in self.old.items()}
        descriptor = Descriptor(schema.sha256, len(schema.data))
        self.snapshot = Snapshot(
            PrivateState.of(self.base), descriptor, self.base.digest(), shard_bytes=4 * 2 * LANES
        )

    def tensors(self) -> Tensors:
        for spec in self.base.schema.owners:
            yield spec, HostTensor(spec.dtype, spec.shape, self.new[spec.name].astype(np.uint16))

    def holds(self, weights: dict[str, NDArray[Any]]) -> bool:
        whole = all(np.array_equal(self.base.lanes(name), weights[name]) for name in NAMES)
        return whole and self.snapshot.state == self.base.digest()


def ignore(_name: str, _nonfinite: int) -> None:
    pass


@pytest.mark.parametrize("keep", [False, True])
def test_the_base_moves_to_the_new_weights(keep: bool) -> None:
    model = Model()
    move = model.snapshot.move(model.tensors(), MAKING, ignore, keep=keep)
    assert model.holds(model.new)
    assert {name for name, _ in move.deltas} == set(NAMES)


def test_shards_are_the_same_with_any_number_of_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    found = set()
    for count in (1, 2, 3, 8):
        monkeypatch.setenv("DELTASTORE_THREADS", str(count))
        model = Model()
        move = model.snapshot.move(model.tensors(), MAKING, ignore, keep=True)
        found.add(tuple(make().data for make in model.snapshot.deltas(move, MAKING)))
    assert len(found) == 1


def test_tensors_are_drawn_and_inspected_in_the_callers_thread_and_in_order() -> None:
    model = Model()
    caller, seen = threading.get_ident(), []

    def tensors() -> Tensors:
        for one in model.tensors():
            assert threading.get_ident() == caller
            yield one

    def inspect(name: str, _nonfinite: int) -> None:
        assert threading.get_ident() == caller
        seen.append(name)

    model.snapshot.move(tensors(), MAKING, inspect, keep=True)
    assert seen == NAMES


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
@pytest.mark.parametrize("count", ["1", "2", "4"])
def test_a_source_that_breaks_off_undoes_what_others_are_comparing(
    monkeypatch: pytest.MonkeyPatch, count: str, error: type[BaseException]
) -> None:
    monkeypatch.setenv("DELTASTORE_THREADS", count)
    comparing = threading.Event()
    compare = Ulp.diff

    def diff(self: Ulp, spec: Any, base: Lanes, new: Lanes) -> Steps:
        comparing.set()
        return compare(self, spec, base, new)

    def tensors() -> Tensors:
        for number, one in enumerate(model.tensors()):
            if number == 6:
                assert comparing.wait(WAIT)
                raise error
            yield one

    monkeypatch.setattr(Ulp, "diff", diff)
    model = Model()
    with pytest.raises(error):
        model.snapshot.move(tensors(), MAKING, ignore, keep=True)
    assert model.holds(model.old)


def test_what_inspect_refuses_is_undone() -> None:
    def inspect(name: str, _nonfinite: int) -> None:
        if name == NAMES[3]:
            raise ValueError(name)

    model = Model()
    with pytest.raises(ValueError, match=NAMES[3]):
        model.snapshot.move(model.tensors(), MAKING, inspect, keep=True)
    assert model.holds(model.old)


def test_a_comparison_that_breaks_off_in_another_thread_is_what_is_raised(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also if the source breaks off meanwhile: of this base nothing is known any more."""
    caller, broke = threading.get_ident(), threading.Event()
    compare = Ulp.diff

    def diff(self: Ulp, spec: Any, base: Lanes, new: Lanes) -> Steps:
        if threading.get_ident() == caller:
            return compare(self, spec, base, new)
        broke.set()
        raise MemoryError

    def tensors() -> Tensors:
        for number, one in enumerate(model.tensors()):
            if number == 2:
                assert broke.wait(WAIT)
                raise ValueError("the source")
            yield one

    monkeypatch.setattr(Ulp, "diff", diff)
    model = Model()
    with pytest.raises(Broken, match="MemoryError"):
        model.snapshot.move(tensors(), MAKING, ignore, keep=True)


@pytest.mark.parametrize("most", [1, 4])
def test_few_tensors_of_the_source_are_alive_at_once(monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    monkeypatch.setenv("DELTASTORE_THREADS", str(most))
    model = Model()
    alive: list[weakref.ref[Lanes]] = []
    highest = 0

    def tensors() -> Tensors:
        nonlocal highest
        for spec in model.base.schema.owners:
            lanes = model.new[spec.name].astype(np.uint16)
            alive.append(weakref.ref(lanes))
            tensor = HostTensor(spec.dtype, spec.shape, lanes)
            del lanes
            highest = max(highest, sum(ref() is not None for ref in alive))
            yield spec, tensor
            del tensor

    model.snapshot.move(tensors(), MAKING, ignore, keep=True)
    assert model.holds(model.new)
    assert highest <= 2 * most + 2


def test_an_iterator_may_use_one_buffer_for_all_its_tensors() -> None:
    store = new_store()
    buffer = np.zeros(LANES, np.float16)

    def weights(step: int) -> Iterator[tuple[str, NDArray[Any]]]:
        for number, name in enumerate(NAMES):
            buffer[:] = step + number
            yield name, buffer

    with Producer(store, anchors=None) as out:
        out.publish(weights(1), step=1).result(WAIT)
        out.publish(weights(2), step=2).result(WAIT)
    held = {name: np.zeros(LANES, np.float16) for name in NAMES}
    Consumer(store, held).update()
    assert [held[name][0] for name in NAMES] == [2 + number for number in range(len(NAMES))]


def test_a_refused_publish_leaves_the_next_one_whole() -> None:
    store = new_store()
    weights = {name: np.full(LANES, 1.0, np.float32) for name in NAMES}
    with Producer(store, anchors=None) as out:
        out.publish(weights, step=1).result(WAIT)
        for lanes in weights.values():
            lanes[7] = 2
        weights[NAMES[5]][0] = np.nan
        with pytest.raises(NonFinite, match=NAMES[5]):
            out.publish(weights, step=2)
        weights[NAMES[5]][0] = 3
        out.publish(weights, step=2).result(WAIT)
    held = {name: np.zeros(LANES, np.float32) for name in NAMES}
    Consumer(store, held).update()
    assert all(np.array_equal(held[name], weights[name]) for name in NAMES)


def test_inline_workers_compare_in_the_callers_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: set[int] = set()
    wrapped: dict[str, Callable[..., Any]] = {
        name: getattr(Ulp, name) for name in ("diff", "encode", "decode")
    }

    def watch(name: str) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            seen.add(threading.get_ident())
            return wrapped[name](*args, **kwargs)

        return call

    for name in wrapped:
        monkeypatch.setattr(Ulp, name, watch(name))
    store = new_store()
    weights = {name: np.zeros(LANES, np.float32) for name in NAMES}
    held = {name: np.ones(LANES, np.float32) for name in NAMES}
    consumer = Consumer(store, held, workers=INLINE)
    with Producer(store, anchors=None, workers=INLINE, shard_bytes=4 * LANES) as out:
        for step in (1, 2):
            weights[NAMES[3]][step] = 1
            out.publish(weights, step=step).result(WAIT)
            consumer.update()
    assert np.array_equal(held[NAMES[3]], weights[NAMES[3]])
    assert seen == {threading.get_ident()}
