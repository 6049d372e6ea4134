"""DeltaStore: only the weights that changed, from a trainer to its rollout fleet, through object storage."""

from deltastore.consumer import Cache, Consumer, Staged
from deltastore.producer import ExternalBase, Producer, Publication
from deltastore.protocol.anchoring import AnchorPolicy, AnyOf, CatchUpBytes, MaxChain
from deltastore.store import Store, VersionInfo

__all__ = [
    "AnchorPolicy",
    "AnyOf",
    "Cache",
    "CatchUpBytes",
    "Consumer",
    "ExternalBase",
    "MaxChain",
    "Producer",
    "Publication",
    "Staged",
    "Store",
    "VersionInfo",
]
__version__ = "0.1.0"
