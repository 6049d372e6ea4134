"""Checkpoint directories against the real safetensors library, and against files that lie."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from support import all_bits, bits, mixed

from deltastore.errors import BadObject, IntegrityError, NotFound, SchemaMismatch
from deltastore.protocol.schema import Schema, TensorSpec
from deltastore.state import HostState
from deltastore.tensors import torch as adapter
from deltastore.tensors.files import (
    INDEX,
    WEIGHTS,
    open_checkpoint,
    read_file,
    side_files,
    weight_files,
    write_checkpoint,
)


def host_state(tensors: dict[str, torch.Tensor]) -> HostState:
    hosts = {name: adapter.to_host(name, tensor) for name, tensor in tensors.items()}
    specs = [TensorSpec(name, host.dtype, host.shape) for name, host in hosts.items()]
    return HostState(Schema.of(specs), {name: host.lanes for name, host in hosts.items()})


def every_dtype() -> dict[str, torch.Tensor]:
    """What both torch and the safetensors library can hold."""
    tensors = mixed()
    for dtype, name in adapter.NAMES.items():
        if name not in {"F4", "BOOL"}:
            raw = torch.arange(120, dtype=torch.uint8)
            tensors[f"all.{name}"] = raw.view(dtype).reshape(3, -1)
    return tensors


def test_what_we_write_the_library_reads(tmp_path: Path) -> None:
    tensors = every_dtype()
    state = host_state(tensors)
    write_checkpoint(tmp_path, state.schema, state.lanes)
    found = load_file(tmp_path / WEIGHTS)
    assert all_bits(found) == all_bits(tensors)
    assert {n: (t.dtype, t.shape) for n, t in found.items()} == {
        n: (t.dtype, t.shape) for n, t in tensors.items()
    }
    with safe_open(tmp_path / WEIGHTS, framework="pt") as file:
        assert file.metadata() == {"format": "pt"}


def test_what_the_library_writes_we_read(tmp_path: Path) -> None:
    tensors = every_dtype()
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt", "x": "y"})
    state = open_checkpoint(tmp_path)
    assert all_bits(state.tensors()) == all_bits(tensors)
    assert {t.name: t.dtype for t in state.schema.tensors} == {
        n: adapter.NAMES[t.dtype] for n, t in tensors.items()
    }


def test_packed_floats_are_written_and_read(tmp_path: Path) -> None:
    specs = [TensorSpec("four", "F4", (2, 6)), TensorSpec("six", "F6_E3M2", (4,))]
    data = {"four": b"abcdef", "six": b"xyz"}
    lanes = {n: adapter.to_host(n, torch.tensor(list(d), dtype=torch.uint8)).lanes for n, d in data.items()}
    write_checkpoint(tmp_path, Schema.of(specs), lambda name: lanes[name])
    state = open_checkpoint(tmp_path)
    assert state.schema == Schema.of(specs)
    assert all_bits(state.tensors()) == data


def test_several_files_have_an_index_that_names_them(tmp_path: Path) -> None:
    tensors = every_dtype()
    state = host_state(tensors)
    write_checkpoint(tmp_path, state.schema, state.lanes, file_bytes=1000)
    index = json.loads((tmp_path / INDEX).read_text())
    files = sorted(set(index["weight_map"].values()))
    assert len(files) > 3
    assert files[0] == f"model-00001-of-{len(files):05d}.safetensors"
    assert index["metadata"]["total_size"] == sum(len(b) for b in all_bits(tensors).values())
    merged: dict[str, torch.Tensor] = {}
    for file in files:
        part = load_file(tmp_path / file)
        assert all(index["weight_map"][name] == file for name in part)
        merged.update(part)
    assert all_bits(merged) == all_bits(tensors)
    assert all_bits(open_checkpoint(tmp_path).tensors()) == all_bits(tensors)


def test_an_index_decides_which_files_count(tmp_path: Path) -> None:
    save_file({"a": torch.ones(2)}, tmp_path / "model-00001-of-00001.safetensors")
    save_file({"a": torch.zeros(2)}, tmp_path / "consolidated.safetensors")
    index = {"weight_map": {"a": "model-00001-of-00001.safetensors"}}
    (tmp_path / INDEX).write_text(json.dumps(index))
    assert weight_files(tmp_path) == ["model-00001-of-00001.safetensors"]
    assert bits(dict(open_checkpoint(tmp_path).tensors())["a"]) == bits(torch.ones(2))


def test_a_tensor_that_is_in_two_files_is_refused(tmp_path: Path) -> None:
    save_file({"a": torch.ones(2)}, tmp_path / "one.safetensors")
    save_file({"a": torch.zeros(2)}, tmp_path / "two.safetensors")
    with pytest.raises(SchemaMismatch, match="'a' is in two files"):
        open_checkpoint(tmp_path)


def test_unaligned_tensors_of_other_writers_are_read(tmp_path: Path) -> None:
    values = torch.tensor([1.5, -2.5])
    header = {
        "a": {"dtype": "U8", "shape": [3], "data_offsets": [0, 3]},
        "b": {"dtype": "F32", "shape": [2], "data_offsets": [3, 11]},
    }
    text = json.dumps(header).encode()
    data = len(text).to_bytes(8, "little") + text + b"\1\2\3" + bits(values)
    (tmp_path / "odd.safetensors").write_bytes(data)
    state = open_checkpoint(tmp_path)
    assert bits(dict(state.tensors())["b"]) == bits(values)
    aligned = host_state({"a": torch.tensor([1, 2, 3], dtype=torch.uint8), "b": values})
    assert state.digest() == aligned.digest()


def test_writing_over_a_mapped_checkpoint_is_not_possible(tmp_path: Path) -> None:
    save_file({"a": torch.ones(2)}, tmp_path / "a.safetensors")
    with pytest.raises(ValueError, match="read-only"):
        open_checkpoint(tmp_path).lanes("a")[0] = 1


def test_side_files_are_what_is_not_weights(tmp_path: Path) -> None:
    for name in ("config.json", "tokenizer.json", "chat_template.jinja", "merges.txt"):
        (tmp_path / name).write_text(name)
    for name in (".hidden", "model.safetensors", "pytorch_model.bin", INDEX, "x.gguf", "y.pt"):
        (tmp_path / name).write_text("")
    (tmp_path / "onnx").mkdir()
    assert sorted(side_files(tmp_path)) == [
        "chat_template.jinja",
        "config.json",
        "merges.txt",
        "tokenizer.json",
    ]


# --- Files that lie ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["../out.safetensors", "/etc/passwd", "a/../../b", "..", "a\\..\\b", "", "a//b", "a\n"]
)
def test_an_index_cannot_point_out_of_its_directory(tmp_path: Path, name: str) -> None:
    inside = tmp_path / "checkpoint"
    inside.mkdir()
    save_file({"a": torch.ones(1)}, tmp_path / "out.safetensors")
    (inside / INDEX).write_text(json.dumps({"weight_map": {"a": name}}))
    with pytest.raises(BadObject):
        open_checkpoint(inside)


@pytest.mark.parametrize(
    "text",
    ["", "not json", "[]", "{}", '{"weight_map": []}', '{"weight_map": null}', "\xff", "[" * 5000],
)
def test_a_broken_index_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / INDEX).write_text(text, encoding="latin-1")
    with pytest.raises(BadObject):
        open_checkpoint(tmp_path)


def test_missing_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="no safetensors files"):
        open_checkpoint(tmp_path)
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": {"a": "gone.safetensors"}}))
    with pytest.raises(NotFound, match=r"gone\.safetensors"):
        open_checkpoint(tmp_path)
    with pytest.raises(NotFound):
        list(read_file(tmp_path / "gone.safetensors"))


def test_a_tensor_that_the_index_promises_must_be_there(tmp_path: Path) -> None:
    save_file({"a": torch.ones(1)}, tmp_path / "one.safetensors")
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": dict.fromkeys("ab", "one.safetensors")}))
    with pytest.raises(BadObject, match="'b'"):
        open_checkpoint(tmp_path)


def _header(text: bytes, *, length: int | None = None, body: bytes = b"") -> bytes:
    return (len(text) if length is None else length).to_bytes(8, "little") + text + body


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\0" * 7,
        b"garbage that is longer than eight bytes",
        _header(b"{}", length=1 << 60),
        _header(b"{}", length=3),
        _header(b'{"a":1}'),
        _header(b'{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}', body=b"1234567"),
        _header(b'{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}', body=b"123456789"),
        _header(b'{"a":{"dtype":"F32","shape":[3],"data_offsets":[0,8]}}', body=b"12345678"),
        _header(b'{"a":{"dtype":"F99","shape":[2],"data_offsets":[0,8]}}', body=b"12345678"),
        _header(b'{"a":{"dtype":"F32","shape":[-2],"data_offsets":[0,8]}}', body=b"12345678"),
        _header(b'{"a":{"dtype":"F32","shape":[2],"data_offsets":[8,0]}}', body=b"12345678"),
        _header(b"[1]"),
        _header(b"\xff\xfe"),
    ],
)
def test_garbage_is_no_checkpoint(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "model.safetensors").write_bytes(data)
    with pytest.raises(IntegrityError):
        open_checkpoint(tmp_path)


def test_a_directory_is_no_file(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").mkdir()
    with pytest.raises(BadObject):
        open_checkpoint(tmp_path)
