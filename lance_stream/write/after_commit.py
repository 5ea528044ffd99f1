"""Runs after every commit of this process: the cleanup that the table's config requests.

Every verb that commits calls this with the committed version. It is the only call to a higher
layer, imported only if the table's config requests it: a cleanup reads the whole table, and commits
of all layers must run it.
"""

from lance_stream.environment import MACHINE, Environment
from lance_stream.snapshot.table_version import TableVersion
from lance_stream.table.config.auto_cleanup import INTERVAL


def after_commit(table: TableVersion, environment: Environment = MACHINE) -> None:
    """Clean up a table if its config asks for it after this version; never fails.

    Args:
        table: The version that was committed.
        environment: The clock.
    """
    if INTERVAL in table.manifest.config:
        from lance_stream.maintenance.auto_cleanup import clean_up_if_due

        clean_up_if_due(table, environment)
