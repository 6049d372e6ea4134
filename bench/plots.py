"""Plots of the results, as SVG; the same results give the same files."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Mapping
from importlib.util import find_spec
from itertools import cycle
from pathlib import Path
from typing import Any, Final

from bench.parts import anchors, growth
from bench.parts.size import EXPONENT, ORDER0
from bench.rows import Row, Section, number, values, where

Axes = Any
"""matplotlib has no part in the project's own environment, nor have its types."""
Draw = Callable[[Section, Axes], None]

_OURS: Final = "#b03a2e"
_PEER: Final = "#85929e"


def draw(sections: Mapping[str, Section], folder: Path) -> dict[str, list[Path]]:
    """Draws what there are results for; nothing without matplotlib.

    Returns:
        The files, by part.
    """
    if find_spec("matplotlib") is None:
        return {}
    matplotlib = importlib.import_module("matplotlib")
    matplotlib.use("svg")
    matplotlib.rcParams.update(
        {"svg.hashsalt": "bench", "font.size": 9, "axes.grid": True, "grid.alpha": 0.3}
    )
    pyplot = importlib.import_module("matplotlib.pyplot")
    folder.mkdir(exist_ok=True)
    done: dict[str, list[Path]] = {}
    for part, name, plot in PLOTS:
        if part in sections and sections[part].rows:
            figure, axes = pyplot.subplots(figsize=(8, 4.5), layout="constrained")
            plot(sections[part], axes)
            target = folder / f"{name}.svg"
            figure.savefig(target, metadata={"Date": None})
            pyplot.close(figure)
            done.setdefault(part, []).append(target)
    return done


def _size(section: Section, axes: Axes) -> None:
    rows = where(section.rows, real=False)
    dashes = cycle(("-", "--", "-.", ":"))
    for form in values(rows, "form"):
        points = sorted(
            (100 * number(row, "density"), number(row, "bytes_per_change")) for row in where(rows, form=form)
        )
        if max(y for _, y in points) > _READABLE:
            continue
        style = _style(where(rows, form=form)[0])
        if style.get("color") == _OURS:
            style["linestyle"] = next(dashes)
        axes.plot(*zip(*points, strict=True), marker=".", label=form, **style)
    axes.set(
        xscale="log",
        xlabel="changed weights, %",
        ylabel="bytes per changed weight",
        title="Size, synthetic (above 10 bytes not drawn)",
    )
    axes.legend(fontsize=7, loc="center left", bbox_to_anchor=(1, 0.5))


_READABLE: Final = 10


def _style(row: Row) -> dict[str, Any]:
    if row["form"] in {ORDER0, EXPONENT}:
        return {"color": "black", "linestyle": ":" if row["form"] == ORDER0 else "--"}
    return {"color": _OURS, "linewidth": 2.2} if row["ours"] else {"linewidth": 1}


def _bars(axes: Axes, rows: Iterable[Row], column: str, label: str) -> None:
    shown = sorted(rows, key=lambda row: -number(row, column))
    heights = [number(row, column) for row in shown]
    spread = [
        [height - number(row, f"{column}_low") for height, row in zip(heights, shown, strict=True)],
        [number(row, f"{column}_high") - height for height, row in zip(heights, shown, strict=True)],
    ]
    colours = [_OURS if row.get("ours") else _PEER for row in shown]
    axes.barh([str(row["form"]) for row in shown], heights, xerr=spread, color=colours, ecolor="#555555")
    axes.axvline(1, color="black", linestyle=":")
    axes.set(xscale="log", xlabel=label)


def _side(side: str, column: str, label: str) -> Draw:
    def plot(section: Section, axes: Axes) -> None:
        rows = where(section.rows, side=side, cores=1)
        kernels = values(rows, "kernels")[0]
        peers = values(where(rows, ours=False), "density") or values(rows, "density")
        _bars(axes, where(rows, kernels=kernels, density=peers[0]), column, label)
        axes.set_title(f"{side.capitalize()}, one core, {100 * float(peers[0] or 0):g} % changed")

    return plot


def _anchors(section: Section, axes: Axes) -> None:
    for row in where(section.rows, what=anchors.PACK, cores=1):
        share = number(
            where(section.rows, what=anchors.SIZE, form=row["form"], model="synthetic")[0], "of_bf16"
        )
        speed = 1000 / number(row, "ms_per_gb")
        axes.plot(speed, 100 * share, "o", color=_OURS if row["ours"] else _PEER)
        axes.annotate(str(row["form"]), (speed, 100 * share), xytext=(5, 3), textcoords="offset points")
    bound = where(section.rows, what=anchors.SIZE, form=anchors.BOUND, model="synthetic")
    axes.axhline(100 * number(bound[0], "of_bf16"), color="black", linestyle=":")
    axes.set(xscale="log", xlabel="packed, GB/s on one core", ylabel="% of bf16", title="Anchors, synthetic")


def _growth(section: Section, axes: Axes) -> None:
    points = where(section.rows, what=growth.POINT)
    for side in values(points, "side"):
        rows = where(points, side=side)
        axes.plot(
            [number(r, "weights") for r in rows], [number(r, "seconds") for r in rows], "o-", label=side
        )
    axes.set(xscale="log", yscale="log", xlabel="weights", ylabel="seconds", title="Growth, `ulp`, all cores")
    axes.legend()


def _digest(section: Section, axes: Axes) -> None:
    rows = where(section.rows, what="speed", cores=1)
    axes.barh([str(row["path"]) for row in rows], [number(row, "gb_per_s") for row in rows], color=_PEER)
    axes.set(xlabel="GB/s, one core", title="State digest")


PLOTS: Final[tuple[tuple[str, str, Draw], ...]] = (
    ("size", "size", _size),
    ("speed", "producer", _side("producer", "over_read2", "times a two-stream read")),
    ("speed", "consumer", _side("consumer", "over_memcpy", "times memcpy")),
    ("anchors", "anchors", _anchors),
    ("digest", "digest", _digest),
    ("growth", "growth", _growth),
)
"""Part, file, and how to draw it."""
