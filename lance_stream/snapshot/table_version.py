"""One version of a table and its location, the starting point of every operation."""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from copy import copy
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lance_stream.arrays import RowIds, RowOffsets, RowVersions
from lance_stream.commit.version_log import VersionLog
from lance_stream.errors import CorruptDataError
from lance_stream.file.versions import FileVersion
from lance_stream.schema.arrow_schemas import to_arrow
from lance_stream.schema.fields import Schema
from lance_stream.snapshot.files.missing_files import explaining_missing_files
from lance_stream.snapshot.files.open_files import MAX_UNCHECKED_ROWS, OpenFiles
from lance_stream.snapshot.references import Refs
from lance_stream.snapshot.timestamps import timestamp_of
from lance_stream.storage.protocols import canonical_protocol
from lance_stream.storage.store import NUM_READERS, Store
from lance_stream.table.feature_flags import check_readable, has_stable_row_ids
from lance_stream.table.fragments.fragment import Fragment, LineageColumn, StoredSequence
from lance_stream.table.lineage.row_addresses import FragmentRows, RowIdIndex
from lance_stream.table.lineage.row_ids import RowIdSequence
from lance_stream.table.lineage.row_versions import RowVersionSequence
from lance_stream.table.manifest import Manifest


class RowCounts(NamedTuple):
    """The numbers of rows of each fragment, in the order of the manifest.

    Attributes:
        physical: (num_fragments,) i64, number of rows including deleted ones.
        live: (num_fragments,) i64, number of rows excluding deleted ones.
    """

    physical: npt.NDArray[np.int64]
    live: npt.NDArray[np.int64]


@dataclass(frozen=True)
class TableVersion:
    """One version of a table and its location.

    Attributes:
        uri: The table's location, as the user specified it.
        storage_options: Settings of the store.
        store: The store of the table's files.
        log: The table's version log.
        manifest: The manifest of the version.
    """

    uri: str
    storage_options: Mapping[str, Any] = field(repr=False)
    store: Store
    log: VersionLog
    manifest: Manifest

    @property
    def version(self) -> int:
        """The number of the version."""
        return self.manifest.version

    @property
    def branch(self) -> str | None:
        """The branch of the version; None for the main branch."""
        return self.manifest.branch

    @property
    def refs(self) -> Refs:
        """The table's tags and branches."""
        return Refs(self.log, self.manifest.branch)

    @property
    def schema(self) -> Schema:
        """The columns."""
        return self.manifest.schema

    @cached_property
    def arrow_schema(self) -> pa.Schema:
        """The columns as an Arrow schema."""
        return to_arrow(self.manifest.schema)

    @property
    def file_version(self) -> FileVersion:
        """The file version of new data files."""
        return FileVersion.from_manifest_name(self.manifest.data_format.version)

    @property
    def has_stable_row_ids(self) -> bool:
        """Whether the table has stable row ids."""
        return has_stable_row_ids(self.manifest)

    @property
    def timestamp(self) -> datetime | None:
        """When the version was committed, in UTC; None if its writer did not record it."""
        return timestamp_of(self.manifest)

    @cached_property
    def files(self) -> OpenFiles:
        """The table's files."""
        return OpenFiles(self.store, self.manifest.base_paths, self.storage_options)

    @property
    def location(self) -> str:
        """The table's location, in a form that other tables can use as a base path.

        It is valid in every process and for the reference: a local path is absolute, and Hadoop's
        protocols for S3 are replaced with "s3".
        """
        path = self.store.local_path("")
        if path is not None:
            return path
        protocol, colon, rest = self.uri.rstrip("/").partition(":")
        return canonical_protocol(protocol.lower()) + colon + rest

    def at(self, manifest: Manifest) -> "TableVersion":
        """Return another version of the same table, which shares its open files."""
        other = replace(self, manifest=manifest)
        if manifest.base_paths == self.manifest.base_paths:
            other.__dict__["files"] = self.files
        return other

    def with_log(self, log: VersionLog) -> "TableVersion":
        """Return the same version with another log of its table; shares all cached values."""
        other = copy(self)
        other.__dict__["log"] = log
        return other

    def read_at(self, version: int) -> "TableVersion":
        """Read another version of the same table.

        Raises:
            NotFoundError: The version no longer exists.
            UnsupportedFeatureError: The version requires a feature that is not supported.
        """
        manifest = self.log.read(version)
        check_readable(manifest)
        return self.at(manifest)

    def physical_rows(self, fragment: Fragment) -> int:
        """Return the number of rows in a fragment's files; reads a file if it is not stated."""
        if fragment.physical_rows or not fragment.files:
            return fragment.physical_rows
        return self.files.num_rows(fragment.files[0])

    @cached_property
    def row_counts(self) -> RowCounts:
        """The number of rows of each fragment; reads files only if the manifest does not state it.

        Raises:
            CorruptDataError: The numbers of a fragment contradict each other.
        """
        fragments = self.manifest.fragments
        physical, live, unknown = fragments.row_counts
        if unknown:
            physical, live = physical.copy(), live.copy()
        for index in unknown:
            fragment = fragments[index]  # raises if the fragment is damaged
            physical[index] = self.physical_rows(fragment)
            live[index] = self.num_live_rows(fragment)
        return RowCounts(physical, live)

    def check_stated_rows(self, fragment: Fragment) -> None:
        """Check that a fragment has as many rows as its message states, if it states very many.

        Call this before allocating memory for row ids or row versions, a few bytes of which can
        state any number of rows. A fragment that states no rows may still have row ids.

        Raises:
            CorruptDataError: The data file has another number of rows.
        """
        if fragment.physical_rows > MAX_UNCHECKED_ROWS:
            self.files.check_num_rows(fragment)
        elif not fragment.physical_rows and fragment.row_ids is not None:
            self.files.row_ids(fragment.row_ids, self.physical_rows(fragment))

    def deleted_offsets(self, fragment: Fragment) -> npt.NDArray[np.uint32]:
        """Return the row offsets of a fragment's deleted rows, ascending."""
        if fragment.deletion_file is None:
            return np.empty(0, np.uint32)
        with explaining_missing_files(self.store, self.version, fragment):
            return self.files.deleted_offsets(fragment, self.physical_rows(fragment))

    def deleted_offsets_of(self, fragments: Sequence[Fragment]) -> list[npt.NDArray[np.uint32]]:
        """Return the row offsets of each fragment's deleted rows; reads files concurrently."""
        with_files = [fragment for fragment in fragments if fragment.deletion_file is not None]
        if len(with_files) < 2 or self.store.num_readers <= NUM_READERS:
            return [self.deleted_offsets(fragment) for fragment in fragments]
        with ThreadPoolExecutor(min(self.store.num_readers, len(with_files))) as threads:
            return list(threads.map(self.deleted_offsets, fragments))

    def num_live_rows(self, fragment: Fragment) -> int:
        """Return the number of a fragment's live rows; reads files only if it is not stated."""
        deletion_file = fragment.deletion_file
        if deletion_file is None:
            return self.physical_rows(fragment)
        deleted = deletion_file.num_deleted_rows or len(self.deleted_offsets(fragment))
        return self.physical_rows(fragment) - deleted

    def row_ids(self, fragment: Fragment) -> RowIdSequence:
        """Return the stable row ids of a fragment.

        Raises:
            CorruptDataError: The fragment does not have one for each row.
        """
        if fragment.row_ids is None:
            raise CorruptDataError(
                f"fragment {fragment.id} has no row ids, but the table has stable row ids"
            )
        self.check_stated_rows(fragment)
        with explaining_missing_files(self.store, self.version, fragment):
            return self.files.row_ids(fragment.row_ids, self.physical_rows(fragment))

    def row_ids_at(self, fragment: Fragment, offsets: RowOffsets) -> RowIds:
        """Return the stable row ids at row offsets of a fragment; may read only these.

        Raises:
            CorruptDataError: The fragment does not have one for each row.
        """
        if not isinstance(fragment.row_ids, LineageColumn):
            return self.row_ids(fragment).take(offsets)
        return self._hidden_at(fragment, fragment.row_ids, offsets)

    def row_versions(self, fragment: Fragment, stored: StoredSequence | None) -> RowVersionSequence:
        """Return the created-at or last-updated-at version of each row of a fragment.

        Args:
            fragment: The fragment.
            stored: The sequence of versions.

        Raises:
            CorruptDataError: The sequence does not have one for each row.
        """
        self.check_stated_rows(fragment)
        with explaining_missing_files(self.store, self.version, fragment):
            return self.files.row_versions(stored, self.physical_rows(fragment))

    def row_versions_at(
        self, fragment: Fragment, stored: StoredSequence | None, offsets: RowOffsets
    ) -> RowVersions:
        """Return the row versions at row offsets of a fragment; may read only these.

        Raises:
            CorruptDataError: The sequence does not have one for each row.
        """
        if not isinstance(stored, LineageColumn):
            return self.row_versions(fragment, stored).take(offsets)
        return self._hidden_at(fragment, stored, offsets)

    def _hidden_at(
        self, fragment: Fragment, stored: LineageColumn, offsets: RowOffsets
    ) -> npt.NDArray[np.uint64]:
        with explaining_missing_files(self.store, self.version, fragment):
            column = self.files.hidden_column(stored)
            return column.check_num_rows(self.physical_rows(fragment)).take(offsets)

    @cached_property
    def row_id_index(self) -> RowIdIndex:
        """The index of all live rows by stable id; built on first use."""
        return self.index_of(self.manifest.fragments)

    def index_of(self, fragments: Sequence[Fragment]) -> RowIdIndex:
        """Return the index of all live rows of fragments by stable id.

        Raises:
            CorruptDataError: Two rows have the same id, or a fragment has fewer rows than stated.
        """
        if sum(fragment.physical_rows for fragment in fragments) > 4 * MAX_UNCHECKED_ROWS:
            for fragment in fragments:
                self.files.check_num_rows(fragment)
        deleted = self.deleted_offsets_of(fragments)
        return RowIdIndex(
            FragmentRows(fragment.id, self.row_ids(fragment), offsets)
            for fragment, offsets in zip(fragments, deleted, strict=True)
        )
