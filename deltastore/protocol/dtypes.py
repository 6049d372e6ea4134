"""Element types: the names of safetensors, and how wide an element is as a bit pattern (spec, Schema)."""

from __future__ import annotations

from typing import Final

BITS: Final[dict[str, int]] = {
    "BOOL": 8,
    "F4": 4,
    "F6_E2M3": 6,
    "F6_E3M2": 6,
    "U8": 8,
    "I8": 8,
    "F8_E5M2": 8,
    "F8_E4M3": 8,
    "F8_E8M0": 8,
    "F8_E4M3FNUZ": 8,
    "F8_E5M2FNUZ": 8,
    "I16": 16,
    "U16": 16,
    "F16": 16,
    "BF16": 16,
    "I32": 32,
    "U32": 32,
    "F32": 32,
    "C64": 64,
    "F64": 64,
    "I64": 64,
    "U64": 64,
}
"""Bits per element of every dtype of safetensors."""

NONFINITE: Final[dict[str, tuple[int, int]]] = {
    "F16": (0x7C00, 0x7C00),
    "BF16": (0x7F80, 0x7F80),
    "F32": (0x7F800000, 0x7F800000),
    "F64": (0x7FF0000000000000, 0x7FF0000000000000),
    "F8_E5M2": (0x7C, 0x7C),
    "F8_E4M3": (0x7F, 0x7F),
    "F8_E8M0": (0xFF, 0xFF),
    "F8_E4M3FNUZ": (0xFF, 0x80),
    "F8_E5M2FNUZ": (0xFF, 0x80),
}
"""Mask and value of the bit patterns that are NaN or infinite; a `C64` is two `F32`."""


def lane_bytes(dtype: str) -> int:
    """Bytes of one lane, the unit that codecs address: an element, or a byte of packed sub-byte ones."""
    return max(1, BITS[dtype] // 8)


def byte_length(dtype: str, elements: int) -> int | None:
    """Bytes that `elements` elements take, or None if packed elements do not fill whole bytes."""
    bits = BITS[dtype] * elements
    return bits // 8 if bits % 8 == 0 else None
