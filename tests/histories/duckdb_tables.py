"""The tables of a life in DuckDB, which is only in the environment of the recipes.

Lives let DuckDB append rows and compact. Its extension 1.5.5 has bugs in the rest: some deletes
remove all rows, and an update sets the created-at versions of rows to 1.
"""

import importlib
from functools import cache
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

HAS_DUCKDB: Final = find_spec("duckdb") is not None

_NUMBERS: Final = count()


@cache
def _session() -> Any:
    extensions: Any = importlib.import_module("duckdb_extensions")
    duckdb: Any = importlib.import_module("duckdb")
    extensions.import_extension("lance")
    session = duckdb.connect()
    session.execute("LOAD lance")
    return session


class DuckDBTable:
    """A table in DuckDB.

    A session remembers the version that it saw first of a path, so each query gets a path of its
    own: a link to the folder of the table.

    Args:
        root: The directory of the table.
    """

    def __init__(self, root: str) -> None:
        self.root = Path(root)

    def sql(self, query: str, rows: pa.Table | None = None) -> pa.Table:
        """Execute a query about the table `{t}` at its newest version, and about `rows`."""
        session, name = _session(), f"ns{next(_NUMBERS)}"
        link = self.root.parent.with_name(f"{self.root.parent.name}-{name}")
        link.symlink_to(self.root.parent, target_is_directory=True)
        if rows is not None:
            session.register("rows", rows)
        session.execute(f"ATTACH '{link}' AS {name} (TYPE LANCE)")
        try:
            return session.execute(query.format(t=f"{name}.main.{self.root.stem}")).to_arrow_table()
        finally:
            session.execute(f"DETACH {name}")
            session.unregister("rows")
            link.unlink()

    def insert(self, names: list[str], rows: pa.Table) -> None:
        """Append rows; columns that they lack become null."""
        values = ", ".join(n if n in rows.schema.names else f"NULL AS {n}" for n in names)
        self.sql(f"INSERT INTO {{t}} SELECT {values} FROM rows", rows)
