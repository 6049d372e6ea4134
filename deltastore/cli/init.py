"""`deltastore init`: makes an empty store."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from deltastore.cli.options import Json, Url
from deltastore.cli.output import Output
from deltastore.protocol.identity import DEFAULT_GRACE, CommitMode
from deltastore.store import Store

EXAMPLES: Final = """\
Examples:

deltastore init /mnt/shared/qwen-rl
deltastore init file:///mnt/shared/qwen-rl --grace 7200
"""


def init(
    url: Url,
    *,
    single_writer: Annotated[
        bool,
        typer.Option(
            "--single-writer",
            help="Commit without a conditional create: sound only while a single producer writes. "
            "Implied where the storage has none.",
        ),
    ] = False,
    grace: Annotated[
        int,
        typer.Option(
            min=1,
            metavar="SECONDS",
            help="How long collectors leave young objects alone; longer than the longest upload.",
        ),
    ] = DEFAULT_GRACE,
    json: Json = False,
) -> None:
    """Make an empty store, and print its id."""
    out = Output(json=json)
    commit = CommitMode.SINGLE_WRITER if single_writer else None
    with Store.create(url, commit=commit, grace=grace) as store:
        identity = store.identity
        if json:
            mode, grace = identity.commit.value, identity.grace
            out.record("store", store=identity.store, url=store.url, commit=mode, grace=grace)
            return
        out.line(identity.store)
        out.say(f"An empty store is at {store.url} (commits: {identity.commit.value}).")
        out.say("Next:")
        out.say(f"  deltastore doctor {store.url}    tries the storage out")
        out.say(f'  Producer(Store.open("{store.url}")).publish(model, step=0)    in the trainer')
        out.say(f'  Consumer(Store.open("{store.url}"), model).update()    in each server')
