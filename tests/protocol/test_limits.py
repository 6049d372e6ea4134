"""The numbers of the spec, and the bound on what a shard may inflate to."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltastore.protocol import limits

SPEC = Path(__file__).parents[2] / "spec" / "deltastore-v1.md"


@pytest.mark.req("DS-LIMIT-1", "DS-LIMIT-2")
def test_the_limits_are_those_of_the_table() -> None:
    rows = re.findall(r"^\| `([A-Z_]+)` \| (\d+) \|", SPEC.read_text(), re.MULTILINE)
    in_code = {name: value for name, value in vars(limits).items() if name.isupper()}
    assert {name: int(value) for name, value in rows} == in_code


@pytest.mark.req("DS-DESC-5")
@given(st.integers(0, 2**50), st.integers(0, 10**6))
def test_what_a_shard_may_inflate_to(covered: int, slices: int) -> None:
    assert limits.max_raw(covered, slices) == 10 * covered + 4096 * slices + 65536
