"""Migrates a table to a newer feature of the format."""

from collections.abc import Callable
from typing import Any, Final

import click

from lance_stream.cli import output
from lance_stream.cli.arguments import TableArgument, json_option, takes_table, yes_option
from lance_stream.cli.grammar import new_command
from lance_stream.cli.progress import progress
from lance_stream.cli.questions import confirm
from lance_stream.errors import InvalidInputError


def _stable_row_ids(table: TableArgument) -> dict[str, Any]:
    from lance_stream.maintenance.migrations.stable_row_ids import migrate

    before = table.open().table
    after = migrate(before)
    return {"version": after.version, "is_changed": after.version != before.version}


def _manifest_names(table: TableArgument) -> dict[str, Any]:
    """Rename manifests; the table need not be openable, as after an interrupted migration."""
    from lance_stream.maintenance.migrations.manifest_paths import migrate_manifest_paths

    if table.branch is not None:
        raise InvalidInputError(
            "the manifests of a branch always have names of the new scheme: omit --branch"
        )
    renamed = migrate_manifest_paths(table.uri, table.storage_options)
    return {"num_renamed": renamed, "is_changed": bool(renamed)}


def _lineage_files(table: TableArgument) -> dict[str, Any]:
    from lance_stream.table.config.lineage_limits import SPILL_KEY, inline_limit

    before = table.open()
    if not before.has_stable_row_ids:
        raise InvalidInputError(
            "the table has no stable row ids, and therefore no lineage: migrate to stable-row-ids "
            "first"
        )
    if before.table.file_version.data_file_numbers < (2, 0):
        raise InvalidInputError(
            f"data files of version {before.file_version} cannot store lineage: copy the rows to a "
            "new table, whose files have version 2.2"
        )
    if inline_limit(before.config) is not None:
        return {"version": before.version, "is_changed": False}
    return {"version": before.update_config({SPILL_KEY: "true"}).version, "is_changed": True}


_MIGRATIONS: Final[dict[str, Callable[[TableArgument], dict[str, Any]]]] = {
    "stable-row-ids": _stable_row_ids,
    "manifest-names": _manifest_names,
    "lineage-files": _lineage_files,
}


@new_command("migrate")
@takes_table
@click.argument("feature", type=click.Choice(list(_MIGRATIONS)))
@yes_option
@json_option
def command(table: TableArgument, feature: str, yes: bool, as_json: bool) -> int:
    """Migrate a table to a newer feature of the format.

    stable-row-ids: assigns to every row an id that updates and compactions do not change. The
    change feed requires it. No data file changes. Drop indices first, and re-create them
    afterwards.

    manifest-names: renames the manifests of an old table, so that one short listing finds its
    newest version. Stop writers and cleanups first.

    lineage-files: lets compactions move the ids and versions of scattered updated rows from the
    manifests into data files. Releases of Lance before 14 can then no longer read the table.
    """
    question = f"Rename the manifests of {table.uri}? Its writers and cleanups must be stopped."
    if feature == "manifest-names" and not confirm(question, is_sure=yes):
        print("nothing was renamed")
        return 1
    with progress(f"migrating {table.uri}"):
        result = _MIGRATIONS[feature](table)
    if as_json:
        print(output.to_json({"feature": feature, **result}))
    elif not result["is_changed"]:
        print(f"nothing to migrate: {table.uri} already has {feature}")
    elif "version" in result:
        print(f"committed version {result['version']}: migrated to {feature}")
    else:
        print(f"renamed {output.count(result['num_renamed'], 'manifest')}")
    return 0
