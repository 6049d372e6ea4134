"""`deltastore demo`: reinforcement learning on this machine, through a store."""

from __future__ import annotations

import io
import json as json_text
from contextlib import nullcontext, redirect_stdout
from pathlib import Path
from typing import Annotated, Final

import typer

from deltastore.cli.options import Json
from deltastore.cli.output import Output

EXAMPLES: Final = """\
Examples:

deltastore demo
deltastore demo --steps 20 --workers 1 --root ./demo-store

deltastore demo --store s3://bucket/demo
"""


def demo(
    *,
    root: Annotated[
        Path | None,
        typer.Option("--root", metavar="DIR", help="Where store and logs go; a temporary directory."),
    ] = None,
    store: Annotated[
        str | None, typer.Option("--store", metavar="URL", help="Where the store goes, if not under DIR.")
    ] = None,
    steps: Annotated[int, typer.Option("--steps", min=20, help="Steps of the trainer.")] = 60,
    workers: Annotated[int, typer.Option("--workers", min=1, help="Rollout workers at first.")] = 2,
    seed: Annotated[int, typer.Option("--seed", help="Of weights, prompts and sampling.")] = 0,
    json: Json = False,
) -> None:
    """Train a small model by RL here, through a store.

    Every step is shipped to rollout workers; one of them is killed and restarted, and one joins late. In
    the end all of them are compared with the trainer bit for bit. Needs torch, a few minutes and no GPU.
    The store is left there to be looked at.
    """
    from deltastore.demo import DemoConfig, run

    config = DemoConfig(root=root, store=store, steps=steps, workers=workers, seed=seed, as_json=json)
    printed = io.StringIO()
    try:
        with redirect_stdout(printed) if json else nullcontext():
            run(config)
    finally:  # also of a demo that failed: what was measured is printed by then
        out = Output(json=json)
        for line in printed.getvalue().splitlines():
            out.record("demo", **json_text.loads(line))
