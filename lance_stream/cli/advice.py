"""Says in commands what messages say in Python.

Messages of errors name the way out as a user of Python takes it. On the command line the same way
out is another command.
"""

import re
from typing import Final

_WORDS: Final[tuple[tuple[str, str], ...]] = (
    (r"open it by open_dataset\(uri, branch='(.+?)'\)", r"name it by --branch \1"),
    (r"ds\.(branches|tags)\.delete\(name\)", r"`lance-stream \1 delete URI NAME`"),
    (r"ds\.(branches|tags)\.delete\('(.+?)'\)", r"`lance-stream \1 delete URI \2`"),
    (
        r"ds\.branches\.create\(name, version\)",
        "`lance-stream branches create URI NAME VERSION`",
    ),
    (r"\(tag_source=True\)", "(without --no-tag)"),
    (r"\(tag_source=False\)", "(--no-tag)"),
    (
        r"lance_stream\.migrate_to_stable_row_ids",
        "`lance-stream migrate URI stable-row-ids`",
    ),
    (r" \(as lance_stream\.create_dataset does\)", ""),
)
"""What messages say, and the same for the command line."""


def as_commands(message: str) -> str:
    """Return a message with commands in place of calls."""
    for pattern, words in _WORDS:
        message = re.sub(pattern, words, message)
    return message
