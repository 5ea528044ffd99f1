"""Slowly changing dimensions: the user's arguments, and the upsert rules derived from them.

    type 1      the table has the current row of each key; an upsert that remembers deletes
    type 2      the table has the history of each key: rows with a start and an end
                (`rebuild_history`)

The arguments have the names and meanings of Spark's AUTO CDC (`create_auto_cdc_flow`).

The sequence of changes is one column, or several columns compared in order. Type 1 compares
incoming rows with the stored sequence. If the sequence consists of several columns, or the user
excludes its column from the table, it is stored in the column `__SEQUENCE`.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta

import pyarrow as pa

from lance_stream.arguments import as_names, did_you_mean, repeated_names
from lance_stream.durations import parse_age
from lance_stream.errors import InvalidInputError
from lance_stream.upsert.rules import (
    END_AT,
    FOR_GOOD,
    SEQUENCE,
    START_AT,
    HistoryRules,
    UpsertRules,
)


@dataclass(frozen=True)
class ChangeRules:
    """The user's arguments.

    Attributes:
        is_history: Whether the dimension is of type 2.
        keys: The key columns.
        sequence_by: The columns that order the changes of a key.
        apply_as_deletes: A condition, true for rows that delete; None if no row deletes.
        column_list: The columns to store; None for all except `except_column_list`.
        except_column_list: The columns that are not stored.
        track_history_column_list: For type 2: the columns whose changes start a new row; None for
            all except `track_history_except_column_list`.
        track_history_except_column_list: For type 2: the columns whose changes overwrite the
            current row.
        tombstones: How long shadowed events and deletes are remembered; None for forever.
    """

    is_history: bool
    keys: tuple[str, ...]
    sequence_by: tuple[str, ...]
    apply_as_deletes: str | None = None
    column_list: tuple[str, ...] | None = None
    except_column_list: tuple[str, ...] = ()
    track_history_column_list: tuple[str, ...] | None = None
    track_history_except_column_list: tuple[str, ...] = ()
    tombstones: timedelta | None = None

    @classmethod
    def of(
        cls,
        *,
        is_history: bool,
        keys: object,
        sequence_by: object,
        apply_as_deletes: str | None = None,
        column_list: object = None,
        except_column_list: object = None,
        track_history_column_list: object = None,
        track_history_except_column_list: object = None,
        tombstones: str | timedelta | None = None,
    ) -> "ChangeRules":
        """Return the rules for the arguments as a user writes them.

        Raises:
            InvalidInputError: An argument is invalid, or two arguments exclude each other.
        """
        if apply_as_deletes is not None and not _is_text(apply_as_deletes):
            raise InvalidInputError(
                "apply_as_deletes must be a condition in SQL, such as \"op = 'd'\", not "
                f"{apply_as_deletes!r:.200}"
            )
        return cls(
            is_history,
            keys=_names("keys", keys),
            sequence_by=_names("sequence_by", sequence_by),
            apply_as_deletes=apply_as_deletes,
            column_list=None if column_list is None else _names("column_list", column_list),
            except_column_list=_names("except_column_list", except_column_list),
            track_history_column_list=(
                None
                if track_history_column_list is None
                else _names("track_history_column_list", track_history_column_list)
            ),
            track_history_except_column_list=_names(
                "track_history_except_column_list", track_history_except_column_list
            ),
            tombstones=None if tombstones is None else parse_age(tombstones),
        )

    def __post_init__(self) -> None:
        if not self.keys:
            raise InvalidInputError(
                "changes are applied by key: name the key columns, for example keys=['id']"
            )
        if not self.sequence_by:
            raise InvalidInputError(
                "changes of a key need an order: name the column or columns that order them, for "
                "example sequence_by='lsn' or sequence_by=['ts', 'lsn']"
            )
        if self.column_list is not None and self.except_column_list:
            raise InvalidInputError(
                "column_list names the columns to store, except_column_list those to leave out: "
                "set only one of them"
            )
        tracked, untracked = self.track_history_column_list, self.track_history_except_column_list
        if tracked is not None and untracked:
            raise InvalidInputError(
                "track_history_column_list names the columns to track, "
                "track_history_except_column_list those not to track: set only one of them"
            )
        if not self.is_history and (tracked is not None or untracked):
            raise InvalidInputError(
                "type 1 (scd1) keeps no history: track_history_column_list and "
                "track_history_except_column_list require type 2 (scd2)"
            )
        stored = self.keys if self.column_list is None else self.column_list
        missing = [key for key in self.keys if key in self.except_column_list or key not in stored]
        if missing:
            raise InvalidInputError(
                f"the key column {missing[0]!r} cannot be left out of the table"
            )
        wrong = [name for name in (*(tracked or ()), *untracked) if name in self.keys]
        if wrong:
            raise InvalidInputError(
                f"the key column {wrong[0]!r} cannot have a history, because every key has its own "
                "history: remove it from track_history_column_list and "
                "track_history_except_column_list"
            )

    @property
    def identity(self) -> dict[str, object]:
        """The values that distinguish these rules from others, without the age of tombstones."""
        tracked = self.track_history_column_list
        return {
            "keys": sorted(self.keys),
            "sequence_by": self.sequence_by,
            "apply_as_deletes": self.apply_as_deletes,
            "column_list": self.column_list and sorted(self.column_list),
            "except_column_list": sorted(self.except_column_list),
            "tracked": tracked and sorted(tracked),
            "untracked": sorted(self.track_history_except_column_list),
        }

    def renamed(self, names: Callable[[Iterable[str]], tuple[str, ...]]) -> "ChangeRules":
        """Return the same rules with renamed columns.

        Args:
            names: Maps column names to their new names.
        """
        stored, tracked = self.column_list, self.track_history_column_list
        return replace(
            self,
            keys=names(self.keys),
            sequence_by=names(self.sequence_by),
            column_list=None if stored is None else names(stored),
            except_column_list=names(self.except_column_list),
            track_history_column_list=None if tracked is None else names(tracked),
            track_history_except_column_list=names(self.track_history_except_column_list),
        )

    def without_list(self, columns: Sequence[str]) -> "ChangeRules":
        """Return the same rules with `column_list` expressed as `except_column_list`.

        Args:
            columns: All columns of the data.

        Raises:
            InvalidInputError: A column to store, or to leave out, does not exist.
        """
        for name in self.except_column_list:
            if name not in columns:
                raise InvalidInputError(
                    f"the data has no column {name!r} to leave out (except_column_list)"
                    f"{did_you_mean(name, columns)}; it has: {', '.join(columns)}"
                )
        if self.column_list is None:
            return self
        for name in self.column_list:
            if name not in columns:
                raise InvalidInputError(
                    f"the data has no column {name!r} to store (column_list)"
                    f"{did_you_mean(name, columns)}; it has: {', '.join(columns)}"
                )
        excepted = tuple(column for column in columns if column not in self.column_list)
        return replace(self, column_list=None, except_column_list=excepted)

    @property
    def adds_sequence(self) -> bool:
        """Whether the data gets a column `SEQUENCE`; call `without_list` first."""
        is_untracked = not self.is_history and self.sequence_by[0] in self.except_column_list
        return len(self.sequence_by) > 1 or is_untracked

    def upsert_rules(self) -> UpsertRules:
        """Return the upsert rules for the data that `with_sequence` returns."""
        by = SEQUENCE if self.adds_sequence else self.sequence_by[0]
        excepted = self.except_column_list
        if self.is_history and self.adds_sequence:
            excepted = (*excepted, SEQUENCE)
        age = self.tombstones
        if age is None and (self.is_history or self.apply_as_deletes is not None):
            age = FOR_GOOD
        history = HistoryRules(
            self.track_history_column_list, self.track_history_except_column_list
        )
        return UpsertRules(
            self.keys,
            by,
            self.apply_as_deletes,
            excepted,
            tombstones=age,
            deletes_win=True,
            history=history if self.is_history else None,
        )

    def with_sequence(self, data: pa.Table) -> pa.Table:
        """Return the data with its sequence column.

        Raises:
            InvalidInputError: A column of `sequence_by` is missing, or the data already has a
                column `SEQUENCE`.
        """
        check_not_reserved(data.column_names)
        for name in self.sequence_by:
            if name not in data.column_names:
                raise InvalidInputError(
                    f"the column of sequence_by, {name!r}, is not in the data, which has: "
                    f"{', '.join(data.column_names)}"
                )
        if not self.adds_sequence:
            return data
        if len(self.sequence_by) == 1:
            return data.append_column(SEQUENCE, data.column(self.sequence_by[0]))
        parts = [data.column(name).combine_chunks() for name in self.sequence_by]
        flat = [part.dictionary_decode() if _is_indexed(part) else part for part in parts]
        return data.append_column(SEQUENCE, pa.StructArray.from_arrays(flat, self.sequence_by))


def _is_indexed(values: pa.Array) -> bool:
    return bool(pa.types.is_dictionary(values.type))


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _names(argument: str, value: object) -> tuple[str, ...]:
    names = as_names(value, argument)
    for name in repeated_names(names):
        raise InvalidInputError(f"{argument} names the column {name!r} twice")
    return names


def check_not_reserved(columns: Sequence[str]) -> None:
    """Raise if data already has a column `SEQUENCE`.

    Raises:
        InvalidInputError: It does.
    """
    if SEQUENCE in columns:
        raise InvalidInputError(
            f"the data has a column {SEQUENCE!r}, but this name is reserved for the order of "
            "changes: rename the column"
        )


def check_has_sequence(
    table: pa.Schema, data: pa.Schema, sequence_by: str | None = SEQUENCE
) -> None:
    """Raise if a table lacks the sequence column of its data: a new one would be null in all rows.

    Args:
        table: The table's columns.
        data: The columns of the data that are stored.
        sequence_by: The column that orders the data; None if none does.

    Raises:
        InvalidInputError: It does.
    """
    if sequence_by is None or sequence_by not in data.names:
        return
    if sequence_by not in table.names:
        kind = data.field(sequence_by).type
        raise InvalidInputError(
            f"later changes are compared with the stored sequence, but the table has no column "
            f"{sequence_by!r} for it. If the column was renamed or dropped, rename it back, or "
            "order by another one. Otherwise order by one column that is stored; or add a column "
            f"{sequence_by!r} of the type {kind}, with ds.add_columns: existing rows then count as "
            "older than every change"
        )


def history_schema(schema: pa.Schema, sequence: pa.DataType) -> pa.Schema:
    """Return the columns of a history (SCD type 2), for `create_dataset`.

    Args:
        schema: The columns to store.
        sequence: The type of the sequence; a struct if the sequence has several columns.

    Returns:
        The columns, followed by `__START_AT` and `__END_AT`.

    Raises:
        InvalidInputError: A column has a reserved name, or an argument has the wrong type.
    """
    if not isinstance(schema, pa.Schema) or not isinstance(sequence, pa.DataType | str):
        raise InvalidInputError(
            "history_schema takes a pyarrow.Schema and the Arrow type of the sequence, "
            f"history_schema(schema, pa.int64()), not {schema!r:.200} and {sequence!r:.200}"
        )
    for name in (START_AT, END_AT):
        if name in schema.names:
            raise InvalidInputError(
                f"the schema already has a column {name!r}, which a history adds: rename it"
            )
    try:
        added = [pa.field(name, sequence) for name in (START_AT, END_AT)]
    except ValueError:
        raise InvalidInputError(
            f"{sequence!r} is not the name of an Arrow type: pass the type of the sequence, "
            "history_schema(schema, pa.int64())"
        ) from None
    return pa.schema([*schema, *added], metadata=schema.metadata)
