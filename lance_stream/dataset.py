"""A table as users hold it: one object, a verb a method, each a module of its own."""

import os
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

import pyarrow as pa

from lance_stream.ages import parse_age
from lance_stream.arguments import as_names
from lance_stream.feed import changes
from lance_stream.feed.rules import FeedRules
from lance_stream.maintenance import cleanup, stable_row_ids, verify
from lance_stream.maintenance.branches import Branches
from lance_stream.maintenance.compaction import compact
from lance_stream.maintenance.compaction.plan import TARGET_ROWS
from lance_stream.maintenance.comparing import digest_batches
from lance_stream.maintenance.tags import Tags
from lance_stream.read import blobs, take
from lance_stream.read import scan as scanning
from lance_stream.read.take import Numbers
from lance_stream.schema.extension_types import (
    reader_with_extensions,
    table_with_extensions,
    with_extensions,
)
from lance_stream.snapshot import history, opening
from lance_stream.snapshot.opening import VersionSpec
from lance_stream.snapshot.table_version import TableVersion
from lance_stream.storage.trust import with_trusted
from lance_stream.table.ledger import LedgerEntry, read_entries
from lance_stream.upsert import upsert
from lance_stream.upsert.change_feeds import is_change_column
from lance_stream.upsert.incoming import UpsertRules
from lance_stream.verbs import (
    add_columns,
    append,
    computed_columns,
    configure,
    create,
    delete,
    drop_columns,
    overwrite,
    rename_columns,
    restore,
    update,
)
from lance_stream.write.arrow_input import ArrowInput, read_input
from lance_stream.write.row_digests import RowsDigest


class Dataset:
    """A Lance table at one version.

    Made by `open_dataset` and `create_dataset`. What it reads never changes: a verb that writes
    returns the dataset at the version that it made, and leaves this one as it was.

    Args:
        table: The version, and where it lies.
    """

    def __init__(self, table: TableVersion) -> None:
        self.table = table

    def __repr__(self) -> str:
        return f"<Dataset {self.uri!r} at version {self.version}>"

    # --- what it is

    @property
    def uri(self) -> str:
        """The table's directory, as it was opened."""
        return self.table.uri

    @property
    def version(self) -> int:
        """The version's number, from 1."""
        return self.table.version

    @property
    def timestamp(self) -> datetime | None:
        """When the version was committed, in UTC; None if its writer did not say."""
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
        """Whether a row keeps its id for its whole life; the change feed needs it."""
        return self.table.has_stable_row_ids

    @property
    def config(self) -> Mapping[str, str]:
        """The table's configuration. Keys that begin with `lance_stream.` are ours."""
        return dict(self.table.manifest.config)

    def versions(self) -> list[history.VersionInfo]:
        """Return all versions that are still there, the newest last."""
        return history.list_versions(self.table)

    @property
    def tags(self) -> Tags:
        """Names for versions: `ds.tags.create("gold", 3)`."""
        return Tags(self.table)

    @property
    def branch(self) -> str | None:
        """The branch that the version belongs to; None for the main one."""
        return self.table.branch

    @property
    def branches(self) -> Branches:
        """The branches of the table, which pylance makes: `ds.branches.list()`."""
        return Branches(self.table)

    def checkout(self, version: VersionSpec) -> "Dataset":
        """Return the same table at another version.

        Args:
            version: A number, a tag, a moment (in UTC if it has no zone), or None for the newest;
                or a branch and one of its versions: `("dev", 3)`, `("dev", None)`,
                `("main", None)`.

        Raises:
            NotFoundError: There is no such version or branch; the message lists those that are.
            InvalidInputError: The version makes no sense.
        """
        return Dataset(opening.checkout(self.table, version))

    def verify(self) -> list[verify.Finding]:
        """Return every rule of the format that this version breaks; none for a sound table."""
        return verify.verify(self.table)

    def ledger(self) -> dict[str, LedgerEntry]:
        """Return the newest micro-batch of each stream that the version has taken in, by app id.

        An entry has `batch_id`, `query_id`, `version`, `num_rows`, `digest` and `recent`, the
        batches before.
        """
        return read_entries(self.table.manifest.config)

    def digest(self, columns: Sequence[str] | None = None, filter: str | None = None) -> RowsDigest:
        """Return how many rows there are, and a number that only the same rows have, in any order.

        Another version, a replica, or what a table was filled from has the same digest if it has
        the same values in columns of the same names, whatever types hold them; see `digest_rows`.

        Args:
            columns: Names, or paths into structs; None for all columns.
            filter: A SQL expression; rows for which it is not true are left out.
        """
        return digest_batches(self.scan(columns, filter))

    # --- reading

    def count_rows(self, filter: str | None = None) -> int:
        """Return how many rows there are, or for how many a SQL expression is true."""
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
        """Return the rows, in batches, as they are read.

        Args:
            columns: Names, or paths into structs ("address.city"); None for all columns.
            filter: A SQL expression; rows for which it is not true are left out.
            with_row_id: Add `_rowid`: the stable row id, or the row address without such ids.
            with_row_address: Add `_rowaddr`: fragment id << 32 | row offset.
            with_row_versions: Add `_row_created_at_version` and `_row_last_updated_at_version`.
            batch_size: The most rows in a batch; None for as many as make about 32 MB.
            blob_handling: How blob columns are given: as their "bytes", a batch ending where they
                become about 32 MB; or as "descriptors", structs of where the bytes lie (see
                `take_blobs` for blobs as files).

        Raises:
            NotFoundError: A column is not there.
            InvalidInputError: The filter is not understood.
            BadDataError: While reading: a file is damaged, or has what is not supported.
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
        """Return the rows, all at once; the arguments are those of `scan`."""
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
        """Return some rows, in the order asked for; a row may be asked for twice.

        Args:
            row_offsets: Places of rows, counted from 0 over the live rows in scan order.
            row_ids: Or their row ids: stable ones, or addresses in a table without them.
            columns: As in `scan`.
            blob_handling: As in `scan`.

        Raises:
            NotFoundError: There is no such row or column.
            InvalidInputError: Neither or both are given, or they are no whole numbers.
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
        """Return the blobs of some rows as files that are not loaded, in the order asked for.

        Args:
            column: A blob column: one with the metadata `lance-encoding:blob`.
            row_offsets: As in `take`.
            row_ids: As in `take`.

        Returns:
            For each row a readable and seekable file that knows its `size` and reads just the
            bytes that are asked of it, each time by one request; None for a null.

        Raises:
            NotFoundError: There is no such row or column.
            InvalidInputError: The column holds no blobs; or as in `take`.
            BadDataError: A file is damaged, or has what is not supported.
        """
        return blobs.take_blobs(self.table, column, row_offsets=row_offsets, row_ids=row_ids)

    def changes(
        self,
        after: int,
        through: int | None = None,
        columns: Sequence[str] | None = None,
        deduplication_mode: str = "none",
        *,
        pre_images: bool = True,
        compute_updates: bool = True,
        column_backfills: bool = True,
    ) -> pa.RecordBatchReader:
        """Return the rows that were inserted, updated and deleted, version by version.

        After the table's own columns come `_change_type` ("insert", "update_preimage",
        "update_postimage", "delete"), `_commit_version`, `_commit_timestamp` (UTC), `_rowid`,
        `_row_created_at_version` and `_row_last_updated_at_version`. Within one version deletes
        come before updates, and updates before inserts.

        Args:
            after: The version after which the interval begins; 0 is before the first.
            through: Its last version; None for this dataset's version.
            columns: As in `scan`, of the last version.
            deduplication_mode: "none"; or "netChanges", to compare the two ends alone.
            pre_images: Whether an update also gives the row as it was before.
            compute_updates: Whether an update is given as one; else it is a delete of the row as
                it was, and an insert of the row as it is.
            column_backfills: Whether rows that only got values in a new column are given as
                updated.

        Raises:
            InvalidInputError: The interval ends before it begins, or after the newest version.
            NotFoundError: A version of the interval has been cleaned up, or a column is not there.
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

    # --- writing

    def append(self, data: ArrowInput) -> "Dataset":
        """Append rows, and return the dataset with them; without rows no version is made.

        Columns are matched by name, and so are the parts of structs. A missing nullable column or
        part becomes nulls, and types that say the same in another way are cast; see `casting` for
        what is.

        Args:
            data: A Table, RecordBatches, a RecordBatchReader (a scan is one), a pandas or polars
                frame, or whatever has `__arrow_c_stream__`.

        Raises:
            InvalidInputError: A column is unknown, a type narrows, a value does not fit, or a
                null stands where none may be. No version was made, and no file is left behind.
            CommitError: The rows did not become a version.
        """
        return Dataset(append.append(self.table, data).table)

    def overwrite(self, data: ArrowInput) -> "Dataset":
        """Put rows, with their own columns, in place of all that the table has.

        Args:
            data: As in `append`.

        Raises:
            InvalidInputError: A type cannot be stored.
            CommitError: The rows did not become a version.
        """
        return Dataset(overwrite.overwrite(self.table, data).table)

    def delete(self, predicate: str) -> "Dataset":
        """Delete the rows of the newest version for which a SQL expression is true.

        Where there is none, no version is made.

        Raises:
            NotFoundError: The expression names a column that is not there.
            InvalidInputError: The expression is not understood.
            CommitError: Others were in the way each time.
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
    ) -> "Dataset":
        """Change the rows whose keys come in, and insert the others, in one version.

        A changed row keeps its row id and the version it was created in. Columns that the data
        does not have keep their values, and are null in new rows; so do parts of structs, at any
        depth. Structs in lists and maps, which are replaced as wholes, have to come with all
        parts. Where nothing changes, no version is made.

        Args:
            data: As in `append`; collected in memory.
            on: The key column, or columns: integers, strings, bytes, dates, timestamps, decimals,
                booleans.
            sequence_by: The column that orders rows of one key: of the data the newest row counts,
                and one older than the stored row changes nothing. Values are ordered as in Spark:
                NaN after all numbers, structs by their first part that differs. Two different rows
                of a key with equal values are an error; one with the value of the stored row takes
                its place, whatever it holds, and only a remembered delete stands against it. None:
                a key occurs once.
            delete_when: A SQL expression over the data: whether a row deletes the one it names.
            except_columns: Columns of the data that are not stored.
            skip_unchanged: Leave rows alone that would stay the same.
            tombstones: How long deletes are remembered ("7 days"), so that a row which comes after
                the delete of its key, and is not newer, does not bring it back. What the table
                remembers counts for every upsert by the same `on` and `sequence_by`.

        Raises:
            InvalidInputError: A key is null, or occurs twice without an order; a column is not
                there; a value does not fit; the table remembers deletes by other columns. Nothing
                is changed.
            CommitError: Others were in the way each time.
        """
        rules = UpsertRules(
            as_names(on, "on"),
            sequence_by,
            delete_when,
            as_names(except_columns, "except_columns"),
            skip_unchanged,
            None if tombstones is None else parse_age(tombstones),
        )
        return Dataset(upsert.upsert(self.table, data, rules).table)

    def apply_changes(
        self,
        data: ArrowInput,
        on: str | Sequence[str],
        except_columns: str | Sequence[str] | None = None,
        *,
        skip_unchanged: bool = False,
    ) -> "Dataset":
        """Do what a change feed says was done to another table, in one version.

        Of the changes of a key the last one counts, whatever order they come in: by
        `_commit_version`, and within a version by `_change_type`. After a delete or an
        `update_preimage` the key is gone, after an insert or an `update_postimage` it is there. So
        keys that an update changes are followed, and so are rows that a filter over the feed lets
        go or takes in; both need pre-images in the feed. The feed's own columns are not stored.

        Changes that are applied again do no harm, as long as later ones are, too: what the table
        holds is not compared with the versions of the changes, so of two calls the later one
        counts. Two changes of a key that do the same in one version are an error. Columns and parts
        of structs that the feed does not have keep their values, as in `upsert`.

        Args:
            data: What `changes` returns, or the change feed of another program with these columns;
                collected in memory.
            on: The key column, or columns, of the table that the changes come from.
            except_columns: Other columns of the data that are not stored.
            skip_unchanged: Leave rows alone that would stay the same.

        Raises:
            InvalidInputError: A change column is missing, or has a type of change that is not
                known; a version has two rows of a key; and as in `upsert`. Nothing is changed.
            CommitError: Others were in the way each time.
        """
        rows = read_input(data).read_all()
        own = [name for name in rows.schema.names if is_change_column(name)]
        rules = UpsertRules(
            as_names(on, "on"),
            except_columns=(*as_names(except_columns, "except_columns"), *own),
            skip_unchanged=skip_unchanged,
            applies_changes=True,
        )
        return Dataset(upsert.upsert(self.table, rows, rules).table)

    def update(self, values: Mapping[str, str], where: str | None = None) -> "Dataset":
        """Give columns of the rows that a SQL expression chooses the values of others.

        Rows keep their row ids. Where none is chosen, no version is made.

        Args:
            values: For each column to change a SQL expression over the row as it was.
            where: Which rows; None for all.

        Raises:
            NotFoundError: A column is not there.
            InvalidInputError: An expression is not understood, or its value does not fit.
            CommitError: Others were in the way each time.
        """
        return Dataset(update.update(self.table, values, where))

    def add_columns(self, columns: pa.Field | Iterable[pa.Field] | Mapping[str, str]) -> "Dataset":
        """Add nullable columns: without values, or with those of SQL expressions.

        Given fields, every row there is reads null, and no data file is touched. Columns that the
        table has with the same type are left as they are; where it has all of them, no version is
        made.

        Given expressions, each is computed from the other columns of every row, which counts as
        an update of the row; nothing but the new columns is written.

        Args:
            columns: A field, fields, or a schema; or for each name an expression:
                `{"total": "price * quantity"}`.

        Raises:
            NotFoundError: An expression names a column that is not there.
            InvalidInputError: A column must not be null, has the name of another type's column, or
                a name or type that a column cannot have; an expression is not understood, or has
                the name of a column that is there. Nothing is changed.
            CommitError: Others were in the way each time.
        """
        if isinstance(columns, Mapping):
            return Dataset(computed_columns.add_computed_columns(self.table, columns))
        return Dataset(add_columns.add_columns(self.table, add_columns.as_schema(columns)))

    def drop_columns(self, columns: str | Sequence[str]) -> "Dataset":
        """Drop columns, or parts of structs.

        No data file is touched: the values go when a compaction writes the rows anew and the old
        versions are cleaned up. No row changes.

        Args:
            columns: Names, or paths into structs ("address.city").

        Raises:
            NotFoundError: A column is not there.
            InvalidInputError: A column is part of the primary key, an index is on it, or deletes
                are remembered by it; or no column would be left.
            CommitError: Others were in the way each time.
        """
        return Dataset(drop_columns.drop_columns(self.table, as_names(columns, "columns")))

    def rename_columns(self, names: Mapping[str, str]) -> "Dataset":
        """Give columns other names. No data file is touched, and no row changes.

        Args:
            names: For each column, or path into a struct, its new name: `{"address.city": "town"}`.
                All are renamed at once.

        Raises:
            NotFoundError: A column is not there.
            InvalidInputError: A new name cannot be had, or another column has it; or deletes are
                remembered by a column.
            CommitError: Others were in the way each time.
        """
        return Dataset(rename_columns.rename_columns(self.table, names))

    def restore(self, version: int) -> "Dataset":
        """Bring back what an older version had, as a new version.

        Row ids and fragment ids that were given since are not given again, and what streams have
        been taken in stays taken in.

        Raises:
            NotFoundError: There is no such version (any more).
            CommitError: Others were in the way each time.
        """
        return Dataset(restore.restore(self.table, version))

    def compact(self, target_rows: int = TARGET_ROWS) -> "Dataset":
        """Write small fragments, and those with many dead rows, anew.

        No row changes: ids and stamps stay, and the change feed shows nothing. Where there is
        nothing to do, no version is made. Others may delete and change rows meanwhile: what was
        written is not lost by that.

        Args:
            target_rows: How many rows a fragment is to have.

        Raises:
            CommitError: Others were in the way each time.
        """
        return Dataset(compact.compact(self.table, target_rows).table)

    def cleanup(
        self,
        older_than: str | timedelta | None = None,
        retain_versions: int | None = None,
        *,
        dry_run: bool = False,
        delete_unverified: bool = False,
        expire_consumers: str | timedelta | None = None,
    ) -> cleanup.CleanupReport:
        """Remove old versions, and the files that no version left names.

        The newest version stays, every version with a tag, and every version that a branch was made
        from. Of a consumer of the feed the version stays that it has finished with, and all after
        it. Files that no version ever named may be about to be committed: they stay until they are
        7 days old. Of a table with branches only this one's versions and files go; what the others
        need of it stays.

        Args:
            older_than: How old a version is at least that goes ("7 days"), and all before it.
                None: 14 days, or any age if `retain_versions` is given.
            retain_versions: How many of the newest versions stay, whatever their age.
            dry_run: Remove nothing, and just tell.
            delete_unverified: Remove files that no version ever named, however young they are.
                Only for a table that nobody else is writing to: their files would be among them.
            expire_consumers: After how long a consumer that lets versions lie counts no more, and
                is dropped; None for never.

        Raises:
            InvalidInputError: An age or number makes no sense.
            UnsupportedFeatureError: The table or a branch has a feature that we do not know.
                Nothing was removed.
            BadDataError: A version, a tag or a branch is damaged. Nothing was removed.
            OSError: Something could not be listed or read. No file was removed that is needed.
        """
        age = cleanup.DEFAULT_AGE if retain_versions is None else None
        rules = cleanup.CleanupRules(
            age if older_than is None else parse_age(older_than, may_be_nothing=True),
            1 if retain_versions is None else retain_versions,
            delete_unverified,
            None if expire_consumers is None else parse_age(expire_consumers),
        )
        return cleanup.cleanup(self.table, rules, is_dry_run=dry_run)

    def update_config(self, entries: Mapping[str, str | None]) -> "Dataset":
        """Set entries of the table's configuration; None takes one away.

        Where nothing would change, no version is made.

        Raises:
            InvalidInputError: A key or value is no text.
            CommitError: Another writer changed the same key meanwhile.
        """
        return Dataset(configure.update_config(self.table, entries))


def create_dataset(
    uri: str | os.PathLike[str],
    schema: pa.Schema,
    file_version: str | None = None,
    *,
    stable_row_ids: bool = True,
    primary_key: Sequence[str] | None = None,
    config: Mapping[str, str] | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> Dataset:
    """Make a table without rows, and return it.

    Args:
        uri: Where: a path, or a URI (file://, memory://). There must be no table yet.
        schema: Its columns.
        file_version: Of its data files: "2.0", "2.1" or "2.2", which is the default.
        stable_row_ids: Whether a row keeps its id for its whole life. The change feed needs it;
            it can be switched on later by `migrate_to_stable_row_ids`.
        primary_key: The columns that tell a row from all others; they become not null. It is
            declared, not enforced.
        config: Entries of the table's configuration.
        storage_options: What the store takes.

    Raises:
        InvalidInputError: There is a table already, or the schema or an argument makes no sense.
        UnsupportedFeatureError: A type, the file version or the location's protocol is not
            supported.
    """
    planned = create.plan_table(
        uri,
        schema,
        file_version=file_version,
        stable_row_ids=stable_row_ids,
        primary_key=primary_key,
        config=config,
        storage_options=storage_options,
    )
    return Dataset(create.create_table(planned))


def open_dataset(
    uri: str | os.PathLike[str],
    version: VersionSpec = None,
    storage_options: Mapping[str, Any] | None = None,
    *,
    trusted_locations: Sequence[str] | None = None,
) -> Dataset:
    """Open a table.

    Args:
        uri: Its directory: a path, or a URI (file://, memory://).
        version: A version's number, a tag, a moment (in UTC if it has no zone; the newest version
            that was committed at or before it), or None for the newest version; or a branch and
            one of its versions, `("dev", 3)`, or `("dev", None)` for its newest.
        storage_options: What the store takes.
        trusted_locations: URIs, or absolute paths, below which the table may name files on other
            services, in other accounts, or, as values of its rows, on this machine. By default a
            table that names any is not read (SECURITY.md says what is opened without asking). It
            may also be given as a storage option.

    Raises:
        NotFoundError: There is no table, or no such version; the message lists those that are.
        InvalidInputError: The location or version makes no sense.
        UnsupportedFeatureError: The table has a feature that we do not know, or the location a
            protocol.
    """
    options = with_trusted(storage_options, trusted_locations)
    return Dataset(opening.open_table(uri, version, options))


def migrate_to_stable_row_ids(
    uri: str | os.PathLike[str],
    storage_options: Mapping[str, Any] | None = None,
) -> Dataset:
    """Give every row of a table an id that it keeps for its whole life, in one transaction.

    From that version on there is a change feed. When the rows really came is not known any more:
    their stamps say version 1. No data file is touched. Where rows have such ids already, no
    version is made.

    Args:
        uri: The table's directory: a path, or a URI (file://, memory://).
        storage_options: What the store takes.

    Returns:
        The dataset at the version that was made; the newest one if its rows had ids.

    Raises:
        InvalidInputError: There are indices, which know rows by their addresses; the message names
            them. Drop them first, and make them again afterwards.
        NotFoundError: There is no table.
        UnsupportedFeatureError: The table has a feature that we may not write.
        CommitError: Others were in the way each time.
    """
    table = opening.open_table(uri, None, storage_options)
    return Dataset(stable_row_ids.migrate(table))
