"""Stream Spark data into Lance tables exactly once, and stream their changes out.

    import lance_stream

    ds = lance_stream.create_dataset("data/events.lance", schema)
    ds = ds.append(rows)
    ds.changes(after=1).read_all()

This package opens and creates tables; the integration with Spark is `lance_stream.spark`.
"""

from lance_stream.dataset import (
    Dataset,
    create_dataset,
    migrate_to_stable_row_ids,
    open_dataset,
)
from lance_stream.errors import (
    BadDataError,
    CommitConflictError,
    CommitError,
    CommitUncertainError,
    CorruptDataError,
    IncompatibleConflictError,
    InvalidInputError,
    LanceStreamError,
    NotFoundError,
    OtherBatchError,
    RetryableConflictError,
    TableReplacedError,
    UnsupportedFeatureError,
    UntrustedLocationError,
)
from lance_stream.maintenance.manifest_store_moves import (
    claim_versions,
    forget_versions,
    leave_manifest_store,
)
from lance_stream.version import VERSION
from lance_stream.write.row_digests import RowsDigest, digest_rows

__version__ = VERSION

__all__ = [
    "BadDataError",
    "CommitConflictError",
    "CommitError",
    "CommitUncertainError",
    "CorruptDataError",
    "Dataset",
    "IncompatibleConflictError",
    "InvalidInputError",
    "LanceStreamError",
    "NotFoundError",
    "OtherBatchError",
    "RetryableConflictError",
    "RowsDigest",
    "TableReplacedError",
    "UnsupportedFeatureError",
    "UntrustedLocationError",
    "claim_versions",
    "create_dataset",
    "digest_rows",
    "forget_versions",
    "leave_manifest_store",
    "migrate_to_stable_row_ids",
    "open_dataset",
]
