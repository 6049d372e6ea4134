"""Peak memory of a piece of work, beyond what the process held before it."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable
from pathlib import Path
from typing import Final

_STATUS: Final = Path("/proc/self/status")
_RESET: Final = Path("/proc/self/clear_refs")


def measurable() -> bool:
    """Whether this system tells, and can forget the peak so far."""
    return _STATUS.exists() and _RESET.exists()


def peak(work: Callable[[], object]) -> int:
    """Bytes at the peak of the work beyond those held before it."""
    gc.collect()
    _give_back()
    _RESET.write_text("5", encoding="ascii")
    before = _read("VmRSS")
    result = work()
    highest = _read("VmHWM")
    del result
    return max(0, highest - before)


def _give_back() -> None:
    """Free memory that the C library keeps would hide what the work needs."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def _read(name: str) -> int:
    for line in _STATUS.read_text(encoding="ascii").splitlines():
        if line.startswith(name):
            return int(line.split()[1]) * 1024
    raise LookupError(f"{_STATUS} has no {name}")
