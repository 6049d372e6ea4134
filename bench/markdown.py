"""Tables in Markdown, from rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from bench.rows import Cell, Row, values


def table(head: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    """A table; all columns but the first are aligned to the right."""
    rule = ["---", *["---:"] * (len(head) - 1)]
    return "\n".join("| " + " | ".join(row) + " |" for row in (head, rule, *body)) + "\n"


def pivot(
    rows: Sequence[Row],
    *,
    down: str,
    across: str,
    show: Callable[[Row], str],
    title: Callable[[Cell], str] = str,
) -> str:
    """A table of one column of cells against another.

    Args:
        rows: With one row at most for each pair of cells.
        down: The column that the lines are of.
        across: The column that the columns are of.
        show: What stands in a field.
        title: Heads of the columns.
    """
    lines, columns = values(rows, down), values(rows, across)
    fields = {(row[down], row[across]): show(row) for row in rows}
    body = [[str(line), *(fields.get((line, column), "") for column in columns)] for line in lines]
    return table(["", *map(title, columns)], body)


def percent(value: Cell) -> str:
    """A share."""
    return f"{100 * value:.3g} %" if isinstance(value, int | float) else str(value)
