"""Remembered deletes, or tombstones: is a row older than the last delete of its key?

    delete id=7 seq=5        remembered: (7, 5, now), in a file of the commit that deletes
    upsert id=7 seq=4        late: it changes nothing
    upsert id=7 seq=5        late: the delete wins a tie
    upsert id=7 seq=6        brings the key back; the delete stays remembered until it expires

A delete is remembered even if the table does not have its key, since it may arrive before the
insert. A delete that is older than the stored row, or than a remembered delete, is itself late.

The config lists the files of a version (`table.config.tombstones`); the files hold the deletes
(`tombstone_files`). A commit that deletes writes one file, which belongs to the committed version
and to later versions.
"""

import json
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lance_stream.arrays import Positions
from lance_stream.environment import Environment
from lance_stream.errors import CorruptDataError, InvalidInputError, RetryableConflictError
from lance_stream.keys.batch_keys import NO_MATCH, KeyLookup
from lance_stream.keys.key_words import hash_keys
from lance_stream.keys.value_comparison import are_less, dense_ranks
from lance_stream.schema.fields import Schema
from lance_stream.schema.types.logical_types import leaf_to_logical, logical_to_leaf
from lance_stream.snapshot.files.open_files import OpenFiles
from lance_stream.snapshot.store_clock import with_store_clock
from lance_stream.snapshot.table_version import TableVersion
from lance_stream.table.config.tombstones import (
    CONFIG_KEY,
    FileContent,
    TombstoneFile,
    Tombstones,
    check_is_of,
    config_entries,
    files_to_join,
    is_of,
    read_tombstones,
    with_change,
    without_expired,
)
from lance_stream.table.manifest import Manifest
from lance_stream.table.paths import tombstone_file_name, tombstone_path
from lance_stream.upsert.rules import FOR_GOOD, UpsertRules
from lance_stream.upsert.tombstone_files import (
    DELETE_FILES,
    FORGET,
    SEQUENCE,
    Deletes,
    cast_deletes,
    encode_deletes,
    plain_type,
    plain_values,
    schema_of,
)
from lance_stream.write.casting import cast_batch, check_castable

# --- what a version remembers


@dataclass(frozen=True)
class RememberedDeletes:
    """The deletes that a version remembers, for one set of key columns.

    Attributes:
        open_files: The files of the table.
        schema: The columns of deletes, as from `schema_of`.
        on: The key columns.
        sequence_by: The column that orders rows of one key.
        files: The files that hold the deletes.
        now_ms: When the upsert was planned, in milliseconds since 1970-01-01 UTC.
        age_ms: How long deletes are remembered; None if the upsert adds no tombstones and only
            honors existing ones.
        values: The columns whose values are remembered with the events of a history; None if only
            deletes are remembered.
    """

    open_files: OpenFiles
    schema: pa.Schema
    on: tuple[str, ...]
    sequence_by: str
    files: tuple[TombstoneFile, ...]
    now_ms: int
    age_ms: int | None
    values: tuple[str, ...] | None

    @property
    def oldest_ms(self) -> int:
        """Deletes before this moment are forgotten."""
        return 0 if self.age_ms is None else max(self.now_ms - self.age_ms, 0)

    @property
    def is_remembering(self) -> bool:
        """Whether the upsert's own deletes are remembered."""
        return self.age_ms is not None

    def new_deletes(self, keys: Sequence[pa.Array], sequence: pa.Array) -> Deletes:
        """Return deletes at the current time.

        Args:
            keys: (n,) values of each key column.
            sequence: (n,) their sequences.
        """
        return Deletes(
            pa.RecordBatch.from_arrays(self.new_columns(keys, sequence), schema=self.schema)
        )

    def new_columns(self, keys: Sequence[pa.Array], sequence: pa.Array) -> list[pa.Array]:
        """Return the columns of deletes at the current time; see `new_deletes`."""
        times = pa.array(np.full(len(sequence), self.now_ms, np.int64))
        return [*map(plain_values, keys), self.as_stored(sequence), times]

    def last_sequences(self, lookup: KeyLookup, keys: Sequence[pa.Array]) -> pa.Array:
        """Return the largest sequence at which each key of a batch was deleted.

        Args:
            lookup: The keys of the batch.
            keys: (num_keys,) values of each key column, in the types of `schema`.

        Returns:
            (num_keys,) sequences; null where no delete is remembered.
        """
        deletes, numbers = self.of_keys(lookup, keys)
        best = rows_of_greatest(numbers, deletes.sequence, lookup.num_keys)
        return deletes.sequence.take(pa.array(best, mask=best == NO_MATCH))

    def of_keys(self, lookup: KeyLookup, keys: Sequence[pa.Array]) -> tuple[Deletes, Positions]:
        """Return the remembered deletes of the keys of a batch.

        Args:
            lookup: The keys of the batch.
            keys: (num_keys,) values of each key column, in the types of `schema`.

        Returns:
            (n,) deletes, or events, in the order in which they were remembered; and (n,) i64, the
            number of each one's key.
        """
        hashes = np.sort(hash_keys([plain_values(key) for key in keys]))
        chosen = [pa.RecordBatch.from_pylist([], schema=self.schema)]
        lacking: list[tuple[str, npt.NDArray[np.bool_], int]] = []
        num_matches = 0
        for file in self.files:
            deletes = DELETE_FILES.get(self.open_files, file, self.schema)
            rows = np.sort(deletes.rows_that_may_be(hashes))
            rows = rows[deletes.deleted_at_ms[rows] >= self.oldest_ms]
            if len(rows):
                chosen.append(deletes.rows.take(pa.array(rows)))
                lacking += [
                    (name, is_missing[rows], num_matches)
                    for name, is_missing in deletes.missing.items()
                ]
                num_matches += len(rows)
        candidates = _one_batch(chosen)
        missing: dict[str, npt.NDArray[np.bool_]] = {}
        for name, is_missing, start in lacking:
            whole = missing.setdefault(name, np.zeros(num_matches, np.bool_))
            whole[start : start + len(is_missing)] = is_missing
        # Equal hashes do not prove equal keys: compare the keys themselves.
        numbers = lookup.find(Deletes(candidates).keys)
        hit = np.flatnonzero(numbers != NO_MATCH)
        missing_values = {name: values[hit] for name, values in missing.items()}
        return Deletes(candidates.take(pa.array(hit)), missing_values), numbers[hit]

    def are_late(
        self, lookup: KeyLookup, keys: Sequence[pa.Array], sequence: pa.Array
    ) -> npt.NDArray[np.bool_]:
        """Return which keys of a batch have a row that is not newer than the key's last delete.

        Args:
            lookup: The keys of the batch.
            keys: (num_keys,) values of each key column.
            sequence: (num_keys,) the sequence of each key's row.
        """
        if not self.files:
            return np.zeros(lookup.num_keys, np.bool_)
        last = self.last_sequences(lookup, keys)
        is_newer = are_less(last, self.as_stored(sequence))
        late: npt.NDArray[np.bool_] = ~is_newer & last.is_valid().to_numpy(zero_copy_only=False)
        return late

    def as_stored(self, sequence: pa.Array) -> pa.Array:
        """Return sequences in the type in which they are remembered.

        Raises:
            InvalidInputError: A sequence does not fit this type.
        """
        target = pa.schema([pa.field(self.sequence_by, self.schema.field(SEQUENCE).type)])
        batch = pa.RecordBatch.from_arrays([sequence], [self.sequence_by])
        return cast_batch(batch, target).column(0)


def rows_of_greatest(numbers: Positions, values: pa.Array, count: int) -> Positions:
    """Return the row with the largest value for each number.

    Args:
        numbers: (n,) i64, from 0 up to but not including `count`.
        values: (n,) values, none null.
        count: How many numbers there are.

    Returns:
        (count,) i64 rows; -1 where a number does not occur. A tie is broken arbitrarily.
    """
    ranks = dense_ranks(values)
    best = np.zeros(count, np.int64)
    np.maximum.at(best, numbers, ranks)
    greatest = np.flatnonzero(ranks == best[numbers])
    rows: Positions = np.full(count, NO_MATCH, np.int64)
    rows[numbers[greatest]] = greatest
    return rows


def remembered_deletes(
    table: TableVersion,
    rules: UpsertRules,
    sequence: pa.DataType | None,
    environment: Environment,
) -> RememberedDeletes | None:
    """Return the deletes that a version remembers and that apply to a batch; reads no file.

    Args:
        table: The version.
        rules: The user's rules for the rows.
        sequence: The type of the sequences in the table; or, if they are not stored, in the
            incoming rows. None if the rows have no order.
        environment: The clock.

    Returns:
        None if the rows have no order, or if the table remembers no deletes by the rules' columns
        and the upsert adds none.

    Raises:
        InvalidInputError: See `open_remembered`.
        CorruptDataError: See `open_remembered`.
    """
    name = rules.sequence_by
    if name is None or sequence is None:
        return None
    tombstones = read_tombstones(table.manifest.config)
    if rules.tombstones is None and (tombstones is None or not is_of(tombstones, rules.on, name)):
        return None
    if rules.tombstones not in (None, FOR_GOOD):
        environment = with_store_clock(table.store, environment)
    return open_remembered(
        table,
        rules.on,
        name,
        sequence,
        age=rules.tombstones,
        now_ms=environment.now_nanos() // 1_000_000,
    )


def open_remembered(
    table: TableVersion,
    on: Sequence[str],
    sequence_by: str,
    sequence: pa.DataType,
    *,
    age: timedelta | None,
    now_ms: int,
    values: Sequence[str] | None = None,
) -> RememberedDeletes:
    """Return the deletes that a version remembers and that apply to an upsert; reads no file.

    Args:
        table: The version.
        on: The key columns.
        sequence_by: The column that orders rows of one key.
        sequence: Its type in the table; or, if it is not stored, in the data.
        age: How long deletes are remembered; None if the upsert adds no tombstones. Existing
            tombstones with the same columns apply in any case.
        now_ms: Milliseconds since 1970-01-01 UTC.
        values: The columns whose values are remembered with the events of a history; None for
            deletes.

    Raises:
        InvalidInputError: The upsert remembers deletes by these columns, but the table remembers
            deletes by other columns, or with sequences of another type.
        CorruptDataError: The config's entry is damaged.
    """
    tombstones = read_tombstones(table.manifest.config)
    files: tuple[TombstoneFile, ...] = ()
    expected = _remembered_type(sequence)
    is_history = values is not None
    if tombstones is not None and tombstones.files:
        if age is not None:
            check_is_of(tombstones, on, sequence_by, is_history=is_history)
        if is_of(tombstones, on, sequence_by, is_history=is_history):
            files = tombstones.files
            expected = _common_type(expected, text_to_type(tombstones.sequence_type), sequence_by)
            if values is not None:
                names = table.arrow_schema.names
                older = [value for value in tombstones.values or () if value in names]
                values = tuple(dict.fromkeys((*older, *values)))
    opened = RememberedDeletes(
        open_files=table.files,
        schema=schema_of(on, table.arrow_schema, expected, values),
        on=tuple(on),
        sequence_by=sequence_by,
        files=files,
        now_ms=now_ms,
        age_ms=None if age is None else age // timedelta(milliseconds=1),
        values=None if values is None else tuple(values),
    )
    return replace(opened, files=without_expired(files, opened.oldest_ms))


def _remembered_type(sequence: pa.DataType) -> pa.DataType:
    """Return the type in which sequences are remembered.

    Raises:
        InvalidInputError: They are lists.
    """
    plain = plain_type(sequence)
    if pa.types.is_struct(plain):
        return pa.struct([(part.name, _remembered_type(part.type)) for part in plain])
    if pa.types.is_nested(plain):
        raise InvalidInputError(
            f"the sequence of a remembered delete (tombstones) must be a single value or a struct, "
            f"but rows are ordered by {plain}. Order them by a column with single values, by a "
            "struct of such columns, or omit tombstones"
        )
    if pa.types.is_timestamp(plain) and plain.tz is not None:
        plain = pa.timestamp(plain.unit, "UTC")  # an instant is the same in every zone
    return logical_to_leaf(leaf_to_logical(plain))


def type_to_text(arrow_type: pa.DataType) -> str:
    """Return the type of sequences as the config states it.

    A single value has the format's name of its type; a struct is written as JSON with the names
    and types of its fields: [["ts", "int64"], ["lsn", "int64"]].
    """
    if not pa.types.is_struct(arrow_type):
        return leaf_to_logical(arrow_type)
    return json.dumps([[part.name, type_to_text(part.type)] for part in arrow_type])


def text_to_type(text: str) -> pa.DataType:
    """Return the type of sequences that the config states; see `type_to_text`.

    Raises:
        CorruptDataError: The text does not describe a type.
        UnsupportedFeatureError: A type is unknown.
    """
    if not text.startswith("["):
        return logical_to_leaf(text)
    try:
        parts = json.loads(text)
        return pa.struct([(str(name), text_to_type(str(kind))) for name, kind in parts])
    except (ValueError, TypeError, RecursionError) as error:
        raise CorruptDataError(
            f"the config entry {CONFIG_KEY!r} states {text[:200]!r} as the type of sequences, "
            f"which is not a valid type. {FORGET}"
        ) from error


def _common_type(ours: pa.DataType, remembered: pa.DataType, name: str) -> pa.DataType:
    """Return the wider one of two types of sequences.

    Raises:
        InvalidInputError: Neither type can hold all values of the other.
    """
    for one, other in ((remembered, ours), (ours, remembered)):
        with suppress(InvalidInputError):
            check_castable(pa.schema([(name, one)]), pa.schema([(name, other)]))
            return other
    raise InvalidInputError(
        f"the table remembers deletes in the order of {name!r} as {remembered}, but this upsert "
        f"has {ours}, and neither type can hold all values of the other. "
        f"Cast the column to {remembered}. {FORGET}"
    )


# --- what a commit remembers


@dataclass(frozen=True)
class PlannedTombstones:
    """The deletes that a commit adds; their file is already written.

    Attributes:
        added: The new file, if any, and the columns.
        joined: The names of files that were merged into the new one.
        oldest_ms: Files without a delete since this time are dropped.
        field_ids: The field ids of the columns when the commit was planned.
    """

    added: Tombstones
    joined: frozenset[str] = field(default_factory=frozenset)
    oldest_ms: int = 0
    field_ids: Mapping[str, int] = field(default_factory=dict)

    def entries(self, newest: Manifest | None, _version: int) -> Mapping[str, str]:
        """Return the commit's config entry, derived from the newest version's.

        Raises:
            InvalidInputError: Another writer now remembers deletes by other columns.
            RetryableConflictError: Another writer renamed, dropped or replaced a column.
        """
        if newest is not None and _ids_of(newest.schema, self.field_ids) != self.field_ids:
            raise RetryableConflictError(
                "another writer renamed, dropped or replaced one of the columns "
                f"{', '.join(map(repr, self.field_ids))}, by which deletes are remembered. Plan "
                "the upsert again on the newest version",
                newest.version,
            )
        before = None if newest is None else read_tombstones(newest.config)
        after = with_change(before, self.added, self.joined, self.oldest_ms)
        return config_entries(after) if after.files or before else {}

    @property
    def properties(self) -> dict[str, str]:
        """The properties of the transaction.

        They distinguish the transactions of two drivers that execute the same batch when remembered
        deletes are its only result.
        """
        names = [file.name for file in self.added.files]
        return {CONFIG_KEY: ", ".join(names)} if names else {}

    @property
    def paths(self) -> tuple[str, ...]:
        """The path of the new file, if there is one."""
        return tuple(tombstone_path(file.name) for file in self.added.files)


def _ids_of(schema: Schema, names: Collection[str]) -> dict[str, int]:
    return {column.name: column.id for column in schema.fields if column.name in names}


def plan_tombstones(
    remembered: RememberedDeletes,
    deletes: Sequence[Deletes],
    schema: Schema,
    environment: Environment,
) -> PlannedTombstones:
    """Write the file of the deletes of a batch, if there are any.

    Args:
        remembered: What the version that the batch is planned on remembers.
        deletes: The deletes of the batch that are not late; a key occurs only once.
        schema: The columns of that version.
        environment: Randomness, for the file's name.
    """
    added = Tombstones(
        remembered.on,
        remembered.sequence_by,
        type_to_text(remembered.schema.field(SEQUENCE).type),
        values=remembered.values,
    )
    field_ids = _ids_of(schema, added.columns)
    num_new = sum(delete.rows.num_rows for delete in deletes)
    if not num_new:
        return PlannedTombstones(added, oldest_ms=remembered.oldest_ms, field_ids=field_ids)
    joined = [
        file
        for file in files_to_join(remembered.files, num_new)
        # Merging would turn values that were not remembered into remembered nulls.
        if not DELETE_FILES.get(remembered.open_files, file, remembered.schema).missing
    ]
    content = _joined(remembered, deletes, joined)
    random = environment.random_id() << 64 | environment.random_id()
    data = encode_deletes(content)
    file = TombstoneFile(
        tombstone_file_name(random.to_bytes(16, "big")),
        remembered.now_ms,
        content.rows.num_rows,
        FileContent.of(data),
    )
    remembered.open_files.store.write(tombstone_path(file.name), data)
    DELETE_FILES.add(remembered.open_files, file, content)
    return PlannedTombstones(
        replace(added, files=(file,)),
        frozenset(file.name for file in joined),
        remembered.oldest_ms,
        field_ids,
    )


def _joined(
    remembered: RememberedDeletes, new: Sequence[Deletes], joined: Sequence[TombstoneFile]
) -> Deletes:
    """Return new deletes and the unexpired deletes of some files.

    If files are merged, only the newest delete of a key is kept; in a history, only the last event
    of those with equal key, sequence and kind.
    """
    olds = [DELETE_FILES.get(remembered.open_files, file, remembered.schema) for file in joined]
    survivors = [
        old.rows.filter(pa.array(old.deleted_at_ms >= remembered.oldest_ms)) for old in olds
    ]
    # An earlier attempt may have recorded the sequences in a narrower type.
    news = [cast_deletes(deletes.rows, remembered.schema).rows for deletes in new]
    rows = _one_batch([*survivors, *news])
    deletes = Deletes(rows)
    if not joined:
        return deletes
    if remembered.values is not None:
        return deletes.last_per_sequence()
    lookup = KeyLookup(deletes.keys)
    newest = rows_of_greatest(lookup.key_of_row, deletes.sequence, lookup.num_keys)
    return Deletes(rows.take(pa.array(newest)))


def _one_batch(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    columns = [
        pa.concat_arrays(arrays)
        for arrays in zip(*(batch.columns for batch in batches), strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=batches[0].schema)
