"""Streams for the plain reader: sections 9.3, 9.9 and the steps of 9.5, from the specification alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import zstandard

BLOCK = 2**18
FRAME = 2**20
ROTATION = {"BF16": 1, "F16": 1, "F32": 1, "F64": 4}


class Streams:
    """Raw streams with a cursor each."""

    def __init__(self, data: Mapping[str, bytes]) -> None:
        self.data = dict(data)
        self.raw = sum(map(len, data.values()))

    def take(self, name: str, size: int) -> bytes:
        """The next bytes of a stream."""
        data = self.data.get(name, b"")
        assert len(data) >= size
        self.data[name] = data[size:]
        return data[:size]

    def planes(self, kind: str, count: int, width: int, dtype: str) -> list[int]:
        """Lanes from the planes of 9.9: bytes, most significant first, rotated back to the right."""
        planes = [self.take(f"{kind}{i}", count) for i in range(width)]
        turn, bits = ROTATION.get(dtype, 0), 8 * width
        rotated = (int.from_bytes(row, "big") for row in zip(*planes, strict=True))
        return [(x >> turn | x << bits - turn) % 2**bits for x in rotated]

    def steps(self, changes: int, near_count: int, far_count: int, width: int) -> Iterator[int]:
        """Steps of one block of `ulp`, or one segment of `ctx`, from `U`, `X` and `Y`."""
        packed = self.take("U", -(-changes // 4))
        codes = iter([byte >> i & 3 for byte in packed for i in (0, 2, 4, 6)])
        near = iter(self.take("X", near_count))
        far = self.whole_steps("Y", far_count, width)
        for _ in range(changes):
            code = next(codes)
            assert code < 3
            if code < 2:
                yield (-1, 1)[code]
                continue
            x = next(near)
            z = x + 3 if x < 255 else zigzag(next(far))
            assert z < 2 ** (8 * width)
            assert x < 255 or z >= 258
            yield unzigzag(z)
        assert not any(codes)
        assert next(near, None) is None
        assert next(far, None) is None

    def whole_steps(self, name: str, count: int, width: int) -> Iterator[int]:
        """Steps in full width."""
        data = self.take(name, count * width)
        cuts = range(0, len(data), width)
        return iter([int.from_bytes(data[at : at + width], "little", signed=True) for at in cuts])

    def all_taken(self) -> bool:
        """Whether nothing is left over."""
        return not any(self.data.values())


def inflate(stored: bytes, sizes: list[int]) -> bytes:
    """The frames of a compressed stream, one after the other."""
    assert sum(sizes) == len(stored)
    parts, at = [], 0
    for size in sizes:
        parts.append(zstandard.ZstdDecompressor().decompress(stored[at : at + size]))
        at += size
    assert all(len(part) == FRAME for part in parts[:-1])
    return b"".join(parts)


def zigzag(d: int) -> int:
    """The number of a step: 1 for -1, 2 for 1, 3 for -2."""
    return 2 * d if d >= 0 else -2 * d - 1


def unzigzag(z: int) -> int:
    """The step of a number."""
    return z // 2 if z % 2 == 0 else -(z + 1) // 2
