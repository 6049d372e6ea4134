"""Runs the fuzzers, one after the other: see README.md beside this file.

What is found new goes into `build/fuzz/corpus`, whatever fails into `build/fuzz/found`.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from fuzz_build import BUILD, HERE, engine, harnesses
from fuzz_target import corpus
from fuzz_targets import TARGETS

SEEDS_OF = {"decode": "steps", "merge": "steps"}
"""Harnesses in C that begin with the inputs of a target in Python."""
WEIGHTS = {"shards": 4, "records": 3, "decode": 2, "merge": 2}
"""Shares of the time; the others have one."""
LIMITS = ("-timeout=20", "-rss_limit_mb=2048", "-max_len=65536", "-print_final_stats=0", "-verbosity=1")
_KEEP_BYTES = 300
"""Larger inputs are not kept in the tree."""

Commands = dict[str, list[str]]


def commands() -> Commands:
    """How each target is run; what cannot be had here is said."""
    if importlib.util.find_spec("atheris") is None:
        print("python: no atheris for this Python and platform; blind changes instead, without coverage")
    found = {name: [sys.executable, str(HERE / "fuzz_one.py"), name] for name in TARGETS}
    way, why = engine()
    if way is None:
        print(f"native: SKIPPED, not run: {why}")
        return found
    print(f"native: {way.name}" + (f" ({why})" if why else ""), flush=True)
    return found | {name: [str(program)] for name, program in harnesses(way).items()}


def folders(name: str) -> list[str]:
    """Where new inputs go, and where the first ones are."""
    first = BUILD / "seeds" / name
    for folder in (first, BUILD / "corpus" / name, BUILD / "found"):
        folder.mkdir(parents=True, exist_ok=True)
    for file in first.iterdir():
        file.unlink()
    target = TARGETS.get(SEEDS_OF.get(name, name))
    for data in [*(target.seeds() if target else ()), *corpus(name)]:
        (first / hashlib.sha256(data).hexdigest()[:16]).write_bytes(data)
    return [str(BUILD / "corpus" / name), str(first)]


def run(name: str, command: Sequence[str], arguments: Sequence[str]) -> bool:
    """Runs one target; whether nothing was found."""
    prefix = str(BUILD / "found" / f"{name}-")
    log = BUILD / f"{name}.log"
    with log.open("wb") as out:
        full = [*command, *LIMITS, f"-artifact_prefix={prefix}", *arguments]
        done = subprocess.run(full, stdout=out, stderr=out, check=False)
    lines = log.read_text(errors="replace").splitlines()
    if done.returncode:
        print(
            "\n".join([f"{name}: FOUND something ({log}):", *lines[-60:], f"inputs: {prefix}*"]), flush=True
        )
        return False
    said = [line for line in lines if "DONE" in line or line.startswith("Done") or "nothing found" in line]
    print(f"{name}: nothing found; {'; '.join(said)}", flush=True)
    return True


def keep(name: str, command: Sequence[str]) -> None:
    """Adds to the corpus in the tree the inputs that reach something new."""
    new, first = folders(name)
    before = set(Path(first).iterdir())
    if not run(name, command, ["-merge=1", first, new]):
        return
    added = [file.read_bytes() for file in sorted(set(Path(first).iterdir()) - before)]
    lines = [data.hex() + "\n" for data in added if 0 < len(data) <= _KEEP_BYTES]
    if not lines:
        return
    (HERE / "corpus").mkdir(exist_ok=True)
    with (HERE / "corpus" / f"{name}.hex").open("a") as file:
        file.writelines(lines)


def main() -> int:
    """Exit status: 1 if something was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("target", nargs="?", help="only this one")
    parser.add_argument("files", nargs="*", help="only replay these")
    parser.add_argument("--seconds", type=float, default=300, help="for all of them together (default: 300)")
    parser.add_argument("--seed", type=int, default=0, help="0 (default): another one each time")
    parser.add_argument("--keep", action="store_true", help="rather add what was found to the corpus")
    options = parser.parse_args()
    found = commands()
    if options.target:
        found = {options.target: found[options.target]}
    if options.keep:
        for name, command in found.items():
            keep(name, command)
        return 0
    weight = sum(WEIGHTS.get(name, 1) for name in found)
    good = True
    for name, command in found.items():
        share = max(1, round(options.seconds * WEIGHTS.get(name, 1) / weight))
        fuzzing = [f"-max_total_time={share}", f"-seed={options.seed}", *folders(name)]
        good &= run(name, command, options.files or fuzzing)
    return not good


if __name__ == "__main__":
    sys.exit(main())
