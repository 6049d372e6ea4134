"""The command line: `deltastore VERB URL`, for people on a terminal and, with `--json`, for programs.

Needs the extra `cli`; nothing else in the library imports this package.
"""

from __future__ import annotations

import sys
from typing import Final

_NEEDED: Final = {"typer", "rich"}


def main() -> None:
    """Runs the command line on the arguments of the process, and exits."""
    try:
        from deltastore.cli.app import app
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in _NEEDED:
            raise
        print("deltastore: the command line needs the extra 'cli' of deltastore-rl", file=sys.stderr)
        sys.exit(2)
    app(prog_name="deltastore")
