"""Hostile content in a table does no harm to those who read it or work on it.

Every verb is run on many tables with hostile content (see `attack`), in a process of its own with
little memory. It ends in an answer or in an error of ours: it does not crash, send a request to
another host, show a secret, or touch a file outside of the table.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.sampling import ALL_CASES
from tests.servers.buckets import Bucket

MORE = 40 if ALL_CASES else 1
MIN_SHARE = 0.2
"""So many of all verbs at least are answered, and as many refused: else nothing was tested."""


def check_attack(
    folder: Path, location: str, seed: int, rounds: int, options: dict[str, str]
) -> None:
    """Check that hostile tables end in answers or in our errors, with enough of both."""
    words = [str(folder), location, str(seed), str(rounds), json.dumps(options)]
    process = subprocess.run(
        [sys.executable, "-m", "tests.hostile.attack", *words],
        capture_output=True,
        text=True,
        timeout=3600,
        check=False,
    )
    last = process.stderr[-2000:] if process.returncode not in (0, 1) else ""
    assert process.returncode == 0, f"{process.returncode}\n{process.stdout}\n{last}"
    endings = json.loads(process.stdout.splitlines()[-1])
    total = sum(endings.values())
    assert total >= 20 * rounds
    assert endings["answered"] >= MIN_SHARE * total
    assert endings["refused"] >= MIN_SHARE / 4 * total


def test_hostile_memory_tables_are_harmless(tmp_path: Path) -> None:
    """Many tables are tried quickly here, without the cost of a disk or a server."""
    check_attack(tmp_path, "memory://hostile", 2, 12 * MORE, {})


def test_hostile_local_tables_are_harmless(tmp_path: Path) -> None:
    """A local table can name other files of the machine, which must neither be read nor changed."""
    check_attack(tmp_path, str(tmp_path / "tables"), 3, 8 * MORE, {})


@pytest.mark.slow
def test_hostile_bucket_tables_are_harmless(tmp_path: Path, any_bucket: Bucket) -> None:
    """A table in a bucket can name other hosts, which must not receive the reader's credentials."""
    check_attack(tmp_path, f"{any_bucket.uri}/tables", 4, 3 * MORE, any_bucket.storage_options)
