"""Asks for confirmation before irreversible actions, on an interactive terminal."""

import sys

from lance_stream.cli.output import Printable


def confirm(question: str, *, is_sure: bool) -> bool:
    """Return whether to continue. Scripts are not asked.

    Args:
        question: The action, as a question.
        is_sure: Whether the user confirmed on the command line.
    """
    if is_sure or not (sys.stdin is not None and sys.stdin.isatty() and sys.stderr.isatty()):
        return True
    print(f"{question} [y/N] ", end="", file=Printable(sys.stderr), flush=True)
    answer = sys.stdin.readline()
    if not answer.endswith("\n"):
        print(file=sys.stderr)
    return answer.strip().lower() in ("y", "yes")
