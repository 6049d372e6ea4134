"""Runs parts, and stores what they found with all that is needed to judge it."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from bench import machine
from bench.parts import anchors, digests, growth, memory, merge, size, speed
from bench.rows import Section
from bench.settings import Settings

FORMAT: Final = 1
RESULTS: Final = Path(__file__).parent / "results"
PARTS: Final[Mapping[str, Callable[[Settings], Section]]] = {
    "size": size.run,
    "speed": speed.run,
    "anchors": anchors.run,
    "merge": merge.run,
    "digest": digests.run,
    "memory": memory.run,
    "growth": growth.run,
}


def run(names: Sequence[str], settings: Settings, *, folder: Path = RESULTS) -> Path:
    """Runs some parts, and writes one file of results after each.

    Returns:
        The file.
    """
    begun = datetime.now(UTC)
    kind = "quick" if settings.quick else "full"
    target = folder / f"{begun:%Y%m%dT%H%M%SZ}-{kind}.json"
    record = {
        "format": FORMAT,
        "date": begun.isoformat(timespec="seconds"),
        "quick": settings.quick,
        "settings": asdict(settings),
        "machine": machine.facts(),
        "versions": machine.versions(),
        "parts": {},
    }
    sections: dict[str, object] = {}
    for name in names:
        say(f"{name} ...")
        start = time.monotonic()
        section = PARTS[name](settings)
        section.seconds = round(time.monotonic() - start, 1)
        sections[name] = asdict(section)
        record["parts"] = sections
        folder.mkdir(parents=True, exist_ok=True)
        target.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
        say(f"{name}: {len(section.rows)} rows in {section.seconds:.0f} s")
        for text in section.notes:
            if "not run" in text or text.startswith("No "):
                say(f"  {text}")
    return target


def say(text: str) -> None:
    """Progress, beside the data."""
    sys.stderr.write(f"bench: {text}\n")
    sys.stderr.flush()
