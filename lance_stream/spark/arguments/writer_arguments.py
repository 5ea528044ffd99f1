"""The arguments of a writer: the table `WriterArguments`, and checks of their combinations.

A writer is `lance_sink`, `auto_cdc_sink`, or the format: `df.write` and `df.writeStream`. The
arguments of AUTO CDC alone are in `upsert.change_rules`, which `Dataset.apply_scd1` and
`Dataset.apply_scd2` share; here is what they leave to the writer.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from lance_stream.arguments import as_flag
from lance_stream.errors import InvalidInputError
from lance_stream.ledger.micro_batch import fingerprint
from lance_stream.quarantine.table import quarantine_uri
from lance_stream.snapshot.references import as_branch
from lance_stream.spark.arguments.choices import (
    BAD_ROWS,
    BY_KEY,
    QUARANTINE,
    ROWS_STAND_ALONE,
    check_mode,
    check_one_of,
    evolutions,
)
from lance_stream.spark.arguments.option_values import (
    boolean,
    columns,
    conditions,
    location,
    lower,
    one_of,
    table_id,
    text,
    vector_sizes,
    whole_number,
)
from lance_stream.spark.arguments.python_values import (
    age,
    as_location,
    as_table,
    as_text,
    check_has_columns,
    checks,
    compaction,
    file_version,
    fresh_indices,
    names,
    optional_names,
    schema,
    storage_options,
    vectors,
)
from lance_stream.spark.arguments.table import (
    Option,
    Row,
    argument,
    as_option,
    check_callers,
    is_set,
    parse_options,
    rows_of,
    storage_options_argument,
)
from lance_stream.write.row_checks import Check

if TYPE_CHECKING:
    from lance_stream.maintenance.indices.refresh_policy import RefreshPolicy
    from lance_stream.upsert.change_rules import ChangeRules
    from lance_stream.upsert.rules import UpsertRules

SINK: Final = "sink"
AUTO_CDC: Final = "AUTO CDC"
BATCH: Final = "batch"
STREAM: Final = "stream"

_BATCHES_DEPEND: Final = (
    "the changes of a feed build on each other, so those after one that was left out would be "
    "applied to rows that they do not belong to"
)


AUTO_CDC_NAMES: Final[Mapping[str, str]] = {
    "on": "keys",
    "delete_when": "apply_as_deletes",
    "except_columns": "except_column_list",
}
"""What AUTO CDC calls arguments of `lance_sink`."""


def new_table_option(name: str) -> str:
    """Return what Python callers call an argument that only a new table has."""
    return f"create_options[{name!r}]"


@dataclass(frozen=True)
class WriterArguments:
    """A user's arguments of a writer: plain values, which can be pickled.

    `caller` is no argument: which writer it is, `SINK`, `AUTO_CDC`, `BATCH` or `STREAM`. `changes`
    are the arguments of AUTO CDC, and None for other writers.
    """

    uri: str = argument(
        "The location of the table, which need not exist; the argument of `save` and `start`.",
        Option("path", location),
        check=as_table,
    )
    storage_options: Mapping[str, Any] = storage_options_argument(storage_options)
    table_id: tuple[str, ...] | None = argument(
        "The name of the table in the Lance namespace of the session's settings, as in db.events; "
        "instead of the path.",
        Option("table", table_id),
        default=None,
        check=table_id,
    )
    namespace: Mapping[str, Any] | None = argument(
        "The Lance namespace that has the table.", default=None, is_secret=True
    )
    branch: str | None = argument(
        "The branch to write, which has to exist; by default the main one.",
        Option("branch", text),
        default=None,
        check=lambda _called, value: as_branch(value),
    )
    mode: str | None = argument(
        "What the rows mean, as for `lance_sink`; by default what Spark's mode says.",
        Option("mode", lower),
        default=None,
        check=check_mode,
        in_views="by key",
    )
    on: tuple[str, ...] = argument(
        "The key columns of an upsert.",
        Option("on", columns),
        default=(),
        check=names,
        modes=BY_KEY,
        in_views="by key",
    )
    sequence_by: str | None = argument(
        "The column that orders rows of one key.",
        Option("sequenceBy", text),
        default=None,
        check=as_text("the name of one column: sequence_by='lsn'"),
        modes=("upsert",),
        in_views="by key",
    )
    delete_when: str | None = argument(
        "A condition in SQL on an incoming row: whether it deletes.",
        Option("deleteWhen", text),
        default=None,
        check=as_text("a condition in Spark's SQL: \"op = 'd'\""),
        modes=("upsert",),
        in_views="by key",
    )
    except_columns: tuple[str, ...] = argument(
        "Columns of the rows that are not stored.",
        Option("exceptColumns", columns),
        default=(),
        check=names,
        in_views="by key",
    )
    skip_unchanged: bool = argument(
        "Whether rows whose values stay the same are not rewritten.",
        Option("skipUnchanged", boolean),
        default=False,
        check=as_flag,
        modes=BY_KEY,
        in_views="by key",
    )
    tombstones: timedelta | None = argument(
        "How long deletes are remembered; by default they are not.",
        Option("tombstones", text),
        default=None,
        check=age,
        modes=("upsert",),
        in_views="by key",
    )
    when_matched: str | None = argument(
        "What a row does if the table has its key; by default it updates.",
        Option("whenMatched", text),
        default=None,
        check=as_text("'update', 'ignore' or a condition: \"source.price > target.price\""),
        modes=("upsert",),
        in_views="by key",
    )
    when_not_matched: str | None = argument(
        "What happens to a row whose key is not in the table; by default it is inserted.",
        Option("whenNotMatched", text),
        default=None,
        check=as_text("'insert', 'ignore' or a condition: 'source.price > 0'"),
        modes=("upsert",),
        in_views="by key",
    )
    schema_evolution: tuple[str, ...] = argument(
        "How rows may change the columns, as for `lance_sink`.",
        Option("schemaEvolution", lambda called, names: columns(called, names.lower())),
        default=(),
        check=evolutions,
    )
    expect: tuple[Check, ...] = argument(
        "The conditions that every row must meet.",
        Option("expect", conditions),
        default=(),
        check=checks,
        modes=ROWS_STAND_ALONE,
        reason=_BATCHES_DEPEND,
        in_views="always",
    )
    bad_rows: str = argument(
        "Whether bad rows are refused, or written to the quarantine.",
        Option("badRows", one_of(*BAD_ROWS)),
        default="refuse",
        check=lambda called, value: check_one_of(called, value, BAD_ROWS),
        modes=ROWS_STAND_ALONE,
        reason=_BATCHES_DEPEND,
    )
    quarantine_uri: str | None = argument(
        "The location of the quarantine; by default next to the table.",
        Option("quarantineUri", location),
        default=None,
        python="bad_rows['quarantine']",
        check=as_location,
    )
    app_id: str | None = argument(
        "The app id under which the ledger keeps a stream's batches; by default the streaming "
        "query's own id.",
        Option("appId", text),
        default=None,
        check=as_text("a name for the stream: app_id='orders'"),
        callers=(SINK, AUTO_CDC, STREAM),
        reason=("identifies a stream; to write a batch only once, set 'txnAppId' and 'txnVersion'"),
    )
    txn_app_id: str | None = argument(
        "The app id under which the ledger keeps a batch write; by default it keeps none.",
        Option("txnAppId", text),
        default=None,
        callers=(BATCH,),
        reason=(
            "identifies one write of a batch; the batches of a stream have their own ids: set its "
            "app id with the option 'appId'"
        ),
    )
    txn_version: int | None = argument(
        "The number of that write; it increases from write to write.",
        Option("txnVersion", whole_number(0)),
        default=None,
        callers=(BATCH,),
        reason="identifies one write of a batch; the batches of a stream have their own ids",
    )
    replays_may_differ: bool = argument(
        "Whether a repeated batch may have different rows.",
        Option("replaysMayDiffer", boolean),
        default=False,
        check=as_flag,
    )
    any_output_mode: bool = argument(
        "Whether to accept an output mode that does not fit the mode.",
        Option("anyOutputMode", boolean),
        default=False,
        check=as_flag,
        callers=(SINK, AUTO_CDC, STREAM),
        reason="belongs to a stream",
    )
    late_start: bool = argument(
        "Whether a later batch of a stream than its first one may create the table.",
        Option("lateStart", boolean),
        default=False,
        python=new_table_option("late_start"),
        check=as_flag,
        callers=(SINK, AUTO_CDC, STREAM),
        reason="belongs to a stream",
    )
    schema: pa.Schema | None = argument(
        "The columns of a new table; by default those of the rows.",
        default=None,
        python=new_table_option("schema"),
        check=schema,
    )
    vectors: Mapping[str, int] | None = argument(
        "The number of items of each vector column of a new table, as in embedding:768.",
        Option("vectors", vector_sizes),
        default=None,
        python=new_table_option("vectors"),
        check=vectors,
        in_views="always",
    )
    primary_key: tuple[str, ...] | None = argument(
        "The columns of a new table's primary key; by default `on`, or none.",
        Option("primaryKey", columns),
        default=None,
        python=new_table_option("primary_key"),
        check=optional_names,
        in_views="always",
    )
    config: Mapping[str, str] | None = argument(
        "The config of a new table.", default=None, python=new_table_option("config")
    )
    stable_row_ids: bool = argument(
        "Whether a new table has stable row ids.",
        default=True,
        python=new_table_option("stable_row_ids"),
        check=as_flag,
    )
    file_version: str | None = argument(
        "The file version of a new table's data files.",
        Option("fileVersion", text),
        default=None,
        python=new_table_option("file_version"),
        check=file_version,
        in_views="always",
    )
    compact: int | str | None = argument(
        "When small fragments are compacted; by default never.", default=None, check=compaction
    )
    keep_indices_fresh: "RefreshPolicy | None" = argument(
        "When indices are brought up to date; by default never.", default=None, check=fresh_indices
    )
    caller: str = BATCH
    changes: "ChangeRules | None" = None

    def __post_init__(self) -> None:
        if self.caller != AUTO_CDC:
            self._check_mode()
        self._check_quarantine()
        if (self.txn_app_id is None) != (self.txn_version is None):
            raise InvalidInputError(
                "txnAppId and txnVersion go together: an app id for the writing program, and a "
                "number that increases from write to write"
            )
        if self.schema is not None and self.primary_key is not None:
            check_has_columns(self.schema, self.primary_key)
        if self.schema is not None and self.vectors is not None:
            raise InvalidInputError(
                "create_options['schema'] states the types of all columns: make the vectors "
                "fixed-size lists there, pa.list_(pa.float32(), 768), and leave 'vectors' out"
            )
        check_callers(self, self.caller)

    def _check_mode(self) -> None:
        """Refuse arguments that the mode has no use for, and a mode that lacks one."""
        if self.is_by_key and not self.on:
            raise InvalidInputError(
                f"mode={self.mode} needs the key columns that identify a row: "
                + ("on=['id']" if self.caller == SINK else "the option 'on'")
            )
        for row in rows_of(WriterArguments).values():
            if row.modes and is_set(self, row):
                self._check_fits_mode(row)
        from lance_stream.upsert.rules import check_can_remember, check_conditions

        check_can_remember(self.tombstones, self.sequence_by, self.delete_when)
        check_conditions(self.when_matched, self.when_not_matched)
        hidden = sorted({*self.on} & {*self.except_columns})
        if hidden:
            raise InvalidInputError(f"the key column {hidden[0]!r} cannot be left out of the table")

    def _check_fits_mode(self, row: Row) -> None:
        # without a mode, the rows are appended or replace all others
        if self.mode in row.modes or (self.mode is None and "append" in row.modes):
            return
        now = (
            f"no mode is set: set the option 'mode' to {row.modes[0]!r}"
            if self.mode is None
            else f"the mode is {self.mode}"
        )
        raise InvalidInputError(
            f"{self.called(row.name)} is for the mode {' or '.join(row.modes)}, but {now}"
            + (f": {row.reason}" if row.reason else "")
        )

    def _check_quarantine(self) -> None:
        """Refuse a quarantine without a purpose, or one that cannot be kept."""
        if not self.quarantines:
            if self.quarantine_uri is not None:
                raise InvalidInputError(
                    "the option 'quarantineUri' is the table for quarantined rows: set "
                    "badRows=quarantine, too"
                )
            return
        if self.caller == BATCH and self.txn_app_id is None:
            raise InvalidInputError(
                "badRows=quarantine commits two tables, and only the number of the write tells "
                "which rows belong together if it is repeated: set 'txnAppId', a name for the "
                "writing program, and 'txnVersion', a number that increases from write to write; "
                "or leave badRows out, and rows that do not fit are refused"
            )
        if self.branch is not None and self.quarantine_uri is None:
            raise InvalidInputError(
                "bad rows of a branch need a location outside of the table: set "
                f"{self.called('quarantine_uri')}"
            )
        if self.quarantine.rstrip("/") == self.uri.rstrip("/"):
            raise InvalidInputError(
                f"the quarantine {self.quarantine} is the table itself; bad rows need a table of "
                f"their own: set {self.called('quarantine_uri')}"
            )

    def called(self, name: str) -> str:
        """Return what the user calls an argument, given its field."""
        row = rows_of(WriterArguments)[name]
        if self.caller == AUTO_CDC:
            return AUTO_CDC_NAMES.get(name, row.python)
        if self.caller == SINK:
            return row.python
        return as_option(row.options[0].name)

    @property
    def is_by_key(self) -> bool:
        """Whether rows of the table are updated by their keys."""
        return self.mode in BY_KEY or self.changes is not None

    @property
    def keeps_history(self) -> bool:
        """Whether the table has the history of its keys."""
        return self.changes is not None and self.changes.is_history

    @property
    def key_of_new_table(self) -> tuple[str, ...] | None:
        """The primary key of a table that the rows create; a history has none: it repeats keys."""
        if self.primary_key is not None or self.keeps_history:
            return self.primary_key
        return self.on or None

    @property
    def quarantines(self) -> bool:
        """Whether bad rows are quarantined, and the others committed."""
        return self.bad_rows == QUARANTINE

    @property
    def quarantine(self) -> str:
        """The location of the table for bad rows."""
        return self.quarantine_uri or quarantine_uri(self.uri)

    @property
    def fingerprint(self) -> str:
        """A fingerprint of the rules that determine how a batch's rows are applied."""
        if self.changes is not None:
            return fingerprint({"mode": self.mode, **self.changes.identity})
        outcomes = {"when_matched": self.when_matched, "when_not_matched": self.when_not_matched}
        return fingerprint(
            {
                "mode": self.mode,
                "on": sorted(self.on),
                "sequence_by": self.sequence_by,
                "delete_when": self.delete_when,
                "except_columns": sorted(self.except_columns),
                # only those that are set, so that other arguments keep their fingerprint
                **{name: outcome for name, outcome in outcomes.items() if outcome is not None},
            }
        )

    def not_stored(self, batch: Iterable[str]) -> tuple[str, ...]:
        """Return the columns that are not stored, including any that the batch lacks.

        Args:
            batch: The batch's columns.
        """
        if self.mode != "apply_changes":
            return self.except_columns
        from lance_stream.upsert.change_feeds import is_change_column

        return (*self.except_columns, *filter(is_change_column, batch))

    def renamed(self, column: Callable[[str], str]) -> "WriterArguments":
        """Return the same arguments with column names in the table's spelling.

        Args:
            column: Returns the table's spelling of a name, or raises.
        """

        def several(names: Iterable[str]) -> tuple[str, ...]:
            return tuple(dict.fromkeys(map(column, names)))

        return replace(
            self,
            on=several(self.on),
            except_columns=several(self.except_columns),
            sequence_by=self.sequence_by and column(self.sequence_by),
            expect=tuple(check.with_columns(column) for check in self.expect),
            changes=self.changes and self.changes.renamed(several),
        )

    def upsert_rules(
        self, batch: Iterable[str], delete_when: str | None, helpers: Iterable[str] = ()
    ) -> "UpsertRules":
        """Return the rules of the upsert.

        Args:
            batch: The batch's columns.
            delete_when: The condition of deletes as the upsert evaluates it; None if no row
                deletes.
            helpers: Other columns that are not stored.
        """
        from lance_stream.upsert.rules import INSERT, UPDATE, UpsertRules, with_one_time

        hidden = (*self.not_stored(batch), *helpers)
        if self.changes is not None:
            rules = self.changes.upsert_rules()
            return replace(rules, delete_when=delete_when, except_columns=hidden)
        return UpsertRules(
            on=self.on,
            sequence_by=self.sequence_by,
            delete_when=delete_when,
            except_columns=hidden,
            skip_unchanged=self.skip_unchanged,
            tombstones=self.tombstones,
            applies_changes=self.mode == "apply_changes",
            when_matched=with_one_time(self.when_matched, UPDATE),
            when_not_matched=with_one_time(self.when_not_matched, INSERT),
        )


def without_options_of_views(options: Mapping[str, str]) -> dict[str, str]:
    """Return options without those of a view that only say how INSERT INTO writes to it.

    Args:
        options: Names in lower case, and texts.

    Raises:
        InvalidInputError: A value is invalid.
    """
    by_key = "mode" in options
    for_insert = {
        option.name.lower()
        for row in rows_of(WriterArguments).values()
        if row.in_views == "always" or (row.in_views == "by key" and by_key)
        for option in row.options
    }
    shared = {name: value for name, value in options.items() if name in for_insert}
    parse_options(WriterArguments, shared)
    return {name: value for name, value in options.items() if name not in shared}
