"""Comparing, digesting and undoing on a device give what the host gives, bit for bit; only changes cross."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from far import Far, far
from hypothesis import given, settings
from hypothesis import strategies as st
from support import bits

from deltastore import codec as codecs
from deltastore.codec import twin
from deltastore.codec.types import SliceSpec
from deltastore.codec.ulp import Steps
from deltastore.errors import SchemaMismatch, Unsupported
from deltastore.protocol.digest import digest, tensor_key
from deltastore.tensors import device
from deltastore.tensors import torch as adapter
from deltastore.tensors.device import DeviceTensor
from deltastore.tensors.host import HostTensor

ALL = list(adapter.NAMES)
DELTAS = tuple(codecs.DELTA)
BLOCK = twin.BLOCK
DEVICES = [
    "cpu",
    pytest.param(
        "cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device here")
    ),
]


def sample(dtype: torch.dtype, size: int, seed: int = 1) -> torch.Tensor:
    """A flat tensor of random bits."""
    rng = torch.Generator().manual_seed(seed)
    if dtype is torch.bool:
        return torch.rand(size, generator=rng) < 0.5
    return torch.randint(0, 256, (size * dtype.itemsize,), generator=rng, dtype=torch.uint8).view(dtype)


def changed(tensor: torch.Tensor, share: float, seed: int = 2) -> torch.Tensor:
    """A copy with other random bits in a share of the elements."""
    new = tensor.clone()
    where = torch.rand(tensor.shape, generator=torch.Generator().manual_seed(seed)) < share
    view = adapter.bits(new)
    view[where] = adapter.bits(sample(tensor.dtype, tensor.numel(), seed).view(tensor.shape))[where]
    return new


def spec_of(tensor: DeviceTensor | HostTensor, start: int = 0, stop: int | None = None) -> SliceSpec:
    size = len(tensor.lanes)
    return SliceSpec("w", tensor.dtype, tensor.shape, start, size if stop is None else stop, size)


def same(one: Any, two: Any) -> None:
    """Two deltas, bit for bit."""
    assert (one.spec, one.changed, one.state_delta) == (two.spec, two.changed, two.state_delta)
    assert one.nonfinite == two.nonfinite
    if isinstance(one, Steps):
        assert one.streams == two.streams
    else:
        for name in ("positions", "old", "new"):
            assert getattr(one, name).dtype == getattr(two, name).dtype
            np.testing.assert_array_equal(getattr(one, name), getattr(two, name))
    assert (one.whole is None) == (two.whole is None)
    if one.whole is not None:
        assert not one.whole.flags.writeable
        np.testing.assert_array_equal(one.whole, two.whole)


def compare(codec: str, old: torch.Tensor, new: torch.Tensor, where: str, cut: int | None = None) -> None:
    """Compares two tensors on a device and on the host, in slices; both move alike, and back."""
    base, there = DeviceTensor.of("w", old.to(where)).copy(), DeviceTensor.of("w", new.to(where))
    host, here = adapter.to_host("w", old).copy(), adapter.to_host("w", new)
    chosen = codecs.DELTA[codec]
    step = cut or max(1, len(host.lanes))
    found = []
    for start in range(0, len(host.lanes), step) or [0]:
        spec = spec_of(host, start, min(start + step, len(host.lanes)))
        found.append(base.move(chosen, spec, there))
        same(found[-1], host.move(chosen, spec, here))
    assert base.read(0, len(host.lanes)).tobytes() == bits(new)
    assert base.digest(7) == digest(here.lanes, 7)
    assert base.words is not None
    assert base.words.cpu().numpy().tobytes() == bits(new) + bytes(-len(bits(new)) % 8)
    for delta in found:
        base.undo(delta)
    assert base.read(0, len(host.lanes)).tobytes() == bits(old)
    assert base.digest(7) == digest(adapter.to_host("w", old).lanes, 7)


# --- Comparing ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", DEVICES)
@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 1.0])
@pytest.mark.parametrize("dtype", ALL)
def test_deltas_of_all_dtypes_are_those_of_the_host(dtype: torch.dtype, share: float, where: str) -> None:
    for size in (0, 1, 7, 8, 9, 1001):
        old = sample(dtype, size)
        for codec in DELTAS:
            compare(codec, old, changed(old, share), where)


@pytest.mark.parametrize("where", DEVICES)
@pytest.mark.parametrize("codec", DELTAS)
@pytest.mark.parametrize("dtype", [torch.uint8, torch.bfloat16, torch.float32, torch.complex64])
def test_more_than_one_part_and_slice_are_those_of_the_host(
    dtype: torch.dtype, codec: str, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device, "_LANES", BLOCK)
    old = sample(dtype, 3 * BLOCK + 5)
    for share in (0.0, 0.001, 0.3):
        compare(codec, old, changed(old, share), where)
        compare(codec, old, changed(old, share), where, cut=BLOCK // 2 + 8)
    last = old.clone()
    adapter.bits(last)[-1] ^= 1
    compare(codec, old, last, where, cut=2 * BLOCK)


@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from(ALL),
    st.sampled_from(DELTAS),
    st.integers(0, 70),
    st.lists(st.tuples(st.integers(0, 69), st.integers(0, 255)), max_size=12),
    st.integers(0, 9),
)
def test_any_few_changes_are_those_of_the_host(
    dtype: torch.dtype, codec: str, size: int, edits: list[tuple[int, int]], seed: int
) -> None:
    old = sample(dtype, size, seed)
    new = old.clone()
    raw = new.view(torch.uint8)
    for at, value in edits:
        if raw.numel():
            raw[at % raw.numel()] = value % 2 if dtype is torch.bool else value
    compare(codec, old, new, "cpu")
    compare(codec, old, new, "cpu", cut=8)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e4m3fn, torch.float64])
def test_new_weights_of_any_strides_and_addresses_are_compared(dtype: torch.dtype) -> None:
    backing = sample(dtype, 7 * 60 + 1)
    views = [
        backing[:420].view(7, 60).T,
        backing[1:].view(20, 21)[::2],
        backing[3:50],
        backing[:0],
        backing[5],
    ]
    for view in views:
        old = sample(dtype, view.numel(), 5).view(view.shape)
        compare("ulp", old, view, "cpu")
        assert DeviceTensor.of("w", view).digest(3) == digest(adapter.to_host("w", view).lanes, 3)


def test_a_scalar_and_packed_floats_have_the_shape_of_the_host() -> None:
    for tensor in (sample(torch.float32, 1).view(()), sample(torch.float4_e2m1fn_x2, 12).view(3, 4)):
        found, host = DeviceTensor.of("w", tensor), adapter.to_host("w", tensor)
        assert (found.dtype, found.shape) == (host.dtype, host.shape)
        assert found.read(0, len(host.lanes)).tobytes() == bits(tensor)


@pytest.mark.parametrize("first", [True, False], ids=["made inside", "made outside"])
@pytest.mark.parametrize("later", [True, False], ids=["moved inside", "moved outside"])
def test_inference_mode_may_begin_and_end_anywhere(first: bool, later: bool) -> None:
    with torch.inference_mode(first):
        old = sample(torch.bfloat16, 99)
        base = DeviceTensor.of("w", old).copy()
    with torch.inference_mode(later):
        new = changed(old, 0.2)
        delta = base.move(codecs.DELTA["ulp"], spec_of(base), DeviceTensor.of("w", new))
        assert base.read(0, 99).tobytes() == bits(new)
    with torch.inference_mode(first):
        base.undo(delta)
    assert base.read(0, 99).tobytes() == bits(old)


def test_weights_that_are_put_back_while_they_are_compared_are_no_change(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    old = sample(torch.int16, 64)
    new = old.clone()
    new[[3, 40]] += 1
    base, there = DeviceTensor.of("w", old).copy(), DeviceTensor.of("w", new)
    nonzero = torch.nonzero

    def raced(found: torch.Tensor) -> torch.Tensor:
        there.lanes[3] -= 1
        return nonzero(found)

    monkeypatch.setattr(torch, "nonzero", raced)
    delta = base.move(codecs.DELTA["abs"], spec_of(base), there)
    assert delta.positions.tolist() == [40]
    moved = digest(base.read(0, 64), tensor_key("w"))
    assert delta.state_delta == (moved - digest(adapter.to_host("w", old).lanes, tensor_key("w"))) % 2**64


def test_what_does_not_lie_beside_it_is_refused() -> None:
    base = DeviceTensor.of("w", torch.zeros(8)).copy()
    ulp = codecs.DELTA["ulp"]
    with pytest.raises(SchemaMismatch, match="lies elsewhere"):
        base.move(ulp, spec_of(base), adapter.to_host("w", torch.ones(8)))
    with pytest.raises(SchemaMismatch, match="other lanes"):
        base.move(ulp, spec_of(base), DeviceTensor.of("w", torch.ones(8).double()))
    with pytest.raises(SchemaMismatch, match="other lanes"):
        base.move(ulp, spec_of(base), DeviceTensor.of("w", torch.ones(9)))
    with Far(), pytest.raises(SchemaMismatch, match="lies elsewhere"):
        base.move(ulp, spec_of(base), DeviceTensor.of("w", far(torch.ones(8))))
    with pytest.raises(Unsupported, match="ends inside"):
        base.move(ulp, spec_of(base, 0, 3), DeviceTensor.of("w", torch.ones(8)))
    assert not base.lanes.any()


# --- Digests, NaN, copies ----------------------------------------------------------------------------


@settings(max_examples=150, deadline=None)
@given(
    st.binary(max_size=300), st.integers(0, 2**64 - 1), st.sampled_from([0, 1, 2**33, 2**61 - 1, 2**64 - 5])
)
def test_digests_are_those_of_the_host(data: bytes, key: int, first: int) -> None:
    lanes = np.frombuffer(data, np.uint8)
    assert device.digest(torch.tensor(list(data), dtype=torch.uint8), key, first) == digest(lanes, key, first)


@pytest.mark.parametrize("where", DEVICES)
@pytest.mark.parametrize("size", [2**15 - 1, 2**15, 2**15 + 1, 2**17 + 3])
def test_digests_of_more_than_one_block_are_those_of_the_host(size: int, where: str) -> None:
    given = sample(torch.int64, size).to(where)
    for lanes in (
        given,
        given.view(torch.uint8)[:-3],
        given.view(torch.int16)[1:],
        given.view(torch.int32)[3:],
    ):
        host = lanes.cpu().numpy()
        assert device.digest(lanes, 5, 9) == digest(host.view(f"<u{host.itemsize}"), 5, 9)


@pytest.mark.parametrize("where", DEVICES)
@pytest.mark.parametrize("dtype", ALL)
def test_nan_and_infinity_are_counted_as_on_the_host(dtype: torch.dtype, where: str) -> None:
    raw = torch.arange(2**16, dtype=torch.int32).to(torch.int16)
    given = (raw.view(torch.uint8) if dtype.itemsize == 1 else raw.repeat_interleave(4)).view(torch.uint8)
    values = given % 2 == 1 if dtype is torch.bool else given.view(dtype)
    for tensor in (values, values[:0]):
        there = DeviceTensor.of("w", tensor.to(where))
        assert there.nonfinite() == adapter.to_host("w", tensor).nonfinite()


def test_copies_are_private_and_tell_memories_apart() -> None:
    given = torch.arange(9)
    one = DeviceTensor.of("w", given)
    two = one.copy()
    assert one.memory() == DeviceTensor.of("w", given).memory() != two.memory()
    assert one.same(two)
    given[3] = 7
    assert not one.same(two)
    assert two.read(3, 4)[0] == 3
    assert not one.same(adapter.to_host("w", torch.arange(9)))
    assert two.same(adapter.to_host("w", torch.arange(9)))
    assert DeviceTensor.of("w", given[:0]).memory() is None


def test_a_device_without_room_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise torch.OutOfMemoryError("no room")

    monkeypatch.setattr(torch, "zeros", full)
    with pytest.raises(Unsupported, match="no room on cpu for a copy of 64 bytes") as caught:
        DeviceTensor.of("w", torch.ones(16)).copy()
    assert "compare='host'" in str(caught.value)


# --- What crosses ------------------------------------------------------------------------------------


def test_a_base_follows_its_tensor_to_another_device_and_back() -> None:
    given = sample(torch.bfloat16, 1001)
    host = adapter.to_host("w", given).copy()
    with Far() as bus:
        there = DeviceTensor.of("w", far(given.clone()))
        assert there.near(there) is there
        base = there.near(host)
        assert (bus.sent, bus.fetched) == (2002, 0)
        assert base.same(there)
        back = host.near(base)
        assert bus.fetched - 2002 < 64
        assert host.near(host) is host
        here = DeviceTensor.of("w", given).near(base)
    assert back.same(host)
    assert here.lanes.device.type == "cpu"
    assert here.same(host)


@pytest.mark.parametrize("codec", DELTAS)
def test_only_changes_leave_the_device(codec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "_LANES", BLOCK)
    old = sample(torch.bfloat16, 4 * BLOCK)
    new = old.clone()
    adapter.bits(new)[5 :: BLOCK // 8] ^= 1
    chosen = codecs.DELTA[codec]
    with Far() as bus:
        base = DeviceTensor.of("w", far(old.clone())).copy()
        assert (bus.sent, bus.fetched) == (0, 0)
        assert base.digest(3) == digest(adapter.to_host("w", old).lanes, 3)
        assert base.nonfinite() >= 0
        assert bus.fetched == 2 * 8
        delta = base.move(chosen, spec_of(base), DeviceTensor.of("w", far(new)))
        assert delta.changed == 32
        parts, note = 4 * 8, 4 + 2 + 2  # a digest for each part; position, old and new bits for each change
        assert bus.fetched == 2 * 8 + parts + 32 * note
        assert bus.sent == 0
        base.undo(delta)
        assert bus.sent == 32 * (4 + 2)
        assert bus.fetched < 400
        assert base.digest(3) == digest(adapter.to_host("w", old).lanes, 3)
