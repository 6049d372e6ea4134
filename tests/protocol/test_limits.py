"""The numbers of the spec, and the bound on what a shard may inflate to."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from record_samples import SCHEMA, STORE, shard

from deltastore.protocol import limits
from deltastore.protocol.descriptors import Part, Run
from deltastore.protocol.edges import Edge, EdgeRecord
from deltastore.protocol.schema import Schema, TensorSpec

SPEC = Path(__file__).parents[2] / "spec" / "deltastore-v1.md"


@pytest.mark.req("DS-LIMIT-1", "DS-LIMIT-2")
def test_the_limits_are_those_of_the_table() -> None:
    rows = re.findall(r"^\| `([A-Z_]+)` \| (\d+) \|", SPEC.read_text(), re.MULTILINE)
    in_code = {name: value for name, value in vars(limits).items() if name.isupper()}
    assert {name: int(value) for name, value in rows} == in_code


def test_the_largest_counts_fit_into_the_largest_sizes() -> None:
    shards = tuple(
        replace(
            shard(number, 1, size=limits.SHARD_BYTES, raw_size=limits.MAX_INT),
            slices=(Run(limits.TENSORS, limits.TENSORS), Part(limits.TENSORS, 0, 2**40)),
        )
        for number in range(limits.SHARDS_PER_EDGE)
    )
    edge = Edge("none", None, 5, sum(one.state_delta for one in shards), shards)
    record = EdgeRecord(store=STORE, schema=SCHEMA.sha256, edge=edge).to_bytes()
    assert len(record) + limits.USER_BYTES + 2**18 < limits.RECORD_BYTES
    name = "model.layers.{:02}.mlp.experts.{:04}.down_proj.weight_scale_inv"
    tensors = (
        TensorSpec(name.format(i // 4096, i % 4096), "BF16", (7168, 2048)) for i in range(limits.TENSORS)
    )
    assert len(Schema.of(tensors).data) < limits.SCHEMA_BYTES


@pytest.mark.req("DS-DESC-5")
@given(st.integers(0, 2**50), st.integers(0, 10**6))
def test_what_a_shard_may_inflate_to(covered: int, slices: int) -> None:
    assert limits.max_raw(covered, slices) == 10 * covered + 4096 * slices + 65536
