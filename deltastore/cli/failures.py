"""How a command fails: one line that says what and what to do, and the exit code of the error's class."""

from __future__ import annotations

import sys
import traceback
from typing import Final

from typer import Abort, BadParameter
from typer import Exit as TyperExit

from deltastore.cli.output import Output
from deltastore.errors import DeltaStoreError

INTERRUPTED: Final = 130
USAGE: Final = 2
UNEXPECTED: Final = 1

_ClickUsageError = BadParameter.__mro__[1]
"""Whatever click says of a command line; typer brings its own click, or takes the one that is installed."""

CODES: Final = """\
Exit codes:

0    done
1    another error
2    wrong usage: fix the call
3    the storage: nothing there, no access, no space, or not to be reached
4    integrity: bytes are not what they must be
5    conflict: another writer
6    the version is not to be had: never committed, collected, or no way to it
130  interrupted
"""


def report(error: BaseException, *, json: bool, debug: bool) -> int:
    """Says what went wrong: on stderr, or as a line of JSON on stdout; the traceback only with `debug`.

    Returns:
        The exit code.
    """
    if isinstance(error, TyperExit):
        return error.exit_code
    if isinstance(error, KeyboardInterrupt | Abort):
        return INTERRUPTED
    if debug:
        traceback.print_exception(error, file=sys.stderr)
    if isinstance(error, _ClickUsageError):
        return _usage(error, json=json)
    if isinstance(error, DeltaStoreError):
        _say(type(error).__name__, error, error.what, error.hint, error.code, json=json)
        return error.code
    hint = "" if debug else "This was not expected: deltastore --debug ... shows where it happened"
    _say(type(error).__name__, error, str(error) or "no message", hint, UNEXPECTED, json=json)
    return UNEXPECTED


def _say(name: str, error: BaseException, what: str, hint: str, code: int, *, json: bool) -> None:
    out = Output(json=json)
    if json:
        fields = error.fields if isinstance(error, DeltaStoreError) else {}
        out.record("error", error=name, message=what, hint=hint, fields=fields, exit_code=code)
        return
    out.say(f"error: {name}: {what}", style="red")
    for note in (*getattr(error, "__notes__", ()), *([hint] if hint else ())):
        out.say(f"  {note}")


def _usage(error: BaseException, *, json: bool) -> int:
    context = getattr(error, "ctx", None)
    command = "deltastore" if context is None else str(context.command_path)
    message = str(getattr(error, "format_message", error.__str__)())
    out = Output(json=json)
    if json:
        hint = f"See {command} --help"
        out.record("error", error="UsageError", message=message, hint=hint, fields={}, exit_code=USAGE)
    elif message:
        out.say(f"error: {message}", style="red")
        if context is not None:
            out.say(f"  {context.get_usage()}")
        out.say(f"  {command} --help says more")
    return USAGE
