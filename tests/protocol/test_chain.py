"""What a slot must be to the one before it, rule by rule; and finding the newest slot without a listing."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from record_samples import SCHEMA, anchor, buried, claim, data, delta, sha, short_log, slot

from deltastore.errors import Diverged
from deltastore.protocol import chain
from deltastore.protocol.descriptors import Descriptor
from deltastore.protocol.features import Requires
from deltastore.protocol.records import External, Kind, Slot, Tombstone, VersionRecord

LOG = short_log()
OTHER_SCHEMA = Descriptor("0f" * 32, 1)
BASE = slot(claim(None, schema=SCHEMA, state=500, external=External("hf://a/b", {})))


def follows(before: Slot, after: VersionRecord | Slot) -> None:
    chain.check_successor(before, after if isinstance(after, Slot) else slot(after))


def diverges(before: Slot, after: VersionRecord | Slot, about: str = "version") -> None:
    with pytest.raises(Diverged, match=about):
        follows(before, after)


@pytest.mark.req(
    "DS-CHAIN-1", "DS-CHAIN-2", "DS-CHAIN-3", "DS-CHAIN-4", "DS-CHAIN-5", "DS-CHAIN-6", "DS-TOMB-2"
)
def test_a_good_log_is_accepted_whatever_of_it_was_collected() -> None:
    for before, after in pairwise(LOG):
        for old in (before, buried(before)):
            for new in (after, buried(after)):
                follows(old, new)


def test_only_the_next_version_follows() -> None:
    diverges(LOG[0], LOG[2])
    diverges(LOG[1], LOG[1])
    diverges(LOG[2], LOG[1])


@pytest.mark.req("DS-CHAIN-1")
@pytest.mark.parametrize("grave", [False, True])
def test_the_parent_is_the_hash_of_the_stored_bytes_before(grave: bool) -> None:
    before = buried(LOG[1]) if grave else LOG[1]
    diverges(before, data(LOG[1], parent=sha("x")), "parent")
    diverges(before, buried(slot(data(LOG[1], parent=sha("x")))), "parent")
    if grave:  # the hash of the tombstone's own bytes is not it
        diverges(before, data(LOG[1], parent=sha(before.data)), "parent")


@pytest.mark.req("DS-CHAIN-2")
@pytest.mark.parametrize("term", [1, 3, 0, 2**53 - 1])
def test_a_claim_has_the_next_term(term: int) -> None:
    follows(LOG[2], claim(LOG[2]))
    diverges(LOG[2], claim(LOG[2], term=term), "term")
    diverges(LOG[2], buried(slot(claim(LOG[2], term=term))), "term")


@pytest.mark.req("DS-CHAIN-2")
@pytest.mark.parametrize("term", [0, 2, 3])
def test_a_data_record_keeps_the_term(term: int) -> None:
    diverges(LOG[1], data(LOG[1], term=term), "term")
    diverges(LOG[1], buried(slot(data(LOG[1], term=term))), "term")


@pytest.mark.req("DS-CHAIN-2")
def test_a_tombstone_of_a_claim_begins_a_term_and_one_of_data_does_not() -> None:
    tombstone = buried(slot(data(LOG[1]))).record
    assert isinstance(tombstone, Tombstone)
    begins = replace(tombstone, term_start=2)
    diverges(LOG[1], Slot(begins, begins.to_bytes(), begins.record_sha256), "term")
    follows(LOG[1], Slot(replace(begins, term=2), b"", begins.record_sha256))


@pytest.mark.req("DS-CHAIN-3")
@pytest.mark.parametrize("grave", [False, True])
def test_a_record_does_not_move_the_start_of_its_term(grave: bool) -> None:
    """Within term 2, which began with version 3."""
    before = slot(data(LOG[3]))
    for start in (0, 2, 4):
        after = slot(data(before, term_start=start))
        diverges(before, buried(after) if grave else after, "start")


@pytest.mark.req("DS-CHAIN-4")
def test_steps_do_not_fall_within_a_term() -> None:
    before = slot(data(LOG[0], step=7))
    for step in (7, 8, 100):
        follows(before, data(before, step=step))
    for step in (6, 0):
        diverges(before, data(before, step=step), "step")
        diverges(buried(before), buried(slot(data(before, step=step))), "step")


@pytest.mark.req("DS-CHAIN-4")
def test_steps_may_fall_with_a_new_term() -> None:
    before = slot(data(LOG[0], step=7))
    claimed = slot(claim(before))
    follows(before, claimed)
    follows(claimed, data(claimed, step=2))


@pytest.mark.req("DS-CHAIN-5")
@pytest.mark.parametrize(
    "changes",
    [
        {"state": 9},
        {"schema": OTHER_SCHEMA},
        {"state": None, "schema": None},
        {"schema": Descriptor(SCHEMA.sha256, 1)},
    ],
)
@pytest.mark.parametrize("grave", [False, True])
def test_a_claim_changes_neither_state_nor_schema(changes: dict[str, Any], grave: bool) -> None:
    diverges(buried(LOG[2]) if grave else LOG[2], claim(LOG[2], **changes), "claim")


@pytest.mark.req("DS-CHAIN-5")
def test_a_claim_on_an_empty_state_stays_empty() -> None:
    diverges(LOG[0], claim(LOG[0], state=1, schema=SCHEMA), "claim")


@pytest.mark.req("DS-CHAIN-6")
def test_a_delta_starts_from_the_state_before() -> None:
    wrong = delta(1, 999, 2, 1002)
    diverges(LOG[1], data(LOG[1], edges=(wrong,)), "state")
    diverges(buried(LOG[1]), data(LOG[1], edges=(wrong,)), "state")


@pytest.mark.req("DS-CHAIN-6", "DS-EDGE-5")
def test_a_delta_does_not_cross_schemas_and_an_anchor_may() -> None:
    diverges(LOG[1], data(LOG[1], schema=OTHER_SCHEMA), "schema")
    follows(LOG[1], data(LOG[1], schema=OTHER_SCHEMA, edges=(anchor(2, 1002),)))
    both = (anchor(2, 1002), delta(1, 1001, 2, 1002))
    diverges(LOG[1], data(LOG[1], schema=OTHER_SCHEMA, edges=both), "schema")


@pytest.mark.req("DS-CHAIN-6")
def test_an_embedded_edge_is_an_anchor_or_starts_from_the_parent() -> None:
    before = slot(data(LOG[3]))
    for base in (0, 1, 3):
        diverges(before, data(before, edges=(delta(base, 1004, 5, 1005),)), "parent")


@pytest.mark.req("DS-CHAIN-6")
def test_an_edge_from_the_external_base_is_only_in_version_1() -> None:
    first = data(BASE, edges=(replace(delta(0, 500, 1, 1001), base="external"),))
    follows(BASE, first)
    follows(BASE, data(BASE))
    diverges(BASE, data(BASE, edges=(replace(delta(0, 501, 1, 1001), base="external"),)), "state")
    diverges(BASE, replace(first, schema=OTHER_SCHEMA), "schema")
    before = slot(first)
    diverges(before, data(before, edges=(replace(delta(1, 1001, 2, 1002), base="external"),)), "external")
    claimed = slot(claim(BASE))
    diverges(claimed, data(claimed, edges=(replace(delta(1, 500, 2, 1002), base="external"),)), "external")


@pytest.mark.req("DS-CHAIN-6")
def test_without_an_external_base_no_edge_starts_from_one() -> None:
    diverges(LOG[0], data(LOG[0], edges=(replace(delta(0, 0, 1, 1001), base="external"),)))


@pytest.mark.req("DS-FEAT-2")
@pytest.mark.parametrize("operation", ["read", "write", "gc"])
def test_what_is_required_only_grows(operation: str) -> None:
    one = Requires(**{operation: frozenset({"a"})})
    two = Requires(**{operation: frozenset({"a", "b"})})
    before = slot(data(LOG[0], requires=one))
    follows(before, data(before, requires=one))
    follows(before, data(before, requires=two))
    diverges(before, data(before), "requires")
    diverges(before, claim(before), "requires")
    diverges(
        slot(data(LOG[0], requires=two)), data(slot(data(LOG[0], requires=two)), requires=one), "requires"
    )
    follows(buried(before), data(before))


@pytest.mark.req("DS-SINGLE-3")
def test_a_reset_that_begins_a_term_follows_as_a_claim_does() -> None:
    reset = data(LOG[2], kind=Kind.RESET, edges=(anchor(3, 1003),), term=2, term_start=3, step=0)
    follows(LOG[2], reset)
    diverges(LOG[2], replace(reset, term=1), "term")
    diverges(LOG[2], replace(reset, parent=sha("x")), "parent")


@pytest.mark.req("DS-CHAIN-1", "DS-CHAIN-2", "DS-CHAIN-3")
@settings(max_examples=200, deadline=None)
@given(st.integers(0, 4), st.integers(0, 3), st.integers(0, 5), st.booleans(), st.integers(-1, 9))
def test_terms_against_the_text_of_the_rules(at: int, term: int, start: int, claims: bool, step: int) -> None:
    """Every combination of fields that the chain looks at, against the rules in other words."""
    before = LOG[at]
    old = before.record
    made = claim(before) if claims else data(before, step=max(step, 0))
    version = at + 1
    if claims:
        start = version
    elif start >= version:
        start = at
    made = replace(made, term=term, term_start=start, parent=sha("no") if step < 0 else before.sha256)
    begins = start == version
    good = (
        step >= 0
        and term == old.term + begins
        and (begins or start == old.term_start)
        and (begins or old.step is None or step >= old.step)
    )
    if good:
        follows(before, made)
    else:
        diverges(before, made)


# --- Galloping ------------------------------------------------------------------------------------------


class Probes:
    """A log of so many slots that counts who asks."""

    def __init__(self, newest: int, first: int = 0) -> None:
        self.newest, self.first, self.asked = newest, first, list[int]()

    def __call__(self, version: int) -> bool:
        self.asked.append(version)
        assert version >= self.first
        return version <= self.newest


def probes_allowed(distance: int) -> int:
    """About 2 log2 of the distance: doubling there and bisecting back."""
    return 2 * max(1, math.ceil(math.log2(distance + 1))) + 2


@pytest.mark.req("DS-GALLOP-1")
@pytest.mark.parametrize("first", [0, 17])
def test_the_newest_is_found_for_every_length_of_log(first: int) -> None:
    for length in range(201):
        log = Probes(first + length - 1, first)
        assert chain.newest(log, known=first - 1) == first + length - 1
        assert len(log.asked) <= probes_allowed(length)
        assert len(set(log.asked)) == len(log.asked)


@pytest.mark.req("DS-GALLOP-1")
@settings(max_examples=300, deadline=None)
@given(st.integers(0, 2**40), st.data())
def test_the_newest_is_found_from_any_slot_that_exists(newest: int, draw: st.DataObject) -> None:
    known = draw.draw(st.integers(-1, newest))
    log = Probes(newest)
    assert chain.newest(log, known=known) == newest
    assert len(log.asked) <= probes_allowed(newest - known)


@pytest.mark.req("DS-GALLOP-1")
def test_nothing_new_costs_one_probe_and_a_million_versions_about_forty() -> None:
    log = Probes(1000)
    assert chain.newest(log, known=1000) == 1000
    assert log.asked == [1001]
    log = Probes(10**6)
    assert chain.newest(log, known=-1) == 10**6
    assert len(log.asked) <= 42


@pytest.mark.req("DS-GALLOP-1")
def test_slots_are_asked_for_in_doubling_steps_each_from_the_one_found() -> None:
    log = Probes(11)
    assert chain.newest(log, known=4) == 11
    assert log.asked == [5, 7, 11, 19, 15, 13, 12]


@pytest.mark.req("DS-TOMB-2")
def test_a_tombstone_is_a_collected_version() -> None:
    assert chain.collected(buried(LOG[1]))
    assert not chain.collected(LOG[1])
