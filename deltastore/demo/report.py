"""How the demo shows itself: live progress on stderr, a table of the result, and what to try next."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from deltastore.demo.config import DemoConfig
from deltastore.demo.ledger import DemoResult, Ledger

if TYPE_CHECKING:
    from rich.live import Live
    from rich.progress import Progress as Bar

_PLAIN_EVERY: Final = 5
_RECENT: Final = 5
_WIDTH: Final = 100


class Progress(Protocol):
    """Shows how far the demo is."""

    def show(self, ledger: Ledger) -> None:
        """Shows the state of things."""
        ...

    def note(self, text: str) -> None:
        """Says that something happened."""
        ...


@contextmanager
def progress(config: DemoConfig, root: Path, url: str) -> Iterator[Progress]:
    """A live bar on a terminal where rich is installed, plain lines otherwise; always on stderr."""
    _say(f"the store is at {url}, rollouts and logs are under {root}")
    if find_spec("rich") is None or not sys.stderr.isatty():
        yield PlainProgress(config)
        return
    from rich.console import Console
    from rich.live import Live
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar

    bar = Bar(TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Live(bar, console=Console(stderr=True)) as live:
        yield LiveProgress(config, live, bar)


class PlainProgress:
    """A line now and then."""

    def __init__(self, config: DemoConfig) -> None:
        self._config = config
        self._shown = ""

    def show(self, ledger: Ledger) -> None:
        """A line each few steps."""
        step = len(ledger.trained)
        warmed = ledger.warmed.step if ledger.warmed is not None else 0
        key = f"{step // _PLAIN_EVERY} {step == 0 and warmed // (4 * _PLAIN_EVERY)}"
        if key != self._shown:
            self._shown = key
            place = f"step {step}/{self._config.steps}" if step else "warm start"
            _say(f"{place}: {status(ledger)}")

    def note(self, text: str) -> None:
        """A line."""
        _say(text)


class LiveProgress:
    """A bar for the steps, and the state of things under it."""

    def __init__(self, config: DemoConfig, live: Live, bar: Bar) -> None:
        self._live = live
        self._bar = bar
        self._task = bar.add_task("warm start", total=config.steps)

    def show(self, ledger: Ledger) -> None:
        """Moves the bar."""
        from rich.console import Group
        from rich.text import Text

        self._bar.update(
            self._task,
            description="policy gradient" if ledger.published else "warm start",
            completed=len(ledger.trained),
        )
        self._live.update(Group(self._bar, Text(status(ledger))))

    def note(self, text: str) -> None:
        """A line above the bar."""
        self._live.console.print(text, highlight=False)


def status(ledger: Ledger) -> str:
    """The state of things in one line."""
    if not ledger.published:
        if ledger.warmed is None:
            return "starting"
        return f"{ledger.warmed.step} supervised steps, expected reward {ledger.warmed.reward:.2f}"
    newest = max(ledger.published)
    parts = [f"newest version {newest}"]
    if ledger.trained:
        recent = [step.reward for step in ledger.trained[-_RECENT:]]
        version = ledger.published[newest]
        parts.append(f"reward of rollouts {sum(recent) / len(recent):.2f}")
        if version.step > 0:
            parts.append(f"{version.changed / version.elements:.1%} changed")
        parts.append(f"published in {version.milliseconds:.0f} ms")
    parts += [f"{worker} at {held}" for worker, held in sorted(ledger.serving().items())]
    return ", ".join(parts)


def rows(result: DemoResult) -> list[tuple[str, str]]:
    """The table: what was measured, and its value."""
    rise = f"{result.reward_first:.3f} -> {result.reward_last:.3f}, {result.gain:+.3f}"
    stale = f"{result.staleness_mean:.1f} / {result.staleness_max} versions"
    same = result.compared - len(result.differing)
    return [
        ("expected reward, held-out prompts", f"{rise} (standard error {result.reward_error:.3f})"),
        ("versions", str(result.versions)),
        ("bytes of a full sync for each", _bytes(result.bytes_full)),
        ("bytes sent, first anchor included", _bytes(result.bytes_sent)),
        ("ratio", f"{result.ratio:.1f} x"),
        ("fetched per version, median", _bytes(result.bytes_delta)),
        ("weights changed per version, median", f"{result.density:.2%}"),
        ("publish to commit, median", f"{result.publish_ms_p50:.0f} ms"),
        ("pause of a worker, p50 / p95", f"{result.pause_ms_p50:.1f} / {result.pause_ms_p95:.1f} ms"),
        ("staleness of rollouts, mean / max", f"{stale}, {result.dropped} batches dropped as too old"),
        ("rollout workers", f"{result.workers}: one killed and restarted, one joined late"),
        ("equal by SHA-256", f"{same} of {result.compared} pairs of worker and version"),
        ("bit for bit", _verdict(result)),
        ("wall time", f"{result.seconds:.0f} s"),
    ]


def _verdict(result: DemoResult) -> str:
    versions = f"{result.versions} of {result.versions} versions"
    if result.identical:
        return f"{versions} bit-identical on every worker that held them"
    return f"NOT {versions}: {result.covered} compared, {len(result.differing)} pairs differ"


def next_commands(result: DemoResult) -> list[str]:
    """Commands that look into the store that was left."""
    last = result.last_version
    return [
        f"{_program()} {command}"
        for command in (
            f"log {result.url}",
            f"show {result.url} {last}",
            f"diff {result.url} {last - 1} {last}",
            f"materialize {result.url} ./checkpoint",
            f"doctor {result.url}",
        )
    ]


def _program() -> str:
    """How to call the command line: by its name, or by its path where it is not on the PATH."""
    beside = Path(sys.executable).with_name("deltastore")
    return "deltastore" if shutil.which("deltastore") or not beside.exists() else str(beside)


def print_result(result: DemoResult, *, as_json: bool) -> None:
    """Prints the table and the next commands; with `as_json` on stderr, and one line of JSON on stdout."""
    stream = sys.stderr if as_json else sys.stdout
    if find_spec("rich") is not None:
        from rich.console import Console
        from rich.table import Table

        table = Table(show_header=False, title="What came of it", title_justify="left")
        for label, value in rows(result):
            table.add_row(label, value)
        Console(file=stream, highlight=False, width=None if stream.isatty() else _WIDTH).print(table)
    else:
        stream.writelines(f"{label:38} {value}\n" for label, value in rows(result))
    stream.write("\nThe store is still there. Try:\n")
    stream.writelines(f"  {command}\n" for command in next_commands(result))
    if as_json:
        sys.stdout.write(result.to_json() + "\n")
        sys.stdout.flush()


def _bytes(count: float) -> str:
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.2f} GB"


def _say(text: str) -> None:
    sys.stderr.write(text + "\n")
    sys.stderr.flush()
