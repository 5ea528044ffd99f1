"""The verbs, and how each ends: by 0, by its own answer, or by the exit code of an error.

    0    done
    1    `verify` has findings; or the system could not do it (a disk is full, a right is missing)
    2    the command makes no sense: see the message
    3    there is no such table, version, column, tag or consumer
    4    the table is damaged, or has a feature that is not supported
    5    the commit did not go through
    130  interrupted

An error is one line on stderr, and what the error notes of where it was.
"""

import argparse
import importlib.metadata
import io
import os
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from pathlib import Path
from types import ModuleType
from typing import Final

from lance_stream.cli import changes, cleanup, compact, consumers, log, show, verify
from lance_stream.cli.output import Printable
from lance_stream.errors import (
    BadDataError,
    CommitError,
    InvalidInputError,
    LanceStreamError,
    NotFoundError,
)

PROGRAM: Final = "lance-stream"

VERBS: Final[dict[str, ModuleType]] = {
    "show": show,
    "log": log,
    "changes": changes,
    "compact": compact,
    "cleanup": cleanup,
    "verify": verify,
    "consumers": consumers,
}

EXIT_CODES: Final[dict[type[Exception], int]] = {
    InvalidInputError: 2,
    NotFoundError: 3,
    BadDataError: 4,
    CommitError: 5,
    LanceStreamError: 1,
    OSError: 1,
}
"""How an error ends the program; the first class that fits counts."""

_INTERRUPTED: Final = 130

_EXIT_CODES_IN_WORDS: Final = (
    "exit codes: 0 done · 1 verify has findings, or the system could not do it · 2 the command "
    "makes no sense · 3 there is no such thing · 4 damaged or not supported · 5 the commit did not "
    "go through"
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command, and return its exit code.

    Args:
        arguments: The words after the program's name; None for those of this process.
    """
    parsed = make_parser().parse_args(arguments)
    _check_output()
    try:
        with redirect_stdout(Printable(sys.stdout)):
            code: int = VERBS[parsed.verb].run(parsed)
        sys.stdout.flush()
    except BrokenPipeError:
        # Whoever reads the output has seen enough. Nothing may be written when Python exits.
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
    """See to it that whatever a table holds can be printed, in whatever encoding, or nowhere."""
    if sys.stdout is None:  # closed by who started the program
        sys.stdout = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def make_parser() -> argparse.ArgumentParser:
    """Return what understands the words of a command."""
    parser = argparse.ArgumentParser(
        prog=PROGRAM,
        description="Looks at Lance tables, follows their changes, and takes care of them.",
        epilog=_EXIT_CODES_IN_WORDS,
    )
    version = importlib.metadata.version("lance-stream")
    parser.add_argument("--version", action="version", version=f"{PROGRAM} {version}")
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    for name, module in VERBS.items():
        description = str(module.__doc__).partition("\n\n")[0]
        verb = verbs.add_parser(name, help=module.HELP, description=description)
        module.add_arguments(verb)
    return parser
