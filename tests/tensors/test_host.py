"""numpy arrays as named bits: every dtype, byte order and layout."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from deltastore.codec.types import count_nonfinite
from deltastore.errors import SchemaMismatch, Unsupported
from deltastore.protocol.dtypes import BITS
from deltastore.tensors.bits import require
from deltastore.tensors.host import HostTensor

DTYPES = {
    "?": "BOOL",
    "i1": "I8",
    "u1": "U8",
    "i2": "I16",
    "u2": "U16",
    "i4": "I32",
    "u4": "U32",
    "i8": "I64",
    "u8": "U64",
    "f2": "F16",
    "f4": "F32",
    "f8": "F64",
    "c8": "C64",
}


def array(code: str, *shape: int) -> np.ndarray[Any, np.dtype[Any]]:
    rng = np.random.default_rng(0)
    if code == "?":
        return rng.random(shape) < 0.5
    return (rng.random(shape) * 200 - 90 * (code[0] != "u")).astype(code)


@pytest.mark.parametrize("code", DTYPES)
@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (7,), (5, 3), (2, 3, 4)])
def test_bits_are_the_bytes_of_the_array(code: str, shape: tuple[int, ...]) -> None:
    given = array(code, *shape)
    host = HostTensor.of_array("t", given)
    assert (host.dtype, host.shape) == (DTYPES[code], shape)
    assert host.lanes.tobytes() == given.tobytes()
    assert host.lanes.ndim == 1
    assert host.array().dtype == given.dtype
    assert host.array().tobytes() == given.tobytes()
    assert host.array().shape == shape


@pytest.mark.parametrize("code", [c for c in DTYPES if c not in {"?", "i1", "u1"}])
def test_big_endian_arrays_become_little_endian(code: str) -> None:
    little = array(code, 6, 5)
    big = little.astype(little.dtype.newbyteorder(">"))
    assert HostTensor.of_array("t", big).lanes.tobytes() == little.tobytes()
    assert HostTensor.of_array("t", big.T).lanes.tobytes() == np.ascontiguousarray(little.T).tobytes()


@pytest.mark.parametrize("code", DTYPES)
def test_strides_do_not_matter(code: str) -> None:
    given = array(code, 8, 9)
    for view in (given.T, given[::2, 1::3], given[::-1], np.broadcast_to(given[0], (4, 9))):
        assert HostTensor.of_array("t", view).lanes.tobytes() == view.tobytes()


def test_contiguous_arrays_are_not_copied() -> None:
    given = array("f4", 4, 4)
    assert np.shares_memory(HostTensor.of_array("t", given).lanes, given)


@pytest.mark.parametrize(
    "dtype", ["complex128", "longdouble", "datetime64[s]", "object", "S3", "U2", [("a", "f4")]]
)
def test_other_dtypes_are_refused_by_name(dtype: Any) -> None:
    with pytest.raises(Unsupported, match=r"'layer\.weight'") as caught:
        HostTensor.of_array("layer.weight", np.zeros(3, dtype))
    assert caught.value.fields["tensor"] == "layer.weight"


@pytest.mark.parametrize("dtype", BITS)
def test_bytes_of_a_file_are_viewed(dtype: str) -> None:
    data = bytes(range(24))
    elements = 24 * 8 // BITS[dtype]
    host = HostTensor.of_bytes(dtype, (elements,), data)
    assert host.lanes.tobytes() == data
    assert HostTensor.of_bytes(dtype, (0,), b"").lanes.size == 0
    assert host.array().tobytes() == data


def test_what_does_not_fit_the_schema_is_named() -> None:
    host = HostTensor.of_array("t", array("f4", 2, 3))
    require("t", host, "F32", (2, 3))
    for dtype, shape in (("F16", (2, 3)), ("F32", (3, 2)), ("F32", (6,))):
        with pytest.raises(SchemaMismatch, match="'t' is F32"):
            require("t", host, dtype, shape)


# --- NaN and infinity --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "dtype",
    [
        torch.float16,
        torch.bfloat16,
        torch.float8_e4m3fn,
        torch.float8_e5m2,
        torch.float8_e8m0fnu,
        torch.float8_e4m3fnuz,
        torch.float8_e5m2fnuz,
    ],
)
def test_every_pattern_of_small_floats_is_told_apart(dtype: torch.dtype) -> None:
    names = {
        torch.float16: "F16",
        torch.bfloat16: "BF16",
        torch.float8_e4m3fn: "F8_E4M3",
        torch.float8_e5m2: "F8_E5M2",
        torch.float8_e8m0fnu: "F8_E8M0",
        torch.float8_e4m3fnuz: "F8_E4M3FNUZ",
        torch.float8_e5m2fnuz: "F8_E5M2FNUZ",
    }
    width = dtype.itemsize
    patterns = np.arange(1 << 8 * width, dtype=f"<u{width}")
    signed = torch.from_numpy(patterns.view(f"<i{width}").copy())
    expected = torch.isfinite(signed.view(dtype).float()).numpy()
    found = np.array([count_nonfinite(names[dtype], patterns[i : i + 1]) == 0 for i in range(patterns.size)])
    assert np.array_equal(found, expected)


@pytest.mark.parametrize(("dtype", "code"), [("F32", "f4"), ("F64", "f8")])
def test_wide_floats_are_told_apart(dtype: str, code: str) -> None:
    lane = f"<u{code[1]}"
    limits = np.finfo(code)
    for good in (0.0, -0.0, limits.max, limits.min, limits.tiny, limits.smallest_subnormal):
        assert count_nonfinite(dtype, np.array([1, good], code).view(lane)) == 0
    for bad in (np.nan, -np.nan, np.inf, -np.inf):
        assert count_nonfinite(dtype, np.array([1, bad], code).view(lane))


def test_either_part_of_a_complex_number_counts() -> None:
    assert count_nonfinite("C64", np.array([1 + 2j], "c8").view("<u8")) == 0
    assert count_nonfinite("C64", np.array([complex(1, np.inf)], "c8").view("<u8"))
    assert count_nonfinite("C64", np.array([complex(np.nan, 1)], "c8").view("<u8"))


@pytest.mark.parametrize("dtype", ["I8", "U8", "BOOL", "I64", "F4", "F6_E2M3"])
def test_integers_and_packed_floats_are_always_finite(dtype: str) -> None:
    width = 8 if dtype == "I64" else 1
    assert count_nonfinite(dtype, np.full(3, (1 << 8 * width) - 1, f"<u{width}")) == 0
