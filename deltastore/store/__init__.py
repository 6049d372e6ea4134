"""A store at a root: what is between the protocol and those who read and write it."""

from deltastore.store.log import Log, VersionInfo
from deltastore.store.store import Store

__all__ = ["Log", "Store", "VersionInfo"]
