"""What an error advises, done to the letter."""

import re

import lance_stream

_CALLS = (r'delete\("[^"]*"\)', r"update_config\(\{[^}]*\}\)")


def follow(error: BaseException) -> list[str]:
    """Make the calls that an error's message names, each verb's first; return them."""
    text = str(error)
    found = [re.search(rf"open_dataset\('[^']+'\)\.{call}", text) for call in _CALLS]
    calls = [row[0] for row in found if row]
    for call in calls:
        eval(call, {"open_dataset": lance_stream.open_dataset})
    return calls
