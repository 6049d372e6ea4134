"""Weights in memory as targets: dicts, modules, arrays, of any strides and modes; ties; what does not fit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from support import State, all_bits, bits, blank, consumer, mixed, producer, small, stepped

from deltastore import Store
from deltastore.errors import Poisoned, SchemaMismatch, Unsupported
from deltastore.tensors.host import HostTensor


class Tied(torch.nn.Module):
    def __init__(self, seed: int, *, tied: bool = True) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.embed = torch.nn.Embedding(24, 8)
        self.body = torch.nn.Linear(8, 8)
        self.norm = torch.nn.BatchNorm1d(8)
        self.lm_head = torch.nn.Linear(8, 24, bias=False)
        if tied:
            self.lm_head.weight = self.embed.weight


def nudge(model: torch.nn.Module, *, every: bool = False) -> None:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.view(-1)[:: 1 if every else 7] += 0.5


def follow(store: Store, target: Any, states: list[State], **options: Any) -> None:
    """Publishes states one by one; the target has each of them afterwards."""
    reader = consumer(store, target, **options)
    with producer(store) as out:
        for step, state in enumerate(states):
            out.publish(state, step=step)
            assert reader.update() is not None
            assert reader.version == step + 1
            yield_bits = all_bits(target) if isinstance(target, dict) else all_bits(target.state_dict())
            assert yield_bits == all_bits(state)


def chain(first: State, count: int = 4) -> list[State]:
    states = [first]
    for step in range(1, count):
        states.append(stepped(states[-1], step, share=(0.02, 0.9, 0.3)[step % 3]))
    return states


# --- Kinds of targets --------------------------------------------------------------------------------


def test_dicts_of_every_dtype_follow(store: Store) -> None:
    follow(store, blank(mixed()), chain(mixed()))


STRIDED: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "transposed": lambda t: torch.zeros_like(t.T.contiguous()).T,
    "every other row": lambda t: torch.zeros(t.shape[0] * 2, t.shape[1], dtype=t.dtype)[::2],
    "a column range": lambda t: torch.zeros(t.shape[0], t.shape[1] + 5, dtype=t.dtype)[:, 2:-3],
    "last dimension strided": lambda t: torch.zeros(t.shape[0], t.shape[1] * 3, dtype=t.dtype)[:, ::3],
}


@pytest.mark.parametrize("kind", STRIDED)
def test_targets_of_any_strides_follow(store: Store, kind: str) -> None:
    first = {n: t for n, t in small().items() if t.dim() == 2}
    target = {name: STRIDED[kind](tensor) for name, tensor in first.items()}
    assert not any(t.is_contiguous() for t in target.values() if kind != "every other row")
    follow(store, target, chain(first))


def test_a_vector_of_every_other_element_follows(store: Store) -> None:
    backing = torch.zeros(200)
    follow(store, {"w": backing[::2]}, chain({"w": torch.randn(100)}))
    assert not backing[1::2].any()


@pytest.mark.parametrize("kind", ["array", "host", "strided", "0-d"])
def test_arrays_follow(store: Store, kind: str) -> None:
    first = {n: t for n, t in mixed().items() if t.dtype not in {torch.bfloat16, torch.float8_e4m3fn}}
    if kind == "strided":
        target: dict[str, Any] = {
            n: np.zeros([*(2 * s for s in t.shape)], t.numpy().dtype)[(slice(None, None, 2),) * t.dim()]
            for n, t in first.items()
            if t.dim()
        }
        first = {n: first[n] for n in target}
    else:
        target = {n: t.numpy() for n, t in blank(first).items()}
    if kind == "host":
        target = {n: HostTensor.of_array(n, a) for n, a in target.items()}
    if kind == "0-d":
        first, target = {"scalar": first["scalar"]}, {"scalar": target["scalar"]}
    follow(store, target, chain(first))


def test_a_module_follows_with_its_buffers(store: Store) -> None:
    trained, served = Tied(0), Tied(1).eval()
    reader = consumer(store, served)
    with producer(store) as out:
        for step in range(3):
            nudge(trained, every=step == 1)
            with torch.no_grad():
                trained.norm.running_mean.add_(1)  # type: ignore[union-attr]
                trained.norm.num_batches_tracked.add_(1)  # type: ignore[union-attr]
            out.publish(trained, step=step)
            reader.update()
            assert all_bits(served.state_dict()) == all_bits(trained.state_dict())
    assert served.lm_head.weight is served.embed.weight
    assert all(p.requires_grad and p.grad is None for p in served.parameters())
    assert not served.training


@pytest.mark.parametrize("wrap", ["compile", "module", "sequential"])
def test_wrapped_modules_follow(store: Store, wrap: str) -> None:
    trained, served = Tied(0), Tied(1)
    wrapped: Any = {
        "compile": lambda: torch.compile(served, backend="eager"),  # type: ignore[no-untyped-call]
        "module": lambda: torch.nn.ModuleDict({"module": served}),
        "sequential": lambda: served,
    }[wrap]()
    reader = consumer(store, wrapped)
    with producer(store) as out:
        out.publish(trained, step=0)
        nudge(trained)
        out.publish(trained, step=1)
    reader.update()
    assert all_bits(served.state_dict()) == all_bits(trained.state_dict())


def test_weights_that_are_in_use_by_autograd_can_be_swapped(store: Store) -> None:
    trained, served = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)
    reader = consumer(store, served)
    with producer(store) as out:
        out.publish(trained, step=0)
        served(torch.ones(1, 4)).sum().backward()
        reader.update()
        nudge(trained)
        out.publish(trained, step=1)
        reader.update()
    assert all_bits(served.state_dict()) == all_bits(trained.state_dict())


@pytest.mark.parametrize("made", [True, False], ids=["inference tensors", "tensors"])
@pytest.mark.parametrize("staged", [True, False], ids=["staged inside", "staged outside"])
@pytest.mark.parametrize("committed", [True, False], ids=["committed inside", "committed outside"])
def test_inference_mode_may_begin_and_end_anywhere(
    store: Store, made: bool, staged: bool, committed: bool
) -> None:
    with torch.inference_mode(made):
        target = blank(small())
    with torch.inference_mode(staged):
        reader = consumer(store, target)
    with producer(store) as out:
        for step, state in enumerate(chain(small())):
            out.publish(state, step=step)
            with torch.inference_mode(staged):
                prepared = reader.stage()
            with torch.inference_mode(committed):
                prepared.commit()
                assert all_bits(target) == all_bits(state)
            reader.verify()


def test_packed_floats_follow(store: Store) -> None:
    def packed(seed: int) -> State:
        rng = torch.Generator().manual_seed(seed)
        raw = torch.randint(0, 256, (6, 16), generator=rng, dtype=torch.uint8)
        return {"w": raw.view(torch.float4_e2m1fn_x2)}

    target = {"w": torch.zeros(6, 16, dtype=torch.uint8).view(torch.float4_e2m1fn_x2)}
    reader = consumer(store, target)
    with producer(store) as out:
        for step in range(3):
            out.publish(packed(step), step=step)
            reader.update()
            assert all_bits(target) == all_bits(packed(step))


def test_a_model_whose_only_child_is_called_module_follows_its_checkpoint(
    store: Store, tmp_path: Path
) -> None:
    trained, served = (torch.nn.ModuleDict({"module": torch.nn.Linear(4, 4)}) for _ in range(2))
    save_file(dict(trained.state_dict()), tmp_path / "model.safetensors")
    nudge(trained)
    with producer(store, base=tmp_path) as out:
        out.publish(trained, step=0)
    reader = consumer(store, served, base=tmp_path)
    reader.update()
    assert all_bits(served.state_dict()) == all_bits(trained.state_dict())
    assert set(dict(reader.host_tensors())) == {"module.weight", "module.bias"}


# --- Targets that cannot be ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tensor", "why"),
    [
        (torch.complex(torch.ones(4), torch.ones(4)).conj(), "cannot be written"),
        (torch.complex(torch.ones(4), torch.ones(4)).conj().imag, "cannot be written"),
        (torch.zeros(1).expand(4), "cannot be written"),
        (torch.zeros(4, device="meta"), "meta"),
        (torch.eye(2).to_sparse(), "sparse"),
        (np.broadcast_to(np.zeros(1), (4,)), "read-only"),
        (np.zeros(4, ">f4"), "byte order"),
        (np.zeros(4, "complex128"), "complex128"),
        ([0.0], "not a tensor"),
    ],
    ids=["conj", "neg", "expanded", "meta", "sparse", "read-only", "big-endian", "complex128", "list"],
)
def test_what_cannot_be_written_bit_by_bit_is_refused_at_once(store: Store, tensor: Any, why: str) -> None:
    with pytest.raises(Unsupported, match=why) as caught:
        consumer(store, {"layer.w": tensor})
    assert "layer.w" in str(caught.value)


def test_what_does_not_fit_is_listed_and_left_alone(store: Store) -> None:
    with producer(store) as out:
        out.publish(small(), step=0)
    target = blank(small())
    target["extra"] = torch.zeros(1)
    target["norm"] = torch.zeros(3)
    target["proj"] = target["proj"].half()
    del target["embed"]
    before = all_bits(target)
    reader = consumer(store, target)
    for _ in range(2):
        with pytest.raises(SchemaMismatch) as caught:
            reader.update()
        text = str(caught.value)
        for part in ("extra 'extra'", "missing 'embed'", "'norm' is F32[3], not F32[51]", "'proj' is F16"):
            assert part in text
        assert caught.value.fields["problems"] == 4
    assert all_bits(target) == before
    assert reader.version is None


def test_two_names_that_become_one_are_refused(store: Store) -> None:
    with pytest.raises(SchemaMismatch, match="'a'"):
        consumer(store, {"a": torch.zeros(1), "_orig_mod.a": torch.zeros(1)})


def test_a_target_follows_a_schema_only_as_far_as_it_fits(store: Store) -> None:
    state = small()
    target = blank(state)
    reader = consumer(store, target)
    with producer(store) as out:
        out.publish(state, step=0)
        reader.update()
        wider = {**state, "extra": torch.ones(3)}
        out.publish(wider, step=1, new_schema=True)
        with pytest.raises(SchemaMismatch, match="missing 'extra'"):
            reader.update()
        assert reader.version == 1
        assert all_bits(target) == all_bits(state)
        reader.verify()
        bigger = consumer(store, blank(wider))
        bigger.update()
        assert bigger.version == 2
        after = stepped(state, 3)
        out.publish(after, step=2, new_schema=True)
    reader.update()
    assert all_bits(target) == all_bits(after)


# --- Ties --------------------------------------------------------------------------------------------


def test_ties_that_have_memory_of_their_own_here_are_kept_equal(store: Store) -> None:
    trained, served = Tied(0), Tied(1, tied=False)
    reader = consumer(store, served)
    with producer(store) as out:
        for step in range(3):
            nudge(trained)
            out.publish(trained, step=step)
            reader.update()
            assert all_bits(served.state_dict()) == all_bits(trained.state_dict())
            reader.verify()


@pytest.mark.req("DS-READ-7")
def test_a_stale_tie_is_not_taken_for_a_version(store: Store) -> None:
    """The owner's bits are right, the tied tensor's are not: a fresh target, or one that went wrong."""
    trained = Tied(0)
    with producer(store) as out:
        out.publish(trained, step=0)
        served = {n: t.clone() for n, t in trained.state_dict().items()}
        served["lm_head.weight"].zero_()
        reader = consumer(store, served)
        reader.update()
        assert all_bits(served) == all_bits(trained.state_dict())
        nudge(trained)
        out.publish(trained, step=1)
        reader.update()
        served["lm_head.weight"][3, 3] += 1
        with pytest.raises(Poisoned):
            reader.verify()
        reader.update()
    assert all_bits(served) == all_bits(trained.state_dict())


def test_a_tie_that_the_store_does_not_have_is_refused(store: Store) -> None:
    loose = Tied(0, tied=False)
    with producer(store) as out:
        out.publish(loose, step=0)
    with pytest.raises(SchemaMismatch, match="shares memory"):
        consumer(store, Tied(1)).update()


def test_a_tied_name_that_the_store_leaves_out_is_no_extra(store: Store) -> None:
    """As with a checkpoint of a tied model, which holds the embedding and no head."""
    trained = Tied(0)
    without = {n: t for n, t in trained.state_dict().items() if n != "lm_head.weight"}
    served = Tied(1)
    reader = consumer(store, served)
    with producer(store) as out:
        out.publish(without, step=0)
        reader.update()
        nudge(trained)
        out.publish(trained, step=1)
        reader.update()
    assert all_bits(served.state_dict()) == all_bits(trained.state_dict())
    with pytest.raises(SchemaMismatch, match=r"extra 'lm_head\.weight'"):
        consumer(store, Tied(1, tied=False)).update()


def test_a_target_may_leave_out_the_tied_name(store: Store) -> None:
    trained = Tied(0)
    with producer(store) as out:
        out.publish(trained, step=0)
    target = {n: torch.zeros_like(t) for n, t in trained.state_dict().items() if n != "lm_head.weight"}
    consumer(store, target).update()
    assert bits(target["embed.weight"]) == bits(trained.embed.weight)
