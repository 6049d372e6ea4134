"""Runs one target in Python: `fuzz_one.py TARGET`, then options, files and folders as libFuzzer takes them.

Under atheris where that is installed; else blindly, with `-max_total_time` and `-seed` alone.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from fuzz_noise import blind


def guided(name: str) -> None:
    """Fuzzes with the coverage of the whole package as feedback; does not return."""
    import atheris  # type: ignore[import-not-found,import-untyped,unused-ignore]

    with atheris.instrument_imports(include=["deltastore"]):
        from fuzz_targets import TARGETS

    target = TARGETS[name]

    def mutate(data: bytes, max_size: int, seed: int) -> bytes:
        return target.mutate(bytes(data), random.Random(seed), atheris.Mutate)[:max_size]

    atheris.Setup(sys.argv, target.check, custom_mutator=mutate)
    atheris.Fuzz()


def _inputs(paths: list[str]) -> Iterator[bytes]:
    for path in map(Path, paths):
        for file in sorted(path.iterdir()) if path.is_dir() else [path]:
            yield file.read_bytes()


def unguided(name: str, arguments: list[str]) -> None:
    """Replays, then changes at random; an input is written down before it is run."""
    from fuzz_targets import TARGETS

    target = TARGETS[name]
    options = dict(argument[1:].split("=", 1) for argument in arguments if argument.startswith("-"))
    pool = list(_inputs([argument for argument in arguments if not argument.startswith("-")]))
    crash = Path(options.get("artifact_prefix", "") + "crash")
    rng = random.Random(int(options.get("seed", "1")))
    end = time.monotonic() + float(options.get("max_total_time", "0"))
    for data in pool:
        crash.write_bytes(data)
        target.check(data)
    runs = len(pool)
    while pool and time.monotonic() < end:
        data = target.mutate(rng.choice(pool), rng, blind(rng))
        crash.write_bytes(data)
        target.check(data)
        runs += 1
    crash.unlink(missing_ok=True)
    print(f"Done {runs} runs")


if __name__ == "__main__":
    name = sys.argv.pop(1)
    try:
        guided(name)
    except ImportError:
        unguided(name, sys.argv[1:])
