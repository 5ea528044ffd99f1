"""Runs a command and returns its exit code.

    0    success
    1    `verify` or `doctor` has findings; or a system error (disk full, permission denied)
    2    the command is invalid; the message states the reason
    3    the table, version, column, tag or consumer does not exist
    4    the table is damaged, or has an unsupported feature
    5    the commit failed
    130  interrupted

An error is one paragraph on stderr: the message, followed by notes about the location. With
`--debug`, the traceback comes first.
"""

import io
import logging
import os
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from lance_stream.cli.advice import as_commands
from lance_stream.cli.commands import PROGRAM, make_program
from lance_stream.cli.grammar import MissingCommandError, Session
from lance_stream.cli.output import Printable
from lance_stream.errors import (
    BadDataError,
    CommitError,
    InvalidInputError,
    LanceStreamError,
    NotFoundError,
)

if TYPE_CHECKING:
    from lance_stream.environment import Environment

EXIT_CODES: Final[dict[type[Exception], int]] = {
    InvalidInputError: 2,
    NotFoundError: 3,
    BadDataError: 4,
    CommitError: 5,
    LanceStreamError: 1,
    OSError: 1,
}
"""The exit codes of errors; the first matching class applies."""

COMPLETION: Final = "_LANCE_STREAM_COMPLETE"
"""The environment variable with which a shell requests completions."""

_INVALID: Final = 2
_INTERRUPTED: Final = 130


def main(arguments: Sequence[str] | None = None, environment: "Environment | None" = None) -> int:
    """Run one command and return its exit code.

    Args:
        arguments: The arguments after the program's name; None for those of this process.
        environment: The clock, and the sleep of `changes --follow`; None for the machine's.
    """
    if arguments is None and COMPLETION in os.environ:
        return _complete(os.environ[COMPLETION])
    words = list(sys.argv[1:] if arguments is None else arguments)
    session = Session(environment)
    _make_output_safe()
    try:
        with redirect_stdout(Printable(sys.stdout)), _warnings_in_one_line():
            code = _run(words, session)
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader closed the pipe. Python must not write anything when it exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        return _INTERRUPTED
    return code


def _run(words: list[str], session: Session) -> int:
    program = make_program()
    try:
        with program.make_context(PROGRAM, words, obj=session) as context:
            return int(program.invoke(context) or 0)
    except click.exceptions.Exit as end:
        return end.exit_code
    except MissingCommandError as error:
        _print_error(error.ctx.get_help() if error.ctx else str(error))
        return _INVALID
    except click.UsageError as error:
        where = error.ctx.command_path if error.ctx else PROGRAM
        _print_error(f"{where}: {_as_sentence(error)}\nTry: {where} --help")
        return _INVALID
    except BrokenPipeError:
        raise
    except Exception as error:
        return _report(error, session.command or PROGRAM, is_debug=session.is_debug)


def _as_sentence(error: click.UsageError) -> str:
    text = error.format_message().replace("\n\t", " ")
    return text[:1].lower() + text[1:] if text[1:2].islower() else text


def _report(error: Exception, path: str, *, is_debug: bool) -> int:
    """Print an error, and return its exit code."""
    if is_debug:
        _print_error("".join(traceback.format_exception(error)).rstrip())
    notes = "".join(f"\n  {note}" for note in getattr(error, "__notes__", ()))
    for kind, code in EXIT_CODES.items():
        if isinstance(error, kind):
            _print_error(as_commands(f"{path}: {error}{notes}"))
            return code
    advice = "" if is_debug else "\n  This is a bug in lance-stream: --debug shows the traceback."
    _print_error(f"{path}: {type(error).__name__}: {error}{notes}{advice}")
    return 1


def _print_error(text: str) -> None:
    print(text, file=Printable(sys.stderr))


def _complete(instruction: str) -> int:
    from click.shell_completion import shell_complete

    return shell_complete(make_program(), {}, PROGRAM, COMPLETION, instruction)


def _make_output_safe() -> None:
    """Make any text printable in any encoding, even if a stream is closed."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by the calling program
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115  # open until the process ends
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


class _OneLineHandler(logging.Handler):
    """Prints each log record of the package on one line of stderr."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print a record."""
        _print_error(f"{PROGRAM}: {record.levelname.lower()}: {record.getMessage()}")


@contextmanager
def _warnings_in_one_line() -> Iterator[None]:
    """Print warnings on stderr in the form of errors: one line, without control characters."""
    handler, logger = _OneLineHandler(logging.WARNING), logging.getLogger("lance_stream")
    show_warning: Callable[..., Any] = warnings.showwarning
    if not logger.handlers:
        logger.addHandler(handler)
    warnings.showwarning = lambda message, *_, **__: _print_error(f"{PROGRAM}: warning: {message}")
    try:
        yield
    finally:
        warnings.showwarning = show_warning
        logger.removeHandler(handler)
