"""A small store with all that a log can hold, and how its commands are run."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from typer.testing import CliRunner, Result

from deltastore import Producer, Store
from deltastore.cli.app import app
from deltastore.maintenance.anchors import add_anchor
from deltastore.maintenance.skips import add_skip
from deltastore.protocol import keys
from deltastore.protocol.records import Tombstone
from deltastore.tensors.host import HostTensor

Weights = dict[str, HostTensor]

FILES = {"config.json": b'{"model_type": "tiny"}', "tokenizer.json": b"{}" * 50}
COLLECTED, ANCHORED, SKIPPED, CLAIM, NEWEST = 2, 3, 6, 5, 8


@dataclass(frozen=True)
class Sample:
    """A store on disk.

    Attributes:
        root: Its directory.
        bits: The bytes of each version with data, by tensor.
    """

    root: Path
    bits: Mapping[int, Mapping[str, bytes]]


def initial() -> Weights:
    """Three bfloat16 tensors, two of them tied, and a float32 one that never changes."""
    rng = np.random.default_rng(7)

    def tensor(*shape: int) -> HostTensor:
        lanes = rng.integers(0x3C00, 0x3E00, int(np.prod(shape))).astype(np.uint16)
        return HostTensor("BF16", shape, lanes)

    embed = tensor(40, 16)
    return {
        "embed.weight": embed,
        "head.weight": HostTensor("BF16", (40, 16), embed.lanes),
        "layer.weight": tensor(16, 24),
        "scale": HostTensor.of_array("scale", np.linspace(0, 1, 9, dtype=np.float32)),
    }


def move(weights: Weights, version: int) -> None:
    """The step to a version: four embedding lanes by 1, 2, 50 and 300, and one of the layer down by 1."""
    weights["embed.weight"].lanes[version : version + 4] += np.array([1, 2, 50, 300], np.uint16)
    weights["layer.weight"].lanes[version] -= np.uint16(1)


def build(root: Path) -> dict[int, Mapping[str, bytes]]:
    """Makes the store.

    Version 0 is a claim, 1 to 4 its data (steps 10 to 40), 5 the claim of a second producer, which goes
    on with 6 to 8 (steps 40 to 60). 2 is collected, 3 has an added anchor, and 6 a skip from 3.

    Returns:
        The bytes of each version with data, by tensor.
    """
    store = Store.create(str(root))
    weights = initial()
    bits: dict[int, Mapping[str, bytes]] = {}
    for steps, first in (((10, 20, 30, 40), 1), ((40, 50, 60), 6)):
        with Producer(store, anchors=None, files=FILES) as producer:
            for version, step in enumerate(steps, first):
                move(weights, version)
                producer.publish(weights, step=step, user={"loss": 1 / version}).result(60)
                bits[version] = {name: tensor.lanes.tobytes() for name, tensor in weights.items()}
    add_anchor(store, store.log.require(ANCHORED))
    add_skip(store, store.log.require(SKIPPED), ANCHORED)
    collect(store, COLLECTED)
    return bits


def collect(store: Store, version: int) -> None:
    """Puts a tombstone in the place of a record."""
    slot = store.log.require(version)
    assert not isinstance(slot.record, Tombstone)
    store.access.backend.put(keys.version(version), Tombstone.of(slot.record, slot.sha256).to_bytes())


def record_path(root: Path, version: int) -> Path:
    """The file of a version's record."""
    return root / keys.version(version)


def run(*args: object, env: Mapping[str, str] | None = None) -> Result:
    """Runs a command in this process."""
    return CliRunner(env={"COLUMNS": "100", **(env or {})}).invoke(app, [str(arg) for arg in args])


def succeed(*args: object) -> str:
    """What a command that must succeed writes to stdout."""
    result = run(*args)
    assert result.exit_code == 0, result.output
    return result.stdout


def lines(*args: object, code: int = 0) -> list[dict[str, Any]]:
    """The objects that a command writes with `--json`."""
    result = run(*args, "--json")
    assert result.exit_code == code, result.output
    return list(_objects(result.stdout))


def _objects(text: str) -> Iterator[dict[str, Any]]:
    for line in text.splitlines():
        found = json.loads(line)
        assert next(iter(found.items())) == ("format", "deltastore-cli/1")
        assert list(found)[1] == "type"
        yield found
