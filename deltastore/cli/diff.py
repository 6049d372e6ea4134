"""`deltastore diff`: what differs between two versions, tensor by tensor."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from deltastore.cli import text
from deltastore.cli.compare import Comparison, SchemaChange, TensorDiff, compare
from deltastore.cli.options import Base, Json, Url, opened
from deltastore.cli.output import Cell, Column, Output, Table
from deltastore.store import VersionInfo

EXAMPLES: Final = """\
Examples:

deltastore diff /mnt/shared/qwen-rl 1199 1200
deltastore diff /mnt/shared/qwen-rl 1 1200 --top 50
deltastore diff /mnt/shared/qwen-rl 1199 1200 --json | jq 'select(.changed)'
"""

_COLUMNS: Final = (
    Column("TENSOR", fold=True),
    Column("DTYPE"),
    Column("CHANGED", right=True),
    Column("OF", right=True),
    Column("DENSITY", right=True),
    Column("BY 1", right=True),
    Column("BY 2", right=True),
    Column("3-127", right=True),
    Column(">127", right=True),
)


def diff(
    url: Url,
    a: Annotated[int, typer.Argument(metavar="A", min=0, help="A version.")],
    b: Annotated[int, typer.Argument(metavar="B", min=0, help="Another one.")],
    *,
    top: Annotated[
        int | None,
        typer.Option("--top", min=0, metavar="K", help="Only the K tensors that changed most; 20 as text."),
    ] = None,
    base: Base = None,
    json: Json = False,
) -> None:
    """Show what differs between two versions, tensor by tensor.

    Both versions are rebuilt from the store, the tensors of one shard at a time: memory is that of a few
    shards. It fetches what two fresh servers would fetch, and reads the records on the way once for each
    128 MB of weights. How far a weight moved is counted in bit patterns: 1 is the next number that its
    dtype can hold.
    """
    out = Output(json=json)
    with opened(url) as store:
        first, second = (VersionInfo.of(store.log.require(version)) for version in (a, b))
        with out.progress(f"comparing {a} and {b}", bytes_=False) as progress:
            found = compare(store, first, second, base=base, progress=progress)
    changed = sorted((t for t in found.tensors if t.changed), key=lambda t: (-t.changed, t.name))
    if json:
        shown = found.tensors if top is None else changed[:top]
        _emit(out, first, second, found, shown)
    else:
        _print(out, first, second, found, changed, top=20 if top is None else top)


def _emit(out: Output, a: VersionInfo, b: VersionInfo, found: Comparison, shown: list[TensorDiff]) -> None:
    for change in found.schema:
        out.record("schema", change=change.what, name=change.name, before=change.before, after=change.after)
    for one in shown:
        out.record("tensor", name=one.name, dtype=one.dtype, **_numbers(one))
    states = {"a_state": text.digest(a.state), "b_state": text.digest(b.state)}
    same = (a.schema, a.state) == (b.schema, b.state)
    out.record("total", a=a.version, b=b.version, **states, same=same, **_numbers(found.total))


def _numbers(one: TensorDiff) -> dict[str, object]:
    by_1, by_2, by_127, more = one.steps
    density = one.changed / one.lanes if one.lanes else 0.0
    steps = {"1": by_1, "2": by_2, "3-127": by_127, ">127": more}
    return {"changed": one.changed, "total": one.lanes, "density": density, "steps": steps}


def _print(
    out: Output, a: VersionInfo, b: VersionInfo, found: Comparison, changed: list[TensorDiff], *, top: int
) -> None:
    out.say(f"from version {_named(a)}\n  to version {_named(b)}", style="dim")
    for change in found.schema:
        out.line(_schema_line(change), style="yellow")
    if not changed:
        same = "the same weights, bit for bit" if not found.schema else "no tensor of both differs"
        out.line(same)
        return
    rows = [_row(one, one.name) for one in changed[:top]]
    rows.append(_row(found.total, f"all {text.plural(len(found.tensors), 'tensor')}"))
    out.table(Table(_COLUMNS, rows))
    unchanged = len(found.tensors) - len(changed)
    rest = [f"{text.plural(len(changed), 'tensor')} changed, {unchanged:,} did not"]
    if len(changed) > top:
        rest.append(f"--top {len(changed)} shows all that did")
    out.say("; ".join(rest), style="dim")


def _row(one: TensorDiff, name: str) -> tuple[Cell, ...]:
    steps = (text.percent(count, one.changed) for count in one.steps)
    return (
        name,
        one.dtype,
        text.number(one.changed),
        text.number(one.lanes),
        text.percent(one.changed, one.lanes),
        *steps,
    )


def _named(info: VersionInfo) -> str:
    step = "" if info.step is None else f"step {info.step}, "
    return f"{info.version} ({step}state {text.digest(info.state) or 'none'})"


def _schema_line(change: SchemaChange) -> str:
    match change.what:
        case "added":
            return f"added    {change.name}: {change.after}"
        case "removed":
            return f"removed  {change.name}: {change.before}"
        case _:
            return f"{change.what:<8} {change.name}: {change.before} -> {change.after}"
