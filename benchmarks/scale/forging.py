"""Forges tables: a manifest that our code writes, over hard links to a few real data files.

A forged table is sound: every fragment has files of its own names, with the rows and bytes that the
manifest states, row ids and row versions. Only values repeat: each fragment has the keys from 0 on,
so that only keys above `ROWS_PER_FRAGMENT` can be upserted.
"""

import os
from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa

import lance_stream
from lance_stream.keys.bounds.cached_key_bounds import write_bounds
from lance_stream.keys.bounds.key_bounds import BoundsLearner, ColumnBounds
from lance_stream.snapshot.opening import open_newest
from lance_stream.snapshot.table_version import TableVersion
from lance_stream.table.apply.new_fragments import uniform_stamps
from lance_stream.table.fragments.deletion_vectors import encode_deletion_vector
from lance_stream.table.fragments.fragment import DeletionFile, Fragment
from lance_stream.table.lineage.row_ids import RowIdSequence, encode_row_ids
from lance_stream.table.manifest import FragmentList, Manifest, encode_manifest
from lance_stream.table.paths import (
    LATEST_VERSION_HINT,
    data_file_name,
    data_file_path,
    deletion_file_path,
    manifest_path,
)
from lance_stream.write.fragments import write_fragments, write_target

SCHEMA: Final = pa.schema(
    [pa.field("key", pa.int64(), nullable=False), ("value", pa.float64()), ("text", pa.string())]
)
ROWS_PER_FRAGMENT: Final = 10_000
LINKS_PER_FILE: Final = 10_000
"""File systems allow 65,000 names of a file, and fewer in places."""

DELETED_IN: Final = 10
"""One fragment in so many has a deletion file."""

VERSIONS_THAT_WROTE: Final = 5_000
"""Neighbors were written by the same version, one of so many."""


FORGED_VERSION: Final = VERSIONS_THAT_WROTE + 2


def rows(first: int, count: int) -> pa.Table:
    """Return rows with ascending keys."""
    keys = np.arange(first, first + count)
    texts = pa.array(keys % 1000).cast(pa.string())
    return pa.table([keys, keys * 0.5, texts], schema=SCHEMA)


def forge_table(uri: str, num_fragments: int, num_rows: int = ROWS_PER_FRAGMENT) -> None:
    """Make a table of many fragments, of whose key columns the bounds are known.

    Args:
        uri: Where.
        num_fragments: How many fragments it has.
        num_rows: The rows of each.
    """
    lance_stream.create_dataset(uri, SCHEMA, primary_key=["key"])
    table = open_newest(uri)
    keys = rows(0, num_rows)
    real: list[Fragment] = []
    for _ in range(-(-num_fragments // LINKS_PER_FILE)):
        real += write_fragments(keys.to_batches(), write_target(table))
    file_type, deleted = encode_deletion_vector(np.arange(0, num_rows, 100))
    deletions = Path(uri, "_deletions")
    deletions.mkdir()
    (deletions / "first").write_bytes(deleted)
    random = np.random.default_rng(0)
    fragments: list[Fragment] = []
    (field,) = table.schema.fields_named(["key"])
    bounds = ColumnBounds(field)
    for number in range(num_fragments):
        (file,) = real[number // LINKS_PER_FILE].files
        name = data_file_name(random.bytes(16))
        os.link(Path(uri, data_file_path(file.path)), Path(uri, data_file_path(name)))
        deletion_file = None
        if number % DELETED_IN == 0:
            deletion_file = DeletionFile(file_type, 1, number, -(-num_rows // 100))
            os.link(deletions / "first", Path(uri, deletion_file_path(number, deletion_file)))
        fragment = Fragment(
            number, (replace(file, path=name),), num_rows, deletion_file=deletion_file
        )
        stamps = uniform_stamps(
            fragment, 2 + VERSIONS_THAT_WROTE * number // max(num_fragments, VERSIONS_THAT_WROTE)
        )
        ids = RowIdSequence.from_range(number * num_rows, (number + 1) * num_rows)
        fragments.append(
            replace(
                fragment,
                row_ids=encode_row_ids(ids),
                created_at_versions=stamps,
                last_updated_at_versions=stamps,
            )
        )
        learner = BoundsLearner(fragment, [field])
        learner.add_keys([keys["key"].combine_chunks()])
        bounds.add(learner.file_bounds())
    (deletions / "first").unlink()
    for value in real:
        Path(uri, data_file_path(value.files[0].path)).unlink()
    _publish(
        table,
        replace(
            table.manifest,
            version=FORGED_VERSION,
            fragments=FragmentList.of(fragments),
            max_fragment_id=num_fragments - 1,
            next_row_id=num_fragments * num_rows,
            reader_feature_flags=table.manifest.reader_feature_flags | 1,
            writer_feature_flags=table.manifest.writer_feature_flags | 1,
        ),
    )
    write_bounds(table.store, bounds, FragmentList.of(fragments))


def forge_history(uri: str, num_versions: int) -> None:
    """Make a table with many versions of one fragment; the second one appended it.

    Args:
        uri: Where.
        num_versions: How many versions it has.
    """
    ds = lance_stream.create_dataset(uri, SCHEMA, primary_key=["key"])
    ds = ds.append(rows(0, 10))
    small = ds.table.manifest
    for version in range(3, num_versions + 1):
        _publish(ds.table, _at(small, version))


def _at(manifest: Manifest, version: int) -> Manifest:
    assert manifest.timestamp_nanos is not None
    return replace(
        manifest, version=version, timestamp_nanos=manifest.timestamp_nanos + version * 1_000_000
    )


def _publish(table: TableVersion, manifest: Manifest) -> None:
    table.store.create_once(manifest_path(manifest.version), encode_manifest(manifest), flush=False)
    table.store.write(LATEST_VERSION_HINT, b'{"version":%d}' % manifest.version)
