"""The arguments of a sink, checked before the first batch arrives."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, Protocol

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.errors import ParseException
from pyspark.sql import Column, SparkSession
from pyspark.sql.utils import is_remote

from lance_stream.commit.manifest_stores.choice import choose
from lance_stream.errors import InvalidInputError
from lance_stream.file.versions import FileVersion
from lance_stream.ledger.replay_check import fingerprint
from lance_stream.quarantine.table import quarantine_uri
from lance_stream.spark.arguments.modes import (
    BAD_ROWS,
    BY_KEY,
    MODES,
    OF_CHANGES,
    ONLY_WITH,
    QUARANTINE,
    check_one_of,
)
from lance_stream.storage.preflight import check_can_write_to
from lance_stream.upsert.change_feeds import is_change_column
from lance_stream.upsert.change_rules import ChangeRules, upsert_rules
from lance_stream.upsert.incoming import (
    INSERT,
    UPDATE,
    HistoryRules,
    UpsertRules,
    check_can_remember,
    check_conditions,
    with_one_time,
)
from lance_stream.write.row_checks import Check

if TYPE_CHECKING:
    from lance_stream.maintenance.indices.refresh_policy import RefreshPolicy

CREATE_OPTIONS: Final = ("schema", "primary_key", "config", "stable_row_ids", "late_start")
"""What `create_options` may hold."""

_TEXTS: Final[Mapping[str, str]] = {
    "sequence_by": "the name of one column: sequence_by='lsn'",
    "delete_when": "a condition in Spark's SQL: \"op = 'd'\"",
    "when_matched": "'update', 'ignore' or a condition: \"source.price > target.price\"",
    "when_not_matched": "'insert', 'ignore' or a condition: 'source.price > 0'",
    "app_id": "a name for the stream: app_id='orders'",
    "file_version": "the version as a string: file_version='2.1'",
    "quarantine_uri": "the location of a table: quarantine_uri='tables/bad_orders.lance'",
}
"""What each argument that is a string has to be."""

_OF_ROWS: Final = ("append", "upsert", "overwrite")
"""Modes whose rows mean something each on its own; changes do not."""


@dataclass(frozen=True)
class SinkArguments:
    """The arguments of a sink: plain values, which can be pickled.

    Attributes:
        uri: The table's location.
        mode: One of `MODES`.
        on: The key columns of an upsert.
        sequence_by: The column that orders rows of one key.
        delete_when: A condition in Spark's SQL on an incoming row: whether it deletes.
        except_columns: Columns of the batch that are not stored.
        skip_unchanged: Whether rows whose values stay the same are not rewritten.
        tombstones: How long deletes are remembered; None if they are not.
        when_matched: What a row does if the table has its key, as in `UpsertRules`; None to update.
        when_not_matched: What it does if the table lacks its key; None to insert.
        schema_evolution: How batches may change the columns: some of `SCHEMA_EVOLUTIONS`.
        app_id: The stream's id in the ledger; None for the query's own id.
        compact_every: After how many batches small fragments are compacted; "auto" for when it
            pays, None for never.
        fresh_indices: When indices are brought up to date; None for never.
        file_version: Of a new table's data files.
        storage_options: Settings of the store.
        create_options: Options for a new table.
        any_output_mode: Whether to accept an output mode that does not fit the mode.
        replays_may_differ: Whether a repeated batch may have different rows.
        branch: The branch to write, whose location is then `uri`; None for the main one.
        expect: The conditions that each row has to meet.
        bad_rows: One of `BAD_ROWS`.
        quarantine_uri: The location of the quarantine; None for the one beside the table.
        sequence_columns: The columns that order the changes of a key, if they are several; then
            `sequence_by` is None.
        column_list: The columns that are stored; None for all but `except_columns`.
        tracked: The columns of which each change begins a row of a history; None for all but
            `untracked`.
        untracked: The columns whose changes are stored in the current row of a history.
    """

    uri: str
    mode: str = "append"
    on: tuple[str, ...] = ()
    sequence_by: str | None = None
    delete_when: str | None = None
    except_columns: tuple[str, ...] = ()
    skip_unchanged: bool = False
    tombstones: timedelta | None = None
    when_matched: str | None = None
    when_not_matched: str | None = None
    schema_evolution: tuple[str, ...] = ()
    app_id: str | None = None
    compact_every: int | str | None = None
    fresh_indices: "RefreshPolicy | None" = None
    file_version: str | None = None
    storage_options: Mapping[str, Any] = field(default_factory=dict, repr=False)
    create_options: Mapping[str, Any] = field(default_factory=dict)
    any_output_mode: bool = False
    replays_may_differ: bool = False
    branch: str | None = None
    expect: tuple[Check, ...] = ()
    bad_rows: str = "refuse"
    quarantine_uri: str | None = None
    sequence_columns: tuple[str, ...] = ()
    column_list: tuple[str, ...] | None = None
    tracked: tuple[str, ...] | None = None
    untracked: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not str(self.uri).strip():
            raise InvalidInputError("lance_sink() needs the path of the table, but it is empty")
        is_used_here = not is_remote()  # Spark Connect calls the sink in a process of its server
        check_can_write_to(self.uri, self.storage_options, is_used_here=is_used_here)
        if is_used_here:
            choose(self.uri, self.storage_options)
        check_one_of("mode", self.mode, MODES)
        check_one_of("bad_rows", self.bad_rows, BAD_ROWS)
        if self.mode in OF_CHANGES:
            _ = self.change_rules  # which checks itself
        if self.mode in BY_KEY and not self.on:
            raise InvalidInputError(
                f"lance_sink(mode={self.mode!r}) needs the key columns that identify a row: "
                "on=['id']"
            )
        for name, modes in ONLY_WITH.items():
            given = getattr(self, name)
            if given and self.mode not in modes:
                shown = list(given) if isinstance(given, tuple) else given
                raise InvalidInputError(
                    f"lance_sink({name}={shown!r}) is for "
                    f"mode={' or '.join(map(repr, modes))}, not for {self.mode!r}"
                )
        if (self.expect or self.sets_aside) and self.mode not in _OF_ROWS:
            name = "bad_rows" if self.sets_aside else "expect"
            raise InvalidInputError(
                f"lance_sink({name}=...) is for mode={' or '.join(map(repr, _OF_ROWS))}, not for "
                f"{self.mode!r}: changes build on each other, so those after one "
                "that was left out would be applied to rows that they do not belong to"
            )
        if self.quarantine_uri is not None and not self.sets_aside:
            raise InvalidInputError(
                "lance_sink(quarantine_uri=...) is the table for rows that are set aside: it needs "
                'bad_rows="quarantine", too'
            )
        for name, example in _TEXTS.items():
            given = self.argument_of_deletes if name == "delete_when" else name
            _check_text(given, getattr(self, name), example)
        for name in ("skip_unchanged", "any_output_mode", "replays_may_differ"):
            if not isinstance(getattr(self, name), bool):
                raise InvalidInputError(
                    f"{name} must be True or False, not {getattr(self, name)!r}"
                )
        if self.sets_aside:
            self._check_quarantine(is_used_here=is_used_here)
        check_conditions(self.when_matched, self.when_not_matched)
        if self.mode not in OF_CHANGES:
            check_can_remember(self.tombstones, self.sequence_by, self.delete_when)
        hidden = sorted({*self.on} & {*self.except_columns})
        if hidden:
            raise InvalidInputError(f"the key column {hidden[0]!r} cannot be left out of the table")
        if self.compact_every is not None:
            from lance_stream.maintenance.compaction.background import check_every

            check_every(self.compact_every)
        unknown = sorted(set(self.create_options) - set(CREATE_OPTIONS))
        if unknown:
            raise InvalidInputError(
                f"create_options has no {', '.join(map(repr, unknown))}; it has: "
                f"{', '.join(CREATE_OPTIONS)}"
            )
        _check_creation(self.create_options)
        if self.file_version is not None:
            FileVersion.parse(self.file_version).check_supported()

    @property
    def fingerprint(self) -> str:
        """A fingerprint of the rules that determine how a batch's rows are applied."""
        if self.mode not in OF_CHANGES:
            return fingerprint_of(self)
        changes = self.change_rules
        return fingerprint(
            {
                "mode": self.mode,
                "keys": sorted(changes.keys),
                "sequence_by": changes.sequence_by,
                "apply_as_deletes": changes.apply_as_deletes,
                "column_list": changes.column_list and sorted(changes.column_list),
                "except_column_list": sorted(changes.except_column_list),
                "tracked": self.tracked and sorted(self.tracked),
                "untracked": sorted(self.untracked),
            }
        )

    @property
    def change_rules(self) -> ChangeRules:
        """The arguments of `OF_CHANGES`.

        Raises:
            InvalidInputError: They do not fit together.
        """
        single = () if self.sequence_by is None else (self.sequence_by,)
        return ChangeRules(
            is_history=self.keeps_history,
            keys=self.on,
            sequence_by=self.sequence_columns or single,
            apply_as_deletes=self.delete_when,
            column_list=self.column_list,
            except_column_list=self.except_columns,
            track_history_column_list=self.tracked,
            track_history_except_column_list=self.untracked,
            tombstones=self.tombstones,
        )

    def _check_quarantine(self, *, is_used_here: bool) -> None:
        if self.branch is not None and self.quarantine_uri is None:
            raise InvalidInputError(
                "bad rows of a branch need a location outside of the table: quarantine_uri=..."
            )
        own = self.quarantine
        if own.rstrip("/") == str(self.uri).rstrip("/"):
            raise InvalidInputError(
                f"quarantine_uri={own!r} is the table itself; bad rows need a table of their own"
            )
        check_can_write_to(own, self.storage_options, is_used_here=is_used_here)

    @property
    def sets_aside(self) -> bool:
        """Whether bad rows are set aside, and the others committed."""
        return self.bad_rows == QUARANTINE

    @property
    def quarantine(self) -> str:
        """The location of the table for bad rows."""
        return self.quarantine_uri or quarantine_uri(self.uri)

    @property
    def is_by_key(self) -> bool:
        """Whether rows of the table are updated by their keys."""
        return self.mode in BY_KEY

    def not_stored(self, columns: Iterable[str]) -> tuple[str, ...]:
        """Return the columns that are not stored, including any that the batch lacks."""
        return not_stored(self.mode, self.except_columns, columns)

    @property
    def argument_of_deletes(self) -> str:
        """What the user calls the condition of deletes."""
        return "apply_as_deletes" if self.mode in OF_CHANGES else "delete_when"

    def upsert_rules(self, columns: Iterable[str], delete_when: str | None) -> UpsertRules:
        """Return the rules of the upsert.

        Args:
            columns: The batch's columns.
            delete_when: The column that marks deletes; it is not stored.
        """
        helpers = () if delete_when is None else (delete_when,)
        rules = UpsertRules(
            on=self.on,
            sequence_by=self.sequence_by,
            delete_when=None if delete_when is None else f"{delete_when} = true",
            except_columns=(*self.not_stored(columns), *helpers),
            skip_unchanged=self.skip_unchanged,
            tombstones=self.tombstones,
            applies_changes=self.mode == "apply_changes",
            when_matched=with_one_time(self.when_matched, UPDATE),
            when_not_matched=with_one_time(self.when_not_matched, INSERT),
        )
        if self.mode not in OF_CHANGES:
            return rules
        return upsert_rules(
            rules, HistoryRules(self.tracked, self.untracked) if self.keeps_history else None
        )

    @property
    def keeps_history(self) -> bool:
        """Whether the table has the history of its keys."""
        return self.mode == "scd2"


class Rules(Protocol):
    """What determines how the rows of a batch are applied."""

    @property
    def mode(self) -> str | None: ...  # noqa: D102  # see `SinkArguments`
    @property
    def on(self) -> tuple[str, ...]: ...  # noqa: D102  # as in the class it stands for
    @property
    def sequence_by(self) -> str | None: ...  # noqa: D102  # as in the class it stands for
    @property
    def delete_when(self) -> str | None: ...  # noqa: D102  # as in the class it stands for
    @property
    def except_columns(self) -> tuple[str, ...]: ...  # noqa: D102  # as in the class it stands for
    @property
    def when_matched(self) -> str | None: ...  # noqa: D102  # as in the class it stands for
    @property
    def when_not_matched(self) -> str | None: ...  # noqa: D102  # as in the class it stands for


def as_compaction(compact_every: object, compact: object) -> Any:
    """Return when a sink compacts: after a number of batches, "auto", or None for never.

    Raises:
        InvalidInputError: Both arguments are given, or one is invalid.
    """
    if compact is None and compact_every is None:
        return None
    from lance_stream.maintenance.compaction.automatic import AUTO

    if compact is not None and compact != AUTO:
        raise InvalidInputError(
            f'compact is "auto" or None, not {compact!r:.200}; to compact after a number of '
            "batches, give compact_every=100"
        )
    if compact is not None and compact_every is not None:
        raise InvalidInputError(
            'compact="auto" decides by itself when to compact: leave out either it or compact_every'
        )
    if compact_every == AUTO:
        raise InvalidInputError('compact_every is a number of batches; give compact="auto" instead')
    return compact_every if compact is None else compact


def as_fresh_indices(value: object) -> "RefreshPolicy | None":
    """Return when a sink brings indices up to date; None for never, which imports nothing of it.

    Raises:
        InvalidInputError: It is no policy; or pylance is needed here, and missing.
    """
    if value is None or value is False:
        return None
    from lance_stream.maintenance.indices.building import check_pylance
    from lance_stream.maintenance.indices.refresh_policy import as_refresh_policy

    policy = as_refresh_policy(value)
    if not is_remote():  # through Spark Connect a process of the server needs it
        check_pylance()
    return policy


class WritingRules(Rules, Protocol):
    """How a writer writes the rows of a batch, and where it sets bad ones aside."""

    @property
    def uri(self) -> str: ...  # noqa: D102  # see `SinkArguments`
    @property
    def storage_options(self) -> Mapping[str, Any]: ...  # noqa: D102  # as in the class it stands for
    @property
    def skip_unchanged(self) -> bool: ...  # noqa: D102  # as in the class it stands for
    @property
    def tombstones(self) -> timedelta | None: ...  # noqa: D102  # as in the class it stands for
    @property
    def expect(self) -> tuple[Check, ...]: ...  # noqa: D102  # as in the class it stands for
    @property
    def quarantine(self) -> str: ...  # noqa: D102  # as in the class it stands for


def fingerprint_of(rules: Rules) -> str:
    """Return a fingerprint of rules, the same for the sink and for the format as a writer."""
    outcomes = {"when_matched": rules.when_matched, "when_not_matched": rules.when_not_matched}
    return fingerprint(
        {
            "mode": rules.mode,
            "on": sorted(rules.on),
            "sequence_by": rules.sequence_by,
            "delete_when": rules.delete_when,
            "except_columns": sorted(rules.except_columns),
            # Only those that are given: earlier releases did not have them.
            **{name: outcome for name, outcome in outcomes.items() if outcome is not None},
        }
    )


def not_stored(
    mode: str, except_columns: tuple[str, ...], columns: Iterable[str]
) -> tuple[str, ...]:
    """Return the columns that a mode does not store, including any that the batch lacks.

    Args:
        mode: One of `MODES`.
        except_columns: Those that the user excepts.
        columns: The batch's columns.
    """
    if mode != "apply_changes":
        return except_columns
    return (*except_columns, *(column for column in columns if is_change_column(column)))


def sequence_names(value: object, mode: str) -> tuple[str | None, tuple[str, ...]]:
    """Return the column that orders rows, or the columns if they are several.

    Args:
        value: What the user gave.
        mode: One of `MODES`.

    Raises:
        InvalidInputError: They are not names.
    """
    if mode not in OF_CHANGES or value is None or isinstance(value, str):
        return value, ()  # type: ignore[return-value]  # other values are refused with the others
    several = names(value, "sequence_by")  # type: ignore[arg-type]  # which checks it
    return (several[0], ()) if len(several) == 1 else (None, several)


def optional_names(value: str | Sequence[str] | None, argument: str) -> tuple[str, ...] | None:
    """Return column names as `names` does; None if they are not given."""
    return None if value is None else names(value, argument)


def names(value: str | Sequence[str] | None, argument: str) -> tuple[str, ...]:
    """Return column names that may be given as one string, as several, or not at all.

    Raises:
        InvalidInputError: They are not names.
    """
    given = (value,) if isinstance(value, str) else _as_tuple(value, argument)
    if not all(isinstance(each, str) and each for each in given):
        raise InvalidInputError(_no_names(value, argument))
    if len(set(given)) != len(given):
        raise InvalidInputError(f"{argument}={list(given)} names a column twice")
    return given


def as_creation(value: object) -> dict[str, Any]:
    """Return the options for a new table.

    Raises:
        InvalidInputError: The value is not a mapping.
    """
    if value is None:
        return {}
    if not isinstance(value, Mapping) or not all(isinstance(each, str) for each in value):
        raise InvalidInputError(
            f"create_options must be a mapping of {', '.join(CREATE_OPTIONS)}, such as "
            f"{{'primary_key': ['id']}}, not {value!r:.200}"
        )
    return dict(value)


def _as_tuple(value: object, argument: str) -> tuple[Any, ...]:
    if value is None:
        return ()
    if isinstance(value, Iterable):
        return tuple(value)
    raise InvalidInputError(_no_names(value, argument))


def _no_names(value: object, argument: str) -> str:
    return f"{argument} must be the names of columns, such as {argument}=['id'], not {value!r:.200}"


def _check_text(argument: str, value: object, example: str) -> None:
    if value is not None and (not isinstance(value, str) or not value.strip()):
        raise InvalidInputError(f"{argument} must be {example}; not {value!r:.200}")


def _check_creation(options: Mapping[str, Any]) -> None:
    schema, key = options.get("schema"), names(options.get("primary_key"), "primary_key")
    if schema is not None and not isinstance(schema, pa.Schema):
        raise InvalidInputError(
            f"create_options['schema'] must be a pyarrow.Schema, not a {type(schema).__name__}: "
            "pa.schema([('id', pa.int64())])"
        )
    if schema is not None:
        known = {each.lower() for each in schema.names}
        for name in key:
            if name.lower() not in known:
                raise InvalidInputError(
                    f"create_options['schema'] has no column {name!r}, which the primary key "
                    f"names; it has: {', '.join(schema.names)}"
                )
    for name in ("stable_row_ids", "late_start"):
        if not isinstance(options.get(name, True), bool):
            raise InvalidInputError(f"{name} must be True or False, not {options[name]!r}")


def check_are_texts(given: Mapping[str, object]) -> None:
    """Raise if columns or conditions are given as Spark's `Column`, as AUTO CDC takes them, too.

    Args:
        given: Values of arguments by their names.

    Raises:
        InvalidInputError: One is.
    """
    for name, value in given.items():
        for each in value if isinstance(value, list | tuple) else (value,):
            if isinstance(each, Column):
                raise InvalidInputError(
                    f"{name} is given as text, not as a Column, {each!r:.200}: a column by its "
                    "name, 'id', and a condition in Spark's SQL, \"op = 'd'\""
                )


def check_can_be_parsed(delete_when: str | None, argument: str) -> None:
    """Raise if a condition is not Spark's SQL, where a session in this process can tell.

    Args:
        delete_when: The condition.
        argument: Its name for the user.

    Raises:
        InvalidInputError: It is not.
    """
    session: Any = None if is_remote() else SparkSession.getActiveSession()
    if delete_when is None or session is None:
        return
    try:
        session._jsparkSession.sessionState().sqlParser().parseExpression(delete_when)
    except Py4JError:
        return  # a platform that does not let programs call the parser: the first batch tells
    except ParseException as error:
        problem = str(error).strip().splitlines()[0]
        raise InvalidInputError(
            f"{argument}={delete_when!r} is not a condition in Spark's SQL: {problem}"
        ) from None
