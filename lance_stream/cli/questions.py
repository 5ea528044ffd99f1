"""Questions before something that cannot be undone, and only if a person can answer."""

import sys

from lance_stream.cli.output import Printable


def may_go_on(question: str, *, is_sure: bool) -> bool:
    """Return whether to go on: a person at a terminal is asked, a script is not.

    Args:
        question: What is about to happen, as a question.
        is_sure: Whether the answer was given on the command line.
    """
    if is_sure or not (sys.stdin is not None and sys.stdin.isatty() and sys.stderr.isatty()):
        return True
    print(f"{question} [y/N] ", end="", file=Printable(sys.stderr), flush=True)
    answer = sys.stdin.readline()
    if not answer.endswith("\n"):
        print(file=sys.stderr)
    return answer.strip().lower() in ("y", "yes")
