"""A materialised directory is a model that transformers loads, bit for bit, ties and files included."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from support import all_bits, bits, consumer, producer

from deltastore import Store

transformers = pytest.importorskip("transformers")


def tiny(kind: str, *, tied: bool) -> Any:
    """A model of two layers with random weights in bfloat16."""
    config_type = getattr(transformers, f"{kind}Config")
    config = config_type(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        tie_word_embeddings=tied,
    )
    torch.manual_seed(0)
    return transformers.AutoModelForCausalLM.from_config(config).to(torch.bfloat16)


def train(model: torch.nn.Module, share: float) -> None:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_((torch.rand(parameter.shape) < share).to(parameter.dtype), alpha=0.0625)


@pytest.mark.parametrize(("kind", "tied"), [("Qwen2", True), ("Llama", False)])
def test_from_pretrained_loads_what_was_published(
    store: Store, tmp_path: Path, kind: str, tied: bool
) -> None:
    model = tiny(kind, tied=tied)
    files = tmp_path / "files"
    model.config.save_pretrained(files)
    model.generation_config.save_pretrained(files)
    path = tmp_path / "served"
    reader = consumer(store, path)
    with producer(store, files=files) as out:
        for step in range(3):
            out.publish(model, step=step)
            reader.update()
            found = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.bfloat16)
            assert all_bits(found.state_dict()) == all_bits(model.state_dict())
            assert (found.lm_head.weight is found.model.embed_tokens.weight) == tied
            assert found.config.to_dict()["num_hidden_layers"] == 2
            train(model, 0.02)
    assert (path / "generation_config.json").is_file()


def test_a_checkpoint_of_transformers_is_an_external_base(store: Store, tmp_path: Path) -> None:
    model = tiny("Qwen2", tied=True)
    base, path = tmp_path / "base", tmp_path / "served"
    model.save_pretrained(base)
    train(model, 0.05)
    with producer(store, base=base, files=base) as out:
        out.publish(model, step=0)
        served = tiny("Qwen2", tied=True)
        consumer(store, served, base=base).update()
        assert all_bits(served.state_dict()) == all_bits(model.state_dict())
        consumer(store, path, base=base).update()
    found = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.bfloat16)
    assert all_bits(found.state_dict()) == all_bits(model.state_dict())
    assert bits(found.lm_head.weight) == bits(model.model.embed_tokens.weight)
