"""Both sets of kernels in one process: whatever one of them says of an input, the other must say too."""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import FunctionType
from typing import Any, TypeVar

from deltastore import codec
from deltastore.codec import kernels
from deltastore.errors import BadShard, LimitExceeded
from deltastore.protocol import digest

T = TypeVar("T")
REFUSALS = (BadShard, LimitExceeded)
"""What `decode` promises to raise."""


def _functions(prefix: str, *others: Any) -> Mapping[str, Any]:
    """Those that `kernels` exports, from the modules of the codecs that are called so."""
    names = [m.name for m in pkgutil.iter_modules(codec.__path__) if m.name.startswith(prefix)]
    modules = [*others, *(importlib.import_module(f"deltastore.codec.{name}") for name in names)]
    return {
        name: found
        for module in modules
        for name in kernels.__all__
        if isinstance(found := getattr(module, name, None), FunctionType)
    }


KERNELS: dict[str, Mapping[str, Any]] = {"numpy": _functions("twin", digest)}
if importlib.util.find_spec("deltastore.codec._native") is not None:
    KERNELS["native"] = _functions("native")
    KERNELS["numpy"] = {name: KERNELS["numpy"][name] for name in KERNELS["native"]}


@contextmanager
def using(name: str) -> Iterator[None]:
    """These kernels, for all codecs."""
    before = {key: getattr(kernels, key) for key in KERNELS[name]}
    vars(kernels).update(KERNELS[name])
    try:
        yield
    finally:
        vars(kernels).update(before)


def with_each(work: Callable[[], T], same: Callable[[T, T], bool]) -> T | None:
    """The result of `work` with each set of kernels, which must be the same; None if all refuse alike."""
    results: list[T] = []
    refused: list[tuple[str, str]] = []
    for name in KERNELS:
        with using(name):
            try:
                results.append(work())
            except REFUSALS as error:
                refused.append((type(error).__name__, name))
    assert not results or not refused, f"only some refuse it: {refused}"
    assert len({kind for kind, _ in refused}) < 2, f"refused for different reasons: {refused}"
    if not results:
        return None
    assert all(same(results[0], other) for other in results[1:]), "the kernels differ"
    return results[0]
