"""Targets on a device: they follow bit for bit, only changes cross, and a commit knows that they arrived."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from far import Far, far
from hypothesis import given, settings
from hypothesis import strategies as st
from support import State, all_bits, blank, consumer, mixed, producer, small, stepped

from deltastore import Store
from deltastore.codec import twin
from deltastore.codec.types import SliceSpec, Sparse
from deltastore.consumer.torch_places import TorchPlace
from deltastore.errors import Poisoned
from deltastore.protocol.digest import digest, tensor_key
from deltastore.tensors import device
from deltastore.tensors import torch as adapter

DTYPES = (torch.uint8, torch.bfloat16, torch.float32, torch.complex64)
Layout = Callable[[torch.Tensor], torch.Tensor]
LAYOUTS: dict[str, Layout] = {
    "in a row": torch.zeros_like,
    "transposed": lambda t: torch.zeros_like(t.T.contiguous()).T,
    "every other row": lambda t: torch.zeros(t.shape[0] * 2, *t.shape[1:], dtype=t.dtype)[::2],
    "from an odd address": lambda t: torch.zeros(t.numel() + 1, dtype=t.dtype)[1:].view(t.shape),
    "last dimension strided": lambda t: torch.zeros(*t.shape[:-1], t.shape[-1] * 3, dtype=t.dtype)[..., ::3],
}


def chain(first: State) -> list[State]:
    states = [first]
    for step, share in enumerate((0.02, 0.9, 0.0, 0.3, 0.01)):
        states.append(stepped(states[-1], step, share=share))
    return states


def published(store: Store, states: list[State]) -> None:
    with producer(store) as out:
        for step, state in enumerate(states):
            out.publish(state, step=step)


def noise(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    """Random bits."""
    size = torch.Size(shape).numel() * dtype.itemsize
    rng = torch.Generator().manual_seed(size)
    return torch.randint(0, 256, (size,), generator=rng, dtype=torch.uint8).view(dtype).view(shape)


# --- Following ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("check", ["touched", "full"])
def test_targets_of_every_dtype_follow(store: Store, check: str) -> None:
    states = chain(mixed())
    with Far(), producer(store) as out:
        target = {name: far(tensor) for name, tensor in blank(mixed()).items()}
        reader = consumer(store, target, check=check)
        for step, state in enumerate(states):
            out.publish(state, step=step)
            assert reader.update() is not None
            assert all_bits(target) == all_bits(state)
            reader.verify()


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("codec", ["ulp", "ctx", "abs", "coo"])
def test_targets_of_any_layout_follow(store: Store, layout: str, codec: str) -> None:
    states = chain({name: tensor for name, tensor in small().items() if tensor.dim() == 2})
    with Far(), producer(store, codec=codec) as out:
        target = {name: far(LAYOUTS[layout](tensor)) for name, tensor in states[0].items()}
        reader = consumer(store, target)
        for step, state in enumerate(states):
            out.publish(state, step=step)
            reader.update()
            assert all_bits(target) == all_bits(state)
        reader.verify()


def test_several_edges_are_taken_at_once(store: Store) -> None:
    states = chain(mixed())
    published(store, states[:1])
    with Far():
        target = {name: far(tensor) for name, tensor in blank(mixed()).items()}
        reader = consumer(store, target)
        reader.update()
        published(store, states[1:])
        reader.update()
        assert all_bits(target) == all_bits(states[-1])
        reader.verify()


def test_ties_of_a_device_are_kept_equal(store: Store) -> None:
    embed = torch.randn(16, 8)
    with Far(), producer(store) as out:
        target = {"embed": far(torch.zeros(16, 8)), "head": far(torch.zeros(16, 8))}
        reader = consumer(store, target)
        for step in range(3):
            embed[step] += 1
            out.publish({"embed": embed, "head": embed}, step=step)
            reader.update()
            assert all_bits(target) == all_bits({"embed": embed, "head": embed})
        target["head"][3, 3] += 1
        with pytest.raises(Poisoned):
            reader.verify()


# --- Evaluating --------------------------------------------------------------------------------------


@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from(DTYPES),
    st.sampled_from(list(LAYOUTS)),
    st.booleans(),
    st.sampled_from([1, 3, 8]),
    st.data(),
)
def test_changes_are_evaluated_as_on_the_host(
    dtype: torch.dtype, layout: str, relative: bool, at_once: int, draw: st.DataObject
) -> None:
    held = noise(dtype, draw.draw(st.integers(1, 7)), draw.draw(st.integers(1, 9)))
    tensor = LAYOUTS[layout](held).copy_(held)
    host = adapter.to_host("w", held)
    size = host.lanes.size
    start = draw.draw(st.integers(0, (size - 1) * dtype.itemsize // 8)) * 8 // dtype.itemsize
    spec = SliceSpec("w", host.dtype, host.shape, start, size, size)
    where = np.array(sorted(draw.draw(st.sets(st.integers(0, size - start - 1), max_size=20))), np.int64)
    values = noise(dtype, where.size + 1)[1:]
    change = Sparse(where, adapter.to_host("v", values).lanes, relative=relative)
    with pytest.MonkeyPatch.context() as patch, Far():
        patch.setattr(device, "_CHANGES", at_once)
        place = TorchPlace("w", far(tensor))
        new, delta = place.evaluate(spec, change)
        expected, same = twin.patch(spec, host.lanes[start:], change)
        assert new.dtype == expected.dtype
        np.testing.assert_array_equal(new, expected)
        assert delta == same
        assert place.slice_digest(spec) == digest(host.lanes[start:], tensor_key("w"), spec.first_word)
        assert place.read(start, size).tobytes() == host.lanes[start:].tobytes()


@pytest.mark.parametrize("shape", [(5, 3), (1, 1000), (1000, 1), (129, 33), (2, 0)])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_digests_by_rows_are_those_of_the_host(
    layout: str, shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    from deltastore.consumer import torch_places

    monkeypatch.setattr(torch_places, "_SWAP", 64)
    for dtype in DTYPES:
        held = noise(dtype, *shape)
        with Far():
            place = TorchPlace("w", far(LAYOUTS[layout](held).copy_(held)))
            host = adapter.to_host("w", held)
            spec = SliceSpec("w", host.dtype, host.shape, 0, host.lanes.size, host.lanes.size)
            assert place.slice_digest(spec) == digest(host.lanes, tensor_key("w"))


# --- What crosses ------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", ["in a row", "every other row"])
def test_only_changes_cross(store: Store, layout: str) -> None:
    state = {"v": torch.randn(40, 50), "w": torch.randn(300, 400).bfloat16()}
    after = {name: tensor.clone() for name, tensor in state.items()}
    after["w"].view(-1)[::400] += 1
    after["v"][0, :3] += 1
    size, numbers = 300 * 400 * 2 + 40 * 50 * 4, 16 * 8
    published(store, [state])
    with Far() as bus:
        target = {name: far(LAYOUTS[layout](tensor)) for name, tensor in state.items()}
        reader = consumer(store, target)
        reader.update()
        assert size <= bus.sent <= size + numbers
        assert bus.fetched <= numbers  # digests: what the target held, and what has arrived
        published(store, [after])
        sent, fetched = bus.sent, bus.fetched
        staged = reader.stage()
        changed = 303
        assert bus.sent - sent <= 2 * changed * (
            4 + 4
        )  # positions and values: to be evaluated, to be written
        assert bus.fetched - fetched <= changed * 4 + numbers
        sent, fetched = bus.sent, bus.fetched
        staged.commit()
        assert (bus.sent, bus.fetched) == (sent, fetched + 8)
        reader.verify()
        assert bus.fetched == fetched + 8 + 2 * 8
        assert all_bits(target) == all_bits(after)


def test_a_slice_that_is_stored_whole_is_digested_where_it_is_replaced(store: Store) -> None:
    rng = torch.Generator().manual_seed(1)
    states = [{"w": torch.randint(0, 256, (5000,), generator=rng, dtype=torch.uint8)} for _ in range(2)]
    published(store, states[:1])
    with Far() as bus:
        target = {"w": far(torch.zeros(5000, dtype=torch.uint8))}
        reader = consumer(store, target)
        reader.update()
        published(store, states[1:])
        sent, fetched = bus.sent, bus.fetched
        reader.update()
        assert bus.sent - sent == 5000
        assert bus.fetched - fetched < 100
        assert all_bits(target) == all_bits(states[1])


# --- What goes wrong ---------------------------------------------------------------------------------


@pytest.mark.parametrize("share", [0.05, 1.0])
def test_what_does_not_arrive_is_noticed_and_undone(
    store: Store, share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    states = [small(), stepped(small(), 1, share=share)]
    published(store, states)
    with Far():
        target = {name: far(tensor.clone()) for name, tensor in small().items()}
        reader = consumer(store, target)
        reader.stage(1).commit()
        staged = reader.stage()
        with monkeypatch.context() as patch:
            if share == 1.0:
                patch.setattr("deltastore.consumer.torch_places._Swap.apply", lambda _: None)
                patch.setattr("deltastore.consumer.torch_places._Scatter.apply", lambda _: None)
            else:
                patch.setattr(TorchPlace, "put", lambda *_: None)
            with pytest.raises(Poisoned, match="other bits than were written"):
                staged.commit()
        assert reader.poisoned
        assert all_bits(target) == all_bits(states[0])
        reader.update()
        assert all_bits(target) == all_bits(states[1])


def test_weights_that_changed_are_no_base(store: Store) -> None:
    states = [small(), stepped(small(), 1)]
    published(store, states[:1])
    with Far():
        target = {name: far(tensor) for name, tensor in blank(small()).items()}
        reader = consumer(store, target)
        reader.update()
        published(store, states[1:])
        for tensor in target.values():
            tensor.view(-1)[:] += 1
        reader.update()  # the delta does not fit; an anchor does
        assert all_bits(target) == all_bits(states[1])


# --- CUDA --------------------------------------------------------------------------------------------


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device here")
@pytest.mark.parametrize("layout", LAYOUTS)
def test_targets_on_cuda_follow(store: Store, layout: str) -> None:
    states = chain({name: tensor for name, tensor in mixed().items() if tensor.dim() == 2})
    with torch.device("cuda"):
        target = {name: LAYOUTS[layout](tensor.cuda()) for name, tensor in states[0].items()}
    reader = consumer(store, target, check="full")
    with producer(store) as out:
        for step, state in enumerate(states):
            out.publish({name: tensor.cuda() for name, tensor in state.items()}, step=step)
            reader.update()
            assert all_bits(target) == all_bits(state)
