"""`deltastore show`: all that a store says of one version."""

from __future__ import annotations

import json as json_text
from collections import Counter
from typing import Annotated, Final

import typer

from deltastore.cli import text
from deltastore.cli.options import Json, Step, Url, located, opened
from deltastore.cli.output import Cell, Column, Output, Table, plain
from deltastore.cli.records import Whole, fields, gather
from deltastore.errors import IntegrityError
from deltastore.protocol.descriptors import Part, Run, ShardDescriptor
from deltastore.protocol.features import Requires
from deltastore.protocol.records import Tombstone, VersionRecord
from deltastore.protocol.schema import Schema

EXAMPLES: Final = """\
Examples:

deltastore show /mnt/shared/qwen-rl
deltastore show /mnt/shared/qwen-rl 1200 --full
deltastore show /mnt/shared/qwen-rl --step 300 --json | jq .edges
"""

_SHARDS: Final = (
    Column("  CODEC"),
    Column("STORED", right=True),
    Column("INFLATED", right=True),
    Column("STATE DELTA"),
    Column("SHA-256", fold=True),
    Column("TENSORS", fold=True),
)
_FILES: Final = (Column("  NAME", fold=True), Column("BYTES", right=True), Column("SHA-256", fold=True))


def show(
    url: Url,
    version: Annotated[
        int | None, typer.Argument(metavar="VERSION", min=0, help="Which; the newest by default.")
    ] = None,
    step: Step = None,
    full: Annotated[bool, typer.Option("--full", help="Show each SHA-256 as a whole.")] = False,
    json: Json = False,
) -> None:
    """Show all that is stored about a version.

    That is its record, its edges and their shards, its schema and its files; of a collected version what
    its tombstone keeps. JSON is one object, hashes in full.
    """
    out = Output(json=json)
    with opened(url) as store:
        whole = gather(store, located(store, version, step))
        if json:
            out.record("version", **fields(whole))
        else:
            _print(out, whole, now=store.runtime.now(), full=full)
    if whole.damaged:
        raise typer.Exit(IntegrityError.code)


def _print(out: Output, whole: Whole, *, now: float, full: bool) -> None:
    record = whole.slot.record
    out.facts(f"version {record.version}", _record(whole, now=now, full=full))
    if isinstance(record, VersionRecord) and record.stats is not None:
        stats = record.stats
        lanes = f"{text.number(stats.changed)} of {text.number(stats.total)}"
        took = f"{_bytes(stats.stored)}: {text.percent(stats.stored, stats.raw)} of a full sync"
        facts = [
            ("changed", f"{lanes} ({text.percent(stats.changed, stats.total)})"),
            ("stored", took),
            ("full sync", _bytes(stats.raw)),
        ]
        out.facts("what it cost", facts)
    if record.schema is not None:
        out.facts(f"schema {text.short(record.schema.sha256, full=full)}", _schema(whole))
    _print_edges(out, whole, full=full)
    if isinstance(record, VersionRecord) and record.files:
        out.line("files", style="bold")
        rows: list[tuple[Cell, ...]] = [
            (f"  {name}", text.number(file.size), text.short(file.sha256, full=full))
            for name, file in sorted(record.files.items())
        ]
        out.table(Table(_FILES, rows))


def _record(whole: Whole, *, now: float, full: bool) -> list[tuple[str, Cell]]:
    slot, record = whole.slot, whole.slot.record
    kind = "collected: this is what its tombstone keeps"
    parent = "none: it is the first"
    if record.parent is not None:
        parent = f"{text.short(record.parent, full=full)} (version {record.version - 1})"
    facts: list[tuple[str, Cell]] = [
        ("kind", kind if isinstance(record, Tombstone) else record.kind.value),
        ("step", _or_none(record.step)),
        ("term", f"{record.term}, which began with version {record.term_start}"),
        ("state", _or_none(text.digest(record.state))),
        ("store", record.store),
        ("record", f"{text.short(slot.sha256, full=full)}"),
        ("parent", parent),
    ]
    if isinstance(record, Tombstone):
        return facts
    facts[5] = ("record", f"{text.short(slot.sha256, full=full)} ({_bytes(len(slot.data))})")
    made = record.time / 1000
    facts += [
        ("time", f"{text.when(made)} ({text.age(now - made)} ago, by its producer's clock)"),
        ("last anchor", "none" if record.last_anchor is None else f"version {record.last_anchor} or newer"),
        ("resumed from", _or_none(record.resumed_from)),
        ("user", json_text.dumps(plain(record.user), ensure_ascii=False) if record.user else "nothing"),
        ("requires", _requires(record.requires)),
        ("signatures", _or_none(whole.signatures or None)),
        ("nonce", record.nonce.hex()),
    ]
    if record.external is not None:
        files = text.plural(len(record.external.files), "file")
        facts.append(("external base", f"{record.external.url} ({files}, each with its SHA-256)"))
    return facts


def _schema(whole: Whole) -> list[tuple[str, Cell]]:
    schema = whole.schema
    if schema is None:
        return [("problem", whole.problem)]
    dtypes = Counter(tensor.dtype for tensor in schema.owners)
    ties = [f"{t.name} = {t.alias_of}" for t in schema.tensors if t.alias_of is not None]
    kinds = ", ".join(f"{count:,} {dtype}" for dtype, count in sorted(dtypes.items()))
    return [
        ("tensors", f"{len(schema.tensors):,}: {kinds}"),
        ("ties", ", ".join(ties) or "none"),
        ("weights", f"{text.number(schema.lanes)} lanes, {_bytes(schema.nbytes)}"),
    ]


def _print_edges(out: Output, whole: Whole, *, full: bool) -> None:
    for way in whole.ways:
        edge = way.edge
        if edge is None:
            out.line(f"edge record {way.key}", style="bold")
            out.line(f"  cannot be read: {way.problem}", style="red")
            continue
        origin = "anchor" if edge.is_anchor else f"edge from {edge.base}"
        where = "in the version's record" if way.key is None else "added later"
        out.line(f"{origin}, {where}", style="bold")
        shards = f"{_bytes(edge.size)} in {text.plural(len(edge.shards), 'shard')}"
        start = "nothing" if edge.base_state is None else f"state {text.digest(edge.base_state)}"
        out.line(f"  {shards}; leads from {start} to state {text.digest(edge.state)}")
        out.table(Table(_SHARDS, [_shard(shard, whole.schema, full=full) for shard in edge.shards]))


def _shard(shard: ShardDescriptor, schema: Schema | None, *, full: bool) -> tuple[str, ...]:
    return (
        f"  {shard.codec}",
        text.size(shard.size),
        text.size(shard.raw_size),
        f"{shard.state_delta:016x}",
        text.short(shard.sha256, full=full),
        "; ".join(_slice(one, schema) for one in shard.slices),
    )


def _slice(one: Run | Part, schema: Schema | None) -> str:
    """A run or a part, by names where the schema is known."""
    if isinstance(one, Part):
        return f"{_name(one.tensor, schema)}[{one.start}:{one.stop}]"
    if one.count == 1:
        return _name(one.first, schema)
    last = one.first + one.count - 1
    return f"{_name(one.first, schema)} … {_name(last, schema)} ({one.count:,})"


def _name(index: int, schema: Schema | None) -> str:
    known = schema is not None and index < len(schema.tensors)
    return schema.tensors[index].name if schema is not None and known else f"tensor {index}"


def _bytes(count: int) -> str:
    return text.size(count) if count < 1000 else f"{text.size(count)} ({text.number(count)} bytes)"


def _requires(requires: Requires) -> str:
    said = [f"{operation}: {', '.join(sorted(names))}" for operation, names in _operations(requires) if names]
    return "; ".join(said) or "nothing"


def _operations(requires: Requires) -> list[tuple[str, frozenset[str]]]:
    return [("read", requires.read), ("write", requires.write), ("gc", requires.gc)]


def _or_none(value: object) -> str:
    return "none" if value is None else str(value)
