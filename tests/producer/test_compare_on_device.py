"""Weights that are compared on their device give the versions, and the bytes of shards, of the host."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from far import Far, far
from support import (
    NO_RETRY,
    State,
    all_bits,
    mixed,
    new_store,
    producer,
    read,
    small,
    stepped,
)

from deltastore import Producer, Store
from deltastore.backends.memory import MemoryBackend
from deltastore.errors import Broken, NonFinite, SchemaMismatch, Unsupported, UsageError
from deltastore.parallel import Workers
from deltastore.runtime import Runtime
from deltastore.tensors import device
from deltastore.tensors.device import DeviceTensor

CODECS = ("ulp", "ctx", "abs", "coo")
Publishing = Callable[[Producer], None]


def even(store: Store, **options: Any) -> Producer:
    """A producer that compares torch tensors where they are, wherever that is."""
    return producer(store, **{"compare": "device", **options})


def numbered() -> Runtime:
    """The same nonces in every run."""
    count = itertools.count()
    return Runtime(
        now=lambda: 1e9, sleep=lambda _: None, random_bytes=lambda n: bytes([next(count) % 256] * n)
    )


def objects(publishing: Publishing, **options: Any) -> dict[str, bytes]:
    """Everything in a store after some publishing."""
    backend = MemoryBackend()
    store = Store.create(backend, retry=NO_RETRY, runtime=numbered())
    with producer(store, **options) as out:
        publishing(out)
    return {
        info.key: bytes(backend.get(info.key, max_size=1 << 30))
        for prefix in ("objects/", "edges/")
        for info in backend.list(prefix)
    }


def chain(first: State, shares: tuple[float, ...] = (0.02, 0.9, 0.0, 0.3)) -> list[State]:
    states = [first]
    for step, share in enumerate(shares):
        states.append(stepped(states[-1], step, share=share))
    return states


# --- The same bytes ----------------------------------------------------------------------------------


@pytest.mark.parametrize("anchor", ["plain", "plane"])
@pytest.mark.parametrize("codec", CODECS)
def test_every_object_is_that_of_a_comparison_on_the_host(codec: str, anchor: str) -> None:
    def publishing(out: Producer) -> None:
        states = chain(mixed())
        for step, state in enumerate(states):
            out.publish(state, step=step)
        out.reset(states[1], step=len(states))
        out.publish({"f16": states[0]["f16"]}, step=9, partial=True)

    options: dict[str, Any] = {"codec": codec, "anchor_codec": anchor, "shard_bytes": 4096}
    there = objects(publishing, compare="device", **options)
    assert there == objects(publishing, compare="host", **options)
    assert len(there) > 10


def test_casts_ties_wrappers_and_strides_are_those_of_the_host() -> None:
    embed = torch.randn(64, 32)
    weights = {
        "module.embed": embed,
        "module.head": embed,
        "module.body": torch.randn(33, 65).T,
        "module.norm": torch.randn(32),
        "module.mask": torch.rand(77) < 0.5,
    }

    def publishing(out: Producer) -> None:
        for step in range(3):
            out.publish(weights, step=step)
            for name in ("module.embed", "module.body", "module.norm"):
                weights[name][:: 3 + step] += 0.25

    before = {name: tensor.clone() for name, tensor in weights.items()}
    options: dict[str, Any] = {"dtypes": {"norm": "F32", "mask": "BOOL", "*": "BF16"}}
    found = []
    for compare in ("device", "host"):
        for name, tensor in before.items():
            weights[name].copy_(tensor)
        found.append(objects(publishing, compare=compare, **options))
    assert found[0] == found[1]


def test_numpy_arrays_and_tensors_go_together(store: Store) -> None:
    states = chain(small())
    with even(store) as out:
        for step, state in enumerate(states):
            given: dict[str, Any] = {**state, "norm": state["norm"].numpy()}
            out.publish(given, step=step)
            assert read(store) == all_bits(state)


# --- Sources -----------------------------------------------------------------------------------------


def test_iterators_that_reuse_their_memory_are_taken_in(store: Store) -> None:
    states = chain(small())
    buffer = {name: torch.empty_like(tensor) for name, tensor in small().items()}

    def stream(state: State) -> Iterator[tuple[str, torch.Tensor]]:
        for name, tensor in state.items():
            yield name, buffer[name].copy_(tensor)
            buffer[name].fill_(-1)

    with even(store) as out:
        for step, state in enumerate(states):
            out.publish(stream(state), step=step)
            assert read(store) == all_bits(state)


def test_a_tie_that_came_apart_is_refused(store: Store) -> None:
    embed = torch.randn(16, 4)
    with even(store) as out:
        out.publish({"embed": embed, "head": embed}, step=0)
        out.publish({"embed": embed, "head": embed.clone()}, step=1)
        with pytest.raises(SchemaMismatch, match="tied"):
            out.publish({"embed": embed, "head": embed + 1}, step=2)
        embed += 1
        out.publish({"embed": embed, "head": embed}, step=2)
    assert read(store)["head"] == all_bits({"embed": embed})["embed"]


def test_another_schema_and_back_are_published(store: Store) -> None:
    state = small()
    wider = {**state, "extra": torch.ones(5)}
    with even(store) as out:
        out.publish(state, step=0)
        out.publish(wider, step=1, new_schema=True)
        after = stepped(wider, 1)
        info = out.publish(after, step=2, new_schema=True).result()
    assert info.stats is not None
    assert info.stats.changed < 500
    assert read(store) == all_bits(after)


@pytest.mark.parametrize("which", ["the head's", "others", "a part"])
def test_a_new_producer_goes_on(store: Store, which: str) -> None:
    states = chain(small())
    with producer(store) as out:
        for step, state in enumerate(states):
            out.publish(state, step=step)
    after = {"the head's": states[-1], "others": stepped(states[-1], 5), "a part": states[-1]}[which]
    if which == "a part":
        after = {**after, "norm": after["norm"] + 1}
    with even(store) as out:
        given = {"norm": after["norm"]} if which == "a part" else after
        info = out.publish(given, step=9, partial=which == "a part").result()
        assert info.stats is not None
        assert (info.stats.changed == 0) == (which == "the head's")
        last = stepped(after, 6)
        out.publish(last, step=10)
    assert read(store, info.version) == all_bits(after)
    assert read(store) == all_bits(last)


# --- What goes wrong ---------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", CODECS)
def test_what_is_refused_on_the_way_leaves_the_base_as_it_was(store: Store, codec: str) -> None:
    state = mixed()
    with even(store, codec=codec) as out:
        out.publish(state, step=0)
        bad = stepped(state, 1, share=0.6)
        bad["f64"][7] = float("nan")
        with pytest.raises(NonFinite, match="'f64'"):
            out.publish(bad, step=1)
        with pytest.raises(SchemaMismatch, match="missing: 'u8'"):
            out.publish({n: t for n, t in stepped(state, 2).items() if n != "u8"}, step=1)
        after = stepped(state, 3)
        out.publish(after, step=1)
    assert read(store) == all_bits(after)


def test_the_first_publish_refuses_nan_too(store: Store) -> None:
    state = small()
    state["norm"][0] = float("inf")
    with even(store) as out:
        with pytest.raises(NonFinite, match="'norm'"):
            out.publish(state, step=0)
        with pytest.raises(NonFinite, match="'norm'"):
            out.reset(state, step=0)
    with even(store, on_nonfinite="allow") as out:
        out.publish(state, step=0)
    assert read(store) == all_bits(state)


@pytest.mark.parametrize("error", [RuntimeError("out of memory"), KeyboardInterrupt()])
def test_a_comparison_that_breaks_off_ends_the_producer(
    store: Store, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    def broken(*_: object) -> None:
        raise error

    with even(store, workers=Workers(2)) as out:
        out.publish(small(), step=0).result(60)
        with monkeypatch.context() as patch:
            patch.setattr(device, "_fetched", broken)  # the base has moved by then
            with pytest.raises(Broken if isinstance(error, Exception) else KeyboardInterrupt):
                out.publish(stepped(small(), 1), step=1)
        with pytest.raises(Broken):
            out.publish(stepped(small(), 2), step=1)
    assert read(store) == all_bits(small())


def test_a_device_without_room_for_the_base_is_no_end(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    state = small()
    after = stepped(state, 1)
    with producer(store) as out:
        out.publish(state, step=0)
    with even(store) as out:
        out.publish({"norm": state["norm"]}, step=1, partial=True)
        with monkeypatch.context() as patch:
            patch.setattr(torch, "zeros", lambda *_, **__: (_ for _ in ()).throw(RuntimeError("no room")))
            with pytest.raises(Unsupported, match="no room on cpu"):
                out.publish(after, step=2)
        out.publish(after, step=2)
    assert read(store) == all_bits(after)


def test_an_unknown_place_is_refused(store: Store) -> None:
    with pytest.raises(UsageError, match="'auto', 'host' or 'device'"):
        producer(store, compare="gpu")


# --- What crosses ------------------------------------------------------------------------------------


def test_only_changes_leave_the_device(store: Store) -> None:
    state = {"w": torch.randn(300, 400).bfloat16(), "v": torch.randn(1000)}
    size = sum(len(data) for data in all_bits(state).values())
    numbers = 8 * 8
    with Far() as bus, producer(store) as out:
        masters = {name: far(tensor.float()) for name, tensor in state.items()}
        out.publish({name: far(tensor.clone()) for name, tensor in state.items()}, step=0)
        assert 0 <= bus.fetched - size <= numbers
        for step, changed in ((1, 0), (2, 37), (3, 400)):
            before = bus.fetched
            masters["w"].view(-1)[:changed] += 1
            info = out.publish(masters, step=step).result()
            assert info.stats is not None
            assert 0 < bus.fetched - before + (changed == 0) <= 8 * info.stats.changed + numbers
            assert info.stats.changed <= changed
        assert bus.sent == 0
        after = {"w": masters["w"].to(torch.bfloat16), "v": masters["v"]}
        held = {name: tensor.cpu() for name, tensor in after.items()}
    assert read(store) == all_bits(held)


def test_a_slice_that_may_be_stored_whole_leaves_once_more(store: Store) -> None:
    state = {"w": torch.randn(100, 100).bfloat16()}
    with Far() as bus, producer(store) as out:
        out.publish({"w": far(state["w"].clone())}, step=0)
        before = bus.fetched
        out.publish({"w": far(state["w"] * 2)}, step=1)
        assert bus.fetched - before <= 10_000 * (4 + 2 + 2) + 20_000 + 64
    assert read(store) == all_bits({"w": state["w"] * 2})


def test_weights_may_move_between_devices(store: Store) -> None:
    states = chain(small())
    with Far() as bus, producer(store) as out:
        for step, state in enumerate(states):
            there = step % 2 == 0
            sent = bus.sent
            out.publish({n: far(t.clone()) if there else t for n, t in state.items()}, step=step)
            if step > 1:
                assert (bus.sent - sent > 0) == there
    for version, state in enumerate(states, 1):
        assert read(store, version) == all_bits(state)


def test_a_tensor_of_the_cpu_is_compared_there_unless_asked(store: Store) -> None:
    state: dict[str, Any] = {"w": np.zeros(4, np.float32), "v": torch.zeros(4)}
    for compare, kind in (("auto", False), ("host", False), ("device", True)):
        with producer(new_store(), compare=compare) as out:
            out.publish(state, step=0)
            base = out._snapshot.base  # type: ignore[union-attr]
            assert isinstance(base["v"], DeviceTensor) == kind
            assert not isinstance(base["w"], DeviceTensor)


# --- CUDA --------------------------------------------------------------------------------------------


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device here")
@pytest.mark.parametrize("codec", CODECS)
def test_versions_from_cuda_are_those_of_the_host(codec: str) -> None:
    states = chain(mixed())

    def publishing(where: str) -> Publishing:
        def publish(out: Producer) -> None:
            for step, state in enumerate(states):
                out.publish({name: tensor.to(where) for name, tensor in state.items()}, step=step)

        return publish

    assert objects(publishing("cuda"), codec=codec) == objects(publishing("cpu"), codec=codec)
