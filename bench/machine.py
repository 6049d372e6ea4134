"""Where figures come from: the machine, the versions, and the kernels in use."""

from __future__ import annotations

import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Final

from bench import limits
from bench.forms.ours import kernels_in_use
from bench.rows import Row

PACKAGES: Final = (
    "numpy",
    "torch",
    "safetensors",
    "zstandard",
    "xxhash",
    "zipnn",
    "basilica-sdk",
    "matplotlib",
)


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def facts() -> Row:
    """The machine."""
    return {
        "system": f"{platform.system()} {platform.release()}",
        "machine": platform.machine(),
        "cpu": _cpu(),
        "cores": cores(),
        "memory_gb": round(_memory() / 1e9, 1),
        "load": round(os.getloadavg()[0], 2),
        "limits_measured_by": limits.how(),
        "kernels": kernels_in_use(),
    }


def versions() -> Row:
    """Of what takes part."""
    found: Row = {"python": platform.python_version(), "deltastore": _commit()}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = None
    return found


def available_bytes() -> int:
    """Memory that is free to use."""
    for line in _lines("/proc/meminfo"):
        if line.startswith("MemAvailable"):
            return int(line.split()[1]) * 1024
    return _memory() // 2


def _cpu() -> str:
    names = [line.split(":")[1].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")]
    return names[0] if names else platform.processor()


def _memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _lines(path: str) -> list[str]:
    file = Path(path)
    return file.read_text(encoding="utf-8").splitlines() if file.exists() else []


def _commit() -> str:
    """The commit that is measured, with a + if the tree differs from it."""
    folder = Path(__file__).parents[1]
    try:
        command = ["git", "-C", str(folder), "describe", "--always", "--dirty=+", "--exclude=*"]
        done = subprocess.run(command, capture_output=True, text=True, check=True)  # noqa: S603  # fixed command
    except (OSError, subprocess.CalledProcessError):
        return metadata.version("deltastore-rl")
    return done.stdout.strip()
