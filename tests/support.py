"""What tests of producers and consumers share: small states, the bits they are compared by, and openers.

Bits are taken by torch and numpy alone here, never by the code under test.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from deltastore import Consumer, Producer, Store
from deltastore.backends import Backend
from deltastore.backends.memory import MemoryBackend
from deltastore.backends.retry import RetryPolicy
from deltastore.parallel import INLINE
from deltastore.protocol.records import VersionRecord
from deltastore.runtime import Runtime
from deltastore.tensors.host import HostTensor
from deltastore.testing import Fault, Operation

State = dict[str, torch.Tensor]

NO_RETRY = RetryPolicy(deadline=0)
HASTY = Runtime(sleep=lambda _: None)
"""Does not wait between attempts."""


def bits(tensor: torch.Tensor | NDArray[Any] | HostTensor) -> bytes:
    """The bytes of a tensor, little-endian and in C order."""
    if isinstance(tensor, HostTensor):
        return tensor.lanes.tobytes()
    if isinstance(tensor, np.ndarray):
        return tensor.tobytes()
    flat = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""


def all_bits(
    tensors: Mapping[str, torch.Tensor] | Iterable[tuple[str, torch.Tensor | HostTensor]],
) -> dict[str, bytes]:
    """Bytes by name."""
    pairs = tensors.items() if isinstance(tensors, Mapping) else tensors
    return {name: bits(tensor) for name, tensor in pairs}


def small(seed: int = 0, *, size: int = 48) -> State:
    """Three bfloat16 and float32 tensors, one of which does not fill its last word."""
    rng = torch.Generator().manual_seed(seed)
    return {
        "embed": torch.randn(size, size, generator=rng).bfloat16(),
        "norm": torch.randn(size + 3, generator=rng),
        "proj": torch.randn(5, size - 1, generator=rng).bfloat16(),
    }


def mixed(seed: int = 0) -> State:
    """A state of many dtypes: scalars, nothing at all, odd lengths, eight-byte lanes."""
    rng = torch.Generator().manual_seed(seed)

    def noise(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=rng)

    return {
        "bf16": noise(37, 29).bfloat16(),
        "bool": noise(203) > 0,
        "f16": noise(31, 3).half(),
        "f32": noise(64, 17),
        "f64": noise(51).double(),
        "f8": noise(45, 11).to(torch.float8_e4m3fn),
        "i64": torch.randint(-(2**40), 2**40, (97,), generator=rng),
        "nothing": torch.empty(0, 4),
        "scalar": torch.tensor(7, dtype=torch.int64),
        "u8": torch.randint(0, 255, (333,), generator=rng, dtype=torch.uint8),
    }


def stepped(state: Mapping[str, torch.Tensor], seed: int, *, share: float = 0.05) -> State:
    """Another state with about that share of the elements set to other finite values."""
    rng = torch.Generator().manual_seed(seed)
    after = {}
    for name, tensor in state.items():
        new = tensor.detach().clone().reshape(-1)
        where = torch.nonzero(torch.rand(new.numel(), generator=rng) < share).reshape(-1)
        fresh = torch.randn(where.numel(), generator=rng)
        if new.dtype is torch.bool:
            new[where] = ~new[where]
        elif new.is_floating_point():
            wide = new.float()
            wide[where] = fresh
            new = wide.to(new.dtype)
        else:
            new[where] += 1
        after[name] = new.reshape(tensor.shape)
    return after


def blank(state: Mapping[str, torch.Tensor]) -> State:
    """Zeros of the same shapes: what a fresh server holds."""
    return {name: torch.zeros_like(tensor) for name, tensor in state.items()}


def new_store(backend: Backend | None = None) -> Store:
    """An empty store that gives up at once where something is wrong."""
    return Store.create(backend or MemoryBackend(), retry=NO_RETRY, runtime=HASTY)


def reopened(store: Store, backend: Backend | None = None) -> Store:
    """The same store as another process opens it."""
    return Store.open(backend or store.access.backend, retry=NO_RETRY, runtime=HASTY)


def producer(store: Store, **options: Any) -> Producer:
    """A producer that does all its work before `publish` returns, and takes over from any other."""
    return Producer(store, **{"workers": INLINE, "takeover": True, "anchors": None, **options})


def consumer(store: Store, target: Any = None, **options: Any) -> Consumer:
    """A consumer with its own handle of the store and no threads."""
    return Consumer(reopened(store), target, **{"workers": INLINE, **options})


def read(store: Store, version: int | None = None) -> dict[str, bytes]:
    """The bits of a version as a reader that holds nothing gets them."""
    return all_bits(consumer(store).host_tensors(version))


def record(store: Store, version: int) -> VersionRecord:
    """The record of a version that was not collected."""
    found = store.log.require(version).record
    assert isinstance(found, VersionRecord)
    return found


def shard_keys(store: Store, version: int) -> list[str]:
    """Keys of the shards of the edge that a version's record embeds."""
    edge = record(store, version).embedded
    assert edge is not None
    return [f"objects/{shard.sha256[:2]}/{shard.sha256}" for shard in edge.shards]


def failing(
    name: str, error: BaseException, *, key: str = "", times: int = 10**9
) -> Callable[[Operation], Fault | None]:
    """A plan by which the first operations of a kind on keys that begin with `key` fail."""
    left = [times]

    def plan(operation: Operation) -> Fault | None:
        if operation.name != name or not operation.key.startswith(key) or not left[0]:
            return None
        left[0] -= 1
        return Fault(before=error)

    return plan
