"""`deltastore log`: the newest versions of a store, as a graph."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Annotated, Final

import typer

from deltastore.cli import text
from deltastore.cli.graph import Skip, draw
from deltastore.cli.options import Json, Url, opened
from deltastore.cli.output import Column, Output, Table
from deltastore.errors import BadRecord, IntegrityError, UsageError
from deltastore.parallel import DEFAULT
from deltastore.protocol import keys
from deltastore.protocol.records import Kind, Slot, Tombstone, VersionRecord
from deltastore.store import Store

EXAMPLES: Final = """\
Examples:

deltastore log /mnt/shared/qwen-rl
deltastore log /mnt/shared/qwen-rl -n 100 --all
deltastore log /mnt/shared/qwen-rl --json | jq '[.version, .density]'

In the graph:  ● a version   ◆ one with an anchor in its record
◇ one that an anchor was added to   ○ a collected one   ▲ a claim
✗ a damaged one.   Lines lead down from the target of a skip to its base.
"""

_LEGEND: Final = {
    "◆": "anchor",
    "◇": "anchor added later",
    "○": "collected",
    "▲": "claim: a new producer, a new term",
    "✗": "damaged",
}
_COLUMNS: Final = (
    Column("", style="cyan"),
    Column("VERSION", right=True, style="bold"),
    Column("STEP", right=True),
    Column("AGE", right=True),
    Column("KIND"),
    Column("CHANGED", right=True),
    Column("STORED", right=True),
    Column("OF FULL", right=True),
    Column("TERM", right=True),
    Column("NOTE", style="dim", fold=True),
)


@dataclass(slots=True)
class Row:
    """A version as it is shown.

    Attributes:
        version: Its number.
        slot: What is stored there; None where it is missing or damaged.
        problem: What is wrong with it then.
        added: Where the edges start that were added to it: versions, `"none"`, `"external"`.
        claims: Older claims that are folded into this row.
    """

    version: int
    slot: Slot | None
    problem: str = ""
    added: list[keys.Base] = field(default_factory=list)
    claims: list[int] = field(default_factory=list)

    @property
    def record(self) -> VersionRecord | Tombstone | None:
        """Its record or tombstone."""
        return None if self.slot is None else self.slot.record

    @property
    def kind(self) -> str:
        """What it is, in a word."""
        if self.record is None:
            return "damaged"
        return "collected" if isinstance(self.record, Tombstone) else self.record.kind.value

    @property
    def anchor(self) -> str | None:
        """Whether it has an anchor: in its record, or added to it."""
        record = self.record
        if isinstance(record, VersionRecord) and any(edge.is_anchor for edge in record.edges):
            return "embedded"
        return "added" if "none" in self.added else None

    @property
    def skips(self) -> list[int]:
        """Bases of its skips, nearest first."""
        return sorted((b for b in self.added if isinstance(b, int) and b < self.version - 1), reverse=True)

    @property
    def node(self) -> str:
        """Its sign in the graph."""
        if self.anchor is not None:
            return "◆" if self.anchor == "embedded" else "◇"
        return {"damaged": "✗", "collected": "○", "claim": "▲"}.get(self.kind, "●")


def log(
    url: Url,
    *,
    count: Annotated[int, typer.Option("-n", "--count", min=0, help="How many versions; 0 for all.")] = 20,
    all_: Annotated[bool, typer.Option("--all", help="Show claims as versions of their own.")] = False,
    json: Json = False,
) -> None:
    """Show the newest versions as a graph.

    CHANGED is the share of weights that the version changed, STORED what its own edge takes, OF FULL
    what that is of a full sync. Only the records that are shown are read, and one listing of edges.
    JSON never folds claims.
    """
    out = Output(json=json)
    with opened(url) as store:
        newest = store.log.newest_number()
        if newest is None:
            out.say(f"{store.url} has no versions yet.")
            return
        rows = list(_rows(store, newest, count, fold=not (all_ or json)))
        edges = store.edge_keys(rows[-1].version, newest)
        for row in rows:
            row.added = [keys.parse_edge(key)[1] for key in edges.get(row.version, [])]
        if json:
            for row in rows:
                _emit(out, row)
        else:
            _print(out, store, rows, newest)
    if any(row.slot is None for row in rows):
        raise typer.Exit(IntegrityError.code)


def _rows(store: Store, newest: int, count: int, *, fold: bool) -> Iterator[Row]:
    """The newest versions; with `fold`, claims go with the row above them, except for the newest."""
    waiting: Row | None = None
    done = 0
    for row in _read(store, range(newest, store.log.first - 1, -1)):
        if fold and waiting is not None and row.kind == Kind.CLAIM.value:
            waiting.claims.append(row.version)
            continue
        if waiting is not None:
            yield waiting
            done += 1
            if done == count:
                return
        waiting = row
    if waiting is not None:
        yield waiting


def _read(store: Store, versions: Iterable[int]) -> Iterator[Row]:
    def read(version: int) -> Row:
        try:
            slot = store.log.slot(version)
        except (IntegrityError, UsageError) as error:
            return Row(version, None, str(error))
        missing = BadRecord(f"version {version} is missing among others")
        return Row(version, slot, "" if slot is not None else str(missing))

    yield from DEFAULT.map(read, versions)


def _emit(out: Output, row: Row) -> None:
    if row.slot is None:
        out.record("damaged", version=row.version, message=row.problem)
        return
    record = row.slot.record
    live = record if isinstance(record, VersionRecord) else None
    stats = live.stats if live else None
    out.record(
        "version",
        version=row.version,
        step=record.step,
        term=record.term,
        kind=row.kind,
        time=live.time / 1000 if live else None,
        state=text.digest(record.state),
        schema=record.schema.sha256 if record.schema else None,
        record_sha256=row.slot.sha256,
        changed=stats.changed if stats else None,
        total=stats.total if stats else None,
        density=stats.changed / stats.total if stats and stats.total else None,
        stored_bytes=stats.stored if stats else None,
        full_bytes=stats.raw if stats else None,
        ratio=stats.stored / stats.raw if stats and stats.raw else None,
        anchor=row.anchor,
        skips=row.skips,
        resumed_from=live.resumed_from if live else None,
    )


def _print(out: Output, store: Store, rows: list[Row], newest: int) -> None:
    identity = store.identity
    total = newest - store.log.first + 1
    out.say(f"store {identity.store} at {store.url}, commits: {identity.commit.value}", style="dim")
    now = store.runtime.now()
    skips = [Skip(base, row.version) for row in rows for base in row.skips]
    graph = draw([row.version for row in rows], [row.node for row in rows], skips)
    out.table(Table(_COLUMNS, [_cells(row, drawn, now) for row, drawn in zip(rows, graph, strict=True)]))
    nodes = {row.node for row in rows}
    legend = [f"{sign} {meaning}" for sign, meaning in _LEGEND.items() if sign in nodes]
    shown = len(rows) + sum(len(row.claims) for row in rows)
    if shown < total:
        legend.append(f"{shown} of {text.plural(total, 'version')}: -n 0 shows all")
    if legend:
        out.say("   ".join(legend), style="dim")


def _cells(row: Row, drawn: str, now: float) -> tuple[str, ...]:
    record = row.record
    if record is None:
        return (drawn, str(row.version), "", "", row.kind, "", "", "", "", row.problem)
    step = "" if record.step is None else str(record.step)
    live = record if isinstance(record, VersionRecord) else None
    stats = live.stats if live else None
    return (
        drawn,
        str(row.version),
        step,
        text.age(now - live.time / 1000) if live else "",
        row.kind,
        text.percent(stats.changed, stats.total) if stats else "",
        text.size(stats.stored) if stats else "",
        text.percent(stats.stored, stats.raw) if stats else "",
        str(record.term),
        _note(row, live),
    )


def _note(row: Row, record: VersionRecord | None) -> str:
    notes = []
    if record is not None and record.resumed_from is not None:
        notes.append(f"resumed from {record.resumed_from}")
    if row.skips:
        notes.append(f"skip from {', '.join(map(str, row.skips))}")
    if row.claims:
        notes.append(f"▲ claim {', '.join(map(str, row.claims))}")
    return "; ".join(notes)
