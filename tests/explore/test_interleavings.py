"""Producers, readers and a collector in every interleaving: what must hold does, what can happen happens."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations

import pytest
from scenarios import both, collector, empty, producer, reader, running, scenario, zombie

from deltastore.backends.memory import MemoryBackend
from deltastore.testing import oracles
from deltastore.testing.explore import Mishap, Oracle, Scenario, World, explore

CRASHES = (Mishap.CRASH_BEFORE, Mishap.CRASH_AFTER)
SILENCE = (Mishap.LOST_REQUEST, Mishap.LOST_REPLY, Mishap.LATE)
EVERYTHING = (*CRASHES, *SILENCE)


@dataclass
class Ends:
    """How each run ended: who wrote the slots, and what the actors were told."""

    logs: set[tuple[str, ...]] = field(default_factory=set)
    told: set[tuple[str, str]] = field(default_factory=set)
    superseded: int = 0

    def moved(self, world: World) -> None:
        return

    def ended(self, world: World) -> None:
        slots = oracles.slots_of(world.storage).values()
        self.logs.add(tuple(f"{slot.record.term}{'' if slot.record.step is None else 'd'}" for slot in slots))
        self.superseded += any(
            before.writes and before.step.mishap and move.step.actor == "c" and move.writes
            for before, move in combinations(world.moves, 2)
        ) and ("zombie", "Acknowledged") in {(note.actor, type(note.what).__name__) for note in world.notes}
        self.told |= {(note.actor, type(note.what).__name__) for note in world.notes}


def explored(what: Scenario, mishaps: Collection[Mishap] = (), *, preemptions: int | None = None) -> Ends:
    ends = Ends()

    def watch() -> Sequence[Oracle]:
        return (*both(), ends)

    report = explore(replace(what, oracles=watch), mishaps=mishaps, preemptions=preemptions)
    assert report.complete
    return ends


@pytest.mark.req("DS-CLAIM-2", "DS-COMMIT-1", "DS-COMMIT-5")
def test_two_producers_claim_an_empty_log_at_once() -> None:
    ends = explored(scenario({"a": producer(), "b": producer()}))
    assert ends.logs == {("1",), ("1", "2")}
    assert ends.told == {("a", "Claimed"), ("b", "Claimed")}


@pytest.mark.req("DS-CLAIM-2", "DS-CHAIN-2")
def test_two_producers_claim_a_running_log_at_once() -> None:
    ends = explored(scenario({"a": producer(), "b": producer()}, running))
    assert ends.logs == {("1", "1d", "2"), ("1", "1d", "2", "3")}


@pytest.mark.req("DS-CLAIM-2")
def test_three_producers_claim_and_commit_at_once() -> None:
    ends = explored(scenario({"a": producer("1"), "b": producer(), "c": producer("1")}, running))
    assert ("1", "1d", "2", "3", "4", "4d") in ends.logs
    assert ("1", "1d", "2", "2d", "3", "4", "4d") in ends.logs
    assert ("c", "Fenced") in ends.told


@pytest.mark.req("DS-COMMIT-3", "DS-COMMIT-4", "DS-CLAIM-2")
def test_claims_survive_crashes_and_lost_and_late_requests() -> None:
    ends = explored(scenario({"a": producer(), "b": producer()}), EVERYTHING)
    assert {("1",), ("1", "2"), ("1", "2", "3"), ()} >= ends.logs >= {("1",), ("1", "2"), ("1", "2", "3")}


@pytest.mark.req("DS-CLAIM-5", "DS-COMMIT-5")
def test_a_zombie_is_fenced_and_commits_nothing_behind_the_new_producer() -> None:
    ends = explored(scenario({"zombie": zombie("1", "2"), "new": producer("1", "2")}, running))
    assert ends.told == {
        ("zombie", "Fenced"),
        ("zombie", "Acknowledged"),
        ("new", "Claimed"),
        ("new", "Acknowledged"),
    }
    fenced_at_once = ("1", "1d", "2", "2d", "2d")
    assert {fenced_at_once, ("1", "1d", "1d", *fenced_at_once[2:]), ("1", "1d", "1d", "1d")} <= ends.logs


@pytest.mark.req("DS-CLAIM-5", "DS-COMMIT-3", "DS-COMMIT-4", "DS-COMMIT-6")
def test_a_zombie_with_any_one_mishap() -> None:
    ends = explored(scenario({"zombie": zombie("1", "2"), "new": producer("1")}, running), EVERYTHING)
    assert ("zombie", "Fenced") in ends.told
    assert ("1", "1d", "1d", "1d") in ends.logs


@pytest.mark.req("DS-COMMIT-2", "DS-CLAIM-2", "DS-CHAIN-1", "DS-CHAIN-5")
def test_a_producer_crashes_anywhere_and_a_successor_goes_on() -> None:
    ends = explored(scenario({"first": producer("1", "2"), "second": producer("1")}), CRASHES)
    assert {("1", "2", "2d"), ("1", "1d", "2", "2d"), ("1", "1d", "1d", "2", "2d")} <= ends.logs


@pytest.mark.req("DS-COMMIT-3", "DS-COMMIT-4", "DS-COMMIT-6")
@pytest.mark.parametrize("prepare", [empty, running])
@pytest.mark.parametrize("mishap", SILENCE)
def test_silence_changes_nothing_for_one_producer(
    prepare: Callable[[MemoryBackend], None], mishap: Mishap
) -> None:
    ends = explored(scenario({"a": producer("1", "2")}, prepare), [mishap])
    before = ("1", "1d") if prepare is running else ()
    term = len(before) // 2 + 1
    without = (*before, f"{term}", f"{term}d", f"{term}d")
    again = (*before, f"{term}", f"{term + 1}", f"{term + 1}d", f"{term + 1}d")
    assert (
        ends.logs
        == {
            Mishap.LOST_REQUEST: {without},
            Mishap.LOST_REPLY: {without},  # a claim is read back
            Mishap.LATE: {without, again, (*before, f"{term}")},  # its own claim may come in its way
        }[mishap]
    )
    assert ("a", "Failed") not in ends.told


@pytest.mark.req("DS-FLOOR-1", "DS-READ-3", "DS-BACK-3")
def test_a_reader_never_goes_back_nor_misses_what_was_committed_before_it_looked() -> None:
    ends = explored(scenario({"a": producer("1", "2"), "reader": reader(3)}, running))
    assert ("reader", "Seen") in ends.told


@pytest.mark.req("DS-FLOOR-1", "DS-CHAIN-7")
def test_a_reader_sees_one_history_while_two_producers_fight() -> None:
    fight = scenario({"zombie": zombie("1"), "new": producer("1"), "reader": reader(2)}, running)
    assert ("reader", "Seen") in explored(fight).told


@pytest.mark.req("DS-TOMB-2", "DS-COMMIT-3")
def test_a_record_that_was_buried_before_it_was_read_back_is_still_committed() -> None:
    """Its producer hears nothing, another one claims behind it, and a collector buries it meanwhile."""
    what = scenario({"c": collector(2, patience=1), "new": producer(), "zombie": zombie("1")}, running)
    ends = Ends()
    explore(replace(what, oracles=lambda: (*both(), ends)), mishaps=[Mishap.LOST_REPLY])
    assert ends.superseded
