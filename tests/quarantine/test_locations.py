"""Locations of tables that are spelled in several ways."""

from pathlib import Path

import pytest

from lance_stream.quarantine.table import normalized


@pytest.mark.parametrize(
    ("uri", "expected"),
    [
        ("s3://bucket/t", "s3://bucket/t"),
        ("s3a://bucket/t/", "s3://bucket/t"),
        ("s3n://bucket/t", "s3://bucket/t"),
        ("gs://bucket/s3a:t", "gs://bucket/s3a:t"),
        ("file:/a/../t", "file:/a/../t"),
    ],
)
def test_spellings_of_a_location_are_equal(uri: str, expected: str) -> None:
    """Otherwise a table would refuse its own quarantine as that of another table."""
    assert normalized(uri) == expected


def test_paths_are_followed_to_their_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same table may be opened by a relative path or through a link."""
    folder = tmp_path / "folder"
    folder.mkdir()
    (tmp_path / "link").symlink_to(folder)
    monkeypatch.chdir(tmp_path)
    for path in ("folder", "folder/", "./x/../folder", "link", str(tmp_path / "link")):
        assert normalized(path) == str(folder.resolve())
