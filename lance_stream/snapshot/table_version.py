"""One version of a table and its location, the starting point of every operation."""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
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
from lance_stream.snapshot.files.open_files import MOST_UNCHECKED_ROWS, OpenFiles
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
    """How many rows n fragments have, in their order.

    Attributes:
        physical: (n,) i64, the rows in their files, deleted ones included.
        live: (n,) i64, the others.
    """

    physical: npt.NDArray[np.int64]
    live: npt.NDArray[np.int64]


@dataclass(frozen=True)
class TableVersion:
    """One version of a table and its location.

    Attributes:
        uri: The table's directory, as the user wrote it.
        storage_options: The settings for opening its store.
        store: The store of its files.
        log: Its version log.
        manifest: The version.
    """

    uri: str
    storage_options: Mapping[str, Any] = field(repr=False)
    store: Store
    log: VersionLog
    manifest: Manifest

    @property
    def version(self) -> int:
        """The version's number."""
        return self.manifest.version

    @property
    def branch(self) -> str | None:
        """The branch that the version belongs to; None for the main one."""
        return self.manifest.branch

    @property
    def refs(self) -> Refs:
        """The tags and branches that concern it."""
        return Refs(self.log, self.manifest.branch)

    @property
    def schema(self) -> Schema:
        """The columns."""
        return self.manifest.schema

    @cached_property
    def arrow_schema(self) -> pa.Schema:
        """The columns, as Arrow has them."""
        return to_arrow(self.manifest.schema)

    @property
    def file_version(self) -> FileVersion:
        """The file version of new data files."""
        return FileVersion.from_manifest_name(self.manifest.data_format.version)

    @property
    def has_stable_row_ids(self) -> bool:
        """Whether a row keeps its id for its whole life."""
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
        """The table's directory, in a form that other tables can name as a base path.

        It is the same for every process, and the reference understands it: a local path is
        absolute, and the protocols of Hadoop for S3 are replaced by its own.
        """
        path = self.store.local_path("")
        if path is not None:
            return path
        protocol, colon, rest = self.uri.rstrip("/").partition(":")
        return canonical_protocol(protocol.lower()) + colon + rest

    def at(self, manifest: Manifest) -> "TableVersion":
        """Return another version of the same table; open files stay open."""
        other = replace(self, manifest=manifest)
        if manifest.base_paths == self.manifest.base_paths:
            other.__dict__["files"] = self.files
        return other

    def read_at(self, version: int) -> "TableVersion":
        """Return another version of the same table, whose rows are to be read.

        Raises:
            NotFoundError: It no longer exists.
            UnsupportedFeatureError: It has a feature that a reader must understand and we do not.
        """
        manifest = self.log.read(version)
        check_readable(manifest)
        return self.at(manifest)

    def physical_rows(self, fragment: Fragment) -> int:
        """Return the number of rows in a fragment's files, which old manifests do not state."""
        if fragment.physical_rows or not fragment.files:
            return fragment.physical_rows
        return self.files.num_rows(fragment.files[0])

    @cached_property
    def row_counts(self) -> RowCounts:
        """The number of rows of each fragment; reads only files whose rows no manifest states.

        Raises:
            CorruptDataError: The numbers of a fragment contradict each other.
        """
        fragments = self.manifest.fragments
        physical, live, unknown = fragments.row_counts
        if unknown:
            physical, live = physical.copy(), live.copy()
        for index in unknown:
            fragment = fragments[index]  # or the reason why it cannot be decoded
            physical[index] = self.physical_rows(fragment)
            live[index] = self.num_live_rows(fragment)
        return RowCounts(physical, live)

    def check_promise(self, fragment: Fragment) -> None:
        """Check that a fragment has the rows that it promises, if these are very many.

        Call it before memory is allocated for row ids or row versions, whose few bytes can state
        any number. A fragment that promises none may still have row ids.

        Raises:
            CorruptDataError: The data file has a different number.
        """
        if fragment.physical_rows > MOST_UNCHECKED_ROWS:
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
        """Return the row offsets of the deleted rows per fragment; reads files side by side."""
        with_files = [fragment for fragment in fragments if fragment.deletion_file is not None]
        if len(with_files) < 2 or self.store.num_readers <= NUM_READERS:
            return [self.deleted_offsets(fragment) for fragment in fragments]
        with ThreadPoolExecutor(min(self.store.num_readers, len(with_files))) as threads:
            return list(threads.map(self.deleted_offsets, fragments))

    def num_live_rows(self, fragment: Fragment) -> int:
        """Return the number of a fragment's live rows; reads nothing if the manifest tells."""
        deletion_file = fragment.deletion_file
        if deletion_file is None:
            return self.physical_rows(fragment)
        deleted = deletion_file.num_deleted_rows or len(self.deleted_offsets(fragment))
        return self.physical_rows(fragment) - deleted

    def row_ids(self, fragment: Fragment) -> RowIdSequence:
        """Return the stable row ids of a fragment's rows.

        Raises:
            CorruptDataError: It has none, or not one for each row.
        """
        if fragment.row_ids is None:
            raise CorruptDataError(
                f"fragment {fragment.id} has no row ids, but the table has stable row ids"
            )
        self.check_promise(fragment)
        with explaining_missing_files(self.store, self.version, fragment):
            return self.files.row_ids(fragment.row_ids, self.physical_rows(fragment))

    def row_ids_at(self, fragment: Fragment, offsets: RowOffsets) -> RowIds:
        """Return the stable row ids of some rows of a fragment; may read no more than these.

        Raises:
            CorruptDataError: It has none, or not one for each row.
        """
        if not isinstance(fragment.row_ids, LineageColumn):
            return self.row_ids(fragment).take(offsets)
        return self._hidden_at(fragment, fragment.row_ids, offsets)

    def row_versions(self, fragment: Fragment, stored: StoredSequence | None) -> RowVersionSequence:
        """Return a version for each of a fragment's rows.

        Args:
            fragment: The fragment.
            stored: Its created-at or last-updated-at versions.

        Raises:
            CorruptDataError: There is not one for each row.
        """
        self.check_promise(fragment)
        with explaining_missing_files(self.store, self.version, fragment):
            return self.files.row_versions(stored, self.physical_rows(fragment))

    def row_versions_at(
        self, fragment: Fragment, stored: StoredSequence | None, offsets: RowOffsets
    ) -> RowVersions:
        """Return the versions of some rows of a fragment; may read no more than these.

        Raises:
            CorruptDataError: There is not one for each row.
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
        """The address of each live row, by stable id; built on first use."""
        return self.index_of(self.manifest.fragments)

    def index_of(self, fragments: Sequence[Fragment]) -> RowIdIndex:
        """Return the address of each live row of some fragments, by stable id.

        Raises:
            CorruptDataError: Two share an id; or the manifest promises more rows than exist.
        """
        if sum(fragment.physical_rows for fragment in fragments) > 4 * MOST_UNCHECKED_ROWS:
            for fragment in fragments:
                self.files.check_num_rows(fragment)
        deleted = self.deleted_offsets_of(fragments)
        return RowIdIndex(
            FragmentRows(fragment.id, self.row_ids(fragment), offsets)
            for fragment, offsets in zip(fragments, deleted, strict=True)
        )
