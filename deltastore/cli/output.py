"""Where a command's results go: data to stdout, talk to stderr; tables for people or JSON lines for programs.

Colours, wrapping and progress bars are for terminals only: what is piped is plain aligned text.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn
from rich.table import Table as RichTable
from rich.text import Text

FORMAT: Final = "deltastore-cli/1"
"""First field of every JSON line; another number means that fields have changed their meaning."""

Cell = str | Text
Json = None | bool | int | float | str | Sequence["Json"] | Mapping[str, "Json"]


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table.

    Attributes:
        name: Its heading.
        right: Whether its cells are numbers.
        style: Of its cells on a terminal.
        fold: Whether long cells go on in the next line of a terminal; others are cut.
    """

    name: str
    right: bool = False
    style: str = ""
    fold: bool = False


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of cells under columns; without headings where no column has a name."""

    columns: tuple[Column, ...]
    rows: Sequence[Sequence[Cell]]

    @property
    def headed(self) -> bool:
        """Whether any column has a name."""
        return any(column.name for column in self.columns)


class Output:
    """What one command says.

    Args:
        json: Write JSON lines instead of text.

    Attributes:
        json: Whether it does.
    """

    def __init__(self, *, json: bool = False) -> None:
        self.json = json
        self._data = Console(highlight=False)
        self._talk = Console(stderr=True, highlight=False)

    # --- Data -------------------------------------------------------------------------------------------

    def record(self, type_: str, **fields: object) -> None:
        """One JSON line."""
        value = plain({"format": FORMAT, "type": type_, **fields})
        print(json.dumps(value, ensure_ascii=False, allow_nan=False), file=self._data.file, flush=True)

    def line(self, text: Cell = "", *, style: str = "") -> None:
        """One line of text."""
        if self._data.is_terminal:
            self._data.print(text, style=style, markup=False)
        else:
            print(text if isinstance(text, str) else text.plain, file=self._data.file)

    def table(self, table: Table) -> None:
        """A table."""
        if self._data.is_terminal:
            self._data.print(_rich(table))
            return
        for text in _plain_lines(table):
            print(text, file=self._data.file)

    def facts(self, title: str, facts: Sequence[tuple[str, Cell]]) -> None:
        """A heading and what there is to say under it, name by name."""
        self.line(title, style="bold")
        columns = (Column("", style="dim"), Column("", fold=True))
        self.table(Table(columns, [(f"  {name}", value) for name, value in facts]))

    # --- Talk -------------------------------------------------------------------------------------------

    def say(self, text: Cell = "", *, style: str = "") -> None:
        """One line that is no data: headings, legends, what to do next."""
        if self._talk.is_terminal:
            self._talk.print(text, style=style, markup=False)
        else:
            print(text if isinstance(text, str) else text.plain, file=self._talk.file)

    @contextmanager
    def progress(self, what: str, *, bytes_: bool = True) -> Iterator[Callable[[int, int], None]]:
        """A bar on a terminal, nothing elsewhere; takes how much is done and how much there is."""
        if self.json or not self._talk.is_terminal:
            yield lambda _done, _total: None
            return
        amount = (
            (DownloadColumn(), TransferSpeedColumn()) if bytes_ else (TextColumn("{task.percentage:.0f} %"),)
        )
        with Progress(
            TextColumn("{task.description}"), BarColumn(), *amount, console=self._talk, transient=True
        ) as bar:
            task = bar.add_task(what, total=None)
            yield lambda done, total: bar.update(task, completed=done, total=total)


class Warnings(logging.Handler):
    """Warnings of the library as lines on stderr, with the facts that they carry."""

    _OWN: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime"}

    def emit(self, record: logging.LogRecord) -> None:
        """Writes one."""
        facts = {name: value for name, value in vars(record).items() if name not in self._OWN}
        reason = f": {facts.pop('error')}" if "error" in facts else ""
        said = ", ".join(f"{name} {value}" for name, value in facts.items())
        about = f" ({said})" if said else ""
        Output().say(f"warning: {record.getMessage()}{about}{reason}", style="yellow")


def plain(value: object) -> Json:
    """A value as JSON has it: bytes in hexadecimal, and what is no number as text."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Sequence):
        return [plain(item) for item in value]
    return str(value)


def _rich(table: Table) -> RichTable:
    rich = RichTable(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    rich.show_header = table.headed
    for column in table.columns:
        rich.add_column(
            column.name,
            justify="right" if column.right else "left",
            style=column.style,
            no_wrap=not column.fold,
            overflow="fold" if column.fold else "ellipsis",
        )
    for row in table.rows:
        rich.add_row(*(Text(cell) if isinstance(cell, str) else cell for cell in row))
    return rich


def _plain_lines(table: Table) -> Iterator[str]:
    rows = [[cell if isinstance(cell, str) else cell.plain for cell in row] for row in table.rows]
    if table.headed:
        rows.insert(0, [column.name for column in table.columns])
    widths = [max((len(row[i]) for row in rows), default=0) for i in range(len(table.columns))]
    for row in rows:
        cells = zip(row, widths, table.columns, strict=True)
        yield "  ".join(
            cell.rjust(width) if column.right else cell.ljust(width) for cell, width, column in cells
        ).rstrip()
