"""How the demo fails: one error for whoever calls it, one line for whoever reads a process's log."""

from __future__ import annotations

import sys
from collections.abc import Callable

from deltastore.errors import DeltaStoreError


class DemoFailed(DeltaStoreError):
    """The demo did not show what it is there to show."""


def run_process(main: Callable[[], None]) -> None:
    """Runs the main function of a process; an error that is expected is told in a line, not a traceback."""
    try:
        main()
    except DeltaStoreError as error:
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
        raise SystemExit(error.code) from error
    except BrokenPipeError:
        raise SystemExit(1) from None  # whoever started this process is gone
