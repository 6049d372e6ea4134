"""The layers of the package point one way, and only its edges know torch (docs/architecture.md)."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import deltastore

ROOT = Path(deltastore.__file__).parent

LAYERS: Mapping[str, frozenset[str]] = {
    layer: frozenset(below.split())
    for layer, below in {
        "errors": "",
        "runtime": "",
        "filesystem": "errors",
        "threads": "",
        "parallel": "errors threads",
        "protocol": "errors",
        "codec": "errors threads protocol",
        "backends": "errors protocol runtime filesystem",
        "weights": "errors threads protocol codec",
        "store": "errors protocol backends runtime",
        "replay": "errors threads protocol codec weights store parallel runtime",
        "maintenance": "errors threads protocol codec weights store replay parallel runtime",
        "producer": "errors threads protocol codec weights store replay maintenance parallel runtime",
        "consumer": "errors threads protocol codec weights store replay parallel runtime filesystem",
        "testing": "errors protocol backends runtime",
        "api": "consumer producer protocol store",
        "cli": "api errors protocol codec backends weights store replay maintenance producer consumer "
        "parallel runtime demo",
        "demo": "api errors protocol codec backends weights store replay maintenance producer consumer "
        "parallel runtime",
    }.items()
}
"""Every layer, and the layers that it may import. Whatever is not listed is not allowed."""

FAMILIES = {
    "__main__": "cli",
    "tensors": "weights",
    "state": "weights",
    "slicing": "weights",
    "shards": "weights",
}
"""First part of a module's name to its layer, where it is not called after it."""

THIRD_PARTY: Mapping[str, frozenset[str]] = {
    "backends": frozenset({"boto3", "botocore"}),
    "protocol": frozenset({"msgpack", "numpy"}),
    "codec": frozenset({"numpy", "safetensors", "zstandard"}),
    "weights": frozenset({"numpy", "safetensors", "torch", "xxhash"}),
    "replay": frozenset({"numpy"}),
    "maintenance": frozenset({"numpy"}),
    "producer": frozenset({"numpy", "torch"}),
    "consumer": frozenset({"numpy", "torch", "xxhash"}),
    "cli": frozenset({"click", "numpy", "rich", "torch", "typer"}),
    "demo": frozenset({"numpy", "rich", "safetensors", "torch", "typer"}),
}
"""What a layer may import from other distributions; layers that are not listed need none."""

TORCH_MODULES = frozenset(
    {"deltastore.tensors.torch", "deltastore.tensors.device", "deltastore.consumer.torch_places"}
)
"""These import torch when they are imported: nobody but each other may import them before they are needed."""


@dataclass(frozen=True)
class Import:
    """One import statement.

    Attributes:
        module: What is imported.
        line: Where.
        typing: Only for type checkers.
        lazy: Inside a function.
    """

    module: str
    line: int
    typing: bool
    lazy: bool


def imports_of(source: str, package: str) -> Iterator[Import]:
    """All imports of a module that belongs to a package, wherever they stand."""

    def walk(node: ast.AST, *, typing: bool, lazy: bool) -> Iterator[Import]:
        match node:
            case ast.Import(names=names):
                for name in names:
                    yield Import(name.name, node.lineno, typing, lazy)
            case ast.ImportFrom(module=module, names=names, level=level):
                above = ".".join(package.split(".")[: len(package.split(".")) - level + 1]) if level else ""
                origin = ".".join(part for part in (above, module or "") if part)
                for name in names:
                    inner = f"{origin}.{name.name}"
                    yield Import(inner if is_module(inner) else origin, node.lineno, typing, lazy)
        guarded = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for child in ast.iter_child_nodes(node):
            inside = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            only_types = guarded and isinstance(node, ast.If) and child in node.body
            yield from walk(child, typing=typing or only_types, lazy=lazy or inside)

    yield from walk(ast.parse(source), typing=False, lazy=False)


def is_module(name: str) -> bool:
    """Whether a dotted name is a module of this package."""
    path = ROOT.parent.joinpath(*name.split("."))
    return name.partition(".")[0] == ROOT.name and (path.with_suffix(".py").is_file() or path.is_dir())


def layer_of(module: str) -> str:
    """The layer that a module of this package belongs to; a `KeyError` says that it has none yet."""
    first = [*module.split("."), "api"][1]
    layer = FAMILIES.get(first, first)
    return layer if layer in LAYERS else _no_layer(module)


def _no_layer(module: str) -> str:
    raise KeyError(f"{module} is in no layer: add it to LAYERS, and say in docs/architecture.md what it is")


def problems(module: str, source: str, *, package: str | None = None) -> list[str]:
    """What a module imports that its layer must not know."""
    layer = layer_of(module)
    found = []
    for one in imports_of(source, package or module.rpartition(".")[0]):
        first = one.module.partition(".")[0]
        if first == ROOT.name:
            other = layer_of(one.module)
            if other not in {layer, *LAYERS[layer]}:
                found.append(f"{module}:{one.line}: {layer} must not know {other} ({one.module})")
            early = not one.lazy and not one.typing
            if early and one.module in TORCH_MODULES and module not in TORCH_MODULES and layer != "demo":
                found.append(f"{module}:{one.line}: {one.module} must be imported inside a function")
        elif first not in sys.stdlib_module_names:
            if first not in THIRD_PARTY.get(layer, ()):
                found.append(f"{module}:{one.line}: {layer} must not need {first}")
            early = not one.lazy and not one.typing
            if first == "torch" and early and module not in TORCH_MODULES and layer != "demo":
                found.append(f"{module}:{one.line}: torch is imported with the module")
    return found


def modules() -> list[tuple[str, Path]]:
    """Every module of the package and its file."""
    found = []
    for path in sorted(ROOT.rglob("*.py")):
        parts = path.relative_to(ROOT.parent).with_suffix("").parts
        found.append((".".join(parts[:-1] if parts[-1] == "__init__" else parts), path))
    return found


def package_of(name: str, path: Path) -> str:
    """What relative imports of a module start from."""
    return name if path.name == "__init__.py" else name.rpartition(".")[0]


@pytest.mark.parametrize(("name", "path"), modules(), ids=[name for name, _ in modules()])
def test_a_module_imports_only_what_its_layer_may_know(name: str, path: Path) -> None:
    assert problems(name, path.read_text(), package=package_of(name, path)) == []


def test_layers_point_one_way() -> None:
    order = list(TopologicalSorter(LAYERS).static_order())

    assert order.index("protocol") < order.index("store") < order.index("replay") < order.index("consumer")
    assert "consumer" not in LAYERS["producer"]
    assert "producer" not in LAYERS["consumer"]


def test_modules_do_not_import_each_other_in_circles() -> None:
    graph = {
        name: {
            one.module
            for one in imports_of(path.read_text(), package_of(name, path))
            if is_module(one.module) and not one.lazy and not one.typing and one.module != name
        }
        for name, path in modules()
        if path.name != "__init__.py"
    }

    TopologicalSorter(graph).prepare()


@pytest.mark.parametrize(
    ("module", "source", "problem"),
    [
        ("deltastore.protocol.chain", "from deltastore.store import Store", "must not know store"),
        ("deltastore.protocol.chain", "def f():\n    import torch", "must not need torch"),
        ("deltastore.store.log", "from deltastore.codec import kernels", "must not know codec"),
        ("deltastore.store.log", "from ..codec import kernels", "must not know codec"),
        ("deltastore.backends.local", "import numpy", "must not need numpy"),
        ("deltastore.backends.local", "if TYPE_CHECKING:\n    import torch", "must not need torch"),
        ("deltastore.producer.term", "from deltastore import Consumer", "must not know api"),
        ("deltastore.producer.term", "from deltastore.consumer import Cache", "must not know consumer"),
        ("deltastore.consumer.places", "from deltastore import producer", "must not know producer"),
        ("deltastore.consumer.places", "import torch", "torch is imported with the module"),
        ("deltastore.consumer.places", "from deltastore.tensors import torch", "inside a function"),
        ("deltastore.store.store", "from deltastore.cli import main", "must not know cli"),
        ("deltastore.replay", "import deltastore.demo.model", "must not know demo"),
        (
            "deltastore.consumer.places",
            "if TYPE_CHECKING:\n    pass\nelse:\n    import torch",
            "torch is imported",
        ),
    ],
)
def test_a_broken_layer_is_reported(module: str, source: str, problem: str) -> None:
    assert [found for found in problems(module, source) if problem in found]


@pytest.mark.parametrize(
    "source",
    [
        "if TYPE_CHECKING:\n    import torch",
        "def f():\n    import torch",
        "def f():\n    from deltastore.tensors import torch",
        "from deltastore.store import Store\nimport numpy as np\nimport json",
    ],
)
def test_what_a_layer_may_know_is_not_reported(source: str) -> None:
    assert problems("deltastore.consumer.places", source) == []


def test_a_module_without_a_layer_is_reported() -> None:
    with pytest.raises(KeyError, match="is in no layer"):
        layer_of("deltastore.helpers")


WITHOUT_TORCH = """
import sys

sys.modules["torch"] = None  # an import of it fails now, as on a machine that has none

import numpy as np

from deltastore import Consumer, Producer, Store

url = "memory://without-torch"
weights = {"w": np.arange(64, dtype=np.float32), "b": np.zeros(3, dtype=np.int64)}
with Producer(Store.create(url)) as producer:
    producer.publish(weights, step=1).result(60)
    weights["w"][7] = -1.0
    producer.publish(weights, step=2).result(60)

store = Store.open(url)
assert [store.find(step=step).version for step in (1, 2)] == [1, 2]
assert [info.key for info in store.access.backend.list("versions/")][-1].endswith("2")
served = {name: np.zeros_like(array) for name, array in weights.items()}
with Consumer(store, served) as consumer:
    assert consumer.update().step == 2
assert all(np.array_equal(served[name], weights[name]) for name in weights)
assert sys.modules["torch"] is None
"""


def test_stores_work_where_torch_is_not_installed() -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT_TORCH], capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr


def test_importing_the_package_does_not_import_torch() -> None:
    code = "import sys, deltastore; sys.exit('torch' in sys.modules)"

    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
