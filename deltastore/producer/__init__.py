"""The trainer's side."""

from deltastore.producer.base import ExternalBase
from deltastore.producer.pipeline import Publication
from deltastore.producer.producer import Producer

__all__ = ["ExternalBase", "Producer", "Publication"]
