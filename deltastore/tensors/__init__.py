"""Tensors as flat bit patterns: from numpy arrays and torch tensors, and back.

A layer of its own below producer and consumer, beside the codecs; torch is imported only in `torch`.
"""

from deltastore.tensors.host import HostTensor

__all__ = ["HostTensor"]
