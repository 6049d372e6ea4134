"""What a trainer hands over: modules, dicts, iterators, arrays; names, ties and dtypes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest
import torch
from support import State, all_bits, bits, mixed, new_store, producer, read, small, stepped

from deltastore import Store
from deltastore.errors import NonFinite, SchemaMismatch, Unsupported, UsageError
from deltastore.producer.sources import Intake
from deltastore.tensors import torch as adapter

PLAIN = Intake({})


class Tied(torch.nn.Module):
    """A language model in little: its head is its embedding."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.embed = torch.nn.Embedding(16, 8)
        self.body = torch.nn.Linear(8, 8)
        self.norm = torch.nn.BatchNorm1d(8)
        self.lm_head = torch.nn.Linear(8, 16, bias=False)
        self.lm_head.weight = self.embed.weight


def names_of(store: Store) -> dict[str, str | None]:
    newest = store.log.newest()
    assert newest is not None
    assert newest.record.schema is not None
    return {t.name: t.alias_of for t in store.schema(newest.record.schema).tensors}


def dtypes_of(store: Store) -> dict[str, str]:
    newest = store.log.newest()
    assert newest is not None
    assert newest.record.schema is not None
    return {t.name: t.dtype for t in store.schema(newest.record.schema).tensors}


def change(state: Mapping[str, torch.Tensor]) -> None:
    with torch.no_grad():
        for tensor in state.values():
            if tensor.is_floating_point():
                tensor.add_(1)


# --- Kinds of sources --------------------------------------------------------------------------------


def test_all_kinds_of_sources_give_the_same_version() -> None:
    state = mixed()
    hosts = {name: adapter.to_host(name, tensor) for name, tensor in state.items()}
    sources: list[Any] = [
        state,
        state.items(),
        list(state.items()),
        iter(state.items()),
        ((name, tensor) for name, tensor in state.items()),
        {
            name: host.array() if host.dtype not in {"BF16", "F8_E4M3"} else host
            for name, host in hosts.items()
        },
        hosts,
    ]
    found = [PLAIN.collect(source) for source in sources]
    assert len({state.digest() for state in found}) == 1
    assert len({state.schema.sha256 for state in found}) == 1
    held = {spec.name: bits.read(0, spec.lanes).tobytes() for spec, bits in found[0].tensors()}
    assert held == all_bits(state)


def test_modules_give_parameters_and_buffers_frozen_ones_too(store: Store) -> None:
    model = Tied()
    model.body.weight.requires_grad_(False)
    with producer(store) as out:
        out.publish(model, step=0)
        with torch.no_grad():
            model.body.weight.add_(1)
            model.norm.running_mean.add_(0.5)  # type: ignore[union-attr]
            model.norm.num_batches_tracked.add_(1)  # type: ignore[union-attr]
        out.publish(model, step=1)
    assert read(store) == all_bits(model.state_dict())


def test_a_compiled_module_keeps_its_names(store: Store) -> None:
    model = Tied()
    compiled: Any = torch.compile(model, backend="eager")
    assert all(name.startswith("_orig_mod.") for name in compiled.state_dict())
    with producer(store) as out:
        out.publish(model, step=0)
        change(dict(model.named_parameters()))
        out.publish(compiled, step=1)
    assert read(store) == all_bits(model.state_dict())


@pytest.mark.parametrize("first_wrapped", [True, False])
def test_distributed_wrappers_come_and_go(store: Store, first_wrapped: bool) -> None:
    model = Tied()
    wrapped = torch.nn.ModuleDict({"module": model})  # as DistributedDataParallel names things
    with producer(store) as out:
        out.publish(wrapped if first_wrapped else model, step=0)
        change(dict(model.named_parameters()))
        out.publish(model if first_wrapped else wrapped, step=1)
    assert read(store) == all_bits(model.state_dict())


def test_sharded_and_checkpointed_wrappers_are_taken_off(store: Store) -> None:
    state = small()
    wrapped = {
        "_fsdp_wrapped_module.embed": state["embed"],
        "_fsdp_wrapped_module._checkpoint_wrapped_module.norm": state["norm"],
        "_orig_mod.module.proj".replace("module.", ""): state["proj"],
    }
    with producer(store) as out:
        out.publish(wrapped, step=0)
    assert read(store) == all_bits(state)


def test_a_submodule_that_is_called_module_keeps_its_name(store: Store) -> None:
    model = torch.nn.ModuleDict({"module": torch.nn.Linear(3, 3), "head": torch.nn.Linear(3, 2)})
    with producer(store) as out:
        out.publish(model, step=0)
        change(dict(model.named_parameters()))
        out.publish(torch.nn.ModuleDict({"module": model}), step=1)
        change(dict(model.named_parameters()))
        out.publish(model, step=2)
    assert read(store) == all_bits(model.state_dict())
    assert "module.weight" in read(store)


def test_export_sees_clean_names_also_behind_wrappers(store: Store) -> None:
    state = small()
    names = {"embed": "model.embed_tokens.weight", "norm": "model.norm.weight"}
    with producer(store, export=names.get) as out:
        out.publish({f"module.{name}": tensor for name, tensor in state.items()}, step=0)
        state = stepped(state, 1)
        out.publish({f"module.{name}": tensor for name, tensor in state.items()}, step=1)
        state = stepped(state, 2)
        out.publish(state, step=2)
    assert read(store) == {names[name]: bits(state[name]) for name in names}


def test_nothing_to_publish_is_refused(store: Store) -> None:
    used = iter(small().items())
    list(used)
    with producer(store) as out:
        for nothing in (dict[str, torch.Tensor](), used):
            with pytest.raises(SchemaMismatch, match="no tensors"):
                out.publish(nothing, step=0)
        assert out.publish(small(), step=0).result().version == 1


@pytest.mark.parametrize("value", [1.5, [1.0], "text", None])
def test_what_is_no_tensor_is_named(store: Store, value: Any) -> None:
    with producer(store) as out, pytest.raises(Unsupported, match="'norm'"):
        out.publish({**small(), "norm": value}, step=0)


# --- Iterators ---------------------------------------------------------------------------------------


def through_one_buffer(state: Mapping[str, torch.Tensor]) -> Iterator[tuple[str, torch.Tensor]]:
    """As a trainer gathers shards: every tensor of a size comes in the same memory."""
    buffers: dict[tuple[object, ...], torch.Tensor] = {}
    for name, tensor in state.items():
        key = (tensor.dtype, tuple(tensor.shape))
        buffer = buffers.setdefault(key, torch.empty_like(tensor))
        buffer.copy_(tensor)
        yield name, buffer
        buffer.zero_()


def test_an_iterator_may_use_one_buffer_again_and_again(store: Store) -> None:
    rng = torch.Generator().manual_seed(3)
    state: State = {f"layer.{i}": torch.randn(8, 8, generator=rng) for i in range(5)}
    with producer(store) as out:
        out.publish(through_one_buffer(state), step=0)
        assert read(store) == all_bits(state)
        state = stepped(state, 1)
        out.publish(through_one_buffer(state), step=1)
        assert read(store) == all_bits(state)
        state = stepped(state, 2)
        out.reset(through_one_buffer(state), step=2)
    assert read(store) == all_bits(state)
    with producer(store) as again:
        state = stepped(state, 3)
        again.publish(through_one_buffer(state), step=3)
    assert read(store) == all_bits(state)


@pytest.mark.parametrize("order", [("embed", "head"), ("head", "embed"), ("head",), ("embed",)])
def test_ties_through_one_buffer(store: Store, order: tuple[str, ...]) -> None:
    weight = torch.randn(4, 4)
    other = torch.randn(4, 4)
    with producer(store) as out:
        out.publish({"embed": weight, "head": weight, "other": other}, step=0)
        weight, other = weight + 1, other + 2
        state = dict.fromkeys(order, weight) | {"other": other}
        out.publish(through_one_buffer(state), step=1)
        assert read(store) == {"embed": bits(weight), "head": bits(weight), "other": bits(other)}
        if len(order) == 2:
            with pytest.raises(SchemaMismatch, match="tied"):
                out.publish(through_one_buffer({**state, order[1]: weight + 1}), step=2)


def test_an_iterator_that_breaks_off_changes_nothing(store: Store) -> None:
    state = small()
    with producer(store) as out:
        out.publish(state, step=0)
        after = stepped(state, 1)

        def broken() -> Iterator[tuple[str, torch.Tensor]]:
            yield from list(after.items())[:2]
            raise ConnectionResetError("a rank is gone")

        with pytest.raises(ConnectionResetError):
            out.publish(broken(), step=1)
        assert store.find().version == 1
        third = {**state, "norm": after["norm"]}
        assert out.publish(third, step=1).result().stats.changed == int(  # type: ignore[union-attr]
            (third["norm"] != state["norm"]).sum()
        )
    assert read(store) == all_bits(third)


def test_an_iterator_that_breaks_off_at_first_changes_nothing(store: Store) -> None:
    state = small()

    def broken() -> Iterator[tuple[str, torch.Tensor]]:
        yield "embed", state["embed"]
        raise ConnectionResetError("a rank is gone")

    with producer(store) as out:
        with pytest.raises(ConnectionResetError):
            out.publish(broken(), step=0)
        out.publish(state, step=0)
    with producer(store) as out:
        with pytest.raises(ConnectionResetError):
            out.publish(broken(), step=1)
        state = stepped(state, 1)
        out.publish(state, step=1)
    assert read(store) == all_bits(state)


class Lazy(Mapping[str, torch.Tensor]):
    """A mapping that makes its tensors in one buffer when it is asked."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._buffer = torch.empty(8, 8)

    def __getitem__(self, name: str) -> torch.Tensor:
        return self._buffer.copy_(self._state[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._state)

    def __len__(self) -> int:
        return len(self._state)


def test_a_mapping_may_use_one_buffer_again_and_again(store: Store) -> None:
    state: State = {f"layer.{i}": torch.randn(8, 8) for i in range(3)}
    with producer(store) as out:
        for step in range(2):
            out.publish(Lazy(state), step=step)
            assert read(store) == all_bits(state)
            state = stepped(state, step)
        out.reset(Lazy(state).items(), step=2)
    assert read(store) == all_bits(state)


# --- Ties --------------------------------------------------------------------------------------------


def test_ties_by_storage_are_one_tensor(store: Store) -> None:
    model = Tied()
    with producer(store) as out:
        out.publish(model, step=0)
        assert names_of(store)["lm_head.weight"] == "embed.weight"
        change({"w": model.embed.weight})
        info = out.publish(model, step=1).result()
    assert info.stats is not None
    assert info.stats.changed == model.embed.weight.numel()
    assert read(store) == all_bits(model.state_dict())


def test_an_alias_may_come_before_its_owner_or_alone(store: Store) -> None:
    weight = torch.randn(4, 4)
    with producer(store) as out:
        out.publish({"z": weight, "a": weight}, step=0)
        assert names_of(store) == {"a": "z", "z": None}
        for step, given in enumerate(("az", "za", "a", "z"), 1):
            weight = weight + step
            out.publish(dict.fromkeys(given, weight), step=step)
            assert read(store) == {"a": bits(weight), "z": bits(weight)}


def test_ties_given_as_two_tensors_must_be_equal(store: Store) -> None:
    weight = torch.randn(4, 4)
    with producer(store) as out:
        out.publish({"embed": weight, "head": weight}, step=0)
        weight = weight + 1
        out.publish({"embed": weight, "head": weight.clone()}, step=1)
        assert read(store)["head"] == bits(weight)
        after = weight + 1
        for given in ({"embed": after, "head": weight}, {"head": weight, "embed": after}):
            with pytest.raises(SchemaMismatch, match="'head' is tied to 'embed'"):
                out.publish(given, step=2)
        assert read(store)["head"] == bits(weight)
        out.publish({"embed": after, "head": after}, step=2)
    assert read(store)["head"] == bits(after)


def test_equal_tensors_with_memory_of_their_own_are_no_ties(store: Store) -> None:
    with producer(store) as out:
        out.publish({"a": torch.ones(4), "b": torch.ones(4)}, step=0)
        out.publish({"a": torch.ones(4), "b": torch.zeros(4)}, step=1)
    assert read(store)["b"] == bits(torch.zeros(4))


def test_two_fp32_ties_are_still_one_after_the_cast(store: Store) -> None:
    weight = torch.randn(4, 4)
    with producer(store, dtypes={"*": "BF16"}) as out:
        out.publish({"a": weight, "b": weight}, step=0)
        weight += 1
        out.publish({"a": weight, "b": weight}, step=1)
    assert names_of(store) == {"a": None, "b": "a"}
    assert read(store)["b"] == bits(weight.bfloat16())


def test_a_tie_that_the_base_leaves_out_is_not_extra(store: Store) -> None:
    model = Tied()
    without = {name: t for name, t in model.state_dict().items() if name != "lm_head.weight"}
    with producer(store) as out:
        out.publish(without, step=0)
        change({"w": model.embed.weight})
        out.publish(model, step=1)
        assert read(store)["embed.weight"] == bits(model.embed.weight)
        with pytest.raises(SchemaMismatch, match=r"extra: 'lm_head\.weight'"):
            out.publish({**model.state_dict(), "lm_head.weight": torch.zeros(16, 8)}, step=2)


# --- Names -------------------------------------------------------------------------------------------


def test_missing_extra_and_renamed_tensors_are_listed(store: Store) -> None:
    state = small()
    with producer(store) as out:
        out.publish(state, step=0)
        renamed = {"embedding": state["embed"], "norm": state["norm"], "proj": state["proj"]}
        with pytest.raises(SchemaMismatch, match="missing: 'embed'; extra: 'embedding'"):
            out.publish(renamed, step=1)
        with pytest.raises(SchemaMismatch, match="missing: 'embed', 'norm'") as caught:
            out.publish({"proj": state["proj"]}, step=1)
        assert caught.value.fields == {"missing": 2, "extra": 0}
        many = {**state, **{f"x{i:02}": torch.ones(1) for i in range(20)}}
        with pytest.raises(SchemaMismatch, match="'x07' and 12 more"):
            out.publish(many, step=1)
        with pytest.raises(SchemaMismatch, match=r"'proj' is BF16\[47, 5\]"):
            out.publish({**state, "proj": state["proj"].T}, step=1)
        assert store.find().version == 1
        after = stepped(state, 1)
        out.publish(after, step=1)
    assert read(store) == all_bits(after)


def test_a_name_that_comes_twice_is_refused(store: Store) -> None:
    state = small()
    twice = [*state.items(), ("_orig_mod.norm", state["norm"] + 1)]
    with producer(store) as out:
        with pytest.raises(SchemaMismatch, match="'norm'"):
            out.publish(twice, step=0)
        out.publish(state, step=0)
        with pytest.raises(SchemaMismatch, match="'norm' was handed over twice"):
            out.publish(twice, step=1)
    assert read(store) == all_bits(state)


@pytest.mark.parametrize("name", ["__metadata__", "\ud800", "x" * 1025, "é" * 513, "", 7], ids=range(6))
@pytest.mark.parametrize("form", [dict, list, iter])
def test_names_that_cannot_be_stored_are_refused_before_anything_moves(
    store: Store, name: Any, form: Any
) -> None:
    state = small()
    given = {**state, name: torch.ones(2)}
    with producer(store) as out:
        for method in (out.publish, out.reset):
            with pytest.raises(SchemaMismatch, match="cannot be the name of a tensor") as caught:
                method(form(given if form is dict else given.items()), step=0)
            assert caught.value.fields["tensor"] == ascii(name)[:80]
            assert (store.log.newest_number() is None) == (form is not iter)
        out.publish(state, step=0)
        with pytest.raises(SchemaMismatch):
            out.publish(given, step=1, new_schema=True)
    assert read(store) == all_bits(state)
    with producer(new_store(), export=lambda n: str(n).replace("_", "x")[:9] or "e") as out:
        if isinstance(name, str) and name != "\ud800":
            assert out.publish(given, step=0).result().version == 1


def test_nothing_has_no_parts(store: Store) -> None:
    state = small()
    with producer(store) as out:
        with pytest.raises(UsageError, match="partial=True"):
            out.publish({"norm": state["norm"]}, step=0, partial=True)
        assert store.log.newest_number() is None
        with pytest.raises(SchemaMismatch, match="no tensors"):
            out.publish({}, step=0)
        with pytest.raises(UsageError, match="partial=True"):
            out.publish({"norm": state["norm"]}, step=0, partial=True)
        out.publish(state, step=0)
    assert read(store) == all_bits(state)


def test_a_part_leaves_the_rest_as_it_was(store: Store) -> None:
    state = small()
    with producer(store) as out:
        out.publish(state, step=0)
        after = stepped(state, 1)
        out.publish({"norm": after["norm"]}, step=1, partial=True)
        assert read(store) == all_bits({**state, "norm": after["norm"]})
        with pytest.raises(SchemaMismatch, match="extra: 'other'"):
            out.publish({"other": after["norm"]}, step=2, partial=True)
    with producer(store) as out:
        out.publish({"proj": after["proj"]}, step=2, partial=True)
    assert read(store) == all_bits({**after, "embed": state["embed"]})


# --- Dtypes ------------------------------------------------------------------------------------------


def test_serving_dtypes_are_per_tensor(store: Store) -> None:
    rng = torch.Generator().manual_seed(0)
    state: State = {
        "layer.weight": torch.randn(9, 9, generator=rng),
        "layer.scale": torch.randn(9, generator=rng),
        "router.weight": torch.randn(9, generator=rng),
        "table": torch.arange(9),
    }
    patterns = {"router.*": "F32", "*.scale": "F16", "layer.*": "BF16"}
    expected = {"layer.weight": "BF16", "layer.scale": "F16", "router.weight": "F32", "table": "I64"}
    with producer(store, dtypes=patterns) as out:
        out.publish(state, step=0)
        assert dtypes_of(store) == expected
        after = stepped(state, 1)
        out.publish(after, step=1)
        out.reset(after, step=2)
        assert dtypes_of(store) == expected
    cast = {
        **after,
        "layer.weight": after["layer.weight"].bfloat16(),
        "layer.scale": after["layer.scale"].half(),
    }
    assert read(store) == all_bits(cast)


@pytest.mark.parametrize("method", ["publish", "reset"])
def test_the_dtypes_of_the_head_stay(store: Store, method: str) -> None:
    with producer(store, dtypes={"*": "BF16"}) as out:
        out.publish({"w": torch.randn(9)}, step=0)
    after = torch.randn(9)
    with producer(store) as out:
        getattr(out, method)({"w": after}, step=1)
    assert dtypes_of(store) == {"w": "BF16"}
    assert read(store) == {"w": bits(after.bfloat16())}


def test_a_reset_is_no_way_around_the_schema(store: Store) -> None:
    state = small()
    with producer(store) as out:
        out.publish(state, step=0)
        with pytest.raises(SchemaMismatch, match="missing: 'norm'"):
            out.reset({n: t for n, t in state.items() if n != "norm"}, step=1)
        after = stepped(state, 1)
        out.publish(after, step=1)
    assert read(store) == all_bits(after)


def test_changes_below_the_serving_precision_are_no_changes(store: Store) -> None:
    weight = torch.full((64,), 0.5)
    with producer(store, dtypes={"*": "BF16"}) as out:
        out.publish({"w": weight}, step=0)
        info = out.publish({"w": weight * (1 + 1e-5)}, step=1).result()
    assert info.stats is not None
    assert info.stats.changed == 0


@pytest.mark.parametrize(
    ("tensor", "dtype"),
    [
        (torch.arange(3), "I32"),
        (torch.ones(3), "I64"),
        (np.ones(3, "f4"), "BF16"),
        (torch.ones(3), "nonsense"),
    ],
)
def test_casts_that_cannot_be_are_refused(store: Store, tensor: torch.Tensor, dtype: str) -> None:
    with producer(store, dtypes={"w": dtype}) as out, pytest.raises(Unsupported, match="'w'"):
        out.publish({"w": tensor}, step=0)
    assert store.find().state is None


# --- NaN and infinity --------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_what_is_not_finite_is_refused_before_anything_moves(store: Store, bad: float) -> None:
    state = small()
    with producer(store) as out:
        with pytest.raises(NonFinite, match="'norm'"):
            out.publish({**state, "norm": torch.full_like(state["norm"], bad)}, step=0)
        out.publish(state, step=0)
        after = stepped(state, 1)
        spoiled = {**after, "proj": after["proj"].clone()}
        spoiled["proj"][2, 3] = bad
        with pytest.raises(NonFinite, match="'proj'"):
            out.publish(spoiled, step=1)
        with pytest.raises(NonFinite, match="'proj'"):
            out.reset(spoiled, step=1)
        assert store.find().version == 1
        third = {**state, "proj": after["proj"]}
        out.publish(third, step=1)
    assert read(store) == all_bits(third)
    with producer(store) as out:
        with pytest.raises(NonFinite, match="'proj'"):
            out.publish(spoiled, step=2)
        out.publish(after, step=2)
    assert read(store) == all_bits(after)


def test_a_cast_that_overflows_is_refused(store: Store) -> None:
    with producer(store, dtypes={"*": "F16"}) as out, pytest.raises(NonFinite):
        out.publish({"w": torch.tensor([1.0, 1e6])}, step=0)


def test_nan_is_bits_like_others_where_it_is_allowed(store: Store) -> None:
    patterns = torch.tensor([0x7FC0, 0x7FC1, -0x40, 0x7F80, 0x7F81], dtype=torch.int16)
    with producer(store, on_nonfinite="allow") as out:
        out.publish({"w": patterns.view(torch.bfloat16)}, step=0)
        for step in range(1, 5):
            patterns = patterns.roll(1)
            out.publish({"w": patterns.view(torch.bfloat16)}, step=step)
            assert read(store)["w"] == patterns.numpy().tobytes()


def test_minus_zero_is_another_number(store: Store) -> None:
    with producer(store) as out:
        out.publish({"w": torch.zeros(4)}, step=0)
        out.publish({"w": -torch.zeros(4)}, step=1)
    assert read(store)["w"] == bits(-torch.zeros(4))
