"""The commands under one roof: their order, what they share, and how they end."""

from __future__ import annotations

import inspect
import logging
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from deltastore import __version__
from deltastore.cli import demo, diff, doctor, failures, init, log, materialize, show
from deltastore.cli.output import Warnings


class Commands(TyperGroup):
    """The group of all commands; ends every one of them, however it went, with a documented exit code."""

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> Any:
        """Runs one command."""
        given = list(sys.argv[1:] if args is None else args)
        _printable(sys.stdout)
        _printable(sys.stderr)
        try:
            with _warnings():
                code = super().main(
                    args=given,
                    prog_name=prog_name,
                    complete_var=complete_var,
                    standalone_mode=False,
                    windows_expand_args=windows_expand_args,
                    **extra,
                )
        except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 (the edge: every error ends here)
            code = _report(error, json="--json" in given, debug="--debug" in given)
        if standalone_mode:
            sys.exit(code if isinstance(code, int) else 0)
        return code


app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"deltastore {__version__}")
        raise typer.Exit


@app.callback(
    epilog=f"""\
Data goes to stdout, everything else to stderr.
With --json every line of stdout is an object whose first field is
"format": "deltastore-cli/1"; an error is the last one, of type "error".

{failures.CODES}"""
)
def root(
    *,
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit."),
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks of errors.")] = False,
) -> None:
    """Look into stores of weights, and take checkpoints out of them."""
    del version, debug  # the first has exited, the second is read where errors end


def _register(function: Callable[..., None], examples: str) -> None:
    """Adds a command; its help is its docstring, wrapped to the terminal and not to the source."""
    paragraphs = inspect.cleandoc(function.__doc__ or "").split("\n\n")
    text = "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)
    app.command(function.__name__, help=text, epilog=examples)(function)


_register(init.init, init.EXAMPLES)
_register(log.log, log.EXAMPLES)
_register(show.show, show.EXAMPLES)
_register(materialize.materialize, materialize.EXAMPLES)
_register(diff.diff, diff.EXAMPLES)
_register(doctor.doctor, doctor.EXAMPLES)
_register(demo.demo, demo.EXAMPLES)


def _report(error: BaseException, *, json: bool, debug: bool) -> int:
    try:
        return failures.report(error, json=json, debug=debug)
    except OSError:  # stdout is full or gone, so stderr it is
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return failures.report(error, json=False, debug=debug)


def _printable(stream: Any) -> None:
    """A terminal that cannot show a sign shows another one, instead of ending the command."""
    if hasattr(stream, "reconfigure"):
        stream.reconfigure(errors="replace")


@contextmanager
def _warnings() -> Iterator[None]:
    logger = logging.getLogger("deltastore")
    handler = Warnings(logging.WARNING)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
