"""A micro-batch for several tables: one foreachBatch function that calls the sink of each.

The batch is computed once, and persisted until all tables have their rows. Tasks on one machine
wait for each other's persisted partitions; on a cluster the partitions are computed before several
jobs use them.

    atomic=False    one table after the other, in the order given. Each has the batch exactly once.
                    Between two commits, and after a failure until Spark has repeated the batch,
                    readers see it in the first tables only
    atomic=True     at once: each sink runs in a thread of its own, and step 2 of its commit waits
                    for the others (`commit.commit_groups`)
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias

from pyspark.sql import DataFrame
from pyspark.storagelevel import StorageLevel

from lance_stream.arguments import as_flag
from lance_stream.commit.commit_groups import Member, check_can_commit_together, run_together
from lance_stream.commit.opening import open_log
from lance_stream.errors import InvalidInputError
from lance_stream.spark.session.session_settings import is_cluster
from lance_stream.spark.session.user_errors import message_first
from lance_stream.spark.sink.lance_sink import LanceSink
from lance_stream.spark.sink.reports import SinkCommit
from lance_stream.spark.versions import inheriting_properties
from lance_stream.storage.locations import normalized_location

Rows: TypeAlias = Callable[[DataFrame], DataFrame]
"""Returns a table's rows, given those of the batch."""


class _Target(NamedTuple):
    sink: LanceSink
    rows: Rows | None

    def rows_of(self, name: str, df: DataFrame) -> DataFrame:
        """Return a table's rows of a batch.

        Raises:
            InvalidInputError: The user's function does not return a DataFrame, or exits.
        """
        if self.rows is None:
            return df
        try:
            rows = self.rows(df)
        except SystemExit as error:  # Spark would not learn of it, and the query would hang
            raise InvalidInputError(
                f"the function of {name!r} called sys.exit({error.code!r}); raise an error instead"
            ) from error
        if not hasattr(rows, "sparkSession"):
            raise InvalidInputError(
                f"the function of {name!r} must return the table's rows of the batch, a "
                f"DataFrame of Spark, not {_called(type(rows))}"
            )
        return rows


def _called(kind: type) -> str:
    """Return the name of a type with its module: not every DataFrame is one of Spark."""
    name = kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"
    return "None" if kind is type(None) else f"a {name}"


def lance_sinks(
    targets: Mapping[str, "LanceSink | tuple[Rows, LanceSink]"], *, atomic: bool = False
) -> "LanceSinks":
    """Return a function for `writeStream.foreachBatch` that writes a stream to several tables.

        sinks = lance_sinks(
            {
                "orders": (lambda df: df.drop("lines"), lance_sink("data/orders.lance")),
                "lines": (order_lines, lance_sink("data/lines.lance", mode="upsert", on="id")),
            }
        )
        orders.writeStream.foreachBatch(sinks).option("checkpointLocation", ...).start()

    Each table has each micro-batch exactly once, as with `lance_sink` alone. The batch is computed
    once for all of them.

    Args:
        targets: The sinks by name, for logs and errors. A pair of a function and a sink passes the
            sink the DataFrame that the function returns for the batch. When Spark repeats the
            batch, the function may be called again, and must return the same rows.
        atomic: Commit each batch to all tables or to none. All tables must publish their versions
            in one manifest store (SQLite, PostgreSQL, DynamoDB; docs/operations/stores.md). Readers
            that open the tables with `open_together` see each batch in all tables or in none. By
            default, the tables are committed one after the other, in the order of `targets`, and
            readers may see a batch in the first tables before it is in the others.

    Raises:
        InvalidInputError: An argument is invalid.
    """
    return LanceSinks(targets, atomic=atomic)


class LanceSinks:
    """A function of a micro-batch and its batch id; created by `lance_sinks`.

    Args:
        targets: The sinks by name, each alone or in a pair with the function that selects its rows.
        atomic: Whether a batch is committed to all tables or to none.
    """

    def __init__(
        self, targets: Mapping[str, LanceSink | tuple[Rows, LanceSink]], *, atomic: bool
    ) -> None:
        if not isinstance(targets, Mapping) or not targets:
            raise InvalidInputError(
                "lance_sinks takes a mapping of names to sinks: lance_sinks({'orders': "
                f"lance_sink(...), 'lines': (function, lance_sink(...))}}), not {targets!r:.200}"
            )
        self._targets = {name: _target(name, target) for name, target in targets.items()}
        self.atomic = as_flag("atomic", atomic)
        _check_are_different(self._targets)

    def __getitem__(self, name: str) -> LanceSink:
        """Return the sink of a table, for example for its `last_commit`."""
        return self._targets[name].sink

    def __iter__(self) -> Iterator[str]:
        """Return the names of the tables."""
        return iter(self._targets)

    def __len__(self) -> int:
        """Return the number of tables."""
        return len(self._targets)

    @property
    def last_commits(self) -> Mapping[str, SinkCommit | None]:
        """The outcome of the last batch in each table; see `LanceSink.last_commit`."""
        return MappingProxyType(
            {name: target.sink.last_commit for name, target in self._targets.items()}
        )

    def __repr__(self) -> str:
        targets = ", ".join(f"{name!r}: {target.sink!r}" for name, target in self._targets.items())
        return f"lance_sinks({{{targets}}}{', atomic=True' if self.atomic else ''})"

    @message_first
    def __call__(self, df: DataFrame, batch_id: int) -> None:
        """Write a micro-batch to all tables that do not have it yet.

        Args:
            df: Its rows.
            batch_id: Its number in the stream.

        Raises:
            InvalidInputError: The tables cannot be committed together, or see `LanceSink`. In an
                atomic commit, nothing was committed.
            CommitError: See `LanceSink`.
        """
        if self.atomic:
            self._check_can_be_atomic(df)
        with _persisted(df) if len(self._targets) > 1 else nullcontext(df) as shared:
            rows = {name: target.rows_of(name, shared) for name, target in self._targets.items()}
            if not self.atomic or len(rows) == 1:
                for name, table_rows in rows.items():
                    self._write(name, table_rows, batch_id, None)
                return
            if is_cluster(shared.sparkSession):
                shared.count()  # computes the rows once: concurrent jobs would each compute them
            # New threads lack the local properties of the thread that Spark calls.
            run_together(
                {
                    name: partial(self._write, name, table_rows, batch_id)
                    for name, table_rows in rows.items()
                },
                inheriting_properties(df.sparkSession),
            )

    def _write(self, name: str, df: DataFrame, batch_id: int, member: Member | None) -> None:
        try:
            self._targets[name].sink.write(df, batch_id, member)
        except Exception as error:
            if member is None:
                error.add_note(f"table {name!r} of {self!r}"[:1000])
            raise

    def _check_can_be_atomic(self, df: DataFrame) -> None:
        """Raise unless the tables are in one manifest store; sends no request."""
        check_can_commit_together(
            {
                name: open_log(target.sink.uri, target.sink.storage_options_in(df.sparkSession))
                for name, target in self._targets.items()
            }
        )


@contextmanager
def _persisted(df: DataFrame) -> Iterator[DataFrame]:
    """Persist the rows of a batch where they are computed, until the end of the block."""
    if _is_persisted(df):  # by the user, who may need it afterwards
        yield df
        return
    persisted = df.persist(StorageLevel.MEMORY_AND_DISK)
    try:
        yield persisted
    finally:
        persisted.unpersist()


def _is_persisted(df: DataFrame) -> bool:
    return df.storageLevel != StorageLevel.NONE


def _target(name: str, target: Any) -> _Target:
    if isinstance(target, LanceSink):
        return _Target(target, None)
    if isinstance(target, Iterable) and not isinstance(target, str):
        parts = tuple(target)
        if len(parts) == 2 and callable(parts[0]) and isinstance(parts[1], LanceSink):
            return _Target(parts[1], parts[0])
    raise InvalidInputError(
        f"{name!r} must be a sink, lance_sink(...), or a pair of a function of the batch's "
        f"DataFrame and a sink, not {target!r:.200}"
    )


def _check_are_different(targets: Mapping[str, _Target]) -> None:
    name_of_uri: dict[str, str] = {}
    for name, target in targets.items():
        uri = normalized_location(target.sink.uri)
        if uri in name_of_uri:
            raise InvalidInputError(
                f"{name_of_uri[uri]!r} and {name!r} write the same table, {uri}. A batch is one "
                "version of a table: use one sink, whose function returns the rows of both"
            )
        name_of_uri[uri] = name
