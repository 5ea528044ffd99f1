"""The page about the ends of intervals: what it says of the command line."""

import json
import re
import shlex
from pathlib import Path

import pyarrow as pa
import pytest

import lance_stream
from lance_stream.cli.main import main

PAGE = (Path(__file__).parent.parent.parent / "docs/reference/version-ranges.md").read_text()


def test_the_command_line_follows_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The page promises `--after` exclusive and `--through` inclusive, and its own command is
    run.
    """
    monkeypatch.chdir(tmp_path)
    ds = lance_stream.create_dataset("tables/ranges.lance", pa.table({"id": [1]}))
    for number in (2, 3, 4):
        ds = ds.append(pa.table({"id": [number]}))
    (command,) = re.findall(r"^\$ lance-stream (.*)$", PAGE, re.MULTILINE)
    assert "--after 1 --through 3" in command
    assert main(shlex.split(command)) == 0
    printed = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["_commit_version"] for row in printed] == [2, 3]


def test_documented_ranges_have_code() -> None:
    """A row of the table without code below it would be an unchecked claim."""
    code = "\n".join(re.findall(r"^```\w+\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL))
    for name in (
        "startingVersion=2, endingVersion=3",
        "after=1, through=3",
        "--after 1 --through 3",
    ):
        assert name in PAGE.split("## Checked")[0]
        assert name in code
