"""The tables of a life in LanceDB, which is only in the environment of the recipes.

Each call connects anew, so that LanceDB sees what others have written.
"""

import importlib
from datetime import timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

HAS_LANCEDB: Final = find_spec("lancedb") is not None


def connect(folder: str) -> Any:
    """Return a connection to a folder of tables, each named `<name>.lance`."""
    lancedb: Any = importlib.import_module("lancedb")
    return lancedb.connect(
        folder,
        read_consistency_interval=timedelta(0),
        storage_options={"new_table_enable_stable_row_ids": "true"},
    )


def open_table(root: str, branch: str | None) -> Any:
    """Return a table, or one of its branches."""
    path = Path(root)
    table = connect(str(path.parent)).open_table(path.stem)
    return table if branch is None else table.branches.checkout(branch)
