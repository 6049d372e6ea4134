"""torch tensors as named bits and back: every dtype that safetensors and torch share."""

from __future__ import annotations

import pytest
import torch
from support import bits

from deltastore.errors import Unsupported
from deltastore.protocol.dtypes import BITS
from deltastore.tensors import torch as adapter
from deltastore.tensors.convert import memory_of
from deltastore.tensors.host import HostTensor

ALL = list(adapter.NAMES)


def sample(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    """Random bits; the last dimension is in storage elements."""
    rng = torch.Generator().manual_seed(1)
    if dtype is torch.bool:
        return torch.rand(*shape, generator=rng) < 0.5
    size = torch.Size(shape).numel() * dtype.itemsize
    raw = torch.randint(0, 256, (size,), generator=rng, dtype=torch.uint8)
    return raw.view(dtype).reshape(shape)


def test_all_dtypes_of_safetensors_but_six_bit_floats_are_there() -> None:
    assert set(adapter.NAMES.values()) == set(BITS) - {"F6_E2M3", "F6_E3M2"}


@pytest.mark.parametrize("dtype", ALL)
@pytest.mark.parametrize("shape", [(0,), (0, 3), (5,), (4, 3), (2, 3, 5)])
def test_bits_go_both_ways(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    given = sample(dtype, *shape)
    host = adapter.to_host("t", given)
    assert host.dtype == adapter.NAMES[dtype]
    assert host.lanes.tobytes() == bits(given)
    back = adapter.from_host(host)
    assert (back.dtype, back.shape) == (given.dtype, given.shape)
    assert bits(back) == bits(given)


@pytest.mark.parametrize("dtype", [d for d in ALL if d is not torch.float4_e2m1fn_x2])
def test_scalars_go_both_ways(dtype: torch.dtype) -> None:
    given = sample(dtype, 1).reshape(())
    host = adapter.to_host("t", given)
    assert host.shape == ()
    assert host.lanes.shape == (1,)
    back = adapter.from_host(host)
    assert back.shape == ()
    assert bits(back) == bits(given)


@pytest.mark.parametrize("dtype", ALL)
def test_strides_do_not_matter(dtype: torch.dtype) -> None:
    given = sample(dtype, 6, 8)
    for view in (given.T, given[::2], given[:, 1:3], given[1:, ::3]):
        expected = b"".join(bits(row) for row in view.unbind())
        assert adapter.to_host("t", view).lanes.tobytes() == expected


def test_conjugate_and_negative_views_are_resolved() -> None:
    given = torch.complex(torch.randn(7), torch.randn(7))
    conjugate = given.conj()
    assert conjugate.is_conj()
    assert adapter.to_host("t", conjugate).lanes.tobytes() == conjugate.resolve_conj().numpy().tobytes()
    negative = given.conj().imag
    assert negative.is_neg()
    assert adapter.to_host("t", negative).lanes.tobytes() == negative.resolve_neg().numpy().tobytes()


def test_inference_tensors_and_parameters_are_read() -> None:
    with torch.inference_mode():
        given = torch.randn(5).bfloat16()
    assert adapter.to_host("t", given).lanes.tobytes() == bits(given)
    parameter = torch.nn.Parameter(torch.randn(3))
    assert adapter.to_host("t", parameter).lanes.tobytes() == bits(parameter)
    with torch.inference_mode():
        assert adapter.to_host("t", parameter).lanes.tobytes() == bits(parameter)


def test_packed_pairs_count_as_two_elements() -> None:
    given = sample(torch.float4_e2m1fn_x2, 3, 4)
    host = adapter.to_host("t", given)
    assert (host.dtype, host.shape, host.lanes.size) == ("F4", (3, 8), 12)
    assert adapter.from_host(host).shape == (3, 4)


def test_a_tensor_from_bits_has_its_own_memory() -> None:
    host = adapter.to_host("t", torch.zeros(4))
    adapter.from_host(host).fill_(1)
    assert not host.lanes.any()


@pytest.mark.parametrize(
    "tensor",
    [
        torch.zeros(2, dtype=torch.complex128),
        torch.eye(3).to_sparse(),
        torch.zeros(2, device="meta"),
    ],
    ids=["complex128", "sparse", "meta"],
)
def test_what_has_no_bits_of_safetensors_is_refused_by_name(tensor: torch.Tensor) -> None:
    with pytest.raises(Unsupported, match=r"'layer\.w'") as caught:
        adapter.to_host("layer.w", tensor)
    assert caught.value.fields["tensor"] == "layer.w"


def test_six_bit_floats_stay_host_tensors() -> None:
    with pytest.raises(Unsupported, match="F6_E2M3"):
        adapter.from_host(HostTensor.of_bytes("F6_E2M3", (4,), b"abc"))


# --- Casting -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "dtype", [torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.float8_e5m2, torch.float64]
)
def test_floats_are_cast_as_torch_casts_them(dtype: torch.dtype) -> None:
    given = torch.randn(64, 3)
    host = adapter.to_host("t", given, cast=adapter.NAMES[dtype])
    assert host.dtype == adapter.NAMES[dtype]
    assert host.lanes.tobytes() == bits(given.to(dtype))


@pytest.mark.parametrize(
    ("dtype", "cast"),
    [
        (torch.float32, "I64"),
        (torch.float32, "BOOL"),
        (torch.int64, "I32"),
        (torch.int64, "F32"),
        (torch.complex64, "F32"),
        (torch.float32, "F4"),
        (torch.float32, "bf16"),
    ],
)
def test_casts_that_lose_more_than_precision_are_refused(dtype: torch.dtype, cast: str) -> None:
    with pytest.raises(Unsupported, match="cannot be cast"):
        adapter.to_host("t", torch.ones(2, dtype=dtype), cast=cast)


# --- Ties --------------------------------------------------------------------------------------------


def test_the_same_view_of_the_same_memory_is_a_tie() -> None:
    given = torch.randn(4, 4)
    assert memory_of(given) == memory_of(given.view(4, 4)) == memory_of(torch.nn.Parameter(given))
    for other in (given.T, given[:2], given.view(2, 8), given.view(torch.int32), given.clone()):
        assert memory_of(given) != memory_of(other)
    assert memory_of(torch.empty(0)) is None
    assert memory_of(torch.empty(3, device="meta")) is None


def test_a_conjugate_view_is_no_tie() -> None:
    given = torch.complex(torch.randn(4), torch.randn(4))
    assert memory_of(given) != memory_of(given.conj())


def test_host_tensors_of_other_dtypes_or_shapes_are_no_ties() -> None:
    lanes = adapter.to_host("t", torch.zeros(8).bfloat16()).lanes
    keys = [HostTensor(d, s, lanes) for d, s in (("BF16", (8,)), ("F16", (8,)), ("BF16", (2, 4)))]
    assert len({memory_of(key) for key in keys}) == 3
