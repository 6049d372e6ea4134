"""What all commands share: help, exit codes, errors, and what goes to which stream."""

from __future__ import annotations

import json
import logging
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from cli_samples import NEWEST, lines, record_path, run, succeed

import deltastore
from deltastore import Store
from deltastore import demo as demo_package
from deltastore.cli.records import Whole, gather
from deltastore.demo import DemoConfig, DemoFailed
from deltastore.errors import Unavailable
from deltastore.protocol.records import Slot

COMMANDS = ["init", "log", "show", "materialize", "diff", "doctor", "demo"]
ESCAPE = "\x1b["


def process(*args: object, code: str = "", **env: str) -> subprocess.CompletedProcess[str]:
    """Runs the command line as a process of its own."""
    start = ["-c", code] if code else ["-m", "deltastore", *map(str, args)]
    return subprocess.run(
        [sys.executable, *start], capture_output=True, text=True, check=False, env={**os.environ, **env}
    )


def test_the_version_is_printed() -> None:
    assert succeed("--version") == f"deltastore {deltastore.__version__}\n"


def test_help_documents_the_exit_codes() -> None:
    text = succeed("--help")
    for code, word in (
        (0, "done"),
        (2, "usage"),
        (3, "storage"),
        (4, "integrity"),
        (5, "conflict"),
        (6, "version"),
    ):
        assert re.search(rf"^ *{code} +.*{word}", text, re.MULTILINE), code


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_each_command_has_examples_of_it(command: str) -> None:
    examples = succeed(command, "--help").partition("Examples:")[2]
    assert f"deltastore {command}" in examples


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_has_json(command: str) -> None:
    assert "--json" in succeed(command, "--help")


# --- Errors ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", [["log"], ["show"], ["diff", 1, 2], ["materialize", "out"]])
def test_a_place_without_a_store_is_a_storage_error(command: list[object], tmp_path: Path) -> None:
    name, *rest = command
    result = run(name, tmp_path / "nothing", *rest)
    assert (result.exit_code, result.stdout) == (3, "")
    assert result.stderr.startswith("error: NotFound: there is no store at")
    assert "deltastore init" in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_an_error_is_one_json_line_on_stdout(tmp_path: Path) -> None:
    (found,) = lines("show", tmp_path / "nothing", code=3)
    assert (found["type"], found["error"], found["exit_code"]) == ("error", "NotFound", 3)
    assert found["fields"] == {"url": (tmp_path / "nothing").as_uri()}
    assert "init" in found["hint"]
    assert run("show", tmp_path / "nothing", "--json").stderr == ""


@pytest.mark.parametrize("args", [["shw"], ["show"], ["log", "x", "--bogus"], ["log", "x", "-n", "many"]])
def test_a_wrong_command_line_is_wrong_usage(args: list[str]) -> None:
    result = run(*args)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("error: ")
    assert "--help says more" in result.stderr
    (found,) = lines(*args, code=2)
    assert (found["type"], found["error"]) == ("error", "UsageError")


def test_what_was_not_expected_is_one_line_without_debug(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def burst(*_: object) -> None:
        raise RuntimeError("the pipes burst")

    monkeypatch.setattr("deltastore.cli.show.gather", burst)
    result = run("show", root)
    assert result.exit_code == 1
    assert result.stderr.splitlines()[0] == "error: RuntimeError: the pipes burst"
    assert "Traceback" not in result.stderr
    assert "--debug" in result.stderr
    debugged = run("--debug", "show", root)
    assert debugged.exit_code == 1
    assert "Traceback" in debugged.stderr
    assert "in burst" in debugged.stderr
    (found,) = lines("show", root, code=1)
    assert (found["error"], found["message"]) == ("RuntimeError", "the pipes burst")


def test_an_interrupt_has_its_own_exit_code(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("deltastore.cli.show.gather", interrupt)
    result = run("show", root)
    assert (result.exit_code, result.stdout) == (130, "")


def test_notes_of_an_error_are_shown(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        error = Unavailable("the store is away")
        error.add_note("Gave up after 9 attempt(s)")
        raise error

    monkeypatch.setattr("deltastore.cli.show.gather", fail)
    result = run("show", root)
    assert result.exit_code == 3
    assert "Gave up after 9" in result.stderr


# --- Streams --------------------------------------------------------------------------------------------


def test_warnings_of_the_library_are_talk(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def warn(store: Store, slot: Slot) -> Whole:
        facts = {"target": 7, "error": "it is torn"}
        logging.getLogger("deltastore.replay").warning("edge failed", extra=facts)
        return gather(store, slot)

    monkeypatch.setattr("deltastore.cli.show.gather", warn)
    result = run("show", root, "--json")
    assert result.stderr == "warning: edge failed (target 7): it is torn\n"
    assert json.loads(result.stdout)["version"] == NEWEST


def test_what_is_piped_has_no_colours(root: Path) -> None:
    for command in (["log", root], ["show", root], ["diff", root, 3, 4], ["doctor", root]):
        assert ESCAPE not in run(*command).output


@pytest.mark.parametrize("command", [["log"], ["show"], ["diff", 3, 4], ["doctor"]])
def test_a_terminal_of_100_columns_has_colours_and_no_torn_lines(command: list[object], root: Path) -> None:
    name, *rest = command
    result = run(name, root, *rest, env={"FORCE_COLOR": "1", "TERM": "xterm-256color"})
    assert result.exit_code == 0
    assert ESCAPE in result.stdout
    shown = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", result.stdout)
    assert max(map(len, shown.splitlines())) <= 100
    if name != "doctor":  # long details are wrapped
        assert words(shown) == words(run(name, root, *rest).stdout)


def words(text: str) -> list[list[str]]:
    """The words of each line, but for ages."""
    return [re.sub(r"\b\d+ [smh]\b", "AGE", line).split() for line in text.splitlines()]


def test_a_terminal_that_cannot_show_a_sign_gets_another(root: Path) -> None:
    done = process("log", root, PYTHONIOENCODING="ascii")
    assert done.returncode == 0
    assert [line[0] for line in done.stdout.splitlines()[1:4]] == ["?", "?", "?"]


# --- As a process ---------------------------------------------------------------------------------------


def test_the_module_runs_as_the_command(root: Path) -> None:
    done = process("log", root, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout.splitlines()[0])["version"] == NEWEST


def test_exit_codes_reach_the_shell(root: Path) -> None:
    record_path(root, NEWEST).write_bytes(b"nonsense")
    assert process("show", root).returncode == 4
    assert process("show", root / "nowhere").returncode == 3


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_a_stdout_that_takes_nothing_is_one_line_and_no_traceback(root: Path, options: list[str]) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "deltastore", "show", str(root), *options],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert done.returncode == 1
    assert done.stderr.splitlines()[0] == "error: OSError: [Errno 28] No space left on device"
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("missing", ["typer", "rich"])
def test_without_the_extra_one_line_says_what_to_install(missing: str) -> None:
    code = f"import sys; sys.modules[{missing!r}] = None; from deltastore.cli import main; main()"
    done = process(code=code)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "deltastore: the command line needs the extra 'cli' of deltastore-rl\n"


def test_commands_that_need_no_torch_do_not_import_it(root: Path) -> None:
    code = (
        "import sys; from deltastore.cli.app import app; "
        f"app(['show', {str(root)!r}], standalone_mode=False); sys.exit('torch' in sys.modules)"
    )
    assert process(code=code).returncode == 0


# --- The demo -------------------------------------------------------------------------------------------


def test_the_demo_is_asked_for_what_was_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[DemoConfig] = []
    monkeypatch.setattr(demo_package, "run", asked.append)
    succeed("demo", "--root", tmp_path, "--steps", 25, "--workers", 3, "--seed", 4)
    assert asked == [DemoConfig(root=tmp_path, steps=25, workers=3, seed=4, as_json=False)]


def test_a_demo_that_fails_ends_with_its_code(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(config: DemoConfig) -> None:
        print('{"ratio": 12.5}' if config.as_json else "ratio 12.5")
        raise DemoFailed("the reward did not rise", hint="Give it more --steps")

    monkeypatch.setattr(demo_package, "run", fail)
    result = run("demo")
    assert result.exit_code == 1
    assert result.stdout == "ratio 12.5\n"
    assert "error: DemoFailed: the reward did not rise" in result.stderr
    measured, error = lines("demo", code=1)
    assert (measured["type"], measured["ratio"]) == ("demo", 12.5)
    assert (error["type"], error["error"]) == ("error", "DemoFailed")
