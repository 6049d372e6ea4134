"""What was compared elsewhere, part by part, is the delta that a codec's own comparison gives."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
from codec_samples import DELTAS, NONCE, pair, part_spec, whole_spec

from deltastore import codec as codecs
from deltastore.codec import twin
from deltastore.codec.types import Diff, InMemory, SliceSpec, whole_copy
from deltastore.codec.ulp import Steps
from deltastore.protocol.digest import Lanes

BLOCK = twin.BLOCK
SPECS = [
    whole_spec("BF16", 0),
    whole_spec("BF16", 5),
    whole_spec("U8", BLOCK),
    whole_spec("F32", 2 * BLOCK + 3),
    part_spec("BF16", 4096, 4096 + 3 * BLOCK, 8 * BLOCK),
    part_spec("F64", 7 * BLOCK, 8 * BLOCK + 1, 8 * BLOCK + 1),
]


def parts(spec: SliceSpec, base: Lanes, new: Lanes, step: int) -> Iterator[Diff]:
    """The differences of parts of a slice; each is asked for when the one before it was taken."""
    for at in range(0, spec.lanes, step):
        stop = min(at + step, spec.lanes)
        part = part_spec(spec.dtype, spec.start + at, spec.start + stop, spec.total)
        yield twin.diff(part, base[at:stop], new[at:stop])


def same(one: Any, two: Any) -> None:
    """Two deltas, bit for bit."""
    assert type(one) is type(two)
    assert (one.changed, one.state_delta, one.nonfinite) == (two.changed, two.state_delta, two.nonfinite)
    if isinstance(one, Steps):
        assert one.streams == two.streams
    else:
        for name in ("positions", "old", "new"):
            left, right = getattr(one, name), getattr(two, name)
            assert left.dtype == right.dtype
            np.testing.assert_array_equal(left, right)
    assert (one.whole is None) == (two.whole is None)
    if one.whole is not None:
        assert not one.whole.flags.writeable
        np.testing.assert_array_equal(one.whole, two.whole)


@pytest.mark.parametrize("density", [0.0, 0.001, 0.4, 1.0])
@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: f"{spec.label}-{spec.dtype}")
@pytest.mark.parametrize("codec", DELTAS)
def test_parts_are_joined_to_what_one_comparison_finds(codec: str, spec: SliceSpec, density: float) -> None:
    chosen = codecs.DELTA[codec]
    _, base, new = pair(np.random.default_rng(4), spec, density, "special")
    expected = chosen.diff(spec, base.copy(), new)

    after = InMemory([new])
    for step in (BLOCK, 2 * BLOCK):
        moved = base.copy()
        found = chosen.of(spec, parts(spec, moved, new, step), partial(whole_copy, moved))
        same(found, expected)
        assert chosen.encode([found], nonce=NONCE, base=after) == chosen.encode(
            [expected], nonce=NONCE, base=after
        )


@pytest.mark.parametrize("density", [0.0, 0.01, 1.0])
@pytest.mark.parametrize("codec", DELTAS)
def test_the_reverse_of_a_delta_puts_the_old_bits_back(codec: str, density: float) -> None:
    spec, base, new = pair(np.random.default_rng(5), whole_spec("F16", BLOCK + 9), density, "random")
    moved = base.copy()
    back = codecs.DELTA[codec].diff(spec, moved, new).reverse()
    moved[back.positions] = twin.new_bits(back, moved[back.positions])
    np.testing.assert_array_equal(moved, base)
