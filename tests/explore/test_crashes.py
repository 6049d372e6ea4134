"""Whole producers and consumers with a mishap at every operation: what is there is what was published."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import count

import numpy as np
import pytest
from numpy.typing import NDArray
from scenarios import FIXED, ONCE, QUIET, empty, opened
from support import all_bits

from deltastore.backends.memory import MemoryBackend
from deltastore.consumer import Consumer
from deltastore.errors import DeltaStoreError, UnreachableError
from deltastore.parallel import INLINE
from deltastore.producer import Producer
from deltastore.producer.holder import Process
from deltastore.protocol import keys
from deltastore.protocol.records import VersionRecord
from deltastore.store import Store
from deltastore.testing import Fault, FaultBackend, flip_bit, oracles
from deltastore.testing.explore import Mishap, Scenario, Stage, World, explore

Weights = dict[str, NDArray[np.float32] | NDArray[np.uint16]]
Bits = Mapping[str, bytes]
CRASHES = (Mishap.CRASH_BEFORE, Mishap.CRASH_AFTER)
SILENCE = (Mishap.LOST_REQUEST, Mishap.LOST_REPLY, Mishap.LATE)
STEPS = (1, 2, 5)


def weights(step: int) -> Weights:
    """What is trained at a step: a few elements differ from step to step."""
    half = np.arange(40, dtype=np.uint16)
    half[step % 40] += 1 + step
    full = np.linspace(0, 1, 11, dtype=np.float32)
    full[step % 11] = step
    return {"a.half": half, "b.full": full}


def bits(tensors: Weights) -> Bits:
    return {name: tensor.tobytes() for name, tensor in tensors.items()}


def blank() -> Weights:
    return {name: np.zeros_like(tensor) for name, tensor in weights(0).items()}


def producing(store: Store, name: str) -> Producer:
    return Producer(store, workers=INLINE, anchors=None, takeover=True, process=Process(name, 1))


def trainer(stage: Stage) -> None:
    """Publishes each step, the last as a reset; opens a new producer when one is broken."""
    producer = producing(opened(stage), stage.name)
    for step in STEPS:
        for _ in range(3):
            try:
                publish = producer.reset if step == STEPS[-1] else producer.publish
                info = publish(weights(step), step=step).result()
            except DeltaStoreError:
                producer = producing(opened(stage), stage.name)
                continue
            stage.note(oracles.Acknowledged(info.version, info.record_sha256))
            break
    producer.close()


def server(stage: Stage) -> None:
    """Follows; whatever it holds must be the weights of the step that it says."""
    target = blank()
    consumer = Consumer(opened(stage), target, workers=INLINE)
    for _ in range(2):
        try:
            info = consumer.update()
        except UnreachableError:
            continue
        held = consumer.info
        if held is not None and held.step is not None:
            assert bits(target) == bits(weights(held.step)), f"the server's step {held.step} is another"
        else:
            assert info is None or info.step is None


@dataclass
class Afterwards:
    """Looks at every version, and lets a successor publish for an old and a new server."""

    runs: int = 0

    def moved(self, world: World) -> None:
        """A version is there only with all that it names; the claim comes first, nothing is deleted."""
        move = world.moves[-1]
        assert move.operation.name != "delete"
        objects = world.storage.snapshot()
        if move.writes and move.operation.key.startswith("objects/"):
            assert keys.version(0) in objects
        if move.writes and move.operation.key.startswith("versions/"):
            for slot in oracles.slots_of(world.storage).values():
                assert isinstance(slot.record, VersionRecord)
                named = [shard.sha256 for edge in slot.record.edges for shard in edge.shards]
                named += [slot.record.schema.sha256] if slot.record.schema else []
                assert {keys.object_(name) for name in named} <= set(objects)

    def ended(self, world: World) -> None:
        self.runs += 1
        store = Store.open(world.storage, runtime=FIXED, retry=ONCE)
        slots = oracles.slots_of(world.storage)
        told = {note.what.version for note in world.notes if isinstance(note.what, oracles.Acknowledged)}
        assert told <= set(slots)
        for version, slot in slots.items():
            if slot.record.state is not None:
                self._check(store, version)
        follower, target = self._follower(store)
        with producing(store, "successor") as producer:
            producer.publish(weights(7), step=7).result()
        for consumer, held in ((follower, target), self._follower(store)):
            consumer.update()
            assert consumer.info is not None
            assert consumer.info.step == 7
            assert bits(held) == bits(weights(7))

    @staticmethod
    def _follower(store: Store) -> tuple[Consumer, Weights]:
        target = blank()
        consumer = Consumer(store, target, workers=INLINE)
        consumer.update()
        return consumer, target

    @staticmethod
    def _check(store: Store, version: int) -> None:
        """A claim holds the weights of the newest data before it."""
        found = all_bits(Consumer(store, workers=INLINE).host_tensors(version))
        record = store.log.require(version).record
        assert isinstance(record, VersionRecord)
        while record.step is None:
            record = store.log.require(record.version - 1).record
        assert found == bits(weights(record.step)), f"version {version} is not step {record.step}"


def watched(after: Afterwards, actors: Mapping[str, object]) -> Scenario:
    return Scenario(
        actors,  # type: ignore[arg-type]
        empty,
        lambda: [oracles.LogOracle(), oracles.ClaimsOracle(), after],
        quiet=QUIET,
    )


@pytest.mark.req("DS-COMMIT-2", "DS-ORDER-1", "DS-COMMIT-4", "DS-CLAIM-2")
@pytest.mark.parametrize("mishaps", [CRASHES, SILENCE], ids=["crashes", "silence"])
def test_a_mishap_at_any_operation_of_a_producer_leaves_only_versions_that_were_published(
    mishaps: tuple[Mishap, ...],
) -> None:
    after = Afterwards()
    report = explore(watched(after, {"trainer": trainer}), mishaps=mishaps)
    assert report.complete
    assert after.runs == report.runs > 20


@pytest.mark.req("DS-READ-8", "DS-READ-9", "DS-COMMIT-2")
def test_a_server_beside_a_crashing_producer_holds_what_was_published() -> None:
    after = Afterwards()
    actors = {"trainer": trainer, "server": server}
    report = explore(watched(after, actors), mishaps=[Mishap.CRASH_AFTER], preemptions=1, most_runs=250)
    assert after.runs == report.runs > 50


def test_without_a_mishap_all_steps_are_published() -> None:
    storage = MemoryBackend()
    empty(storage)
    found: list[int | None] = []

    class Log:
        def moved(self, world: World) -> None:
            return

        def ended(self, world: World) -> None:
            found.extend(slot.record.step for slot in oracles.slots_of(world.storage).values())

    explore(Scenario({"trainer": trainer}, empty, lambda: [Log()], quiet=QUIET))
    assert found == [None, *STEPS]


@pytest.mark.req("DS-OBJ-2", "DS-READ-4", "DS-READ-8")
@pytest.mark.parametrize("seed", range(3))
def test_a_bit_that_flips_on_any_read_is_refused_or_harmless(seed: int) -> None:
    """From the newest version down every read of a server is spoilt once."""
    storage = MemoryBackend()
    empty(storage)
    with producing(Store.open(storage, runtime=FIXED), "trainer") as producer:
        for step in (1, 2, 3):
            producer.publish(weights(step), step=step).result()
    rng = np.random.default_rng(seed)
    refused = 0
    for index in count():
        backend = FaultBackend(
            storage,
            lambda op, at=index: (
                Fault(alter=flip_bit(int(rng.integers(1 << 20)))) if op.index == at else None
            ),  # type: ignore[misc]
        )
        target = blank()
        try:
            with Store.open(backend, retry=ONCE) as store:
                Consumer(store, target, workers=INLINE).update()
            assert bits(target) == bits(weights(3))
        except DeltaStoreError:
            refused += 1
            assert bits(target) in (bits(blank()), bits(weights(3)))
        if len(backend.operations) <= index:
            break
    assert refused > 3
