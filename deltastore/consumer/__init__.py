"""The server's side."""

from deltastore.consumer.cache import Cache
from deltastore.consumer.consumer import Consumer
from deltastore.consumer.staged import Staged
from deltastore.consumer.targets import Changes, Target

__all__ = ["Cache", "Changes", "Consumer", "Staged", "Target"]
