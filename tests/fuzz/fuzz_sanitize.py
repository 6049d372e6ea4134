"""Runs tests of the codecs with kernels that a sanitizer watches; arguments go to pytest."""

from __future__ import annotations

import os
import subprocess
import sys

from fuzz_build import BUILD, ROOT, module

TESTS = (
    *(f"tests/codec/test_{name}.py" for name in ("hostile", "native", "roundtrip")),
    "tests/fuzz",
)
FEWER = tuple(
    f"--deselect=tests/codec/test_native.py::test_deltas_are_the_same_from_end_to_end[{which}-"
    for which in ("1", "2", "5-F16", "5-C64")
)
"""Slow under a sanitizer, where five threads and one dtype of each width show as much."""
_PROBE = (
    "from deltastore.codec import _native, kernels; print(_native.__file__); assert kernels.NAME == 'native'"
)


def main(arguments: list[str]) -> int:
    """Exit status of pytest; 0 where the compiler cannot do it, which is said."""
    folder = BUILD / "sanitized"
    try:
        environment = os.environ | module(folder) | {"DELTASTORE_REQUIRE_NATIVE": "1"}
        found = subprocess.run(
            [sys.executable, "-c", _PROBE], env=environment, capture_output=True, text=True, check=False
        )
        if found.returncode or str(folder) not in found.stdout:
            raise OSError(found.stderr or found.stdout)
    except OSError as error:
        print(f"sanitize: SKIPPED, not run: {str(error).strip().splitlines()[-1]}")
        return 0
    print(f"sanitize: {found.stdout.strip()}", flush=True)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "--confcutdir",
        str(ROOT / "tests" / "codec"),
        "-p",
        "no:cacheprovider",
    ]
    return subprocess.run(
        [*command, *TESTS, *FEWER, *arguments], env=environment, cwd=ROOT, check=False
    ).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
