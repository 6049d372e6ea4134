"""Every interleaving of a few actors over one store (spec, Notes for implementers), with mishaps if wanted.

    explore(Scenario({"one": claims, "two": claims}, oracles=lambda: [LogOracle()]), mishaps=[Mishap.LATE])

An actor is plain code that uses the backend and the runtime of its `Stage`. It runs in a greenlet that stops
before each operation; a depth-first search makes all choices of who goes on and what befalls the operation.
Schedules that differ only in the order of operations that do not touch one key are tried once (sleep sets),
unless the number of preemptions is bounded instead. Everything is deterministic: a schedule can be replayed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from deltastore.backends.memory import MemoryBackend, Snapshot
from deltastore.errors import DeltaStoreError
from deltastore.testing.faults import CrashNow, Operation
from deltastore.testing.stage import EPOCH, UNSENT, WRITES, Actor, Mishap, Move, Player, Stage, Step, World

__all__ = [
    "Actor",
    "Mishap",
    "Oracle",
    "Report",
    "Scenario",
    "Stage",
    "Step",
    "Violation",
    "World",
    "explore",
    "replay",
]


class Oracle(Protocol):
    """Says what is wrong by an `AssertionError`."""

    def moved(self, world: World) -> None:
        """Called after every operation."""
        ...

    def ended(self, world: World) -> None:
        """Called when all actors have ended or crashed and nothing is under way."""
        ...


def _nothing(_storage: MemoryBackend) -> None:
    return


@dataclass(frozen=True, slots=True)
class Scenario:
    """What is explored.

    Attributes:
        actors: By name.
        prepare: Fills the storage before the actors begin.
        oracles: Makes new oracles for a run.
        conditional: Whether the storage has conditional puts.
        quiet: Beginnings of keys whose operations are no steps of their own: what no rule of safety reads.
    """

    actors: Mapping[str, Actor]
    prepare: Callable[[MemoryBackend], None] = _nothing
    oracles: Callable[[], Sequence[Oracle]] = tuple
    conditional: bool = True
    quiet: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Report:
    """What an exploration came to.

    Attributes:
        runs: Schedules that were run to their end.
        pruned: Schedules that were given up because an equal one had been run.
        complete: Whether that was all of them.
    """

    runs: int
    pruned: int
    complete: bool


class Violation(AssertionError):
    """An oracle, or an actor itself, found something wrong; `schedule` leads there again."""

    def __init__(self, problem: str, schedule: Sequence[Step]) -> None:
        told = ", ".join(f"{s.actor}!{s.mishap.value}" if s.mishap else s.actor for s in schedule)
        super().__init__(f"{problem} [{told}]")
        self.problem = problem
        self.schedule = tuple(schedule)


def explore(
    scenario: Scenario,
    *,
    mishaps: Collection[Mishap] = (),
    most_mishaps: int = 1,
    preemptions: int | None = None,
    most_runs: int = 100_000,
) -> Report:
    """Runs a scenario under every schedule.

    Args:
        scenario: What is explored.
        mishaps: What may go wrong. Crashes after reads are not tried: the storage cannot tell them from
            crashes before what comes next.
        most_mishaps: How much of it may go wrong in one run.
        preemptions: How often an actor that could go on may be made to wait; None for any number.
        most_runs: Gives up after so many.

    Raises:
        Violation: Something is wrong under one of the schedules.
    """
    limits = _Limits(frozenset(mishaps), most_mishaps, preemptions)
    start = _prepared(scenario)
    path: list[_Node] = []
    runs = pruned = 0
    while runs + pruned < most_runs:
        if _run(scenario, start, limits, path):
            runs += 1
        else:
            pruned += 1
        while path and path[-1].at + 1 == len(path[-1].options):
            path.pop()
        if not path:
            return Report(runs, pruned, complete=True)
        path[-1].at += 1
    return Report(runs, pruned, complete=False)


def replay(scenario: Scenario, schedule: Sequence[Step]) -> World:
    """Runs a scenario under one schedule, and its actors one after the other when that is at its end.

    Raises:
        Violation: Something is wrong.
    """
    run = _Run(scenario, _prepared(scenario))
    try:
        for step in schedule:
            run.take(step)
        while pending := run.pending():
            run.take(Step(next(iter(pending))))
        run.end()
    finally:
        run.kill()
    return run.world


@dataclass(frozen=True, slots=True)
class _Limits:
    mishaps: frozenset[Mishap]
    most_mishaps: int
    preemptions: int | None

    def options(self, run: _Run) -> list[Step]:
        """All steps that may be next; the one without preemption first."""
        pending = run.pending()
        moves = run.world.moves
        last = moves[-1].step.actor if moves else ""
        names = sorted(pending, key=lambda name: (name != last, name))
        if self.preemptions is not None and last in pending and run.preemptions >= self.preemptions:
            names = [last]
        steps = [Step(name) for name in names]
        if sum(move.step.mishap is not None for move in moves) < self.most_mishaps:
            for name in names:
                steps += [
                    Step(name, mishap) for mishap in Mishap if self._possible(mishap, name, pending[name])
                ]
        return steps

    def _possible(self, mishap: Mishap, name: str, operation: Operation) -> bool:
        if mishap not in self.mishaps or "~" in name:
            return False
        if mishap is Mishap.LATE:
            return operation.name in {"put", "put_if_absent"}
        return operation.name in WRITES or mishap in {Mishap.CRASH_BEFORE, Mishap.LOST_REQUEST}


@dataclass(slots=True)
class _Node:
    """A point of the search: what may be done there, and what need not because it was done before."""

    options: list[Step]
    asleep: dict[Step, Operation]
    at: int = 0


def _run(scenario: Scenario, start: Snapshot, limits: _Limits, path: list[_Node]) -> bool:
    """One run along the path and beyond it; whether it came to an end that is new."""
    run = _Run(scenario, start)
    asleep: dict[Step, Operation] = {}
    depth = 0
    try:
        while pending := run.pending():
            if depth == len(path):
                options = [step for step in limits.options(run) if step not in asleep]
                if not options:
                    return False
                path.append(_Node(options, asleep))
            node = path[depth]
            step = node.options[node.at]
            if limits.preemptions is None:
                done = node.asleep | {other: pending[other.actor] for other in node.options[: node.at]}
                mine = pending[step.actor]
                asleep = {other: op for other, op in done.items() if _independent(step, mine, other, op)}
            run.take(step)
            depth += 1
        run.end()
    finally:
        run.kill()
    return True


def _independent(one: Step, mine: Operation, other: Step, its: Operation) -> bool:
    """Whether two steps lead to the same in either order."""
    if one.actor == other.actor or (one.mishap and other.mishap):
        return False
    if one.mishap in UNSENT or other.mishap in UNSENT:
        return True
    if not {mine.name, its.name} & WRITES:
        return True
    if "list" in {mine.name, its.name}:
        return not (mine.key.startswith(its.key) or its.key.startswith(mine.key))
    return mine.key != its.key


def _prepared(scenario: Scenario) -> Snapshot:
    storage = MemoryBackend(clock=lambda: EPOCH, conditional=scenario.conditional)
    scenario.prepare(storage)
    return storage.snapshot()


class _Run:
    """One run of a scenario, step by step."""

    def __init__(self, scenario: Scenario, start: Snapshot) -> None:
        storage = MemoryBackend(clock=lambda: EPOCH, conditional=scenario.conditional)
        storage.restore(start)
        self.world = World(storage)
        self.preemptions = 0
        self._oracles = scenario.oracles()
        self._under_way: dict[str, tuple[Operation, Callable[[], object]]] = {}
        self._players = {
            name: Player(
                name, number, actor, world=self.world, send_late=self._send_late, quiet=scenario.quiet
            )
            for number, (name, actor) in enumerate(scenario.actors.items())
        }
        for player in self._players.values():
            self._go(player, None)

    def pending(self) -> dict[str, Operation]:
        """The operations that are next, by actor."""
        found = {name: player.waits for name, player in self._players.items() if player.waits is not None}
        return found | {name: operation for name, (operation, _) in self._under_way.items()}

    def take(self, step: Step) -> None:
        """Takes a step, and lets the actor go on to its next operation."""
        pending = self.pending()
        if step.actor not in pending:
            raise Violation(f"{step.actor} has nothing to do here", self._schedule())
        moves = self.world.moves
        last = moves[-1].step.actor if moves else step.actor
        self.preemptions += last != step.actor and last in pending
        moves.append(Move(step, pending[step.actor]))
        if step.actor in self._under_way:
            _, deliver = self._under_way.pop(step.actor)
            deliver()
        else:
            self._go(self._players[step.actor], step.mishap)
        self._ask(lambda oracle: oracle.moved(self.world))

    def end(self) -> None:
        """Asks the oracles for their verdict."""
        self._ask(lambda oracle: oracle.ended(self.world))

    def _send_late(self, actor: str, operation: Operation, deliver: Callable[[], object]) -> None:
        """Keeps a put that arrives later."""
        self._under_way[f"{actor}~{operation.index}"] = (operation, deliver)

    def kill(self) -> None:
        """Ends whoever still waits, without further effect."""
        for player in self._players.values():
            player.kill()

    def _go(self, player: Player, mishap: Mishap | None) -> None:
        try:
            with suppress(CrashNow):
                player.go(mishap)
        except Exception as error:
            raise Violation(f"{player.name} failed: {error!r}", self._schedule()) from error
        if player.crashed:
            self.world.crashed.add(player.name)

    def _ask(self, question: Callable[[Oracle], None]) -> None:
        try:
            for oracle in self._oracles:
                question(oracle)
        except (AssertionError, DeltaStoreError) as error:
            raise Violation(str(error), self._schedule()) from error

    def _schedule(self) -> list[Step]:
        return [move.step for move in self.world.moves]
