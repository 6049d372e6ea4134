"""`python -m bench`: runs parts, stores their results, writes the report."""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path

from bench import report, run
from bench.settings import Settings

REPORT = "report"


def main() -> None:
    """Reads the command line and does what it says."""
    arguments = _parser().parse_args()
    folder: Path = arguments.results
    names: list[str] = arguments.parts or list(run.PARTS)
    if names != [REPORT]:
        unknown = [name for name in names if name not in run.PARTS]
        if unknown:
            sys.exit(
                f"bench: no part {', '.join(unknown)}; there are {', '.join(run.PARTS)}, or {REPORT} alone"
            )
        target = run.run(names, _settings(arguments), folder=folder)
        sys.stdout.write(f"{target}\n")
    target = report.HERE / "RESULTS.md" if folder == run.RESULTS else folder / "RESULTS.md"
    report.write(folder, target)
    sys.stdout.write(f"{target}\n")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m bench", description=__doc__)
    parser.add_argument("parts", nargs="*", help=f"{', '.join(run.PARTS)} (all of them), or {REPORT} alone")
    parser.add_argument(
        "--quick", action="store_true", help="small and short: shows that it works, no results"
    )
    parser.add_argument("--results", type=Path, default=run.RESULTS, help="folder of the JSON files")
    parser.add_argument("--gb", type=float, help="model size of speed and memory, 10^9 bytes of bf16")
    parser.add_argument("--repeats", type=int, help="timed repetitions of ours and of the limits")
    parser.add_argument("--peer-repeats", type=int, help="timed repetitions of peers")
    parser.add_argument("--trials", type=int, help="trials of each fault against the digest")
    parser.add_argument("--seed", type=int, help="of the generators")
    return parser


def _settings(arguments: argparse.Namespace) -> Settings:
    settings = Settings.short() if arguments.quick else Settings()
    named = {
        "gigabytes": arguments.gb,
        "repeats": arguments.repeats,
        "peer_repeats": arguments.peer_repeats,
        "trials": arguments.trials,
        "seed": arguments.seed,
    }
    return replace(settings, **{name: value for name, value in named.items() if value is not None})


if __name__ == "__main__":
    main()
