"""`deltastore doctor`: what is installed here, and whether the storage and the store there are sound."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable, Iterator
from importlib.metadata import PackageNotFoundError, version
from typing import Annotated, Final

import typer
from rich.text import Text

from deltastore import __version__
from deltastore.backends import open_backend
from deltastore.backends.probe import Finding, Verdict, probe
from deltastore.cli.checkup import check_store
from deltastore.cli.options import Json
from deltastore.cli.output import Cell, Column, Output, Table
from deltastore.codec import kernels
from deltastore.errors import BackendError, IntegrityError

EXAMPLES: Final = """\
Examples:

deltastore doctor
deltastore doctor /mnt/shared/qwen-rl
deltastore doctor /mnt/shared/qwen-rl --read-only --json | jq .verdict

Exits with 4 where something is damaged or breaks its promises,
with 3 where there is no store or the storage is not to be reached.
"""

_PACKAGES: Final = ("numpy", "safetensors", "zstandard", "xxhash", "msgpack", "torch")
_STYLES: Final = {Verdict.PASS: "green", Verdict.WARN: "yellow", Verdict.FAIL: "bold red"}


def doctor(
    url: Annotated[
        str | None, typer.Argument(metavar="URL", help="Root of a store; none looks at this machine only.")
    ] = None,
    *,
    read_only: Annotated[
        bool, typer.Option("--read-only", help="Write nothing: leaves out the probe of the storage.")
    ] = False,
    json: Json = False,
) -> None:
    """Check this machine and, with a URL, storage and store.

    The storage is tried out with two small objects under status/, which are deleted again; where there is
    no store, nothing is written. Of the store it reads the newest records, and asks for the size of each
    object that a fresh server would fetch. It does not read these: that is no full verification.
    """
    out = Output(json=json)
    _environment(out)
    if url is None:
        return
    backend = open_backend(url)
    try:
        store, findings = check_store(backend)
        sections: list[tuple[str, Iterable[Finding]]] = []
        if not read_only and store is not None:
            sections.append((f"storage at {backend.url}", probe(backend).findings))
        sections.append(("store", findings))
        done = [finding for title, found in sections for finding in _show(out, title, found)]
    finally:
        backend.close()
    code = _code(done)
    if json:
        counts = {v.value: sum(f.verdict is v for f in done) for v in Verdict}
        out.record("summary", url=backend.url, **counts, exit_code=code)
    raise typer.Exit(code)


def _environment(out: Output) -> None:
    found = {name: _version(name) for name in _PACKAGES}
    system = f"{platform.system()} {platform.release()} {platform.machine()}, {os.cpu_count()} CPUs"
    if out.json:
        versions = {"deltastore": __version__, "python": platform.python_version(), **found}
        out.record("environment", versions=versions, kernels=kernels.NAME, platform=system)
        return
    packages = [(name, version or "not installed") for name, version in found.items()]
    facts = [
        ("python", platform.python_version()),
        *packages,
        ("kernels", kernels.NAME),
        ("platform", system),
    ]
    out.facts(f"deltastore {__version__}", facts)


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _show(out: Output, title: str, findings: Iterable[Finding]) -> Iterator[Finding]:
    found = list(findings)
    if out.json:
        section = title.partition(" ")[0]
        for one in found:
            said = {"verdict": one.verdict.value, "detail": one.detail}
            out.record("finding", section=section, name=one.name, **said)
    elif found:
        columns = (Column(""), Column("", style="bold"), Column("", fold=True))
        rows: list[tuple[Cell, ...]] = [
            (Text(f"  {f.verdict.name}", style=_STYLES[f.verdict]), f.name, f.detail) for f in found
        ]
        out.line(title, style="bold")
        out.table(Table(columns, rows))
    yield from found


def _code(findings: Iterable[Finding]) -> int:
    """Damage counts more than what could not be asked."""
    failed = [finding for finding in findings if finding.verdict is Verdict.FAIL]
    if any(not finding.unreachable for finding in failed):
        return IntegrityError.code
    return BackendError.code if failed else 0
