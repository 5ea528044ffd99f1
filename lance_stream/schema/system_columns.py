"""Columns that no data file stores: a row's position, its id, its row versions, and its change.

Source: the row id and lineage document; the names are those of the reference.
"""

from typing import Final

import pyarrow as pa

ROW_ID: Final = "_rowid"
ROW_ADDRESS: Final = "_rowaddr"
ROW_OFFSET: Final = "_rowoffset"
ROW_CREATED_AT_VERSION: Final = "_row_created_at_version"
ROW_LAST_UPDATED_AT_VERSION: Final = "_row_last_updated_at_version"

CHANGE_TYPE: Final = "_change_type"
COMMIT_VERSION: Final = "_commit_version"
COMMIT_TIMESTAMP: Final = "_commit_timestamp"

DELETES: Final = "_lance_stream_deletes"
"""A column that is never stored: whether a row deletes its key. New tables cannot have one."""

SYSTEM_COLUMNS: Final = frozenset(
    {
        ROW_ID,
        ROW_ADDRESS,
        ROW_OFFSET,
        ROW_CREATED_AT_VERSION,
        ROW_LAST_UPDATED_AT_VERSION,
        CHANGE_TYPE,
        COMMIT_VERSION,
        COMMIT_TIMESTAMP,
    }
)
"""Names that the columns of a table must not have."""

CHANGE_COLUMNS: Final = pa.schema(
    [
        pa.field(CHANGE_TYPE, pa.string(), nullable=False),
        pa.field(COMMIT_VERSION, pa.int64(), nullable=False),
        pa.field(COMMIT_TIMESTAMP, pa.timestamp("us", tz="UTC"), nullable=False),
        pa.field(ROW_ID, pa.uint64(), nullable=False),
        pa.field(ROW_CREATED_AT_VERSION, pa.uint64(), nullable=False),
        pa.field(ROW_LAST_UPDATED_AT_VERSION, pa.uint64(), nullable=False),
    ]
)
"""The columns that the change feed appends to the table's columns."""
