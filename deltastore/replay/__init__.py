"""From what is held to a version: the one implementation of the reader's rules (spec, Reading).

Nothing here writes to anybody's weights. What it returns are patches, each of them checked against the
digest of the state that they lead to.
"""

from deltastore.replay.edges import FailedEdge, Replay, shard_fetcher
from deltastore.replay.states import Start, schema_of, state_at, with_detours
from deltastore.replay.ways import plan

__all__ = [
    "FailedEdge",
    "Replay",
    "Start",
    "plan",
    "schema_of",
    "shard_fetcher",
    "state_at",
    "with_detours",
]
