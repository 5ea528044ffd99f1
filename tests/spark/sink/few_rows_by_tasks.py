"""Upserts of few rows as those of many on a cluster: by tasks, in several ranges."""

import pytest

from lance_stream.row_updates import staged_files
from lance_stream.spark.jobs import range_tasks
from lance_stream.spark.sink import batch_writing, modes, staged_upserts
from lance_stream.upsert.large import staged_rows


def upsert_by_tasks(patch: pytest.MonkeyPatch, *, is_cluster: bool = True) -> None:
    """Have rows staged, and ranges of their keys processed by tasks.

    Args:
        patch: What patches limits for a time.
        is_cluster: Whether tasks process the ranges; otherwise, threads of the driver.
    """
    patch.setattr(modes, "MAX_ROWS_ON_DRIVER", 0)
    patch.setattr(batch_writing, "SMALL_FIRST_BYTES", -1)
    patch.setattr(staged_upserts, "driver_is_alone", lambda _: not is_cluster)
    patch.setattr(staged_rows, "MAX_ROWS", 0)
    patch.setattr(staged_files, "MIN_ROWS", 1)
    patch.setattr(range_tasks, "MIN_ROWS", 1)
    patch.setattr(range_tasks, "MIN_SHARED_ROWS", 1)
