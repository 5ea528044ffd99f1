"""The verbs and their exit codes.

    0    success
    1    `verify` or `doctor` has findings; or a system error (disk full, permission denied)
    2    invalid command: see the message
    3    there is no such table, version, column, tag or consumer
    4    the table is damaged, or has an unsupported feature
    5    the commit failed
    130  interrupted

An error is printed as one line on stderr, followed by its notes about the location.
"""

import argparse
import io
import os
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from pathlib import Path
from types import ModuleType
from typing import Final

from lance_stream.cli import changes, cleanup, compact, consumers, doctor, log, show, verify
from lance_stream.cli.output import Printable
from lance_stream.environment import MACHINE, Environment
from lance_stream.errors import (
    BadDataError,
    CommitError,
    InvalidInputError,
    LanceStreamError,
    NotFoundError,
)
from lance_stream.version import VERSION

PROGRAM: Final = "lance-stream"

VERBS: Final[dict[str, ModuleType]] = {
    "show": show,
    "log": log,
    "changes": changes,
    "compact": compact,
    "cleanup": cleanup,
    "verify": verify,
    "consumers": consumers,
    "doctor": doctor,
}

EXIT_CODES: Final[dict[type[Exception], int]] = {
    InvalidInputError: 2,
    NotFoundError: 3,
    BadDataError: 4,
    CommitError: 5,
    LanceStreamError: 1,
    OSError: 1,
}
"""The exit codes of errors; the first matching class applies."""

_INTERRUPTED: Final = 130

_EXIT_CODES_IN_WORDS: Final = (
    "exit codes: 0 success · 1 verify or doctor has findings, or a system error · "
    "2 invalid command · 3 not found · 4 damaged or not supported · 5 the commit failed"
)


def main(arguments: Sequence[str] | None = None, environment: Environment = MACHINE) -> int:
    """Run one command and return its exit code.

    Args:
        arguments: The arguments after the program's name; None for those of this process.
        environment: Sleeps while `changes --follow` waits for a new version.
    """
    parsed = make_parser().parse_args(arguments, argparse.Namespace(environment=environment))
    _check_output()
    try:
        with redirect_stdout(Printable(sys.stdout)):
            code: int = VERBS[parsed.verb].run(parsed)
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader closed the pipe. Python must not write anything when it exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        return _INTERRUPTED
    except tuple(EXIT_CODES) as error:
        notes = "".join(f"\n  {note}" for note in getattr(error, "__notes__", ()))
        print(f"{PROGRAM} {parsed.verb}: {error}{notes}", file=Printable(sys.stderr))
        return next(code for kind, code in EXIT_CODES.items() if isinstance(error, kind))
    return code


def _check_output() -> None:
    """Make sure that any table content can be printed in any encoding, also if stdout is closed."""
    if sys.stdout is None:  # closed by the calling program
        sys.stdout = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(
        prog=PROGRAM,
        description="Inspects Lance tables, follows their changes, and maintains them.",
        epilog=_EXIT_CODES_IN_WORDS,
    )
    parser.add_argument("--version", action="version", version=f"{PROGRAM} {VERSION}")
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    for name, module in VERBS.items():
        description = str(module.__doc__).partition("\n\n")[0]
        verb = verbs.add_parser(name, help=module.HELP, description=description)
        module.add_arguments(verb)
    return parser
