"""The public object for a table: one method per verb, each implemented in its own module."""

import os
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa

from lance_stream.arguments import as_flag, as_names, as_number
from lance_stream.change_streams.change_stream import (
    BATCH_BYTES,
    BATCH_ROWS,
    ChangeStream,
    FollowRules,
)
from lance_stream.durations import parse_age
from lance_stream.errors import InvalidInputError
from lance_stream.feed import changes, row_counts
from lance_stream.feed.following.positions import Limits
from lance_stream.feed.intervals import IntervalEnd
from lance_stream.feed.rules import NO_DEDUPLICATION, FeedRules
from lance_stream.ledger.row_digests import RowsDigest
from lance_stream.maintenance.branches import Branches
from lance_stream.maintenance.cleanup import cleanup
from lance_stream.maintenance.cleanup.report import CleanupReport
from lance_stream.maintenance.cleanup.rules import as_rules
from lance_stream.maintenance.compaction import compact
from lance_stream.maintenance.compaction.plan import TARGET_ROWS
from lance_stream.maintenance.indices.coverage import IndexCoverage, index_coverage
from lance_stream.maintenance.indices.update_indices import update_indices
from lance_stream.maintenance.migrations import stable_row_ids
from lance_stream.maintenance.tags import Tags
from lance_stream.maintenance.verification import verify
from lance_stream.maintenance.verification.comparing import digest_batches
from lance_stream.monitoring.report import DEFAULT_VERSIONS, Report, make_report
from lance_stream.other_names import OF_DATASET, missing_attribute
from lance_stream.read import blobs, take
from lance_stream.read import scan as scanning
from lance_stream.read.take import Numbers
from lance_stream.schema.types.extension_types import (
    reader_with_extensions,
    table_with_extensions,
    with_extensions,
)
from lance_stream.snapshot import history, opening, resolving
from lance_stream.snapshot.html import as_html
from lance_stream.snapshot.resolving import VersionSpec
from lance_stream.snapshot.table_version import TableVersion
from lance_stream.storage.locations import text_of
from lance_stream.storage.namespaces.locating import TableId, locate
from lance_stream.storage.trust import with_trusted
from lance_stream.table.config.ledger_entries import LedgerEntry, read_entries
from lance_stream.upsert import upsert
from lance_stream.upsert.change_feeds import is_change_column
from lance_stream.upsert.change_rules import ChangeRules, check_has_sequence
from lance_stream.upsert.rules import INSERT, UPDATE, UpsertRules, with_one_time
from lance_stream.verbs import (
    append,
    configure,
    create,
    delete,
    overwrite,
    restore,
    shallow_clone,
    update,
)
from lance_stream.verbs.columns import (
    add_columns,
    alter_columns,
    computed_columns,
    drop_columns,
    rename_columns,
)
from lance_stream.write.arrow_input import ArrowInput, read_input
from lance_stream.write.row_checks import as_checks

Expectations: TypeAlias = str | Iterable[str] | Mapping[str, str] | None
"""Conditions that rows must meet: one, several, or a mapping from names to conditions."""


class Dataset:
    """A Lance table at one version.

    Returned by `open_dataset` and `create_dataset`. A dataset is immutable: a method that writes
    returns a new dataset at the version it committed.

    Args:
        table: The version and its location.
    """

    def __init__(self, table: TableVersion) -> None:
        self.table = table

    def __repr__(self) -> str:
        return f"<Dataset {self.uri!r} at version {self.version}>"

    if not TYPE_CHECKING:  # type checkers refuse unknown attributes themselves

        def __getattr__(self, name):
            if name not in OF_DATASET:
                return object.__getattribute__(self, name)  # raises; in a property, its own error
            raise missing_attribute("'Dataset' object", name, OF_DATASET)

    def _repr_html_(self) -> str:
        """Return the HTML for notebooks: the table's location, size and columns."""
        return as_html(self.table, self.schema)

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Return the rows as a stream of Arrow's C data interface.

        Programs that support this interface can read a table without depending on this package:
        `pa.table(ds)`, data frame libraries, query engines, and `append` to another table.

        Args:
            requested_schema: As the interface defines it.
        """
        return self.scan().__arrow_c_stream__(requested_schema)

    # --- the version and its history

    @property
    def uri(self) -> str:
        """The table's location, in the form in which it was opened."""
        return self.table.uri

    @property
    def version(self) -> int:
        """The version's number, from 1."""
        return self.table.version

    @property
    def timestamp(self) -> datetime | None:
        """When the version was committed, in UTC; None if its writer did not record it."""
        return self.table.timestamp

    @property
    def schema(self) -> pa.Schema:
        """The columns, as an Arrow schema."""
        return with_extensions(self.table.arrow_schema)

    @property
    def file_version(self) -> str:
        """The file version of new data files, for example "2.2"."""
        return self.table.file_version.manifest_name

    @property
    def has_stable_row_ids(self) -> bool:
        """Whether rows keep their ids when updated or moved, which the change feed requires."""
        return self.table.has_stable_row_ids

    @property
    def config(self) -> Mapping[str, str]:
        """The table's configuration. Keys with the prefix `lance_stream.` are reserved."""
        return dict(self.table.manifest.config)

    @property
    def metadata(self) -> Mapping[str, str]:
        """The table's metadata; the metadata of its schema and columns is part of `schema`."""
        return dict(self.table.manifest.table_metadata)

    def versions(
        self, limit: int | None = None, *, count_rows: bool = False
    ) -> list[history.VersionInfo]:
        """Return the existing versions, the newest last, with their numbers of changed rows.

        Args:
            limit: The number of versions, the newest ones; None for all.
            count_rows: Whether to read deletion files if the manifests do not state how many rows a
                version inserted, updated and deleted, as after a restore. By default these numbers
                are None.

        Raises:
            InvalidInputError: The limit is not a whole number of at least 1.
        """
        if limit is not None and ((as_number(limit) or 0) < 1):
            raise InvalidInputError(
                f"limit must be a whole number of at least 1, not {limit!r:.200}"
            )
        counts = as_flag("count_rows", count_rows)
        list_versions = row_counts.list_counted_versions if counts else history.list_versions
        return list_versions(self.table, limit)

    def report(
        self, versions: int | None = DEFAULT_VERSIONS, *, commits: Iterable[Any] = ()
    ) -> Report:
        """Return a page about the table's history, size and readers.

        Notebooks display it; `.save("report.html")` writes one file that needs no network. Only
        manifests are read, no data. Requires the extra `report`.

        Args:
            versions: The number of versions, the newest ones; None for all.
            commits: Reports of batches, as `lance_sink` passes them to `on_commit`, to show their
                durations.

        Raises:
            InvalidInputError: An argument is invalid.
        """
        return make_report(self.table, versions, commits)

    def index_coverage(self) -> list[IndexCoverage]:
        """Return the indices of the version by name, with the number of rows that they cover.

        Appended and changed rows are not in an index until it is brought up to date; queries scan
        them. Only the manifest is read.

        Raises:
            CorruptDataError: The list of indices is damaged.
        """
        return index_coverage(self.table)

    @property
    def tags(self) -> Tags:
        """Names for versions: `ds.tags.create("gold", 3)`."""
        return Tags(self.table)

    @property
    def branch(self) -> str | None:
        """The branch of the version; None for the main branch."""
        return self.table.branch

    @property
    def branches(self) -> Branches:
        """The branches of the table: `ds.branches.create("dev")`."""
        return Branches(self.table)

    def checkout(self, version: VersionSpec) -> "Dataset":
        """Return the same table at another version.

        Args:
            version: A number, a tag, a timestamp (in UTC if it has no zone), or None for the
                newest; or a branch and one of its versions: `("dev", 3)`, `("dev", None)`,
                `("main", None)`.

        Raises:
            NotFoundError: There is no such version or branch; the message lists those that exist.
            InvalidInputError: The argument is not a valid version.
        """
        return Dataset(resolving.checkout(self.table, version))

    def verify(self, *, deep: bool = False) -> list[verify.Finding]:
        """Return the rules of the format that this version violates; none for a valid table.

        Args:
            deep: Whether to read and decode every value of every column, including blobs. By
                default, only the metadata of data files is read.
        """
        return verify.verify(self.table, deep=deep)

    def ledger(self) -> dict[str, LedgerEntry]:
        """Return the newest committed micro-batch of each stream, by app id.

        An entry has `batch_id`, `query_id`, `version`, `num_rows`, `digest` and `recent`, the
        previous batches.
        """
        return read_entries(self.table.manifest.config)

    def digest(self, columns: Sequence[str] | None = None, filter: str | None = None) -> RowsDigest:
        """Return the number of rows, and a digest of their values that ignores their order.

        Another version, a replica, or the source of the rows has the same digest if it has the
        same values in columns of the same names, whatever their types; see `digest_rows`.

        Args:
            columns: Names, or paths into structs; None for all columns.
            filter: A SQL expression; only rows for which it is true are included.

        Raises:
            NotFoundError: A column does not exist.
            InvalidInputError: The filter is invalid.
            UnsupportedFeatureError: A column's type has no digest.
            BadDataError: A file is damaged, or uses an unsupported feature.
        """
        return digest_batches(self.scan(columns, filter))

    # --- reading

    def count_rows(self, filter: str | None = None) -> int:
        """Return the number of rows, or of those for which a SQL expression is true.

        Raises:
            NotFoundError: The expression names a column that does not exist.
            InvalidInputError: The expression is invalid.
            BadDataError: A file is damaged, or uses an unsupported feature.
        """
        return scanning.count_rows(self.table, filter)

    def scan(
        self,
        columns: Sequence[str] | None = None,
        filter: str | None = None,
        *,
        with_row_id: bool = False,
        with_row_address: bool = False,
        with_row_versions: bool = False,
        batch_size: int | None = None,
        blob_handling: str = "bytes",
    ) -> pa.RecordBatchReader:
        """Return the rows as a stream of batches.

        Args:
            columns: Names, or paths into structs ("address.city"); None for all columns.
            filter: A SQL expression; only rows for which it is true are returned.
            with_row_id: Add `_rowid`: the stable row id, or the row address if there is none.
            with_row_address: Add `_rowaddr`: fragment id << 32 | row offset.
            with_row_versions: Add `_row_created_at_version` and `_row_last_updated_at_version`.
            batch_size: Maximum rows per batch; None for batches of about 32 MB.
            blob_handling: How blob columns are returned: "bytes", in batches of about 32 MB; or
                "descriptors", structs that state where the bytes are stored (see `take_blobs` for
                blobs as files).

        Raises:
            NotFoundError: A column does not exist.
            InvalidInputError: The filter is invalid.
            BadDataError: While reading: a file is damaged, or uses an unsupported feature.
        """
        return reader_with_extensions(
            scanning.scan(
                self.table,
                columns,
                filter,
                with_row_id=with_row_id,
                with_row_address=with_row_address,
                with_row_versions=with_row_versions,
                batch_size=batch_size,
                blob_handling=blob_handling,
            )
        )

    def to_table(
        self,
        columns: Sequence[str] | None = None,
        filter: str | None = None,
        *,
        with_row_id: bool = False,
        with_row_address: bool = False,
        with_row_versions: bool = False,
        batch_size: int | None = None,
        blob_handling: str = "bytes",
    ) -> pa.Table:
        """Return all rows as one table; the arguments are those of `scan`."""
        return self.scan(
            columns,
            filter,
            with_row_id=with_row_id,
            with_row_address=with_row_address,
            with_row_versions=with_row_versions,
            batch_size=batch_size,
            blob_handling=blob_handling,
        ).read_all()

    def take(
        self,
        row_offsets: Numbers | None = None,
        row_ids: Numbers | None = None,
        columns: Sequence[str] | None = None,
        blob_handling: str = "bytes",
    ) -> pa.Table:
        """Return some rows, in the requested order; a row may be requested twice.

        Args:
            row_offsets: Positions of rows, counted from 0 over the live rows in scan order.
            row_ids: Instead of positions, stable row ids; addresses in a table without them.
            columns: As in `scan`.
            blob_handling: As in `scan`.

        Raises:
            NotFoundError: There is no such row or column.
            InvalidInputError: Both or neither of `row_offsets` and `row_ids` are passed, or a value
                is not a whole number.
        """
        return table_with_extensions(
            take.take(
                self.table,
                row_offsets=row_offsets,
                row_ids=row_ids,
                columns=columns,
                blob_handling=blob_handling,
            )
        )

    def take_blobs(
        self,
        column: str,
        row_offsets: Numbers | None = None,
        row_ids: Numbers | None = None,
    ) -> list[blobs.BlobFile | None]:
        """Return the blobs of some rows as lazily read files, in the requested order.

        Args:
            column: A blob column, which has the metadata `lance-encoding:blob`; or the path of one
                in structs.
            row_offsets: As in `take`.
            row_ids: As in `take`.

        Returns:
            For each row, a readable and seekable file with a `size`, or None for a null. A read is
            one request for exactly the bytes that it returns.

        Raises:
            NotFoundError: There is no such row or column.
            InvalidInputError: The column is not a blob column; or as in `take`.
            BadDataError: A file is damaged, or uses an unsupported feature.
        """
        return blobs.take_blobs(self.table, column, row_offsets=row_offsets, row_ids=row_ids)

    def changes(
        self,
        after: IntervalEnd,
        through: IntervalEnd | None = None,
        columns: Sequence[str] | None = None,
        deduplication_mode: str = "none",
        *,
        pre_images: bool = True,
        compute_updates: bool = True,
        column_backfills: bool = True,
    ) -> pa.RecordBatchReader:
        """Return the rows that were inserted, updated and deleted, version by version.

        The table's own columns are followed by `_change_type` ("insert", "update_preimage",
        "update_postimage", "delete"), `_commit_version`, `_commit_timestamp` (UTC), `_rowid`,
        `_row_created_at_version` and `_row_last_updated_at_version`. Within a version deletes
        precede updates, and updates precede inserts.

        Args:
            after: The interval starts after this version or tag, 0 is before the first; or with the
                first version committed at this time or later (in UTC without a zone).
            through: The last version of the interval, or its tag; or a time, for the last version
                committed at this time or earlier; None for this dataset's version.
            columns: As in `scan`, of the last version, and names of change columns; all of these
                if there is none.
            deduplication_mode: "none"; or "netChanges", to compare only the first and the last
                version.
            pre_images: Whether updates include the row's pre-image.
            compute_updates: Whether to return updates; otherwise, an update is a delete of the
                pre-image and an insert of the post-image.
            column_backfills: Whether rows that only received values in a new column count as
                updated.

        Raises:
            InvalidInputError: The interval ends before it starts, or after the newest version.
            NotFoundError: A version of the interval has been cleaned up, or a tag or column does
                not exist.
            UnsupportedFeatureError: The table has no stable row ids.
        """
        if columns is not None and not isinstance(columns, str):
            columns = as_names(columns, "columns")
        return reader_with_extensions(
            changes.changes(
                self.table,
                after,
                through,
                FeedRules(
                    columns, deduplication_mode, pre_images, compute_updates, column_backfills
                ),
            )
        )

    def follow(
        self,
        consumer: str | None = None,
        *,
        after: IntervalEnd | None = None,
        snapshot: bool = True,
        wait: bool = True,
        poll_seconds: float = 1.0,
        columns: Sequence[str] | None = None,
        filter: str | None = None,
        max_rows: int = BATCH_ROWS,
        max_bytes: int | None = BATCH_BYTES,
        max_versions: int | None = None,
        pre_images: bool = True,
        compute_updates: bool = True,
        column_backfills: bool = True,
        fail_on_data_loss: bool = True,
    ) -> ChangeStream:
        """Follow the table: its rows, then its changes as versions are committed, in batches.

        The stream is an iterator and an asynchronous iterator. Each batch has its `rows`, with the
        columns of `changes`, and the `position` after them. The rows, their order and the limits
        are the same as for Spark's stream, and a batch may end inside a version.

        A consumer's position is stored in the table when the next batch is requested, and its start
        with the first request. So a batch is repeated if the program dies while processing it. For
        exactly-once results, store `batch.position` together with the results, and pass it as
        `after`.

        Args:
            consumer: A name under which the table stores the position. The stream continues from
                there, and cleanup keeps the versions that have not been read yet.
            after: The position of a batch; or the start of the changes, as in `changes`: a version
                whose changes have been processed, a tag, or a time. It takes precedence over the
                consumer's position.
            snapshot: If there is no position, whether to begin with the rows of this version, as
                inserts; otherwise, the stream begins with the changes after it.
            wait: Whether to wait for new versions; otherwise, the stream ends at the newest one.
            poll_seconds: The interval between checks for a new version.
            columns: As in `scan`, of this version; the columns of all batches.
            filter: A SQL condition on the table's columns and the change columns.
            max_rows: The maximum number of rows of a batch.
            max_bytes: The approximate maximum size of a batch, measured in bytes of data files.
            max_versions: The maximum number of versions of a batch.
            pre_images: As in `changes`.
            compute_updates: As in `changes`.
            column_backfills: As in `changes`.
            fail_on_data_loss: Whether versions that were cleaned up before they were read are an
                error; otherwise, a warning is logged.

        Raises:
            InvalidInputError: An argument is invalid. While iterating: a later version lacks one of
                the columns, or has another type for it.
            NotFoundError: A tag or column does not exist. While iterating: versions are missing, or
                the table was deleted or re-created.
            UnsupportedFeatureError: The table has no stable row ids.
        """
        if columns is not None and not isinstance(columns, str):
            columns = as_names(columns, "columns")
        rules = FollowRules(
            feed=FeedRules(None, NO_DEDUPLICATION, pre_images, compute_updates, column_backfills),
            columns=columns,
            filter=filter,
            limits=Limits(max_versions, max_rows, max_bytes),
            consumer=consumer,
            after=after,
            snapshot=snapshot,
            wait=wait,
            poll_seconds=poll_seconds,
            fail_on_data_loss=fail_on_data_loss,
        )
        return ChangeStream(self.table, rules)

    # --- writing

    def append(self, data: ArrowInput, *, expect: Expectations = None) -> "Dataset":
        """Append rows, and return the new dataset; without rows no version is committed.

        Columns and struct fields are matched by name. A missing nullable column or field becomes
        null. Values are cast between equivalent types; see `casting` for the list.

        Args:
            data: A Table, RecordBatches, a RecordBatchReader (such as a scan), a pandas or polars
                frame, or any object with `__arrow_c_stream__`. The index of a pandas frame becomes
                a column if it has a name.
            expect: SQL conditions that every row must meet: one, several, or a mapping from names
                to conditions, `{"price": "price >= 0"}`. A condition that is null is not met.

        Raises:
            InvalidInputError: A column is unknown, a type would be narrowed, a value does not fit,
                a required column has a null, or a condition is not met; the message states the
                number of rows with each problem, and shows one. No version is committed, and no
                file remains.
            CommitError: The rows were not committed.
        """
        return Dataset(append.append(self.table, data, checks=as_checks(expect)).table)

    def overwrite(self, data: ArrowInput, *, expect: Expectations = None) -> "Dataset":
        """Replace all rows and columns of the table.

        Columns with the same name and type keep their ids, and properties that the new rows do not
        declare, such as the primary key. Properties that the new rows declare are stored: metadata,
        extension types, blobs and nullability.

        Args:
            data: As in `append`.
            expect: As in `append`.

        Raises:
            InvalidInputError: A type cannot be stored, or rows do not meet a condition.
            ColumnsChangedError: Another writer has concurrently changed the properties of columns
                that remain.
            CommitError: The rows were not committed.
        """
        return Dataset(overwrite.overwrite(self.table, data, checks=as_checks(expect)).table)

    def delete(self, predicate: str) -> "Dataset":
        """Delete the rows of the newest version for which a SQL expression is true.

        If there are none, no version is committed. Rows that other writers add before the commit
        are not deleted, even if their version precedes it.

        Raises:
            NotFoundError: The expression names a column that does not exist.
            InvalidInputError: The expression is invalid.
            CommitError: Every attempt conflicted with other commits.
        """
        return Dataset(delete.delete(self.table, predicate))

    def upsert(
        self,
        data: ArrowInput,
        on: str | Sequence[str],
        sequence_by: str | None = None,
        delete_when: str | None = None,
        except_columns: str | Sequence[str] | None = None,
        *,
        skip_unchanged: bool = False,
        tombstones: str | timedelta | None = None,
        expect: Expectations = None,
        when_matched: str = UPDATE,
        when_not_matched: str = INSERT,
    ) -> "Dataset":
        """Update the rows whose keys are in the data and insert the others, in one version.

        An updated row keeps its row id and created-at version. Columns that the data lacks keep
        their values, and are null in new rows; the same holds for struct fields at any depth.
        Structs in lists and maps are replaced as a whole, so they need all their fields. If
        nothing changes, no version is committed.

        Args:
            data: As in `append`; collected in memory.
            on: The key column, or columns: integers, strings, bytes, dates, timestamps, decimals,
                booleans.
            sequence_by: The column that orders the rows of one key: the newest row of the data
                wins, and a row older than the stored one changes nothing. Values are ordered as in
                Spark: NaN after all numbers, structs by their first different field. Two different
                rows of a key with equal values are an error. A row with the stored row's value
                replaces it; it is ignored only after a remembered delete of that value. By default,
                each key must occur once.
            delete_when: A SQL expression over the data: if true, the row deletes its key.
            except_columns: Columns of the data that are not stored.
            skip_unchanged: Do not rewrite rows whose values stay the same.
            tombstones: How long deletes are remembered ("7 days"), so that a late row that is not
                newer than the delete of its key does not insert it again. Tombstones apply to every
                upsert with the same `on` and `sequence_by`.
            expect: As in `append`, over all columns of the data, including `except_columns`. If a
                row deletes, only its key is checked.
            when_matched: The effect of a row whose key the table has: "update"; "ignore", so that
                only new keys are inserted; or a SQL condition over the row, `source.<column>`, and
                the stored one, `target.<column>`, which is updated if the condition is true:
                "source.price > target.price". It is evaluated for the newest row of each key. Rows
                that delete are not affected.
            when_not_matched: The effect of a row whose key the table lacks: "insert"; "ignore", so
                that only existing rows are updated; or a condition over `source.<column>`.

        Raises:
            InvalidInputError: A key is null, or occurs twice without `sequence_by`; a column does
                not exist; a value does not fit, or a condition is not met; the table's tombstones
                use other columns. Nothing is changed.
            CommitError: Every attempt conflicted with other commits.
        """
        rules = UpsertRules(
            as_names(on, "on"),
            sequence_by,
            delete_when,
            as_names(except_columns, "except_columns"),
            skip_unchanged,
            None if tombstones is None else parse_age(tombstones),
            when_matched=with_one_time(when_matched, UPDATE),
            when_not_matched=with_one_time(when_not_matched, INSERT),
        )
        return Dataset(upsert.upsert(self.table, data, rules, checks=as_checks(expect)).table)

    def apply_scd1(
        self,
        data: ArrowInput,
        keys: str | Sequence[str],
        sequence_by: str | Sequence[str],
        *,
        apply_as_deletes: str | None = None,
        column_list: str | Sequence[str] | None = None,
        except_column_list: str | Sequence[str] | None = None,
        tombstones: str | timedelta | None = None,
    ) -> "Dataset":
        """Apply changes as a slowly changing dimension of type 1: the current row of each key.

        Names and meanings are those of Spark's AUTO CDC, `stored_as_scd_type=1`. It is an `upsert`
        that remembers deletes: in whatever order the changes of a key arrive, in one call or in
        several, the one with the largest sequence wins.

        Args:
            data: As in `append`; collected in memory.
            keys: The key column, or columns; as `on` of `upsert`.
            sequence_by: The column that orders the changes of a key, or several, compared one after
                the other. Among equal sequences, a delete wins. Two different rows with equal
                sequences that do not delete are an error within one call; of two calls, the later
                one wins. If the sequence is not stored as one column, the table needs a column
                `__SEQUENCE` of its type, or of structs of the columns.
            apply_as_deletes: A SQL expression over the data: if true, the row deletes its key.
            column_list: The columns that are stored; by default all.
            except_column_list: Instead, the columns that are not stored.
            tombstones: How long deletes are remembered ("7 days"); by default forever.

        Raises:
            InvalidInputError: A key or a sequence is null; a column does not exist; a value does
                not fit. Nothing is changed.
            CommitError: Every attempt conflicted with other commits.
        """
        rules = ChangeRules.of(
            is_history=False,
            keys=keys,
            sequence_by=sequence_by,
            apply_as_deletes=apply_as_deletes,
            column_list=column_list,
            except_column_list=except_column_list,
            tombstones=tombstones,
        )
        return self._apply(data, rules)

    def apply_scd2(
        self,
        data: ArrowInput,
        keys: str | Sequence[str],
        sequence_by: str | Sequence[str],
        *,
        apply_as_deletes: str | None = None,
        column_list: str | Sequence[str] | None = None,
        except_column_list: str | Sequence[str] | None = None,
        track_history_column_list: str | Sequence[str] | None = None,
        track_history_except_column_list: str | Sequence[str] | None = None,
        tombstones: str | timedelta | None = None,
    ) -> "Dataset":
        """Apply changes as a slowly changing dimension of type 2: the history of each key.

        Names and meanings are those of Spark's AUTO CDC, `stored_as_scd_type=2`. A row is valid
        from the sequence `__START_AT` until before `__END_AT`, which is null for the current row.
        Late changes are inserted at their position in the history: in whatever order changes
        arrive, in one call or in several, the table has the same history. A change that repeats
        the tracked values of the previous one does not begin a row.

        Args:
            data: As in `append`; collected in memory.
            keys: The key column, or columns; as `on` of `upsert`.
            sequence_by: The column that orders the changes of a key, or several, compared one after
                the other; stored as `__START_AT` and `__END_AT`, as structs if there are several.
                Among equal sequences, a delete wins. Two different rows with equal sequences that
                do not delete are an error within one call; of two calls, the later one wins.
            apply_as_deletes: A SQL expression over the data: if true, the row ends the current row.
            column_list: The columns that are stored; by default all.
            except_column_list: Instead, the columns that are not stored. It usually contains the
                sequence: a stored sequence is tracked, too, so that each change begins a row.
            track_history_column_list: The columns whose changes begin a row; by default all that
                are stored. Changes of other columns replace the value in the row.
            track_history_except_column_list: Instead, the columns whose changes do not begin a row.
            tombstones: How long to remember changes that no row shows ("30 days"), such as deletes
                that arrived before the rows that they delete; by default forever. Changes that
                arrive later than that may be misplaced.

        Raises:
            InvalidInputError: A key or a sequence is null; a column does not exist; a value does
                not fit; or the table lacks `__START_AT` and `__END_AT`, see `history_schema`.
                Nothing is changed.
            BadDataError: The table's rows of a key overlap.
            CommitError: Every attempt conflicted with other commits.
        """
        rules = ChangeRules.of(
            is_history=True,
            keys=keys,
            sequence_by=sequence_by,
            apply_as_deletes=apply_as_deletes,
            column_list=column_list,
            except_column_list=except_column_list,
            track_history_column_list=track_history_column_list,
            track_history_except_column_list=track_history_except_column_list,
            tombstones=tombstones,
        )
        return self._apply(data, rules)

    def _apply(self, data: ArrowInput, rules: ChangeRules) -> "Dataset":
        rows = read_input(data).read_all()
        rules = rules.without_list(rows.column_names)
        rows = rules.with_sequence(rows)
        if not rules.is_history:
            check_has_sequence(self.table.arrow_schema, rows.schema)
        return Dataset(upsert.upsert(self.table, rows, rules.upsert_rules()).table)

    def apply_changes(
        self,
        data: ArrowInput,
        on: str | Sequence[str],
        except_columns: str | Sequence[str] | None = None,
        *,
        skip_unchanged: bool = False,
    ) -> "Dataset":
        """Apply a change feed of another table to this one, in one version.

        For each key the last change wins, in any input order: by `_commit_version`, and within a
        version by `_change_type`. A delete or an `update_preimage` removes the key, an insert or an
        `update_postimage` stores it. This covers updates that change a key, and rows that enter or
        leave a filtered feed; both need pre-images. The change columns are not stored.

        Applying changes again is safe if all later changes are applied again, too: stored rows are
        not compared with the versions of the changes, so the later of two calls wins. Two changes
        of the same type for one key in one version are an error. Columns and struct fields that the
        feed lacks keep their values, as in `upsert`, if both images of an update are applied
        together. If a limit of rows or bytes separates them, the row is deleted and inserted again,
        and these columns are null. To prevent this, limit versions only; or read the feed without
        pre-images, if keys never change.

        Args:
            data: The result of `changes`, or the change feed of another program with these columns;
                collected in memory.
            on: The key column, or columns, of the source table.
            except_columns: Other columns of the data that are not stored.
            skip_unchanged: Do not rewrite rows whose values stay the same.

        Raises:
            InvalidInputError: A change column is missing, or has an unknown type of change; a
                version has two changes of the same type for a key; or as in `upsert`. Nothing is
                changed.
            CommitError: Every attempt conflicted with other commits.
        """
        rows = read_input(data).read_all()
        feed_columns = [name for name in rows.schema.names if is_change_column(name)]
        rules = UpsertRules(
            as_names(on, "on"),
            except_columns=(*as_names(except_columns, "except_columns"), *feed_columns),
            skip_unchanged=skip_unchanged,
            applies_changes=True,
        )
        return Dataset(upsert.upsert(self.table, rows, rules).table)

    def update(self, values: Mapping[str, str], where: str | None = None) -> "Dataset":
        """Set columns to the values of SQL expressions.

        Rows keep their row ids. If no row is selected, no version is committed. Rows that other
        writers add before the commit may be left as they are.

        Args:
            values: For each column to change, a SQL expression over the row before the update.
            where: A SQL expression that selects the rows; None for all.

        Raises:
            NotFoundError: A column does not exist.
            InvalidInputError: An expression is invalid, or its value does not fit.
            CommitError: Every attempt conflicted with other commits.
        """
        return Dataset(update.update(self.table, values, where))

    def add_columns(self, columns: pa.Field | Iterable[pa.Field] | Mapping[str, str]) -> "Dataset":
        """Add nullable columns, without values or with the values of SQL expressions.

        Columns from fields are null in existing rows, and no data file is touched. Columns that the
        table already has with the same type are skipped; if it has all of them, no version is
        committed.

        Columns from expressions are computed from the other columns of every row, which counts as
        an update of the row; only the new columns are written.

        A name can be the path of a new field of a struct: `pa.field("address.city", pa.string())`,
        or `{"address.code": "CAST(id AS string)"}`; without values, also in lists of structs. The
        new field is null where its struct is null.

        Args:
            columns: A field, fields, or a schema; or an expression for each name:
                `{"total": "price * quantity"}`.

        Raises:
            NotFoundError: An expression names a column that does not exist.
            InvalidInputError: A column is not nullable, exists with another type, or has an
                unsupported name or type; an expression is invalid, or its column already exists.
                Nothing is changed.
            CommitError: Every attempt conflicted with other commits.
        """
        if isinstance(columns, Mapping):
            return Dataset(computed_columns.add_computed_columns(self.table, columns))
        return Dataset(add_columns.add_columns(self.table, add_columns.as_schema(columns)))

    def drop_columns(self, columns: str | Sequence[str]) -> "Dataset":
        """Drop columns, or fields of structs, including structs in lists.

        No data file is touched: the values are removed when a compaction rewrites the rows and the
        old versions are cleaned up. The change feed has no changes.

        Args:
            columns: Names, or paths into structs ("address.city").

        Raises:
            NotFoundError: A column does not exist.
            InvalidInputError: A column is used by the primary key, an index or tombstones; or no
                column would remain.
            CommitError: Every attempt conflicted with other commits.
        """
        return Dataset(drop_columns.drop_columns(self.table, as_names(columns, "columns")))

    def rename_columns(self, names: Mapping[str, str]) -> "Dataset":
        """Rename columns. No data file is touched, and the change feed has no changes.

        Args:
            names: The new names, by column or path into a struct: `{"address.city": "town"}`. All
                are renamed at once.

        Raises:
            NotFoundError: A column does not exist.
            InvalidInputError: A new name is invalid or taken, or tombstones use a column.
            CommitError: Every attempt conflicted with other commits.
        """
        return Dataset(rename_columns.rename_columns(self.table, names))

    def alter_columns(self, *alterations: Mapping[str, Any]) -> "Dataset":
        """Alter columns: their types, which can only become wider, their names and nullability.

        A wider type represents every value of the old one exactly: a longer integer, float or
        decimal, a float or decimal for integers that fit, a timestamp for a date, a finer unit, a
        large string, binary or list. The cast values are written to additional files, and every row
        counts as updated. The change feed converts older rows to the types of its last version.
        Rows in the narrower type can still be written.

        Changes of names and nullability affect no data file and no row. A column can become
        non-nullable if it has no null.

        Args:
            alterations: Mappings with the path of a column and its new properties:
                `{"path": "address.zip", "data_type": pa.int64()}`, or `"name"`, or `"nullable"`.
                All columns are altered at once.

        Raises:
            NotFoundError: A column does not exist.
            InvalidInputError: A type is not wider; the column has an index or nulls, or is in the
                primary key; a name is invalid or taken. Nothing is changed.
            CommitError: Every attempt conflicted with other commits.
        """
        changes = alter_columns.as_changes(alterations)
        return Dataset(alter_columns.alter_columns(self.table, changes))

    def restore(self, version: VersionSpec) -> "Dataset":
        """Restore the content of an older version as a new version: rows, columns and config.

        Row ids and fragment ids that were assigned since are not reused, and the ledger keeps all
        committed micro-batches. The change feed shows the differences from the previous version.

        Args:
            version: A version number, a tag, or a timestamp, as in `checkout`.

        Raises:
            NotFoundError: The version does not exist, or has been cleaned up.
            InvalidInputError: It is not a version of this branch.
            CommitError: Every attempt conflicted with other commits.
        """
        return Dataset(restore.restore(self.table, version))

    def shallow_clone(
        self,
        target_uri: str | os.PathLike[str],
        version: VersionSpec = None,
        storage_options: Mapping[str, Any] | None = None,
        *,
        tag_source: bool = True,
    ) -> "Dataset":
        """Create another table with the rows of a version, without copying them.

        The clone refers to the files of this table; new rows are stored in its own directory. Both
        tables can then be written, followed and cleaned up independently: a cleanup of the clone
        deletes only files in the clone's directory. The clone's history begins with the cloned
        version.

        A tag in this table protects the version's files. This method creates it:
        `lance_stream.clone.` and 16 digits, with the clone's location in its metadata. Delete it
        (`ds.tags.delete(name)`) after the clone has been deleted. If this table is a clone with
        files in other tables, each of them gets a tag for the new clone, too.

        Args:
            target_uri: The location of the new table.
            version: As in `checkout`; None for this dataset's version.
            storage_options: Options of the clone's store, which must also be valid for this
                table's files; None for the options of this dataset. A clone on another service, or
                in another account, needs `trusted_locations`, also to be read.
            tag_source: Whether to tag the version in this table. Pass False for a table that you
                cannot write to; then a cleanup there deletes files that the clone needs.

        Raises:
            InvalidInputError: A table exists at the target; these options do not give access to the
                files of this table; or this table is a clone, and it is unknown which version of
                another table has its files.
            NotFoundError: The version does not exist.
            UntrustedLocationError: The clone's readers would not open the files.
            UnsupportedFeatureError: The version has a feature that lance-stream cannot write.
        """
        return Dataset(
            shallow_clone.shallow_clone(
                self.table, target_uri, version, storage_options, tag_source=tag_source
            )
        )

    def compact(self, target_rows: int = TARGET_ROWS) -> "Dataset":
        """Rewrite small fragments, and fragments with many deleted rows.

        Row ids and row versions stay the same, and the change feed has no changes. If there is
        nothing to do, no version is committed. Other writers may delete and update rows
        concurrently: their changes are merged, and the rewritten files are still used.

        Args:
            target_rows: The target number of rows per fragment.

        Raises:
            CommitError: Every attempt conflicted with other commits.
        """
        return Dataset(compact.compact(self.table, target_rows).table)

    def optimize_indices(
        self, names: str | Sequence[str] | None = None, *, retrain: bool = False
    ) -> "Dataset":
        """Bring indices up to date: they cover all rows of the newest version again.

        pylance, which the extra `index` installs, builds the files; lance-stream commits them, and
        merges concurrent writes. All kinds of indices that pylance builds are supported. The parts
        of an index are merged into one. If there is nothing to do, no version is committed. The
        change feed has no changes.

        Args:
            names: Names of indices; None for all that are not up to date.
            retrain: Train vector indices again from all rows, even if they are up to date: worth
                the time of creating them again if the vectors have changed a lot.

        Raises:
            NotFoundError: There is no index of this name; the message lists those that exist.
            InvalidInputError: pylance is missing: pip install 'lance-stream[index]'. Or a storage
                option has no counterpart in it.
            UnsupportedFeatureError: pylance cannot read the table, which is in memory or on a
                filesystem of fsspec.
            IndexBuildError: pylance could not build some indices, for the reasons in the message.
                The others are up to date.
            CommitError: Every attempt conflicted with other commits.
        """
        return Dataset(update_indices(self.table, names, retrain=retrain).table)

    def cleanup(
        self,
        older_than: str | timedelta | None = None,
        retain_versions: int | None = None,
        *,
        dry_run: bool = False,
        delete_unverified: bool = False,
        expire_consumers: str | timedelta | None = None,
    ) -> CleanupReport:
        """Remove old versions, and files that no remaining version references.

        Cleanup keeps the newest version, versions with a tag, and versions that a branch starts
        from. For each consumer of the feed, it keeps the last version that the consumer has
        finished, and all later ones. Files that no version ever referenced may belong to a commit
        in progress: they are kept until they are 7 days old. In a table with branches, only this
        branch's versions and files are removed, except those that other branches need.

        Args:
            older_than: Minimum age of the versions to remove ("7 days").
                None: 14 days, or any age if `retain_versions` is given.
            retain_versions: Number of newest versions to keep, whatever their age.
            dry_run: Only report; remove nothing.
            delete_unverified: Remove files that no version ever referenced, whatever their age. Use
                it only if nobody is writing to the table: it would delete their files.
            expire_consumers: Drop consumers that have not read an available version for this long;
                by default, none are dropped.

        Raises:
            NotFoundError: The table no longer exists.
            TableReplacedError: The location has another table, of which nothing was removed.
            InvalidInputError: An age or number is invalid.
            UnsupportedFeatureError: The table or a branch has an unknown feature. Nothing was
                removed.
            BadDataError: A version, a tag or a branch is damaged. Nothing was removed.
            OSError: A file could not be read, or a folder not listed. No needed file was removed.
        """
        rules = as_rules(
            older_than,
            retain_versions,
            delete_unverified=delete_unverified,
            expire_consumers=expire_consumers,
        )
        return cleanup.cleanup(self.table, rules, is_dry_run=dry_run)

    def update_config(self, entries: Mapping[str, str | None]) -> "Dataset":
        """Set entries of the table's configuration; None removes one.

        If nothing would change, no version is committed.

        Raises:
            InvalidInputError: A key or value is not a string.
            CommitError: Another writer changed the same key concurrently.
        """
        return Dataset(configure.update_config(self.table, entries))

    def update_metadata(
        self,
        entries: Mapping[str, str | None] | None = None,
        *,
        schema: Mapping[str, str | None] | None = None,
        fields: Mapping[str, Mapping[str, str | None]] | None = None,
        replace: bool = False,
    ) -> "Dataset":
        """Set entries of the metadata of the table, its schema and its columns; None removes one.

        All entries are set in one version. No row changes, and the change feed has no changes. If
        nothing would change, no version is committed. The entries can be read from `metadata`,
        `schema.metadata` and `schema.field(...).metadata`.

        Args:
            entries: Entries of the table.
            schema: Entries of its schema.
            fields: Entries of columns or their fields, by name or path:
                `{"price": {"unit": "EUR"}, "address.city": {"pii": "true"}}`. Entries
                `lance-encoding:*` apply to data files that are written from then on. Entries that
                define how values are stored, such as those of blobs and extension types, cannot
                change.
            replace: Whether to remove all other entries of the maps that are passed.

        Raises:
            NotFoundError: A column does not exist.
            InvalidInputError: A key or value is not a string; the primary key, or how values are
                stored, would change; an encoding is unknown.
            CommitError: Another writer changed the same entries concurrently.
        """
        return Dataset(
            configure.update_metadata(
                self.table, entries, schema=schema, fields=fields, replace=replace
            )
        )


def create_dataset(
    uri: str | os.PathLike[str] | None,
    schema: pa.Schema | ArrowInput,
    file_version: str | None = None,
    *,
    stable_row_ids: bool = True,
    primary_key: str | Sequence[str] | None = None,
    config: Mapping[str, str] | None = None,
    storage_options: Mapping[str, Any] | None = None,
    expect: Expectations = None,
    table_id: TableId | None = None,
    namespace: Mapping[str, Any] | None = None,
) -> Dataset:
    """Create a table and return it.

    Args:
        uri: The table's location, as in `open_dataset`. There must be no table yet.
        schema: Its columns, for an empty table; or the rows of its first version: a pyarrow Table,
            a RecordBatchReader, a pandas or polars frame, or any other input of `Dataset.append`.
        file_version: The version of its data files: "2.0", "2.1" or "2.2" (the default).
        stable_row_ids: Whether rows keep their ids when updated or moved, which the change feed
            requires; `migrate_to_stable_row_ids` enables it later.
        primary_key: The columns that identify a row; they become non-nullable. The key is declared,
            not enforced.
        config: Entries of the table's configuration.
        storage_options: Options of the store.
        expect: Conditions that the first rows must meet, as in `Dataset.append`. They do not apply
            to later rows.
        table_id: The table's name in a Lance namespace, in which it is declared; instead of `uri`.
        namespace: The namespace, as in `open_dataset`.

    Raises:
        InvalidInputError: There is a table already, or the schema, the rows or an argument is
            invalid.
        UnsupportedFeatureError: A type, the file version or the location's protocol is not
            supported.
    """
    data = None if isinstance(schema, pa.Schema) else _first_rows(schema)
    uri, storage_options = locate(uri, storage_options, table_id, namespace, creates=True)
    planned = create.plan_table(
        uri,
        schema if data is None else data.schema,
        file_version=file_version,
        stable_row_ids=stable_row_ids,
        primary_key=primary_key,
        config=config,
        storage_options=storage_options,
    )
    checks = as_checks(expect)
    if checks and data is None:
        raise InvalidInputError(
            "expect checks the first rows of a table, but only its columns were passed. Check rows "
            "as they are appended: ds.append(rows, expect=...)"
        )
    return Dataset(create.create_table(planned, data, checks))


def _first_rows(data: ArrowInput) -> pa.RecordBatchReader:
    try:
        return read_input(data)
    except InvalidInputError as error:
        raise InvalidInputError(
            "create_dataset() needs the table's columns, pa.schema([('id', pa.int64())]), or its "
            f"first rows: {error}"
        ) from None


def open_dataset(
    uri: str | os.PathLike[str] | None = None,
    version: VersionSpec = None,
    storage_options: Mapping[str, Any] | None = None,
    *,
    branch: str | None = None,
    trusted_locations: Sequence[str] | None = None,
    table_id: TableId | None = None,
    namespace: Mapping[str, Any] | None = None,
) -> Dataset:
    """Open a table.

    Args:
        uri: Its directory: a path, or a URI of a local disk (file://), S3 (s3://, s3+ddb://),
            Google Cloud Storage (gs://), Azure (abfss://, az://), this process (memory://), or, to
            read only, of any filesystem registered with fsspec. docs/operations/stores.md lists
            all forms.
        version: A version number, a tag, a timestamp (in UTC if it has no zone; the newest version
            committed at or before it), or None for the newest version; or a branch and one of its
            versions, `("dev", 3)`, or `("dev", None)` for its newest.
        storage_options: Options of the store.
        branch: The branch to open, with a version that is a number, a timestamp or None; "main"
            for the main branch.
        trusted_locations: URIs, or absolute paths, below which the table may name files on other
            services, in other accounts, or, as values of its rows, on this machine. By default a
            table that names such files is not read (SECURITY.md lists the locations that need no
            trust). Can also be set as a storage option.
        table_id: The table's name in a Lance namespace, ["db", "events"] or "db.events", instead of
            `uri`.
        namespace: The namespace: {"impl": "dir", "root": ...}, {"impl": "rest", "uri": ...}, or
            another implementation and its properties.

    Raises:
        NotFoundError: There is no table, or no such version; the message lists those that exist.
        InvalidInputError: The location or version is invalid.
        UnsupportedFeatureError: The table has an unknown feature, or the location an unknown
            protocol.
    """
    uri, storage_options = locate(uri, storage_options, table_id, namespace)
    options = with_trusted(storage_options, trusted_locations)
    if branch is not None:
        if isinstance(version, str | tuple):
            raise InvalidInputError(
                f"a tag, or a branch and a version, names a branch itself: open {version!r} "
                "without `branch`"
            )
        version = (branch, version)
    return Dataset(resolving.open_version(uri, version, options))


def open_together(
    uris: Sequence[str | os.PathLike[str]],
    storage_options: Mapping[str, Any] | None = None,
    *,
    trusted_locations: Sequence[str] | None = None,
) -> list[Dataset]:
    """Open several tables at versions that were the newest ones at the same moment.

    For tables that are written together (`lance_sinks(..., atomic=True)`): either all versions
    contain a micro-batch, or none. If the tables were opened one after the other, a batch could be
    committed in between.

    Args:
        uris: The tables' locations, without duplicates. One manifest store has the versions of all
            of them.
        storage_options: Options of the store, with `manifest_store` unless the locations name it.
        trusted_locations: As in `open_dataset`.

    Returns:
        The tables, in the order of `uris`.

    Raises:
        NotFoundError: One of the tables does not exist.
        InvalidInputError: They are not in the same manifest store, a location occurs twice, or
            there are more than the store reads in one transaction (DynamoDB: 50).
    """
    if isinstance(uris, str | os.PathLike) or not isinstance(uris, Iterable):
        raise InvalidInputError(
            f"open_together opens several tables: pass a list of locations, not {uris!r:.200}"
        )
    options = with_trusted(storage_options, trusted_locations)
    names = [text_of(uri) for uri in uris]
    if len(set(names)) < len(names):
        raise InvalidInputError(f"a table occurs twice: {', '.join(sorted(names)):.500}")
    return [Dataset(table) for table in opening.open_tables_together(names, options)]


def migrate_to_stable_row_ids(
    uri: str | os.PathLike[str],
    storage_options: Mapping[str, Any] | None = None,
) -> Dataset:
    """Assign stable row ids to all rows of a table, in one transaction.

    The change feed is available from that version on. The rows' previous history is unknown, so
    their row versions are 1. No data file is touched. If the table already has stable row ids, no
    version is committed.

    Args:
        uri: The table's location, as in `open_dataset`.
        storage_options: Options of the store.

    Returns:
        The dataset at the new version; at the newest one if it already had stable row ids.

    Raises:
        InvalidInputError: There are indices, which reference rows by address; the message names
            them. Drop them first, and create them again afterwards.
        NotFoundError: There is no table.
        UnsupportedFeatureError: The table has a feature that lance-stream cannot write.
        CommitError: Every attempt conflicted with other commits.
    """
    table = opening.open_newest(uri, storage_options)
    return Dataset(stable_row_ids.migrate(table))
