"""The state digest: speed of its implementations, and faults that it must see, whole and in either half."""

from __future__ import annotations

import ctypes
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray

from bench import limits, machine, process, synthetic
from bench.compiled import library
from bench.forms.base import each
from bench.forms.ours import Scan, device_digest, kernels_in_use, native_digest, public_digest
from bench.model import Bits, Model
from bench.rows import Row, Section
from bench.settings import Settings
from bench.timing import Rounds, seconds

FAULTS: Final = (
    "compensating +-1 pairs",
    "equal neighbours",
    "swapped words",
    "shifted blocks",
    "zero runs",
    "duplicated rows",
    "bit flips",
)
SPEED, TRIALS, CONTROL = "speed", "faults", "control: plain sum"
IN_USE, NATIVE, TORCH, TWIN = "in use", "C kernel", "torch, as on a device", "numpy twin"
MASK: Final = 2**64 - 1
_CHECKED: Final = 200
"""Single faults per kind that are checked against the digest of deltastore."""
_CONTROL: Final = 100_000
_MOST: Final = 128
_POOL_WEIGHTS: Final = 1 << 18
_KEY: Final = 0x0123456789ABCDEF


class _Fault(ctypes.Structure):
    """`fault_t` of faults.c."""

    _fields_ = (
        ("at", ctypes.c_uint64 * _MOST),
        ("old", ctypes.c_uint64 * _MOST),
        ("now", ctypes.c_uint64 * _MOST),
        ("key", ctypes.c_uint64),
        ("first", ctypes.c_uint64),
        ("count", ctypes.c_uint64),
    )


class WrongDigest(Exception):
    """Two implementations differ: the bench stops."""


def run(settings: Settings) -> Section:
    """Speeds on one core and on all, then the faults."""
    section = Section()
    for cores in sorted({1, machine.cores()}):
        section.extend(process.run("digest", settings, cores=cores))
        if TWIN not in kernels_in_use():
            section.extend(process.run("digest", settings, cores=cores, kernels="numpy", only=TWIN))
    section.extend(process.run("faults", settings, cores=machine.cores()))
    return section


# --- Speed -------------------------------------------------------------------------------------------


def task(settings: Settings, *, cores: int, only: str | None = None) -> Section:
    """GB/s on the cores of this process; `only` is the name to give the digest in use, with no others."""
    section = Section()
    model = synthetic.base(max(1 << 20, settings.weights // 8), seed=settings.seed)
    paths: dict[str, Scan] = {only or IN_USE: public_digest}
    native = native_digest()
    if only is None:
        paths[TORCH] = device_digest
        if native is None:
            section.note("The C kernel of the digest was not built.")
        else:
            paths[NATIVE] = native
    parts = _parts(model, cores)
    expected = public_digest(model.flat, _KEY, 0)
    for name, scan in paths.items():
        if _scan(scan, parts, cores) != expected:
            raise WrongDigest(f"digest {name!r} is not the one in use")
    torch.set_num_threads(1)
    rounds = Rounds()
    for _ in range(settings.repeats):
        rounds.begin()
        rounds.add(limits.READ1, seconds(limits.limit(limits.READ1).run, model.flat, model.flat, cores))
        for name, scan in paths.items():
            rounds.add(name, seconds(_scan, scan, parts, cores))
    gigabytes = model.flat.nbytes / 1e9
    for name in (limits.READ1, *paths):
        row = rounds.row(name, gigabytes=gigabytes, limits={limits.READ1: "over_read1"}, what=SPEED)
        row |= {"path": name, "cores": cores, "gb_per_s": 1000 / float(row["ms_per_gb"] or 0)}
        section.rows.append({**row, "kernels": kernels_in_use()})
    return section


def _parts(model: Model, cores: int) -> list[tuple[Bits, int]]:
    words = model.flat.size // 4
    edges = [words * i // cores for i in range(cores + 1)]
    return [(model.flat[4 * a : 4 * b], a) for a, b in pairwise(edges)]


def _scan(scan: Scan, parts: list[tuple[Bits, int]], cores: int) -> int:
    return sum(each(cores, lambda part: scan(part[0], _KEY, part[1]), parts)) & MASK


# --- Faults ------------------------------------------------------------------------------------------


def faults(settings: Settings, *, cores: int) -> Section:
    """Trials of each fault, with a plain sum of words as a control that must miss some."""
    section = Section()
    lib = library()
    if lib is None:
        section.note("No fault trials: they need a C compiler.")
        return section
    section.note(
        "A miss is a fault whose change of the digest is 0, in all 64 bits or in one half of them. By chance "
        "alone a half misses one trial in 2^32. Faults that change nothing are drawn again."
    )
    pool = _pool(settings.seed)
    for kind, name in enumerate(FAULTS):
        _check(lib, kind, pool, settings.seed)
        rows: list[tuple[str, int]] = [(TRIALS, settings.trials), (CONTROL, _CONTROL)]
        for what, trials in rows:
            missed = _count(lib, kind, pool, trials, plain=what == CONTROL, seed=settings.seed, cores=cores)
            row: Row = {"what": what, "fault": name, "trials": trials}
            row |= dict(zip(("missed_64", "missed_low_32", "missed_high_32"), missed, strict=True))
            section.rows.append({**row, "by_chance_per_half": trials / 2**32})
    return section


def _pool(seed: int) -> NDArray[np.uint64]:
    """Weights, ones and zeros: what the faults befall."""
    bits = synthetic.base(_POOL_WEIGHTS, seed=seed).flat[:_POOL_WEIGHTS].copy()
    eighth = bits.size // 8
    bits[:eighth] = 0x3F80
    bits[eighth : eighth + eighth // 4] = 0
    return bits.view(np.uint64)


def _check(lib: ctypes.CDLL, kind: int, pool: NDArray[np.uint64], seed: int) -> None:
    """Makes sure that the helper's arithmetic is the digest's.

    Raises:
        WrongDigest: It is not.
    """
    fault = _Fault()
    for number in range(_CHECKED):
        said = lib.bench_fault(kind, seed + number, pool.ctypes.data, pool.size, ctypes.byref(fault))
        at = np.array(fault.at[: fault.count], np.int64)
        low, high = int(at.min()), int(at.max()) + 1
        before = pool[low:high].copy()
        before[at - low] = fault.old[: fault.count]
        after = before.copy()
        after[at - low] = fault.now[: fault.count]
        one, two = (
            public_digest(words.view(np.uint16), fault.key, fault.first + low) for words in (before, after)
        )
        if (two - one) & MASK != said or np.array_equal(before, after):
            raise WrongDigest(f"{FAULTS[kind]}: the trial computes another change than the digest")


def _count(
    lib: ctypes.CDLL, kind: int, pool: NDArray[np.uint64], trials: int, *, plain: bool, seed: int, cores: int
) -> list[int]:
    def some(number: int) -> list[int]:
        share = trials * (number + 1) // cores - trials * number // cores
        own = seed + 1000 * (kind + 1) + number
        missed = (ctypes.c_uint64 * 3)()
        lib.bench_trials(kind, plain, own, pool.ctypes.data, pool.size, share, missed)
        return list(missed)

    with ThreadPoolExecutor(cores) as threads:
        return [sum(column) for column in zip(*threads.map(some, range(cores)), strict=True)]
