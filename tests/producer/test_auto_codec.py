"""The codec of deltas where it is left open: by what the link is declared to carry, edge by edge."""

from __future__ import annotations

import pytest
from support import all_bits, blank, consumer, mixed, new_store, producer, record, small, stepped

from deltastore.errors import UsageError


def codecs_of(link: float | None) -> list[set[str]]:
    """Publishes a few steps and takes them; the codecs of each delta."""
    store, states = new_store(), [mixed()]
    target = blank(states[0])
    reader = consumer(store, target)
    with producer(store, codec="auto", link=link, anchors=None) as out:
        out.publish(states[0], step=0).result(20)
        for step, share in enumerate((0.05, 0.3, 0.0), 1):
            states.append(stepped(states[-1], step, share=share))
            out.publish(states[-1], step=step).result(20)
            reader.update()
            assert all_bits(target) == all_bits(states[-1])
    edges = [record(store, version).embedded for version in range(2, 5)]
    return [{shard.codec for shard in edge.shards} for edge in edges if edge is not None]


def test_without_a_declared_link_deltas_are_fast() -> None:
    assert codecs_of(None) == [{"ulp"}] * 3


def test_over_a_slow_link_deltas_that_change_something_are_small() -> None:
    assert codecs_of(10.0) == [{"ctx"}, {"ctx"}, {"ulp"}]


def test_over_a_fast_link_they_are_fast() -> None:
    assert codecs_of(1e15) == [{"ulp"}] * 3


@pytest.mark.parametrize(
    ("codec", "link"), [("auto", 0.0), ("auto", -1.0), ("auto", float("nan")), ("ulp", 1e6)]
)
def test_links_that_mean_nothing_are_refused(codec: str, link: float) -> None:
    with pytest.raises(UsageError, match="link"):
        producer(new_store(), codec=codec, link=link)


def test_the_default_is_auto() -> None:
    store = new_store()
    with producer(store) as out:
        out.publish(small(), step=0)
        out.publish(stepped(small(), 1), step=1)
    edge = record(store, 2).embedded
    assert edge is not None
    assert {shard.codec for shard in edge.shards} == {"ulp"}
