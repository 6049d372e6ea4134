"""The explorer itself: it makes all choices, once each, and the same schedule does the same again."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from math import comb

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deltastore.backends import Put
from deltastore.backends.memory import MemoryBackend
from deltastore.errors import NotFound, Unavailable, Unsupported
from deltastore.testing import CrashNow
from deltastore.testing.explore import Actor, Mishap, Scenario, Stage, Step, Violation, World, explore, replay

BIG = 1 << 20


@dataclass
class Outcomes:
    """Collects how runs end."""

    seen: list[tuple[object, object, frozenset[str]]] = field(default_factory=list)

    def moved(self, world: World) -> None:
        return

    def ended(self, world: World) -> None:
        stored = tuple((key, data) for key, (data, _) in sorted(world.storage.snapshot().items()))
        heard = tuple(sorted((note.actor, str(note.what)) for note in world.notes))
        self.seen.append((stored, heard, frozenset(world.crashed)))


def writes(*names: str) -> Actor:
    def actor(stage: Stage) -> None:
        for name in names:
            stage.backend.put(name, stage.name.encode())

    return actor


def outcomes(actors: dict[str, Actor], **options: object) -> tuple[Outcomes, int]:
    found = Outcomes()
    report = explore(Scenario(actors, oracles=lambda: [found]), **options)  # type: ignore[arg-type]
    assert report.complete
    return found, report.runs


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_all_interleavings_of_writes_to_one_key_are_run(count: int) -> None:
    actor = writes(*["k"] * count)
    for options in ({}, {"preemptions": 99}):
        found, runs = outcomes({"a": actor, "b": actor}, **options)
        assert runs == comb(2 * count, count)
        assert len({stored for stored, _, _ in found.seen}) == 2


def test_operations_on_different_keys_are_tried_in_one_order() -> None:
    actors = {"a": writes("x", "x"), "b": writes("y", "y")}
    assert outcomes(actors)[1] == 1
    assert outcomes(actors, preemptions=99)[1] == 6


@pytest.mark.parametrize(("preemptions", "runs"), [(0, 2), (1, 4), (2, 6), (3, 6)])
def test_preemptions_are_bounded(preemptions: int, runs: int) -> None:
    actor = writes("k", "k")
    assert outcomes({"a": actor, "b": actor}, preemptions=preemptions)[1] == runs


PROGRAMS = st.lists(
    st.tuples(st.sampled_from(["put", "new", "get", "list"]), st.sampled_from("xy")), max_size=3
)


def program(steps: list[tuple[str, str]]) -> Actor:
    def actor(stage: Stage) -> None:
        for number, (name, key) in enumerate(steps):
            data = f"{stage.name}{number}".encode()
            try:
                if name == "put":
                    stage.backend.put(key, data)
                elif name == "new":
                    stage.note((number, stage.backend.put_if_absent(key, data)))
                elif name == "get":
                    stage.note((number, stage.backend.get(key, max_size=BIG)))
                else:
                    stage.note((number, [info.key for info in stage.backend.list()]))
            except (NotFound, Unavailable) as error:
                stage.note((number, type(error).__name__))

    return actor


@settings(max_examples=150, deadline=None)
@given(PROGRAMS, PROGRAMS, st.sets(st.sampled_from(Mishap), max_size=1))
def test_what_is_pruned_reaches_no_new_end(
    one: list[tuple[str, str]], two: list[tuple[str, str]], mishaps: set[Mishap]
) -> None:
    actors = {"a": program(one), "b": program(two)}
    pruned, few = outcomes(actors, mishaps=mishaps)
    everything, many = outcomes(actors, mishaps=mishaps, preemptions=99)
    assert set(pruned.seen) == set(everything.seen)
    assert few <= many


def test_the_time_and_randomness_of_an_actor_are_its_own_and_the_same_in_every_run() -> None:
    def actor(stage: Stage) -> None:
        begun = stage.runtime.monotonic()
        stage.runtime.sleep(3600)
        stage.backend.put("k", stage.runtime.random_bytes(8) + stage.runtime.random_bytes(8))
        stage.note((stage.runtime.monotonic() - begun, stage.runtime.now()))

    scenario = Scenario({"a": actor, "b": actor})
    worlds = [replay(scenario, [Step(name)]) for name in ("a", "a", "b")]
    stored = [dict(world.storage.snapshot()) for world in worlds]
    assert stored[0] == stored[1] != stored[2]
    first, second = (note.what for note in worlds[0].notes)
    assert first != second
    assert {note.what[0] for note in worlds[0].notes} == {3600.0}  # type: ignore[index]


@pytest.mark.parametrize(
    ("mishap", "stored", "heard"),
    [
        (None, b"1", "created"),
        (Mishap.CRASH_BEFORE, None, None),
        (Mishap.CRASH_AFTER, b"1", None),
        (Mishap.LOST_REQUEST, None, "Unavailable"),
        (Mishap.LOST_REPLY, b"1", "Unavailable"),
    ],
)
def test_what_a_mishap_does(mishap: Mishap | None, stored: bytes | None, heard: str | None) -> None:
    def actor(stage: Stage) -> None:
        try:
            stage.note(str(stage.backend.put_if_absent("k", b"1")))
        except Unavailable as error:
            stage.note(type(error).__name__)
        finally:
            if heard is None:
                stage.note("its last words")

    world = replay(Scenario({"a": actor}), [Step("a", mishap)])
    objects = world.storage.snapshot()
    assert (objects["k"][0] if "k" in objects else None) == stored
    assert [note.what for note in world.notes] == ([] if heard is None else [heard])
    assert world.crashed == (set() if heard else {"a"})


def test_a_late_put_arrives_at_any_later_time() -> None:
    def sender(stage: Stage) -> None:
        with pytest.raises(Unavailable):
            stage.backend.put("k", b"late")

    def other(stage: Stage) -> None:
        stage.note(stage.backend.put_if_absent("k", b"other"))
        stage.note(stage.backend.get("k", max_size=BIG))

    late = [Step("s", Mishap.LATE)]
    ends = set()
    for place in range(3):
        schedule = [*late, *[Step("o")] * place, Step("s~0")]
        world = replay(Scenario({"s": sender, "o": other}), schedule)
        ends.add((world.storage.snapshot()["k"][0], *[note.what for note in world.notes]))
    assert ends == {
        (b"late", Put.EXISTS, b"late"),
        (b"late", Put.CREATED, b"late"),
        (b"late", Put.CREATED, b"other"),
    }


def test_the_dead_write_nothing_more() -> None:
    def actor(stage: Stage) -> None:
        try:
            stage.backend.put("a", b"")
        finally:
            try:
                stage.backend.put("b", b"")
            except CrashNow:
                stage.backend.put("c", b"")

    world = replay(Scenario({"x": actor}), [Step("x", Mishap.CRASH_BEFORE)])
    assert world.storage.snapshot() == {}
    assert [move.operation.key for move in world.moves] == ["a"]


def test_one_mishap_at_most_unless_more_are_allowed() -> None:
    def actor(stage: Stage) -> None:
        for name in "ab":
            try:
                stage.backend.put(name, b"")
            except Unavailable:
                stage.note(name)

    once, _ = outcomes({"a": actor}, mishaps=[Mishap.LOST_REQUEST])
    twice, _ = outcomes({"a": actor}, mishaps=[Mishap.LOST_REQUEST], most_mishaps=2)
    assert len(set(once.seen)) == 3
    assert len(set(twice.seen)) == 4


def racing() -> Scenario:
    """Adds one to a number, twice at once, by reading and writing."""

    def prepare(storage: MemoryBackend) -> None:
        storage.put("n", b"0")

    def actor(stage: Stage) -> None:
        stage.backend.put("n", str(int(stage.backend.get("n", max_size=BIG)) + 1).encode())

    class Sum:
        def moved(self, world: World) -> None:
            return

        def ended(self, world: World) -> None:
            assert world.storage.get("n", max_size=BIG) == b"2"

    return Scenario({"a": actor, "b": actor}, prepare, lambda: [Sum()])


def test_a_lost_update_is_found_and_its_schedule_leads_there_again() -> None:
    with pytest.raises(Violation) as caught:
        explore(racing())
    schedule = list(caught.value.schedule)
    assert schedule in ([Step(x) for x in order] for order in ("abab", "abba", "baab", "baba"))
    for _ in range(2):
        with pytest.raises(Violation) as again:
            replay(racing(), schedule)
        assert list(again.value.schedule) == schedule
    assert replay(racing(), [Step("a"), Step("a")]).storage.get("n", max_size=BIG) == b"2"


def test_without_preemption_the_lost_update_stays_hidden() -> None:
    assert explore(racing(), preemptions=0).complete
    with pytest.raises(Violation):
        explore(racing(), preemptions=1)


def test_an_error_of_an_actor_is_a_violation_with_its_schedule() -> None:
    def actor(stage: Stage) -> None:
        stage.backend.get("absent", max_size=BIG)

    with pytest.raises(Violation, match="NotFound") as caught:
        explore(Scenario({"a": actor}))
    assert caught.value.schedule == (Step("a"),)


def test_an_exploration_that_was_cut_short_says_so() -> None:
    actor = writes("k", "k")
    report = explore(Scenario({"a": actor, "b": actor}), most_runs=3)
    assert not report.complete
    assert report.runs == 3


def test_a_schedule_that_does_not_fit_is_refused() -> None:
    with pytest.raises(Violation, match="nothing to do"):
        replay(Scenario({"a": writes("k")}), [Step("b")])


def test_quiet_keys_are_no_steps() -> None:
    quiet = Scenario({"a": writes("status/x", "k"), "b": writes("status/x", "k")}, quiet=("status/",))
    assert explore(quiet, preemptions=99).runs == 2


def test_without_greenlet_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "greenlet", None)
    with pytest.raises(Unsupported, match="extra 'dev'"):
        explore(Scenario({"a": writes("k")}))


def test_operations_behave_like_those_of_the_storage() -> None:
    def actor(stage: Stage) -> None:
        backend = stage.backend
        backend.put("a/b", memoryview(b"123"))
        assert backend.put_if_absent("a/b", b"x") is Put.EXISTS
        assert backend.get("a/b", max_size=2, start=1) == b"23"
        assert backend.head("a/b").size == 3
        assert [info.key for info in backend.list("a/")] == ["a/b"]
        backend.delete(["a/b"])
        backend.close()
        assert backend.url == "memory://"
        stage.note(backend.capabilities.put_if_absent)

    world = replay(Scenario({"a": actor}), [])
    assert [move.operation.name for move in world.moves] == [
        "put",
        "put_if_absent",
        "get",
        "head",
        "list",
        "delete",
    ]
    assert [note.what for note in world.notes] == [True]
    assert world.storage.snapshot() == {}
