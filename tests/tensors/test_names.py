"""Names without what training wraps around modules."""

from __future__ import annotations

import pytest

from deltastore.tensors.names import clean, unwrap


@pytest.mark.parametrize(
    ("wrapped", "plain"),
    [
        ("_orig_mod.layer.weight", "layer.weight"),
        ("layers.0._fsdp_wrapped_module.weight", "layers.0.weight"),
        ("_fsdp_wrapped_module.a._checkpoint_wrapped_module._orig_mod.b", "a.b"),
        ("my_orig_mod.weight", "my_orig_mod.weight"),
        ("layer.weight", "layer.weight"),
        ("module.weight", "module.weight"),
    ],
)
def test_wrappers_go_wherever_they_are(wrapped: str, plain: str) -> None:
    assert unwrap(wrapped) == plain


def test_module_goes_only_if_every_name_has_it() -> None:
    assert clean(["module.a", "module.b.c"]) == ["a", "b.c"]
    assert clean(["module.a", "b"]) == ["module.a", "b"]
    assert clean(["module.module.a", "module.b"]) == ["module.a", "b"]
    assert clean(["_orig_mod.module.a"]) == ["a"]
    assert clean(["modules.a"]) == ["modules.a"]
    assert clean([]) == []
