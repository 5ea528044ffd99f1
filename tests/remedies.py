"""What an error advises, done to the letter."""

import re
import shlex

import lance_stream
from lance_stream.cli import main as program

_DELETE = re.compile(r"""open_dataset\('[^']+'\)\.delete\("[^"]*"\)""")
_FORGET = re.compile(r"\(lance-stream (streams forget .*?)\)(?=[,;]|$)", re.MULTILINE)


def follow(message: str, *, deletes: bool = True) -> None:
    """Delete the rows that an error's message names, if at all, and forget the stream."""
    call, command = _DELETE.search(message), _FORGET.search(message)
    if call is not None and deletes:
        eval(call[0], {"open_dataset": lance_stream.open_dataset})
    assert command is not None, message
    assert program.main(shlex.split(command[1])) == 0
