"""What several commands take: the URL of a store, a version of it, `--json`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from deltastore.errors import UsageError
from deltastore.protocol.records import Slot
from deltastore.store import Store

Url = Annotated[
    str, typer.Argument(metavar="URL", help="Root of the store: a path, file://..., or what a driver serves.")
]
Json = Annotated[bool, typer.Option("--json", help="JSON lines on stdout, for programs.")]
Step = Annotated[
    int | None, typer.Option("--step", min=0, metavar="STEP", help="The newest version of a training step.")
]
Base = Annotated[
    Path | None,
    typer.Option("--base", metavar="DIR", help="This machine's copy of the store's external base."),
]


@contextmanager
def opened(url: str) -> Iterator[Store]:
    """The store at a URL, closed afterwards."""
    with Store.open(url) as store:
        yield store


def located(store: Store, version: int | None, step: int | None) -> Slot:
    """The slot that a command is about: by number or step, else the newest."""
    if version is not None and step is not None:
        raise UsageError("a version and a step were given", hint="Give one of them")
    return store.log.locate(version=version, step=step)
