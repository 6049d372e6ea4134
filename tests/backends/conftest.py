from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from deltastore.backends import Backend, LocalBackend


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Where the local backend will be; not there yet."""
    return tmp_path / "root"


@pytest.fixture
def backend(root: Path) -> Backend:
    return LocalBackend(root)


@pytest.fixture
def files(root: Path) -> Callable[[], list[str]]:
    """Lists all files under the root, temporary ones included."""

    def names() -> list[str]:
        found = (path for path in root.rglob("*") if not path.is_dir())
        return sorted(str(path.relative_to(root)) for path in found)

    return names
