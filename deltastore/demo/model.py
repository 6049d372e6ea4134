"""A small causal transformer with tied embeddings: float32 masters in the trainer, bfloat16 where it serves.

The table of positions is a frozen float32 buffer in both, so that what is published holds two dtypes,
a tensor that never changes and a pair of names for one tensor.
"""

from __future__ import annotations

import copy
import hashlib
import math
from collections.abc import Sequence
from typing import Self, cast

import torch
import torch.nn.functional as F  # noqa: N812 - the name that every reader of torch code knows
from torch import Tensor, nn

from deltastore.demo.config import ModelSize
from deltastore.demo.task import ANSWER_LENGTH, PROMPT_LENGTH, VOCABULARY

Cache = tuple[Tensor, Tensor]

_EMBEDDING_STD = 0.05
_EMBEDDING_SCALE = 8.0


class Linear(nn.Linear):
    """Without bias, computed in the dtype of its input.

    Few processors multiply bfloat16 fast; widening the weights costs little beside the product.
    """

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs, bias=False)

    def forward(self, x: Tensor) -> Tensor:  # noqa: D102 - the base class says it
        return F.linear(x, self.weight.to(x.dtype))


class Norm(nn.Module):
    """Scales by the root mean square, in the dtype of its input."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:  # noqa: D102 - the class says it
        return F.rms_norm(x, self.weight.shape, self.weight.to(x.dtype), 1e-6)


class Block(nn.Module):
    """Attention and a feed-forward layer, normalised before each."""

    def __init__(self, size: ModelSize) -> None:
        super().__init__()
        width = size.width
        self.heads = size.heads
        self.attention_norm = Norm(width)
        self.qkv = Linear(width, 3 * width)
        self.out = Linear(width, width)
        self.feed_norm = Norm(width)
        self.up = Linear(width, 4 * width)
        self.down = Linear(4 * width, width)

    def forward(self, x: Tensor, past: Cache | None) -> tuple[Tensor, Cache]:
        """One layer over x, shape (batch, tokens, width), after the tokens whose keys are in `past`."""
        batch, tokens, width = x.shape
        qkv = self.qkv(self.attention_norm(x)).view(batch, tokens, 3, self.heads, -1)
        query, key, value = qkv.permute(2, 0, 3, 1, 4)
        if past is not None:
            key = torch.cat([past[0], key], dim=2)
            value = torch.cat([past[1], value], dim=2)
        seen = key.shape[2]
        mask = torch.ones(tokens, seen, dtype=torch.bool).tril(diagonal=seen - tokens)
        attended = F.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, tokens, width))
        return x + self.down(F.gelu(self.up(self.feed_norm(x)))), (key, value)


class Policy(nn.Module):
    """The language model: logits of the next token, with a cache of keys and values."""

    positions: Tensor

    def __init__(self, size: ModelSize, *, seed: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(len(VOCABULARY), size.width)
        self.blocks = nn.ModuleList(Block(size) for _ in range(size.layers))
        self.norm = Norm(size.width)
        self.head = Linear(size.width, len(VOCABULARY))
        self.head.weight = self.embedding.weight
        self.register_buffer("positions", _sinusoids(PROMPT_LENGTH + ANSWER_LENGTH, size.width))
        self._initialise(size.width, seed)

    def _initialise(self, width: int, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        for name, weight in self.named_parameters():
            if name == "embedding.weight":
                nn.init.normal_(weight, std=_EMBEDDING_STD, generator=generator)
            elif weight.dim() == 2:
                residual = name.endswith(("out.weight", "down.weight"))
                std = width**-0.5 / (1.5 if residual else 1.0)
                nn.init.normal_(weight, std=std, generator=generator)

    def forward(self, tokens: Tensor, past: Sequence[Cache] | None = None) -> tuple[Tensor, list[Cache]]:
        """Logits after each token, and the cache to go on from.

        Args:
            tokens: Shape (batch, tokens).
            past: Per layer, keys and values of the tokens before these.

        Returns:
            Logits, float32, shape (batch, tokens, vocabulary), and the new cache.
        """
        start = past[0][0].shape[2] if past else 0
        positions = self.positions[start : start + tokens.shape[1]]
        x = self.embedding(tokens).float() * _EMBEDDING_SCALE + positions
        caches: list[Cache] = []
        for index, block in enumerate(self.blocks):
            x, cache = block(x, past[index] if past else None)
            caches.append(cache)
        return cast(Tensor, self.head(self.norm(x))), caches

    def serving_copy(self) -> Self:
        """What is published and served: parameters in bfloat16, buffers as they are."""
        served = copy.deepcopy(self)
        for weight in served.parameters():
            weight.data = weight.data.to(torch.bfloat16)
            weight.grad = None
        return served.requires_grad_(requires_grad=False)


def round_into(masters: Policy, served: Policy) -> int:
    """Rounds the masters into the serving copy, in place.

    Returns:
        How many of its elements changed as bit patterns, tied ones counted once.
    """
    changed = 0
    with torch.no_grad():
        for master, weight in zip(masters.parameters(), served.parameters(), strict=True):
            rounded = master.to(weight.dtype)
            changed += int((rounded.view(torch.int16) != weight.view(torch.int16)).sum())
            weight.copy_(rounded)
    return changed


def weights_sha256(served: Policy) -> str:
    """SHA-256 of all tensors of the module: names, dtypes, shapes and bytes, without the library's help."""
    digest = hashlib.sha256()
    for name, tensor in sorted(served.state_dict().items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(memoryview(tensor.contiguous().view(torch.uint8).numpy()).cast("B"))
    return digest.hexdigest()


def elements(served: Policy) -> int:
    """How many elements it has, tied ones counted once."""
    return sum(tensor.numel() for tensor in [*served.parameters(), *served.buffers()])


def weights_bytes(served: Policy) -> int:
    """Bytes of what a full sync would send, tied tensors counted once."""
    tensors = [*served.parameters(), *served.buffers()]
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def _sinusoids(length: int, width: int) -> Tensor:
    rates = torch.exp(torch.arange(0, width, 2) * (-math.log(100.0) / width))
    angles = torch.arange(length)[:, None] * rates
    return 0.5 * torch.stack([angles.sin(), angles.cos()], dim=2).reshape(length, width)
