"""Tables in one manifest store, and micro-batches that are committed to all of them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

import lance_stream
from lance_stream.commit.commit_groups import Member, run_together
from lance_stream.errors import NotFoundError
from lance_stream.ledger.replay_check import PendingBatch
from lance_stream.snapshot.opening import open_newest
from lance_stream.snapshot.table_version import TableVersion
from lance_stream.verbs.append import append
from lance_stream.write.planning import Outcome

APP_ID = "stream"
SCHEMA = pa.schema([pa.field("batch", pa.int64()), pa.field("name", pa.string())])

Prepare = Callable[[str, TableVersion], None]


def nothing(_name: str, _table: TableVersion) -> None:
    """Leave a table as it was opened."""


@dataclass(frozen=True)
class TableGroup:
    """Tables whose batches are committed together.

    Attributes:
        uris: Of the tables, by name.
        options: Their storage options.
    """

    uris: Mapping[str, str]
    options: Mapping[str, Any]

    def create(self) -> None:
        for uri in self.uris.values():
            lance_stream.create_dataset(uri, SCHEMA, storage_options=self.options)

    def commit(
        self,
        batch_id: int,
        only: Mapping[str, int] | None = None,
        prepare: Prepare = nothing,
        app_id: str = APP_ID,
    ) -> dict[str, Outcome]:
        """Append a row with the number of a batch to each table, in one commit.

        Args:
            batch_id: The batch.
            only: How many rows each table gets instead of one.
            prepare: Called with each table as it was opened; may put watches into its log.
            app_id: The stream.
        """
        work = {
            name: partial(self._append, name, batch_id, (only or {}).get(name, 1), prepare, app_id)
            for name in self.uris
        }
        return run_together(work)

    def _append(
        self,
        name: str,
        batch_id: int,
        num_rows: int,
        prepare: Prepare,
        app_id: str,
        member: Member,
    ) -> Outcome:
        table = open_newest(self.uris[name], storage_options=self.options)
        prepare(name, table)
        rows = pa.table({"batch": [batch_id] * num_rows, "name": [name] * num_rows}, SCHEMA)
        joined = replace(table, log=member.join(table.log))
        return append(joined, rows, PendingBatch.of(app_id, batch_id))

    def batches(self) -> list[list[int]]:
        """Return the batches that each table has, all of them read at one moment."""
        datasets = lance_stream.open_together(list(self.uris.values()), self.options)
        return [sorted(value.to_table()["batch"].to_pylist()) for value in datasets]

    def batches_of(self, name: str) -> list[int]:
        """Return the batches of one table; it is opened by itself."""
        ds = lance_stream.open_dataset(self.uris[name], storage_options=self.options)
        return sorted(ds.to_table()["batch"].to_pylist())


def in_sqlite(folder: Path, *names: str) -> TableGroup:
    """Return tables on the local disk, with one manifest store."""
    uris = {name: str(folder / name) for name in names or ("orders", "lines")}
    return TableGroup(uris, {"manifest_store": f"sqlite://{folder}/m.db"})


def exists(uri: str, options: Mapping[str, Any]) -> bool:
    try:
        lance_stream.open_dataset(uri, storage_options=options)
    except NotFoundError:
        return False
    return True
