"""Features that a store may require, per operation."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltastore.errors import UnknownFeature
from deltastore.protocol.features import KNOWN, Operation, Requires, check

OPERATIONS: tuple[Operation, ...] = ("read", "write", "gc")
NAMES = st.frozensets(st.sampled_from("abcd"))
REQUIRES = st.builds(Requires, NAMES, NAMES, NAMES)


@pytest.mark.req("DS-FEAT-1")
def test_version_1_of_the_spec_defines_no_feature() -> None:
    assert frozenset() == KNOWN


@pytest.mark.req("DS-FEAT-1")
@pytest.mark.parametrize("operation", OPERATIONS)
def test_an_unknown_feature_stops_its_own_operation_and_no_other(operation: Operation) -> None:
    requires = Requires(**{operation: frozenset({"sharded-heads", "a-first"})})
    for other in OPERATIONS:
        if other != operation:
            check(requires, other, where="it")
            continue
        with pytest.raises(UnknownFeature, match="it requires a-first, sharded-heads to") as caught:
            check(requires, other, where="it")
        assert caught.value.fields["feature"] == "a-first"


@pytest.mark.req("DS-FEAT-2")
@given(REQUIRES, REQUIRES)
def test_to_include_is_to_miss_nothing_in_any_of_the_three(one: Requires, other: Requires) -> None:
    missing = [name for op in OPERATIONS for name in other.of(op) if name not in one.of(op)]
    assert one.includes(other) is not bool(missing)
