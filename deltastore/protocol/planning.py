"""Planning (spec, Reading): the cheapest sequence of edges from what is held to a version."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from itertools import count
from typing import Final

from deltastore.errors import NoPath
from deltastore.protocol.edges import Edge
from deltastore.protocol.keys import Base

REQUEST_BYTES: Final = 256 * 1024
"""What one request costs, in bytes that could be transferred meanwhile."""


_Path = tuple[Edge, "_Path"] | None
"""Edges towards the target, shared between candidates: a long log would be copied over and over."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Edges to apply in order.

    Attributes:
        start: Where they start: a version that is held, `"none"` or `"external"`.
        edges: The first one's base is `start`, the last one's target the version that was asked for.
        cost: Bytes to fetch, and requests at `REQUEST_BYTES` each.
    """

    start: Base
    edges: tuple[Edge, ...]
    cost: int

    @property
    def size(self) -> int:
        """Bytes to fetch."""
        return sum(edge.size for edge in self.edges)


def identity_edge(base: Base, target: int, state: int) -> Edge:
    """The edge that a claim stands for: the same state under the next number."""
    return Edge(base=base, base_state=state, target=target, state=state, shards=())


def cost(edge: Edge) -> int:
    """What taking an edge costs."""
    return edge.size + REQUEST_BYTES * len(edge.shards)


def cheapest(
    target: int,
    *,
    held: Collection[Base],
    edges_into: Callable[[int], Iterable[Edge]],
    avoid: Collection[Edge] = (),
) -> Plan:
    """The cheapest plan, by Dijkstra's algorithm backwards from the target (DS-PLAN-1).

    Args:
        target: The version wanted.
        held: Where a plan may start; `"none"` is always among them for one who can take an anchor.
        edges_into: All usable edges that lead to a version; called once per version on the way, so that
            only the records that matter are ever read.
        avoid: Edges that have failed before.

    Raises:
        NoPath: No sequence of edges leads there.
    """
    order = count()
    queue: list[tuple[int, int, Base, _Path]] = [(0, next(order), target, None)]
    done: set[Base] = set()
    while queue:
        spent, _, node, path = heapq.heappop(queue)
        if node in held:
            return Plan(node, _unfold(path), spent)
        if node in done or not isinstance(node, int):
            continue
        done.add(node)
        for edge in edges_into(node):
            if edge.base not in done and not (avoid and edge in avoid):
                heapq.heappush(queue, (spent + cost(edge), next(order), edge.base, (edge, path)))
    raise NoPath(
        f"no usable edges lead to version {target}",
        hint="Its objects are lost, or its codecs are unknown here; try another version",
        version=target,
    )


def _unfold(path: _Path) -> tuple[Edge, ...]:
    edges = []
    while path is not None:
        edge, path = path
        edges.append(edge)
    return tuple(edges)
