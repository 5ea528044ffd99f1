"""The progress of a derivation is stored in the table's config."""

import json
from dataclasses import replace
from typing import Any

import pytest

from lance_stream.derived.progress import (
    PREFIX,
    PendingRange,
    Progress,
    committed,
    config_key,
    encode,
    read_all,
    read_progress,
)
from lance_stream.errors import CorruptDataError

PROGRESS = Progress(
    "f", "1", 0, (PendingRange(0, 0, (5,)), PendingRange(4)), (8,), (1, 2), "m", (3,), True, "s"
)
ENTRY = encode(PROGRESS)


def test_progress_entries_round_trip() -> None:
    """Progress survives only as this text in the configuration of the table."""
    assert read_progress({config_key("a b"): ENTRY}, "a b") == PROGRESS


def test_entries_keep_their_keys() -> None:
    """Tables store the keys, so they cannot be renamed like attributes."""
    assert json.loads(ENTRY) == {
        "function": "f",
        "function_version": "1",
        "through": 0,
        "pending": [
            {"after": 0, "below": 0, "skip": [5]},
            {"after": 4, "below": None, "skip": []},
        ],
        "own": [8],
        "fields": [1, 2],
        "mark": "m",
        "outputs": [3],
        "renews": True,
        "source": "s",
    }


def test_entries_without_renewal_renew_nothing() -> None:
    """The state column must not be dropped again."""
    entry = {name: value for name, value in json.loads(ENTRY).items() if name != "renews"}
    progress = read_progress({config_key("a"): json.dumps(entry)}, "a")
    assert progress == replace(PROGRESS, renews=False)


def test_commits_move_progress_to_themselves() -> None:
    """If no version of others is in between, nothing before the commit is checked again."""
    assert committed(PROGRESS, 9, is_next=True) == replace(PROGRESS, through=9, derived_versions=())
    assert committed(PROGRESS, 9, is_next=False) == replace(PROGRESS, derived_versions=(8, 9))


def test_damaged_entries_hide_no_others() -> None:
    """A derivation needs the columns of all others, whichever entry comes first."""
    config = {config_key("a"): "{", f"{PREFIX}not quoted": ENTRY, config_key("b"): ENTRY}
    assert read_all(config, "b") == {"b": PROGRESS}
    with pytest.raises(CorruptDataError, match=r"derived\.a"):
        read_all(config, "a")


@pytest.mark.parametrize(
    "change",
    [
        {"through": -1},
        {"through": True},
        {"through": "7"},
        {"pending": [{"after": -1, "below": None, "skip": []}]},
        {"pending": [{"after": 1, "below": -1, "skip": []}]},
        {"pending": [{"after": 1, "below": None, "skip": [-1]}]},
        {"fields": [-1]},
        {"own": None},
    ],
)
def test_damaged_entries_name_their_remedy(change: dict[str, Any]) -> None:
    """A wrong number would leave rows out of all later runs."""
    config = {config_key("a"): json.dumps({**json.loads(ENTRY), **change})}
    with pytest.raises(CorruptDataError, match=r"update_config\(\{'lance_stream\.derived\.a'"):
        read_progress(config, "a")
