"""`auto` takes the small codec where bytes are dear, and the fast one where they are not."""

from __future__ import annotations

import numpy as np
import pytest
from codec_samples import diff, pair, whole_spec

from deltastore.codec.choice import choose
from deltastore.codec.ulp import Steps


def deltas(density: float) -> list[Steps]:
    rng = np.random.default_rng(0)
    changed: Steps = diff("ulp", *pair(rng, whole_spec("BF16", 500_000), density, "steps"))
    still: Steps = diff("ulp", *pair(rng, whole_spec("BF16", 500_000), 0.0, "steps"))
    return [changed, still]


def test_without_a_declared_link_nothing_is_scanned() -> None:
    assert choose(deltas(0.01), link=None) == "ulp"


def test_the_slower_the_link_the_more_is_worth_a_scan() -> None:
    chosen = [choose(deltas(0.01), link=link) for link in (1.0, 1e3, 1e12)]
    assert chosen == ["ctx", "ctx", "ulp"]


def test_more_cores_make_a_scan_cheaper(monkeypatch: pytest.MonkeyPatch) -> None:
    found = deltas(0.01)
    links = np.geomspace(1e3, 1e12, 300)

    def last(cores: str) -> float:
        monkeypatch.setenv("DELTASTORE_THREADS", cores)
        return max(float(link) for link in links if choose(found, link=link) == "ctx")

    assert last("8") == pytest.approx(8 * last("1"), rel=0.1)


def test_what_changes_more_is_worth_a_scan_sooner() -> None:
    links = np.geomspace(1e3, 1e12, 100)
    few, many = ([choose(deltas(share), link=link) == "ctx" for link in links] for share in (0.001, 0.05))
    assert sum(few) < sum(many)


def test_where_nothing_changes_there_is_nothing_to_gain() -> None:
    assert choose(deltas(0.0), link=1.0) == "ulp"
