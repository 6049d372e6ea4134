"""A consumer that says it holds a version holds its bits: what users do to targets and to staged versions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from support import State, all_bits, blank, consumer, new_store, producer, small, stepped

from deltastore import Store
from deltastore.backends.memory import MemoryBackend
from deltastore.consumer.targets import TensorsTarget
from deltastore.errors import Conflict, Poisoned, StoreReplaced, Unsupported, UsageError


def published(count: int = 3) -> tuple[MemoryBackend, Store, list[State]]:
    backend = MemoryBackend()
    store = new_store(backend)
    states = [small()]
    for step in range(1, count):
        states.append(stepped(states[-1], step))
    with producer(store, anchors=None) as out:
        for step, state in enumerate(states):
            out.publish(state, step=step).result()
    return backend, store, states


@pytest.mark.req("DS-READ-9")
def test_a_staged_version_is_committed_once() -> None:
    _, store, states = published()
    target = blank(states[0])
    reader = consumer(store, target)
    staged = reader.stage()
    staged.commit()
    staged.commit()
    target["embed"][0, 0] += 1
    with pytest.raises(Poisoned):
        reader.verify()
    with pytest.raises(Conflict):
        staged.commit()
    assert reader.poisoned
    assert reader.version is None
    reader.update()
    assert all_bits(target) == all_bits(states[-1])


def test_what_was_staged_before_a_poisoning_does_not_take_it_back() -> None:
    _, store, states = published()
    target = blank(states[0])
    reader = consumer(store, target)
    reader.stage(1).commit()
    old = reader.stage(2)
    reader.stage(3).commit()
    target["norm"][1] += 1
    with pytest.raises(Poisoned):
        reader.verify()
    with pytest.raises(Conflict):
        old.commit()
    assert reader.version is None


@pytest.mark.req("DS-READ-10")
def test_an_interrupt_after_the_last_write_leaves_nothing_claimed(monkeypatch: pytest.MonkeyPatch) -> None:
    _, store, states = published()
    target = blank(states[0])
    reader = consumer(store, target)
    reader.stage(1).commit()
    staged = reader.stage(2)
    real = TensorsTarget.commit

    def interrupted(self: TensorsTarget, prepared: Any) -> None:
        real(self, prepared)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(TensorsTarget, "commit", interrupted)
        with pytest.raises(KeyboardInterrupt):
            staged.commit()
    assert reader.version is None
    assert reader.poisoned
    reader.update()
    assert all_bits(target) == all_bits(states[-1])


def test_a_version_is_committed_by_who_staged_it() -> None:
    _, store, states = published()
    one, other = (consumer(store, blank(states[0])) for _ in range(2))
    with pytest.raises(UsageError, match="another consumer"):
        other.commit(one.stage())
    assert other.version is None


def replaced_data(model: torch.nn.Module) -> None:
    for parameter in model.parameters():
        parameter.data = parameter.data.clone()


def assigned(model: torch.nn.Module) -> None:
    model.load_state_dict({k: v.clone() for k, v in model.state_dict().items()}, assign=True)


def cast_and_back(model: torch.nn.Module) -> None:
    model.double().float()


@pytest.mark.parametrize("replace", [replaced_data, assigned, cast_and_back])
def test_a_model_whose_memory_is_replaced_is_followed(replace: Callable[[torch.nn.Module], None]) -> None:
    source, target = torch.nn.Linear(9, 7), torch.nn.Linear(9, 7)
    store = new_store()
    with producer(store, anchors=None) as out:
        out.publish(source, step=0).result()
        reader = consumer(store, target)
        reader.update()
        assert all_bits(target.state_dict()) == all_bits(source.state_dict())
        replace(target)
        with torch.no_grad():
            target.weight[0, 0] += 1
        reader.update()
        assert all_bits(target.state_dict()) == all_bits(source.state_dict())
        with torch.no_grad():
            source.weight[1, 1] += 1
        out.publish(source, step=1).result()
        staged = reader.stage()
        replace(target)
        with pytest.raises(Conflict):
            staged.commit()
        reader.update()
    assert all_bits(target.state_dict()) == all_bits(source.state_dict())
    replace(target)
    with pytest.raises(Poisoned):
        reader.verify()


def test_an_entry_of_a_dict_that_is_replaced_is_followed() -> None:
    _, store, states = published()
    target = blank(states[0])
    reader = consumer(store, target)
    reader.stage(1).commit()
    target["proj"] = target["proj"].clone()
    reader.update()
    assert all_bits(target) == all_bits(states[-1])


def overlapping() -> dict[str, dict[str, Any]]:
    buffer = torch.zeros(12)
    matrix = np.zeros((2, 4), np.float32)
    return {
        "part of another": {"a": buffer[:8], "b": buffer[4:]},
        "another shape of it": {"a": matrix.reshape(-1), "b": matrix},
        "itself": {"a": torch.as_strided(torch.zeros(5), (2, 4), (1, 1))},
        "one element": {"a": np.lib.stride_tricks.as_strided(np.zeros(1, np.float32), (4,), (0,))},
    }


@pytest.mark.parametrize("kind", list(overlapping()))
def test_a_target_that_overlaps_is_refused_by_name(kind: str) -> None:
    with pytest.raises(Unsupported, match=r"'[ab]'"):
        consumer(new_store(), overlapping()[kind])


def test_rows_that_alternate_do_not_overlap() -> None:
    whole = torch.zeros(8, 4)
    store = new_store()
    weights = {"even": torch.randn(4, 4), "odd": torch.randn(4, 4)}
    with producer(store, anchors=None) as out:
        out.publish(weights, step=0).result()
    consumer(store, {"even": whole[0::2], "odd": whole[1::2]}).update()
    assert torch.equal(whole[0::2], weights["even"])
    assert torch.equal(whole[1::2], weights["odd"])


@pytest.mark.req("DS-FLOOR-1")
def test_the_least_version_binds_also_by_number() -> None:
    _, store, states = published()
    reader = consumer(store, blank(states[0]), min_version=2)
    with pytest.raises(UsageError, match="below version 2"):
        reader.stage(1)
    reader.stage(2).commit()


@pytest.mark.req("DS-STORE-2")
def test_a_version_that_was_rewritten_while_it_is_held_is_not_acknowledged() -> None:
    backend, store, states = published(3)
    target = blank(states[0])
    reader = consumer(store, target)
    reader.update()
    other, _, _ = published(2)
    fork = new_store(MemoryBackend())
    with producer(fork, anchors=None) as out:
        out.publish(states[0], step=0).result()
        out.publish(states[1], step=1).result()
        out.publish(stepped(states[1], 99), step=2).result()
    assert other is not backend
    # The forged record names this store, as one who can write the bucket would see to.
    from dataclasses import replace

    from deltastore.protocol.keys import version as key
    from deltastore.protocol.records import VersionRecord

    theirs = fork.log.require(3).record
    ours = store.log.require(3).record
    assert isinstance(theirs, VersionRecord)
    assert isinstance(ours, VersionRecord)
    forged = replace(theirs, store=ours.store, parent=ours.parent)
    backend.put(key(3), forged.to_bytes())
    with pytest.raises(StoreReplaced):
        reader.stage(3)
    assert all_bits(target) == all_bits(states[2])


def test_verifying_while_another_schema_is_staged_looks_at_what_is_held() -> None:
    store = new_store()
    weight = torch.randn(6)
    target = {"a": weight.clone() * 0, "b": weight.clone() * 0}
    with producer(store, anchors=None) as out:
        out.publish({"a": weight, "b": weight + 1}, step=0).result()
        reader = consumer(store, target, full_check_every=0)
        reader.update()
        out.publish({"a": weight, "b": weight}, step=1, new_schema=True).result()
        staged = reader.stage()
        reader.verify()
        staged.commit()
        reader.verify()
    assert torch.equal(target["b"], weight)
