"""What a part of the bench returns: flat rows, which become JSON, tables and plots."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

Cell = str | int | float | bool | None
Row = dict[str, Cell]


@dataclass(slots=True)
class Section:
    """The result of one part.

    Attributes:
        rows: What was measured.
        notes: What a reader must know: peers that could not run and why, definitions, reductions.
        seconds: How long the part took.
    """

    rows: list[Row] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def note(self, text: str) -> None:
        """Adds a note once."""
        if text not in self.notes:
            self.notes.append(text)

    def extend(self, other: Section) -> None:
        """Adds the rows and notes of another section."""
        self.rows += other.rows
        for text in other.notes:
            self.note(text)


def number(row: Mapping[str, Cell], name: str) -> float:
    """A cell that is a number.

    Raises:
        TypeError: It is not.
    """
    value = row.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name} is {value!r} in {dict(row)}")
    return float(value)


def where(rows: Iterable[Row], **wanted: Cell) -> list[Row]:
    """Rows that have these cells."""
    return [row for row in rows if all(row.get(name) == value for name, value in wanted.items())]


def values(rows: Iterable[Row], name: str) -> list[Cell]:
    """The different values of a column, in order of appearance."""
    return list(dict.fromkeys(row[name] for row in rows if name in row))
