"""What tests of code that uses DeltaStore need: storage that fails on demand.

Shipped for others to use; nothing in the library itself imports it.
"""

from __future__ import annotations

from deltastore.testing.faults import (
    CrashNow,
    Fault,
    FaultBackend,
    Operation,
    OperationName,
    Plan,
    flip_bit,
    truncate,
)

__all__ = [
    "CrashNow",
    "Fault",
    "FaultBackend",
    "Operation",
    "OperationName",
    "Plan",
    "flip_bit",
    "truncate",
]
