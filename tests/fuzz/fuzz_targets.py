"""The targets in Python, by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import fuzz_records
import fuzz_shards
import fuzz_steps
from fuzz_target import Target

TARGETS: Final[Mapping[str, Target]] = {
    "shards": fuzz_shards.TARGET,
    "records": fuzz_records.TARGET,
    "steps": fuzz_steps.TARGET,
}
