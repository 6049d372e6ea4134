"""No byte of any codec depends on the number of threads."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
from codec_samples import NONCE, apply, decode, dense, encode, pair, whole_spec

from deltastore import codec as codecs
from deltastore import threads
from deltastore.codec import frames

COUNTS = (1, 2, 3, 8)
SIZES = (0, 5, 300_000, 2**18, 1_100_000)
DENSITIES = (0.0, 0.001, 0.02, 0.6)


@pytest.fixture(autouse=True)
def _small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that all threads have something to do."""
    monkeypatch.setattr(threads, "PIECE", 1 << 16)
    monkeypatch.setattr(frames, "FRAME", 1 << 14)


@pytest.mark.parametrize("codec", codecs.DELTA)
@pytest.mark.parametrize("dtype", ["BF16", "F32"])
def test_deltas_are_the_same_with_any_number_of_threads(
    monkeypatch: pytest.MonkeyPatch, codec: str, dtype: str
) -> None:
    found = set()
    for count in COUNTS:
        monkeypatch.setenv("DELTASTORE_THREADS", str(count))
        rng = np.random.default_rng(4)
        pairs = [
            pair(rng, whole_spec(dtype, size, f"{size}/{density}"), density, "steps")
            for size in SIZES
            for density in DENSITIES
        ]
        encoded = encode(codec, pairs)
        decoded = decode(codec, encoded.data, pairs, raw_size=encoded.raw_size)
        for (_, base, new), change in zip(pairs, decoded.changes, strict=True):
            np.testing.assert_array_equal(apply(change, base), new)
        found.add((hashlib.sha256(encoded.data).digest(), encoded.state_delta, encoded.changed))
    assert len(found) == 1


@pytest.mark.parametrize("codec", codecs.ANCHOR)
def test_anchors_are_the_same_with_any_number_of_threads(monkeypatch: pytest.MonkeyPatch, codec: str) -> None:
    found = set()
    for count in COUNTS:
        monkeypatch.setenv("DELTASTORE_THREADS", str(count))
        rng = np.random.default_rng(4)
        denses = [
            dense(spec, lanes)
            for spec, lanes, _ in (pair(rng, whole_spec("BF16", n, str(n)), 0.0, "special") for n in SIZES)
        ]
        encoded = codecs.ANCHOR[codec].encode(denses, nonce=NONCE)
        decoded = codecs.ANCHOR[codec].decode(
            encoded.data, [one.spec for one in denses], raw_size=encoded.raw_size
        )
        for one, change in zip(denses, decoded.changes, strict=True):
            np.testing.assert_array_equal(apply(change, one.lanes), one.lanes)
        found.add((hashlib.sha256(encoded.data).digest(), encoded.state_delta))
    assert len(found) == 1
