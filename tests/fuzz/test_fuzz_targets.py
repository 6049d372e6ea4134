"""The fuzz targets hold on seeds, on what was found before, on damage from a fixed seed; and they bite."""

from __future__ import annotations

import copy
import json
import random
from typing import Any

import fuzz_noise
import fuzz_shards
import fuzz_steps
import numpy as np
import pytest
from fuzz_container import Parts
from fuzz_kernels import KERNELS, REFUSALS
from fuzz_noise import blind
from fuzz_target import corpus
from fuzz_targets import TARGETS

from deltastore.codec import shard, twin_steps
from deltastore.codec.types import Coded, Positions, SliceSpec
from deltastore.errors import Unsupported
from deltastore.protocol.digest import Lanes

RUNS = 400
both = pytest.mark.skipif(len(KERNELS) < 2, reason="the compiled kernels are not built here")


@pytest.mark.parametrize("name", TARGETS)
def test_seeds_and_what_was_found_before_hold(name: str) -> None:
    seeds = list(TARGETS[name].seeds())
    assert len(set(seeds)) == len(seeds) > 10
    assert list(TARGETS[name].seeds()) == seeds
    for data in (b"", *seeds, *corpus(name)):
        TARGETS[name].check(data)


@pytest.mark.req("DS-SHARD-1", "DS-REC-1")
@pytest.mark.parametrize("name", TARGETS)
def test_damaged_inputs_hold(name: str) -> None:
    target, rng = TARGETS[name], random.Random(3)
    seeds = list(target.seeds())
    for _ in range(RUNS):
        target.check(target.mutate(rng.choice(seeds), rng, blind(rng)))


def test_a_shard_taken_apart_and_put_together_says_the_same() -> None:
    for seed in fuzz_shards.seeds():
        parts = Parts.of(seed[1:])
        assert parts is not None
        assert parts.packed == parts.meta.get("raw", {}).keys() & parts.streams.keys()
        one, two = shard.parse(seed[1:]), shard.parse(parts.to_bytes())
        assert one.meta == two.meta
        assert {n: bytes(t.data) for n, t in one.tensors.items()} == {
            n: bytes(t.data) for n, t in two.tensors.items()
        }


def test_damage_gets_past_the_container() -> None:
    rng = random.Random(4)
    seeds = list(fuzz_shards.seeds())
    parsed = read = 0
    for _ in range(RUNS):
        data = fuzz_shards.mutate(rng.choice(seeds), rng, blind(rng))
        specs = fuzz_shards.LAYOUTS[data[0] % len(fuzz_shards.LAYOUTS)] if data else ()
        try:
            file = shard.parse(data[1:])
            parsed += 1
            raw = fuzz_shards.raw_size(file)
            fuzz_shards.decode(file.meta.codec, data[1:], specs, raw_size=raw)
            read += 1
        except (*REFUSALS, Unsupported):
            pass
    assert parsed > RUNS // 2
    assert read > RUNS // 10


def _shifted(spec: SliceSpec, coded: Coded, changed: int) -> tuple[Positions, Lanes]:
    positions, steps = twin_steps.steps_decode(spec, coded, changed)
    return positions, steps + np.ones(1, steps.dtype)


@both
@pytest.mark.parametrize("name", ["shards", "steps"])
def test_kernels_that_differ_are_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(KERNELS, "native", {**KERNELS["native"], "steps_decode": _shifted})
    seeds = list(TARGETS[name].seeds())
    with pytest.raises(AssertionError, match="the kernels differ"):
        list(map(TARGETS[name].check, seeds))


@both
def test_the_kernels_are_those_of_their_modules() -> None:
    assert KERNELS["native"].keys() == KERNELS["numpy"].keys() >= {"diff", "digest", "patch", "steps_decode"}
    assert KERNELS["native"]["patch"].__module__ == "deltastore.codec.native"
    assert KERNELS["numpy"]["steps_decode"] is twin_steps.steps_decode


def test_the_layout_of_streams_comes_back() -> None:
    for seed in fuzz_steps.seeds():
        spec, coded = fuzz_steps.read(seed)
        assert seed.endswith(b"".join(map(bytes, coded)))
        assert spec.lanes == spec.total


def test_edits_share_nothing_between_trees() -> None:
    """What was put into one tree and edited there must not turn up in another, or inside of itself."""
    rng, before = random.Random(5), copy.deepcopy(fuzz_noise.HOSTILE)
    noise = fuzz_noise.blind(rng)
    for _ in range(500):
        tree: dict[str, Any] = {"a": [1, 2], "b": {}, "c": "x"}
        for _ in range(8):
            fuzz_noise.edit(tree, rng, noise)
        json.dumps(tree)
    assert before == fuzz_noise.HOSTILE
