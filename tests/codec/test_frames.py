"""Frames: sizes are checked before anything is inflated, and the bytes are always the same."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import zstandard

from deltastore.codec import frames
from deltastore.errors import BadShard

FRAME = frames.FRAME


def sample(size: int) -> bytes:
    return np.random.default_rng(1).geometric(0.05, size).astype(np.uint8).tobytes()


@pytest.mark.req("DS-FRAME-1")
@pytest.mark.parametrize("size", [1, 1000, FRAME - 1, FRAME, FRAME + 1, 2 * FRAME + 5])
def test_streams_come_back_and_every_frame_but_the_last_is_full(size: int) -> None:
    raw = sample(size)
    data, sizes = frames.compress(raw)
    assert frames.decompress(memoryview(data), sizes, size) == raw
    at, contents = 0, []
    for stored in sizes:
        parameters = zstandard.get_frame_parameters(data[at : at + stored])
        contents.append(parameters.content_size)
        assert parameters.window_size <= FRAME
        at += stored
    assert at == len(data)
    assert contents[:-1] == [FRAME] * (len(contents) - 1)
    assert sum(contents) == size


def test_output_is_the_same_in_every_call_and_thread() -> None:
    raw = sample(2 * FRAME + 5)
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(frames.compress, [raw] * 8))
    assert all(result == results[0] for result in results)


def test_huffman_coding_beats_level_1_on_gaps() -> None:
    raw = sample(FRAME)
    assert len(frames.compress(raw)[0]) <= len(zstandard.ZstdCompressor(level=1).compress(raw))


@pytest.mark.req("DS-FRAME-2")
def test_a_frame_of_another_size_is_refused_before_it_is_inflated() -> None:
    bomb = zstandard.ZstdCompressor().compress(bytes(64 * FRAME))
    with pytest.raises(BadShard, match="not a zstd frame of 1000 bytes"):
        frames.decompress(memoryview(bomb), [len(bomb)], 1000)


RAW = sample(1000)
GOOD = frames.compress(RAW)[0]
UNSIZED = zstandard.ZstdCompressor(write_content_size=False).compress(RAW)
SKIPPABLE = b"\x50\x2a\x4d\x18" + (1000).to_bytes(4, "little") + RAW


@pytest.mark.req("DS-FRAME-1", "DS-FRAME-2")
@pytest.mark.parametrize(
    ("data", "sizes"),
    [
        pytest.param(UNSIZED, [len(UNSIZED)], id="no content size"),
        pytest.param(SKIPPABLE, [len(SKIPPABLE)], id="skippable"),
        pytest.param(GOOD[:-1], [len(GOOD) - 1], id="cut short"),
        pytest.param(GOOD + b"x", [len(GOOD) + 1], id="bytes after the frame"),
        pytest.param(GOOD + b"x", [len(GOOD)], id="bytes after the stream"),
        pytest.param(GOOD + GOOD, [2 * len(GOOD)], id="two frames in one"),
        pytest.param(GOOD + GOOD, [len(GOOD)] * 2, id="a frame too many"),
        pytest.param(GOOD, [], id="no frame"),
        pytest.param(b"", [0], id="an empty frame"),
        pytest.param(RAW, [len(RAW)], id="not compressed"),
    ],
)
def test_frames_that_are_not_what_the_spec_says_are_refused(data: bytes, sizes: list[int]) -> None:
    with pytest.raises(BadShard):
        frames.decompress(memoryview(data), sizes, 1000)


@pytest.mark.req("DS-FRAME-1")
def test_a_window_larger_than_the_limit_is_refused() -> None:
    # Magic, descriptor (4-byte content size, no single segment), window 2^27, size, one raw block.
    header = b"\x28\xb5\x2f\xfd" + bytes([0x80, (27 - 10) << 3]) + (3).to_bytes(4, "little")
    frame = header + (3 << 3 | 1).to_bytes(3, "little") + b"abc"
    assert zstandard.get_frame_parameters(frame).content_size == 3
    with pytest.raises(BadShard, match="not a zstd frame"):
        frames.decompress(memoryview(frame), [len(frame)], 3)
    small = frame[:5] + bytes([7 << 3]) + frame[6:]
    assert frames.decompress(memoryview(small), [len(small)], 3) == b"abc"


@pytest.mark.req("DS-FRAME-1")
def test_a_dictionary_is_refused() -> None:
    header = b"\x28\xb5\x2f\xfd" + bytes([0x21, 9]) + bytes([3])
    frame = header + (3 << 3 | 1).to_bytes(3, "little") + b"abc"
    assert zstandard.get_frame_parameters(frame).dict_id == 9
    with pytest.raises(BadShard, match="not a zstd frame"):
        frames.decompress(memoryview(frame), [len(frame)], 3)
