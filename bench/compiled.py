"""The bench's own C helper: compiled on first use if there is a compiler, else absent."""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Final

SOURCES: Final = Path(__file__).parent / "c"
BUILD: Final = Path(__file__).parent / "build"
_FLAGS: Final = ("-O3", "-march=native", "-std=c11", "-Wall", "-Wextra", "-fPIC", "-shared")


@cache
def library() -> ctypes.CDLL | None:
    """The helper, or None without a C compiler.

    Raises:
        RuntimeError: There is a compiler, but it does not compile the helper.
    """
    compiler = shutil.which(os.environ.get("CC", "cc"))
    if compiler is None:
        return None
    sources = sorted(SOURCES.glob("*.c"))
    version = hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()[:16]
    target = BUILD / f"bench-{version}.so"
    if not target.exists():
        BUILD.mkdir(exist_ok=True)
        made = target.with_suffix(f".{os.getpid()}")
        command = [compiler, *_FLAGS, "-o", str(made), *map(str, sources)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603  # our sources
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr}")
        made.replace(target)
    return _declared(ctypes.CDLL(str(target)))


def _declared(lib: ctypes.CDLL) -> ctypes.CDLL:
    pointer, number = ctypes.c_void_p, ctypes.c_uint64
    lib.bench_read1.argtypes = [pointer, number]
    lib.bench_read1.restype = number
    lib.bench_read2.argtypes = [pointer, pointer, number]
    lib.bench_read2.restype = number
    lib.bench_copy.argtypes = [pointer, pointer, number]
    lib.bench_copy.restype = None
    lib.bench_trials.argtypes = [ctypes.c_int, ctypes.c_int, number, pointer, number, number, pointer]
    lib.bench_trials.restype = None
    lib.bench_fault.argtypes = [ctypes.c_int, number, pointer, number, pointer]
    lib.bench_fault.restype = number
    return lib
