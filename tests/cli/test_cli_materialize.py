"""`deltastore materialize`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cli_samples import COLLECTED, FILES, NEWEST, Sample, lines, run
from safetensors import safe_open

from deltastore import ExternalBase, Producer, Store


def bits(directory: Path) -> dict[str, bytes]:
    """The bytes of a checkpoint by tensor, as safetensors and torch read them."""
    import torch

    with safe_open(directory / "model.safetensors", "pt") as file:
        return {name: file.get_tensor(name).view(torch.uint8).numpy().tobytes() for name in file.keys()}  # noqa: SIM118


def expected(sample: Sample, version: int) -> dict[str, bytes]:
    """What a checkpoint holds: tensors that own their storage."""
    return {name: data for name, data in sample.bits[version].items() if name != "head.weight"}


def test_the_newest_version_becomes_a_complete_checkpoint(sample: Sample, tmp_path: Path) -> None:
    result = run("materialize", sample.root, tmp_path / "out")
    assert result.exit_code == 0
    assert result.stdout == f"{tmp_path / 'out'}\n"
    assert f"version {NEWEST} (step 60)" in result.stderr
    found = bits(tmp_path / "out")
    assert {name: found[name] for name in expected(sample, NEWEST)} == expected(sample, NEWEST)
    for name, data in FILES.items():
        assert (tmp_path / "out" / name).read_bytes() == data


@pytest.mark.parametrize(("option", "value", "version"), [("--version", 4, 4), ("--step", 40, 6)])
def test_a_version_is_chosen_by_number_or_step(
    sample: Sample, tmp_path: Path, option: str, value: int, version: int
) -> None:
    (found,) = lines("materialize", sample.root, tmp_path / "out", option, value)
    assert (found["type"], found["version"]) == ("materialized", version)
    assert json.loads((tmp_path / "out" / "deltastore.json").read_text())["state"] == found["state"]
    assert bits(tmp_path / "out")["embed.weight"] == sample.bits[version]["embed.weight"]


def test_a_directory_that_holds_an_earlier_version_fetches_only_the_rest(
    sample: Sample, tmp_path: Path
) -> None:
    (first,) = lines("materialize", sample.root, tmp_path / "out", "--version", 7)
    (second,) = lines("materialize", sample.root, tmp_path / "out")
    (third,) = lines("materialize", sample.root, tmp_path / "out")
    assert second["fetched_bytes"] < first["fetched_bytes"] / 2
    assert third["fetched_bytes"] == 0
    assert bits(tmp_path / "out")["layer.weight"] == sample.bits[NEWEST]["layer.weight"]


def test_a_directory_of_somebody_else_is_left_alone(root: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("precious")
    assert run("materialize", root, tmp_path / "mine").exit_code == 2
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["notes.txt"]


def test_a_collected_version_is_not_to_be_had(root: Path, tmp_path: Path) -> None:
    result = run("materialize", root, tmp_path / "out", "--version", COLLECTED)
    assert result.exit_code == 6
    assert "Collected" in result.stderr
    assert not (tmp_path / "out").exists()


def test_an_external_base_is_taken_from_this_machine(sample: Sample, tmp_path: Path) -> None:
    base = tmp_path / "base"
    assert run("materialize", sample.root, base, "--version", 4).exit_code == 0
    with Store.create(str(tmp_path / "based")) as store:
        weights = dict(ExternalBase(base).state().tensors())
        with Producer(store, base=base, anchors=None) as producer:
            producer.publish(weights, step=1).result(60)
    assert run("materialize", tmp_path / "based", tmp_path / "out").exit_code == 6
    assert run("materialize", tmp_path / "based", tmp_path / "out", "--base", base).exit_code == 0
    assert bits(tmp_path / "out")["embed.weight"] == sample.bits[4]["embed.weight"]
