"""Stream Spark data into Lance tables exactly once, and stream their changes out.

    import lance_stream

    ds = lance_stream.create_dataset("data/events.lance", schema)
    ds = ds.append(rows)
    ds.changes(after=1).read_all()

This package opens and creates tables; the integration with Spark is `lance_stream.spark`. Read
`dataset` first, the object that users work with; docs/architecture.md describes all folders.

Names are imported on first use, so that the command line shows its help and completes words without
loading Arrow.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from lance_stream.version import VERSION

if TYPE_CHECKING:
    from lance_stream.change_streams.change_stream import ChangeBatch, ChangeStream
    from lance_stream.dataset import (
        Dataset,
        create_dataset,
        migrate_to_stable_row_ids,
        open_dataset,
        open_together,
    )
    from lance_stream.derived.derivation import Derivation, derive
    from lance_stream.derived.reports import DerivedCommit, DerivedStatus
    from lance_stream.derived.running import DerivedQuery
    from lance_stream.errors import (
        BadDataError,
        ColumnsChangedError,
        CommitAbortedError,
        CommitConflictError,
        CommitError,
        CommitUncertainError,
        CorruptDataError,
        DerivedFunctionError,
        IncompatibleConflictError,
        IndexBuildError,
        InvalidInputError,
        LanceStreamError,
        NotFoundError,
        OtherBatchError,
        RetryableConflictError,
        TableReplacedError,
        UnsupportedFeatureError,
        UntrustedLocationError,
    )
    from lance_stream.ledger.row_digests import RowsDigest
    from lance_stream.maintenance.indices.coverage import IndexCoverage
    from lance_stream.maintenance.migrations.manifest_paths import migrate_manifest_paths
    from lance_stream.maintenance.migrations.manifest_store_moves import (
        claim_versions,
        forget_versions,
        leave_manifest_store,
    )
    from lance_stream.quarantine.listing import QuarantinedRows, list_quarantine
    from lance_stream.quarantine.replay import ReplayResult, replay_quarantine
    from lance_stream.storage.namespaces.locating import drop_table
    from lance_stream.upsert.change_rules import history_schema
    from lance_stream.write.arrow_input import digest_rows

__version__ = VERSION

__all__ = [
    "BadDataError",
    "ChangeBatch",
    "ChangeStream",
    "ColumnsChangedError",
    "CommitAbortedError",
    "CommitConflictError",
    "CommitError",
    "CommitUncertainError",
    "CorruptDataError",
    "Dataset",
    "Derivation",
    "DerivedCommit",
    "DerivedFunctionError",
    "DerivedQuery",
    "DerivedStatus",
    "IncompatibleConflictError",
    "IndexBuildError",
    "IndexCoverage",
    "InvalidInputError",
    "LanceStreamError",
    "NotFoundError",
    "OtherBatchError",
    "QuarantinedRows",
    "ReplayResult",
    "RetryableConflictError",
    "RowsDigest",
    "TableReplacedError",
    "UnsupportedFeatureError",
    "UntrustedLocationError",
    "claim_versions",
    "create_dataset",
    "derive",
    "digest_rows",
    "drop_table",
    "forget_versions",
    "history_schema",
    "leave_manifest_store",
    "list_quarantine",
    "migrate_manifest_paths",
    "migrate_to_stable_row_ids",
    "open_dataset",
    "open_together",
    "replay_quarantine",
]

if not TYPE_CHECKING:  # type checkers use the imports above
    _MODULES = {
        "lance_stream.change_streams.change_stream": ("ChangeBatch", "ChangeStream"),
        "lance_stream.dataset": (
            "Dataset",
            "create_dataset",
            "migrate_to_stable_row_ids",
            "open_dataset",
            "open_together",
        ),
        "lance_stream.derived.derivation": ("Derivation", "derive"),
        "lance_stream.derived.reports": ("DerivedCommit", "DerivedStatus"),
        "lance_stream.derived.running": ("DerivedQuery",),
        "lance_stream.maintenance.indices.coverage": ("IndexCoverage",),
        "lance_stream.maintenance.migrations.manifest_paths": ("migrate_manifest_paths",),
        "lance_stream.maintenance.migrations.manifest_store_moves": (
            "claim_versions",
            "forget_versions",
            "leave_manifest_store",
        ),
        "lance_stream.quarantine.listing": ("QuarantinedRows", "list_quarantine"),
        "lance_stream.quarantine.replay": ("ReplayResult", "replay_quarantine"),
        "lance_stream.storage.namespaces.locating": ("drop_table",),
        "lance_stream.upsert.change_rules": ("history_schema",),
        "lance_stream.ledger.row_digests": ("RowsDigest",),
        "lance_stream.write.arrow_input": ("digest_rows",),
    }
    _MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}

    def __getattr__(name):
        if name not in __all__:
            other_names = import_module("lance_stream.other_names")
            raise other_names.missing_attribute(
                f"module {__name__!r}", name, other_names.OF_PACKAGE
            )
        module = import_module(_MODULE_OF.get(name, "lance_stream.errors"))
        value = globals()[name] = getattr(module, name)
        return value

    def __dir__():
        return sorted({*globals(), *__all__})
