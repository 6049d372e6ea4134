"""When a version deserves an anchor."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltastore.protocol.anchoring import DEFAULT, AnyOf, CatchUpBytes, Chain, MaxChain

COUNTS = st.integers(0, 1000)


@pytest.mark.parametrize(("deltas", "due"), [(0, False), (99, False), (100, False), (101, True)])
def test_catching_up_may_cost_as_much_as_an_anchor(deltas: int, due: bool) -> None:
    assert CatchUpBytes().due(Chain(3, deltas, 100)) is due
    assert CatchUpBytes(ratio=0.5).due(Chain(3, deltas, 200)) is due


def test_a_version_without_data_since_needs_no_anchor() -> None:
    assert not CatchUpBytes(ratio=0).due(Chain(0, 0, 0))
    assert not CatchUpBytes().due(Chain(0, 5, 0))


@pytest.mark.parametrize(("versions", "due"), [(0, False), (255, False), (256, True), (257, True)])
def test_a_chain_has_a_length_at_most(versions: int, due: bool) -> None:
    assert MaxChain().due(Chain(versions, 0, 100)) is due
    assert MaxChain(versions=versions + 1).due(Chain(versions, 10**9, 1)) is False


@given(COUNTS, COUNTS, COUNTS)
def test_the_default_is_either(versions: int, deltas: int, anchor: int) -> None:
    chain = Chain(versions, deltas, anchor)
    assert DEFAULT.due(chain) == (versions >= 256 or (versions > 0 and deltas > anchor))
    assert not AnyOf(()).due(chain)
