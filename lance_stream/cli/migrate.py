"""Migrates a table to a newer feature of the format."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import click

from lance_stream.cli import output
from lance_stream.cli.arguments import TableArgument, json_option, takes_table
from lance_stream.cli.grammar import new_command

if TYPE_CHECKING:
    from lance_stream.dataset import Dataset


def _stable_row_ids(ds: "Dataset") -> "Dataset":
    from lance_stream.dataset import Dataset
    from lance_stream.maintenance.stable_row_ids import migrate

    return Dataset(migrate(ds.table))


_MIGRATIONS: Final[dict[str, Callable[["Dataset"], "Dataset"]]] = {
    "stable-row-ids": _stable_row_ids,
}


@new_command("migrate")
@takes_table
@click.argument("feature", type=click.Choice(list(_MIGRATIONS)))
@json_option
def command(table: TableArgument, feature: str, as_json: bool) -> int:
    """Migrate a table to a newer feature of the format.

    stable-row-ids: every row gets an id that it keeps when it is updated or moved, which the change
    feed needs. No data file is touched. Drop indices first, and create them again afterwards.
    """
    before = table.open()
    after = _MIGRATIONS[feature](before)
    is_committed = after.version != before.version
    if as_json:
        answer = {"feature": feature, "is_committed": is_committed, "version": after.version}
        print(output.to_json(answer))
    elif is_committed:
        print(f"committed version {after.version}: migrated to {feature}")
    else:
        print(f"nothing to migrate: version {before.version} has {feature}")
    return 0
