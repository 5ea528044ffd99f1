"""Automatic cleanups compared with pylance's: after each commit the same versions remain."""

import random
from pathlib import Path
from typing import Final

import lance
import pyarrow as pa
import pytest

import lance_stream
from lance_stream.table.config.auto_cleanup import INTERVAL, OLDER_THAN, RETAIN_VERSIONS

pytestmark = pytest.mark.oracle

ROWS: Final = pa.table({"id": pa.array([1, 2])})

CONFIGS: Final[tuple[dict[str, str], ...]] = (
    {INTERVAL: "3"},
    {INTERVAL: "0", OLDER_THAN: "0s"},
    {INTERVAL: "2", RETAIN_VERSIONS: "1"},
    {INTERVAL: "3", RETAIN_VERSIONS: "3"},
    {INTERVAL: "2", RETAIN_VERSIONS: "1", OLDER_THAN: "1h"},
    {OLDER_THAN: "0s"},
)


def versions(uri: str) -> list[int]:
    return [version["version"] for version in lance.dataset(uri).versions()]


def append_ours(uri: str) -> None:
    lance_stream.open_dataset(uri).append(ROWS)


def append_theirs(uri: str) -> None:
    lance.write_dataset(ROWS, uri, mode="append")


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: "-".join(config.values()))
def test_both_retain_the_same_versions(tmp_path: Path, config: dict[str, str]) -> None:
    """The table's config must have one meaning for all writers."""
    ours, theirs = str(tmp_path / "ours"), str(tmp_path / "theirs")
    for uri in (ours, theirs):
        lance.write_dataset(ROWS, uri).update_config(config)
    for _ in range(7):
        append_ours(ours)
        append_theirs(theirs)
        assert versions(ours) == versions(theirs)


def test_two_programs_share_auto_cleanup(tmp_path: Path) -> None:
    """Neither program may remove a file that a version of the other needs."""
    uri = str(tmp_path / "table")
    lance.write_dataset(ROWS, uri).update_config({INTERVAL: "2", OLDER_THAN: "0s"})
    choose = random.Random(1)
    for number in range(12):
        choose.choice((append_ours, append_theirs))(uri)
        assert lance.dataset(uri).count_rows() == 2 * (number + 2)
        assert lance_stream.open_dataset(uri).verify(deep=True) == []
    assert len(versions(uri)) <= 3
