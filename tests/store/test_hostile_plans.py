"""Records whose edges promise more than they hold."""

from __future__ import annotations

import numpy as np
import pytest
from log_samples import holding, opened
from record_samples import claim, data, slot

from deltastore.consumer import Consumer
from deltastore.errors import NoPath
from deltastore.parallel import INLINE
from deltastore.protocol.descriptors import Descriptor
from deltastore.protocol.edges import Edge
from deltastore.protocol.schema import Schema, TensorSpec


@pytest.mark.req("DS-DESC-4", "DS-READ-8")
@pytest.mark.parametrize("tensors", [0, 2])
def test_an_anchor_without_shards_sets_nothing_and_is_no_anchor(tensors: int) -> None:
    """Its states add up where the state is said to be 0; taken at its word it would leave any weights."""
    schema = Schema.of([TensorSpec(f"t{i}", "U16", (4,)) for i in range(tensors)])
    first = slot(claim(None))
    described = Descriptor(schema.sha256, len(schema.data))
    record = data(first, schema=described, state=0, edges=(Edge("none", None, 1, 0, ()),))
    store = opened(holding([first, slot(record)]))
    store.put_object(schema.data)
    target = {f"t{i}": np.arange(4, dtype=np.uint16) for i in range(tensors)}
    consumer = Consumer(store, target, workers=INLINE)
    if tensors == 0:
        consumer.update()
        assert consumer.version == 1
        return
    with pytest.raises(NoPath):
        consumer.update()
    assert consumer.version is None
    assert all(np.array_equal(tensor, np.arange(4)) for tensor in target.values())
