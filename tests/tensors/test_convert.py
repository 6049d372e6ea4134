"""What counts as a module, a tensor, or a collection whose tensors all live at once."""

from __future__ import annotations

import sys
from collections import OrderedDict, UserDict
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch

from deltastore.tensors.convert import is_module, is_torch, stable


class Ordinary(dict[str, np.ndarray]):
    """As frameworks derive their state dicts."""


def test_only_what_holds_its_tensors_is_stable() -> None:
    state = {"a": np.zeros(2)}
    for held in (state, Ordinary(state), OrderedDict(state), list(state.items()), tuple(state.items())):
        assert stable(held)
    for view in (state.items(), OrderedDict(state).items()):
        assert stable(view)
    assert stable(torch.nn.Linear(2, 2))
    for lazy in (iter(state.items()), UserDict(state), UserDict(state).items(), zip("a", "b", strict=True)):
        assert not stable(lazy)  # type: ignore[arg-type]


@pytest.mark.parametrize("half", [ModuleType("torch"), SimpleNamespace(nn=SimpleNamespace()), None])
def test_torch_that_is_being_imported_by_another_thread_has_no_tensors_yet(
    monkeypatch: pytest.MonkeyPatch, half: object
) -> None:
    monkeypatch.setitem(sys.modules, "torch", half)
    assert not is_module({})
    assert not is_torch(np.zeros(2))
    assert stable({})
