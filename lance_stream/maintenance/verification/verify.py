"""Verifies every rule of the format that can be checked on a version; returns findings.

A sound table of any writer has none. `RULES` lists the rules; each is a function that yields its
violations. A rule that meets damaged bytes reports them and ends; the other rules continue.

It checks one version, its files and the names beside them: the manifest as a whole, every fragment,
the metadata of every data file, every deletion file, the sequences of row ids and row versions, the
transaction, the ledger, the remembered deletes. Values are read only on request (`verify_values`).
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Final

import numpy as np

from lance_stream.arguments import as_flag
from lance_stream.errors import BadDataError, CorruptDataError, NotFoundError
from lance_stream.file.versions import FileVersion
from lance_stream.maintenance.indices.missing_files import missing_files
from lance_stream.maintenance.verification.verify_values import invalid_values
from lance_stream.schema.arrow_schemas import field_to_arrow
from lance_stream.schema.fields import TOMBSTONED_ID
from lance_stream.snapshot.files.hidden_columns import clear_hidden_columns
from lance_stream.snapshot.files.open_files import clear_deleted_offsets
from lance_stream.snapshot.table_version import TableVersion
from lance_stream.snapshot.write_ahead_logs import FOLDER, unmerged_files
from lance_stream.storage.locations import is_relative
from lance_stream.table import paths
from lance_stream.table.config.ledger_entries import read_entries
from lance_stream.table.config.tombstones import read_tombstones
from lance_stream.table.feature_flags import (
    MIXED_FILE_VERSIONS,
    TABLE_CONFIG,
    check_readable,
    flags_for,
)
from lance_stream.table.fragments.fragment import DataFile, Fragment
from lance_stream.table.indices import decode_index_section
from lance_stream.table.operations.transaction import decode_transaction
from lance_stream.table.operations.versions import Clone
from lance_stream.upsert.tombstone_files import column_names, read_deletes


@dataclass(frozen=True, slots=True)
class Finding:
    """A violation of a rule of the format.

    Attributes:
        rule: The rule's name, one of `RULES`, or `VALUES`.
        where: The file or fragment that breaks it.
        message: What is wrong.
    """

    rule: str
    where: str
    message: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.where}: {self.message}"


def verify(
    table: TableVersion,
    *,
    deep: bool = False,
    watch: Callable[[float], object] = lambda _share: None,
) -> list[Finding]:
    """Return every violation in a version; none for a sound table.

    Args:
        table: The version.
        deep: Whether all values are read and decoded, too, as the rule `VALUES`.
        watch: Called with the share of the values that have been read, from 0 to 1.
    """
    as_flag("deep", deep)
    clear_hidden_columns()  # the files are verified, not caches of their contents
    clear_deleted_offsets()
    findings: list[Finding] = []
    deep_rules: Rules = {VALUES: partial(invalid_values, watch=watch)}
    rules = {**RULES, **deep_rules} if deep else RULES
    for rule, check in rules.items():
        try:
            findings += [Finding(rule, where, message) for where, message in check(table)]
        except (BadDataError, NotFoundError) as error:
            findings.append(Finding(rule, _where(table, error), str(error)))
    return findings


Violations = Iterator[tuple[str, str]]
Rules = Mapping[str, Callable[[TableVersion], Violations]]


def _where(table: TableVersion, error: Exception) -> str:
    notes = getattr(error, "__notes__", [])
    return ", ".join([f"version {table.version}", *notes])


def _fragments(table: TableVersion) -> Iterator[tuple[str, Fragment]]:
    return ((f"fragment {fragment.id}", fragment) for fragment in table.manifest.fragments)


# --- the manifest


def _features(table: TableVersion) -> Violations:
    check_readable(table.manifest)
    reader, writer = flags_for(table.manifest)
    missing = reader & ~table.manifest.reader_feature_flags
    if missing:
        yield "manifest", f"the reader flags lack {missing}, which its contents require"
    # the reference accepts a table with a config but without its flag, and sets it later
    missing = writer & ~table.manifest.writer_feature_flags & ~TABLE_CONFIG
    if missing:
        yield "manifest", f"the writer flags lack {missing}, which its contents require"


def _data_format(table: TableVersion) -> Violations:
    stated = table.manifest.data_format
    if stated.file_format != "lance":
        yield "manifest", f"the file format is {stated.file_format!r} instead of 'lance'"
    FileVersion.from_manifest_name(stated.version)


def _schema(table: TableVersion) -> Violations:
    names = Counter(table.schema.names)
    for name in sorted(name for name, count in names.items() if count > 1):
        yield "schema", f"{names[name]} columns are named {name!r}"
    for field in table.schema.fields:
        field_to_arrow(field)
    for field in table.schema.walk():
        if field.id < 0:
            yield "schema", f"the field {field.name!r} has the id {field.id}"


def _timestamp(table: TableVersion) -> Violations:
    if table.manifest.timestamp_nanos is None:
        yield "manifest", "the version has no commit time"


def _last_number(table: TableVersion) -> int:
    """Return the largest version number that a version may mention: its own, unless detached."""
    return paths.MAX_U64 if paths.is_detached(table.version) else table.version


def _manifest_names(table: TableVersion) -> Violations:
    names = table.store.list_names(paths.VERSIONS_DIRECTORY)
    paths.scheme_of(names)
    versions = {parsed.version for name in names if (parsed := paths.parse_manifest_name(name))}
    versions |= {version for name in names if (version := paths.parse_detached_manifest_name(name))}
    if table.version not in versions:
        yield "manifest", f"no manifest file is named after version {table.version}"


def _transaction(table: TableVersion) -> Violations:
    manifest = table.manifest
    inline = manifest.inline_transaction
    transaction = None if inline is None else decode_transaction(inline)
    is_clone = transaction is not None and isinstance(transaction.operation, Clone)
    if (
        transaction is not None
        and not is_clone  # whose first version has the number of its origin
        and transaction.read_version >= _last_number(table)
    ):
        yield (
            "inline transaction",
            f"it was planned on version {transaction.read_version}, but created {manifest.version}",
        )
    if not manifest.transaction_file:
        return
    where = paths.transaction_path(manifest.transaction_file)
    parsed = paths.parse_transaction_file_name(manifest.transaction_file)
    if parsed is None:
        yield where, "the name contains no read version and uuid"
    data = table.store.read(where) if table.store.exists(where) else b""
    if data:
        stored = decode_transaction(data)
        # a second transaction with the same uuid has a random number appended
        if parsed is not None and (
            parsed[0] != stored.read_version or not parsed[1].startswith(stored.uuid)
        ):
            yield where, f"the file contains transaction {stored.read_version}-{stored.uuid}"
        if transaction is not None and transaction != stored:
            yield where, "the file differs from the copy in the manifest"
    elif transaction is None:
        yield where, "the file is missing or empty, and the manifest has no copy of the transaction"


def _indices(table: TableVersion) -> Violations:
    if table.manifest.index_section is None:
        return
    field_ids = {field.id for field in table.schema.walk()}
    for index in decode_index_section(table.manifest.index_section):
        where = f"index {index.name!r}"
        if index.dataset_version > _last_number(table):
            yield where, f"it was built from a later version, {index.dataset_version}"
        unknown = sorted(set(index.field_ids) - field_ids)
        if unknown:
            yield where, f"it covers the fields {unknown}, which the table does not have"
        missing = missing_files(table, index)
        if missing is not None:
            yield where, missing


def _ledger(table: TableVersion) -> Violations:
    for app_id, entry in read_entries(table.manifest.config).items():
        if entry.version is not None and entry.version > _last_number(table):
            yield (
                f"ledger entry of app id {app_id!r}",
                f"it states that version {entry.version} committed batch {entry.batch_id}, but "
                f"this is version {table.version}",
            )


def _tombstones(table: TableVersion) -> Violations:
    tombstones = read_tombstones(table.manifest.config)
    if tombstones is None:
        return
    columns = column_names(tombstones.on, is_history=tombstones.values is not None)
    for file in tombstones.files:
        try:
            read_deletes(table.files, file, columns)
        except CorruptDataError as error:
            yield paths.tombstone_path(file.name), str(error)


def _write_ahead_log(table: TableVersion) -> Violations:
    files = unmerged_files(table)
    if files is not None and files.num_files:
        yield (
            FOLDER,
            f"{files.num_files} files of a write-ahead log (MemWAL) exist: rows that are not "
            "merged are in no version",
        )


# --- fragments


def _fragment_ids(table: TableVersion) -> Violations:
    ids = table.manifest.fragments.ids
    for fragment_id, count in Counter(ids).items():
        if count > 1:
            yield f"fragment {fragment_id}", f"{count} fragments have this id"
    largest = table.manifest.max_fragment_id
    if ids and largest is not None and max(ids) > largest:
        yield (
            f"fragment {max(ids)}",
            f"the manifest states {largest} as the largest fragment id",
        )


def _fields_of_files(table: TableVersion) -> Violations:
    flags = table.manifest.reader_feature_flags
    expected = table.manifest.data_format.version
    # the parts of a struct may be in several files, and in 2.0 each of them lists the struct, too
    structs = {field.id for field in table.schema.walk() if not field.is_leaf}
    for where, fragment in _fragments(table):
        live: Counter[int] = Counter()
        for file in fragment.files:
            version = FileVersion.from_numbers(*file.file_version)
            if version.manifest_name != expected and not flags & MIXED_FILE_VERSIONS:
                yield (
                    f"{where}, {file.path}",
                    f"it has the file version {version}, but the table has {expected}",
                )
            live.update(
                field_id
                for field_id in file.field_ids
                if field_id != TOMBSTONED_ID and field_id not in structs
            )
        for field_id, count in live.items():
            if count > 1:
                yield (
                    where,
                    f"the field {field_id} is in {count} of its data files; the last one is read",
                )


def _stored_paths(table: TableVersion) -> Violations:
    declared = {base_path.id for base_path in table.manifest.base_paths}
    for base in table.manifest.base_paths:
        if is_relative(base.path):
            yield (
                "manifest",
                f"the base path {base.id}, {base.path!r}, is relative: its files are found in one "
                "working directory only",
            )
    for where, fragment in _fragments(table):
        for file in fragment.files:
            try:
                paths.check_stored_path(file.path)
            except BadDataError as error:
                yield where, str(error)
        bases = [file.base_id for file in fragment.files]
        bases += [fragment.deletion_file.base_id] if fragment.deletion_file else []
        for base_id in bases:
            if base_id is not None and base_id not in declared:
                yield where, f"it refers to the base path {base_id}, which is not declared"


def _data_files(table: TableVersion) -> Violations:
    """Open every data file, several in parallel."""
    jobs = [
        (f"{where}, {file.path}", fragment, file)
        for where, fragment in _fragments(table)
        for file in fragment.files
    ]
    with ThreadPoolExecutor(table.store.num_readers) as threads:
        results = threads.map(lambda job: (job[0], _problems_of(table, job[1], job[2])), jobs)
        for where, problems in results:
            for problem in problems:
                yield where, problem


def _problems_of(table: TableVersion, fragment: Fragment, file: DataFile) -> list[str]:
    try:
        size = table.files.size_of(file)
        stated = FileVersion.from_numbers(*file.file_version)
        # old writers recorded too small a size for files of 0.1; no reader relies on it
        if stated is not FileVersion.V0_1 and file.size_bytes not in (0, size):
            return [f"the file has {size} bytes, but the manifest states {file.size_bytes}"]
        metadata = table.files.reader(file).metadata
    except (BadDataError, NotFoundError) as error:
        return [str(error)]
    problems = []
    if metadata.version is not stated:
        problems.append(
            f"the file has version {metadata.version}, but the manifest states {stated}"
        )
    if fragment.physical_rows and metadata.num_rows != fragment.physical_rows:
        problems.append(
            f"the file has {metadata.num_rows} rows, but its fragment {fragment.physical_rows}"
        )
    num_columns = len(metadata.column_ranges)
    outside = [
        column_index
        for column_index in file.column_indices
        if column_index >= num_columns or column_index < -1
    ]
    if outside:
        problems.append(f"it has {num_columns} columns, but fields refer to {outside}")
    used = Counter(column_index for column_index in file.column_indices if column_index >= 0)
    shared = sorted(column for column, count in used.items() if count > 1)
    if shared:
        problems.append(f"several fields refer to the columns {shared}")
    return problems


def _deletion_files(table: TableVersion) -> Violations:
    for where, fragment in _fragments(table):
        if fragment.deletion_file is None:
            continue
        where = f"{where}, {paths.deletion_file_path(fragment.id, fragment.deletion_file)}"
        try:
            deleted = table.deleted_offsets(fragment)
        except (BadDataError, NotFoundError) as error:
            yield where, str(error)
            continue
        if not len(deleted):
            yield where, "the deletion file has no offsets"
        if fragment.deletion_file.read_version >= _last_number(table):
            yield (
                where,
                f"it was planned on version {fragment.deletion_file.read_version}, but this is "
                f"version {table.version}",
            )


# --- rows


def _row_ids(table: TableVersion) -> Violations:
    fragments = table.manifest.fragments
    if not table.has_stable_row_ids:
        for where, fragment in _fragments(table):
            if fragment.row_ids is not None:
                yield where, "it has row ids, but the table's flags lack stable row ids"
        return
    ranges = fragments.lineage.first_row_ids
    ends = ranges.values + fragments.numbers.physical_rows
    largest = int(ends[ranges.is_constant].max(initial=0)) - 1
    for index in np.flatnonzero(~ranges.is_constant).tolist():
        where = f"fragment {fragments.ids[index]}"
        try:
            ids = np.sort(table.row_ids(fragments[index]).to_array())
        except (BadDataError, NotFoundError) as error:
            yield where, str(error)
            continue
        largest = max(largest, int(ids[-1]) if len(ids) else -1)
        if bool((ids[1:] == ids[:-1]).any()):
            yield where, "two of its rows have the same row id"
    if largest >= table.manifest.next_row_id:
        yield (
            "manifest",
            f"the next row id is {table.manifest.next_row_id}, but {largest} is in use already",
        )


def _row_ids_across_fragments(table: TableVersion) -> Violations:
    """Index the rows of fragments that may share ids, which finds two live rows with one id."""
    if table.has_stable_row_ids:
        fragments = table.manifest.fragments
        is_alone = fragments.lineage.first_row_ids.is_constant.copy()
        others = [
            table.row_ids(fragments[index]).to_array()
            for index in np.flatnonzero(~is_alone).tolist()
        ]
        ids = np.sort(np.concatenate([np.empty(0, np.uint64), *others]))
        is_alone &= fragments.lineage.share_no_row_id(ids)
        _ = table.index_of([fragments[index] for index in np.flatnonzero(~is_alone).tolist()])
    yield from ()


def _row_versions(table: TableVersion) -> Violations:
    for where, fragment in _fragments(table):
        sequences = {}
        try:
            table.check_stated_rows(fragment)
        except (BadDataError, NotFoundError):
            continue  # the rules of data files and row ids report it
        for name in ("created_at_versions", "last_updated_at_versions"):
            stored = getattr(fragment, name)
            if stored is None:
                continue
            try:
                sequence = table.row_versions(fragment, stored)
            except (BadDataError, NotFoundError) as error:
                yield where, f"{name}: {error}"
                continue
            sequences[name] = sequence
            if len(sequence.versions) and int(sequence.versions.max()) > _last_number(table):
                yield (
                    where,
                    f"{name}: a row has version {int(sequence.versions.max())}, but this is "
                    f"version {table.version}",
                )
            if len(sequence.versions) and int(sequence.versions.min()) < 1:
                yield where, f"{name}: a row has version 0"
        if len(sequences) == 2:
            created, updated = (sequence.to_array() for sequence in sequences.values())
            if bool((created > updated).any()):
                yield where, "a row was updated in a version before the one that created it"


def _row_counts(table: TableVersion) -> Violations:
    yield from _wrong_counts(table)
    for where, fragment in _fragments(table):
        if not fragment.files:
            yield where, "it has no data file"
        rows = table.physical_rows(fragment)
        if rows == 0:
            yield where, "it has no rows"
        elif fragment.deletion_file and fragment.deletion_file.num_deleted_rows >= rows:
            yield (
                where,
                "all of its rows are deleted; writers omit such a fragment from the manifest",
            )


def _wrong_counts(table: TableVersion) -> Violations:
    """Compare the row counts that Lance 0.8 stated, which readers ignore, with the files."""
    distrusted = table.manifest.distrusted_fragments
    if distrusted is None:
        return
    for stated, fragment in zip(distrusted, table.manifest.fragments, strict=True):
        rows, deleted = table.physical_rows(fragment), len(table.deleted_offsets(fragment))
        stated_deleted = stated.deletion_file.num_deleted_rows if stated.deletion_file else 0
        if stated.physical_rows not in (0, rows) or stated_deleted not in (0, deleted):
            yield (
                f"fragment {stated.id}",
                f"the manifest states {stated_deleted} deleted rows of {stated.physical_rows}, but "
                f"{deleted} of {rows} are deleted; the next commit repairs it",
            )


VALUES: Final = "values"
"""The rule that reads everything: every value can be decoded."""

RULES: Mapping[str, Callable[[TableVersion], Violations]] = {
    "features": _features,
    "data format": _data_format,
    "schema": _schema,
    "timestamp": _timestamp,
    "manifest names": _manifest_names,
    "transaction": _transaction,
    "indices": _indices,
    "ledger": _ledger,
    "tombstones": _tombstones,
    "write-ahead log": _write_ahead_log,
    "fragment ids": _fragment_ids,
    "fields of files": _fields_of_files,
    "stored paths": _stored_paths,
    "data files": _data_files,
    "deletion files": _deletion_files,
    "row counts": _row_counts,
    "row ids": _row_ids,
    "row ids across fragments": _row_ids_across_fragments,
    "row versions": _row_versions,
}
"""Every rule that `verify` checks, by name."""
