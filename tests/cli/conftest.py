"""The sample store, built once; each test has a copy of its own."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from cli_samples import Sample, build


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Sample:
    """The one that is copied."""
    root = tmp_path_factory.mktemp("cli") / "store"
    return Sample(root, build(root))


@pytest.fixture
def sample(built: Sample, tmp_path: Path) -> Sample:
    """A copy that a test may damage."""
    return Sample(Path(shutil.copytree(built.root, tmp_path / "store")), built.bits)


@pytest.fixture
def root(sample: Sample) -> Path:
    """Its directory."""
    return sample.root
