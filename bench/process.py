"""Runs a task of the bench in a process of its own: with its own cores, kernels and memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

from bench.rows import Cell, Section
from bench.settings import Settings


class Failed(Exception):
    """A task ended with an error; the text is what it printed."""


def run(
    task: str, settings: Settings, *, cores: int, kernels: str | None = None, **arguments: Cell
) -> Section:
    """The result of a task of `bench.child.TASKS`.

    Args:
        task: Its name.
        settings: For it.
        cores: How many it may use; its process sees no others.
        kernels: Value of DELTASTORE_KERNELS; as it is by default.
        arguments: Its other arguments.

    Raises:
        Failed: It ended with an error.
    """
    environment = dict(os.environ)
    # Of numpy, torch and the SDK: thread pools that count the cores of the machine, not ours.
    for name in (
        "OMP_NUM_THREADS",
        "OPENBLAS_NUM_THREADS",
        "MKL_NUM_THREADS",
        "BASILICA_PULSE_EXPCTX_THREADS",
    ):
        environment[name] = str(cores)
    if kernels is not None:
        environment["DELTASTORE_KERNELS"] = kernels
    order = {"task": task, "settings": settings.to_json(), "cores": cores, "arguments": arguments}
    done = subprocess.run(
        [sys.executable, "-m", "bench.child"],
        input=json.dumps(order),
        cwd=Path(__file__).parents[1],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    if done.returncode:
        raise Failed(f"task {task} ({arguments}) ended with exit status {done.returncode}")
    result = json.loads(done.stdout.splitlines()[-1])
    return Section(**result)


def as_json(section: Section) -> str:
    """A section for the parent."""
    return json.dumps(asdict(section))
