"""Names of tensors without what training wraps around modules."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

WRAPPERS: Final = frozenset({"_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"})
"""Parts that torch.compile, FSDP and activation checkpointing add, anywhere in a name."""
DDP: Final = "module."
"""What DataParallel and DistributedDataParallel put before every name."""


def unwrap(name: str) -> str:
    """A name without the parts that wrappers add inside it."""
    return ".".join(part for part in name.split(".") if part not in WRAPPERS)


def clean(names: Sequence[str]) -> list[str]:
    """The names of a whole model without wrappers; `module.` only goes if every name has it."""
    inner = [unwrap(name) for name in names]
    if inner and all(name.startswith(DDP) for name in inner):
        return [name.removeprefix(DDP) for name in inner]
    return inner
