"""A comparison that breaks off leaves a base that nothing may be built on."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
from support import new_store

from deltastore import Consumer, Producer
from deltastore.codec import ctx, ulp
from deltastore.codec.types import Encoded
from deltastore.errors import Broken
from deltastore.parallel import INLINE, Workers
from deltastore.producer.pipeline import Job, Pipeline


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


def test_an_interrupt_behind_the_queue_leaves_the_base_to_shards_that_read_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What is queued is committed, and `ctx` codes the lanes that it finds in the base."""
    interrupted = threading.Event()
    submit, encode = Pipeline.submit, ctx.Ctx.encode

    def submits(pipeline: Pipeline, job: Job) -> None:
        submit(pipeline, job)
        raise KeyboardInterrupt

    def encodes(*args: Any, **options: Any) -> Encoded:
        interrupted.wait(10)
        return encode(*args, **options)

    store, rng = new_store(), np.random.default_rng(0)
    weights = {"w": np.ldexp(np.float32(1), rng.integers(-20, 0, 4096)).astype(np.float32)}
    with Producer(store, codec="ctx", workers=Workers(2), anchors=None) as out:
        out.publish(weights, step=1).result(10)
        weights["w"][::3] /= 2
        monkeypatch.setattr(Pipeline, "submit", submits)
        monkeypatch.setattr(ctx.Ctx, "encode", encodes)
        with pytest.raises(KeyboardInterrupt):
            out.publish(weights, step=2)
        interrupted.set()
    held = {"w": np.zeros(4096, np.float32)}
    info = Consumer(store, held).update()
    assert info is not None
    assert info.step == 2
    assert held["w"].tobytes() == weights["w"].tobytes()


@pytest.mark.parametrize("way", ["publish", "reset"])
def test_whatever_comes_behind_the_queue_ends_the_producer(monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    """A signal handler may raise anything, anywhere: then it is not known what was counted."""
    submit = Pipeline.submit

    def submits(pipeline: Pipeline, job: Job) -> None:
        submit(pipeline, job)
        raise TimeoutError

    store, weights = new_store(), {"w": np.arange(64, dtype=np.float32)}
    with Producer(store, workers=Workers(2), anchors=None) as out:
        out.publish(weights, step=1).result(10)
        weights["w"][5] = 100
        with monkeypatch.context() as patch:
            patch.setattr(Pipeline, "submit", submits)
            with pytest.raises(TimeoutError):
                getattr(out, way)(weights, step=2)
        with pytest.raises(Broken):
            out.publish(weights, step=3)
    held = {"w": np.zeros(64, np.float32)}
    info = Consumer(store, held).update()
    assert info is not None
    assert (info.version, info.step) == (2, 2)
    assert (held["w"] == weights["w"]).all()
