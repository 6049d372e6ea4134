"""A comparison that breaks off leaves a base that nothing may be built on."""

from __future__ import annotations

import numpy as np
import pytest
from support import new_store

from deltastore import Consumer, Producer
from deltastore.codec import ulp
from deltastore.errors import Broken
from deltastore.parallel import INLINE


def test_no_version_is_built_on_a_base_that_moved_unseen(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_memory(*_: object) -> None:
        raise MemoryError

    store = new_store()
    weights = {"w": np.zeros(64, np.float32)}
    with Producer(store, workers=INLINE, anchors=None) as out:
        out.publish(weights, step=1).result()
        weights["w"][10] = 1
        with monkeypatch.context() as patch:
            patch.setattr(ulp, "whole_copy", no_memory)
            with pytest.raises(Broken, match="'w'"):
                out.publish(weights, step=2)
        weights["w"][40] = 2
        with pytest.raises(Broken):
            out.publish(weights, step=2)
    with Producer(store, workers=INLINE, anchors=None) as out:
        out.publish(weights, step=2).result()
    held = {"w": np.zeros(64, np.float32)}
    Consumer(store, held).update()
    assert (held["w"] == weights["w"]).all()
