"""Compiles the kernels with sanitizers: into harnesses for a fuzzer, and into a module for Python.

What the machine has decides how; root is needed for none of it. A way is taken only after a trial.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sysconfig
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

HERE: Final = Path(__file__).parent
ROOT: Final = HERE.parents[1]
BUILD: Final = ROOT / "build" / "fuzz"
KERNELS: Final = ROOT / "deltastore" / "codec" / "native"
MODULE: Final = "module"
"""How files are called that show kernels to Python; harnesses do without them."""
SANITIZE: Final = (
    "-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer", "-g", "-O2",
)  # fmt: skip
_PROBE: Final = """#include <stddef.h>
#include <stdint.h>
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) { return data && size == 99 && data[7] == 9; }
"""


@dataclass(frozen=True)
class Engine:
    """A way to make a fuzzer of a harness.

    Attributes:
        name: For people, and for the folder of what is compiled.
        compiler: What compiles and links.
        flags: For harnesses and kernels.
        main: Flags for `main.c`, or None where libFuzzer has its own.
        libraries: What is linked with them.
    """

    name: str
    compiler: str
    flags: tuple[str, ...]
    main: tuple[str, ...] | None = ()
    libraries: tuple[str, ...] = ()

    def compile(self, sources: Sequence[Path], folder: Path) -> list[str]:
        """Objects of some sources, and that of `main.c` where it is needed."""
        folder.mkdir(parents=True, exist_ok=True)
        objects = []
        for source in [*sources, *([HERE / "native" / "main.c"] if self.main is not None else [])]:
            flags = (self.main or ()) if source.name == "main.c" else self.flags
            target = folder / f"{source.parent.parent.name}-{source.stem}.o"
            _run([self.compiler, *SANITIZE, *flags, *_STRICT, "-c", str(source), "-o", str(target)])
            objects.append(str(target))
        return objects

    def link(self, objects: Sequence[str], program: Path) -> None:
        """A program of objects."""
        final = [flag for flag in self.flags if flag.startswith("-fsanitize=")]
        _run([self.compiler, *SANITIZE, *final, *objects, *self.libraries, "-o", str(program)])


_STRICT: Final = (
    "-std=c11",
    "-D_GNU_SOURCE",
    "-Wall",
    "-Wextra",
    f"-I{KERNELS}",
    f"-I{HERE / 'native'}",
)


def _run(command: Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(f"{' '.join(command)}\n{done.stderr}")


def _ways() -> Iterator[Engine]:
    if clang := shutil.which("clang"):
        yield Engine("clang-libfuzzer", clang, ("-fsanitize=fuzzer",), main=None)
    gcc = shutil.which("gcc") or shutil.which("cc")
    if gcc is None:
        return
    archive = Path(sysconfig.get_path("purelib")) / "libclang_rt.fuzzer_no_main.a"
    if archive.exists():
        libraries = (str(archive), "-Wl,-z,muldefs", "-lstdc++", "-lpthread", "-ldl", "-lm")
        coverage = ("-fsanitize-coverage=trace-pc,trace-cmp",)
        yield Engine("gcc-libfuzzer", gcc, coverage, main=("-DLIBFUZZER",), libraries=libraries)
    yield Engine("gcc-blind", gcc, ())


def engine() -> tuple[Engine | None, str]:
    """The best way that works here, and why none better does."""
    refused = [] if shutil.which("clang") else ["there is no clang"]
    for way in _ways():
        folder = BUILD / "trial" / way.name
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / "probe.c"
        probe.write_text(_PROBE)
        try:
            way.link(way.compile([probe], folder), folder / "probe")
            _run([str(folder / "probe"), "-seed=1", "-max_total_time=1", "-runs=10", str(probe)])
        except OSError as error:
            refused.append(f"{way.name} does not work: {str(error).strip().splitlines()[-1]}")
        else:
            return way, "; ".join(refused)
    return None, "; ".join([*refused, "no compiler with sanitizers"])


def harnesses(way: Engine) -> dict[str, Path]:
    """The programs of all harnesses, by name; what is up to date is not compiled again."""
    folder = BUILD / way.name
    kernels = sorted(file for file in KERNELS.glob("*.c") if not file.name.startswith(MODULE))
    files = sorted(file for file in (HERE / "native").glob("*.c") if file.name != "main.c")
    newest = max(file.stat().st_mtime for where in (KERNELS, HERE / "native") for file in where.iterdir())
    programs = {file.stem: folder / file.stem for file in files}
    if any(not p.exists() or p.stat().st_mtime < newest for p in programs.values()):
        shared = way.compile(kernels, folder / "kernels")
        for file in files:
            own = Engine(way.name, way.compiler, way.flags, main=None).compile([file], folder / "harnesses")
            way.link([*own, *shared], programs[file.stem])
    return programs


def module(folder: Path) -> dict[str, str]:
    """A copy of the package whose kernels are sanitized; returns the environment that imports it.

    Raises:
        OSError: It cannot be had here; the message says why.
    """
    gcc = shutil.which("gcc")
    if gcc is None:
        raise OSError("there is no gcc")
    runtime = subprocess.run([gcc, "-print-file-name=libasan.so"], capture_output=True, text=True, check=True)
    if not Path(runtime.stdout.strip()).is_absolute():
        raise OSError("gcc has no libasan.so")
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(
        ROOT / "deltastore", folder / "deltastore", ignore=shutil.ignore_patterns("*.so", "__pycache__")
    )
    target = folder / "deltastore" / "codec" / "_native.abi3.so"
    sources = [str(file) for file in sorted(KERNELS.glob("*.c"))]
    include = f"-I{sysconfig.get_path('include')}"
    _run([gcc, *SANITIZE, "-shared", "-fPIC", include, *sources, "-o", str(target)])
    return {
        "PYTHONPATH": f"{folder}{os.pathsep}{ROOT / 'tests'}",
        "PYTHONSAFEPATH": "1",
        "LD_PRELOAD": runtime.stdout.strip(),
        # Python itself leaks on purpose.
        "ASAN_OPTIONS": "detect_leaks=0:abort_on_error=1:quarantine_size_mb=16",
        "UBSAN_OPTIONS": "print_stacktrace=1",
    }
