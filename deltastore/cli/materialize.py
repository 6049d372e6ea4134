"""`deltastore materialize`: a version as a complete checkpoint directory."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import typer

from deltastore.cli import text
from deltastore.cli.options import Base, Json, Step, Url, located, opened
from deltastore.cli.output import Output
from deltastore.consumer import Consumer
from deltastore.store import VersionInfo

EXAMPLES: Final = """\
Examples:

deltastore materialize /mnt/shared/qwen-rl ./checkpoint
deltastore materialize /mnt/shared/qwen-rl ./checkpoint --step 300
vllm serve ./checkpoint
"""


def materialize(
    url: Url,
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Where to; made, or replaced as a whole.")],
    *,
    version: Annotated[
        int | None, typer.Option("--version", min=0, metavar="N", help="Which; the newest by default.")
    ] = None,
    step: Step = None,
    base: Base = None,
    json: Json = False,
) -> None:
    """Write a version as a Hugging Face checkpoint.

    Weights and index, and the configuration and tokenizer if the trainer published them. Every byte is
    checked against the version's digest before the directory is swapped in by renaming. A directory that
    holds an earlier version costs only what has changed since; one that deltastore has not written is left
    alone. The weights pass through memory once.
    """
    out = Output(json=json)
    with opened(url) as store, out.progress("fetching") as progress:
        info = VersionInfo.of(located(store, version, step))
        with Consumer(store, directory, base=base, progress=progress) as consumer:
            begun = store.runtime.monotonic()
            staged = consumer.stage(info.version)
            staged.commit()
            seconds = store.runtime.monotonic() - begun
    path = directory.absolute()
    if json:
        out.record(
            "materialized",
            version=info.version,
            step=info.step,
            path=str(path),
            state=text.digest(info.state),
            schema=info.schema,
            record_sha256=info.record_sha256,
            fetched_bytes=staged.bytes_fetched,
            seconds=round(seconds, 3),
        )
        return
    out.line(str(path))
    at = "" if info.step is None else f" (step {info.step})"
    took = f"{text.size(staged.bytes_fetched)} fetched in {seconds:.1f} s"
    if not (path / "config.json").exists():
        out.say("It has no config.json: the trainer published none (Producer(files=...)).")
    out.say(f"It holds version {info.version}{at}, state {text.digest(info.state)}: {took}.")
