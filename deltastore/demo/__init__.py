"""The demo: asynchronous RL on one machine, its processes sharing a store and a folder of rollouts only.

`run(DemoConfig(...))` is all of it. It shows its progress on stderr, its result on stdout, and raises
`DemoFailed` where the reward did not rise or a worker held other bits than the trainer had published.
"""

from importlib.util import find_spec

from deltastore.errors import Unsupported

if find_spec("torch") is None:
    raise Unsupported(
        "the demo trains a model, which needs torch",
        hint="Install deltastore-rl with its extras 'torch' and 'cli'",
    )

from deltastore.demo.config import DemoConfig
from deltastore.demo.failure import DemoFailed
from deltastore.demo.ledger import DemoResult
from deltastore.demo.run import run

__all__ = ["DemoConfig", "DemoFailed", "DemoResult", "run"]
