"""Fixtures of tests that use a whole store."""

from __future__ import annotations

import pytest
import torch
from support import State, new_store, small

from deltastore import Store

torch.set_num_threads(1)


@pytest.fixture
def store() -> Store:
    """An empty store in memory of its own."""
    return new_store()


@pytest.fixture
def weights() -> State:
    """What a trainer holds: it may be changed."""
    return small()
