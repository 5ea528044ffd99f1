"""Replaces Python calls in error messages with commands.

Error messages state their remedy as a Python call. On the command line, the remedy is a command.
"""

import re
from typing import Final

_COMMANDS: Final[tuple[tuple[str, str], ...]] = (
    (r"open it with open_dataset\(uri, branch='(.+?)'\)", r"name it with --branch \1"),
    (r"ds\.(branches|tags)\.delete\(name\)", r"`lance-stream \1 delete URI NAME`"),
    (r"ds\.(branches|tags)\.delete\('(.+?)'\)", r"`lance-stream \1 delete URI \2`"),
    (
        r"ds\.branches\.create\(name, version\)",
        "`lance-stream branches create URI NAME VERSION`",
    ),
    (r"\(tag_source=True\)", "(without --no-tag)"),
    (r"\(tag_source=False\)", "(--no-tag)"),
    (
        r"lance_stream\.migrate_to_stable_row_ids\(uri\)",
        "`lance-stream migrate URI stable-row-ids`",
    ),
    (
        r"lance_stream\.migrate_manifest_paths\(uri\)",
        "`lance-stream migrate URI manifest-names`",
    ),
)
"""Patterns in messages, and their replacements on the command line."""


def as_commands(message: str) -> str:
    """Return a message with commands in place of Python calls."""
    for pattern, replacement in _COMMANDS:
        message = re.sub(pattern, replacement, message)
    return message
