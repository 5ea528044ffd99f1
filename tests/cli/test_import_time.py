"""Help and completion answer at once: they load no Arrow."""

import json
import os
import subprocess
import sys

import pytest

from lance_stream.cli.commands import COMMANDS

HEAVY = ("numpy", "pyarrow", "google.protobuf", "asyncio", "rich.console", "lance_stream.dataset")

HELP_OF_ALL = """
import contextlib, io, json, sys
from lance_stream.cli.commands import COMMANDS
from lance_stream.cli.main import main
with contextlib.redirect_stdout(io.StringIO()):
    calls = [["--help"], ["--version"], *([each, "--help"] for each in COMMANDS)]
    codes = [main(words) for words in calls]
print(json.dumps([codes, sorted(set(sys.argv[1:]) & set(sys.modules))]))
"""


@pytest.mark.floors
def test_help_loads_nothing_heavy() -> None:
    """Loading Arrow or Spark takes seconds, too long for a help text."""
    process = subprocess.run(
        [sys.executable, "-c", HELP_OF_ALL, *HEAVY], capture_output=True, text=True, check=True
    )
    codes, loaded = json.loads(process.stdout)
    assert codes == [0] * (len(COMMANDS) + 2)
    assert loaded == []


COMPLETE = """
import atexit, sys
atexit.register(lambda: print(*sorted(set(sys.argv[1:]) & set(sys.modules)), file=sys.stderr))
from lance_stream.cli.main import main
sys.exit(main())
"""


@pytest.mark.parametrize(
    ("words", "completion"),
    [
        ("lance-stream cle", "plain,cleanup"),
        ("lance-stream cleanup --dry", "plain,--dry-run"),
        ("lance-stream consumers dr", "plain,drop"),
        ("lance-stream show ./som", "dir,./som"),
        ("lance-stream completion z", "plain,zsh"),
    ],
)
def test_completion_loads_nothing_heavy(words: str, completion: str) -> None:
    """The shell runs the program at every press of the tab key."""
    variables = {
        "_LANCE_STREAM_COMPLETE": "bash_complete",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split()) - 1),
    }
    process = subprocess.run(
        [sys.executable, "-c", COMPLETE, *HEAVY],
        capture_output=True,
        text=True,
        env={**os.environ, **variables},
    )
    assert (process.stdout.split(), process.stderr.strip()) == ([completion], "")
