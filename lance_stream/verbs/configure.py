"""Changes a table's config: a map from text to text that later versions inherit."""

from collections.abc import Mapping

from lance_stream.arguments import as_mapping
from lance_stream.errors import InvalidInputError
from lance_stream.snapshot.opening import checkout
from lance_stream.snapshot.table_version import TableVersion
from lance_stream.table.lineage_limits import check_entries
from lance_stream.table.operations import MapUpdate, UpdateConfig
from lance_stream.write.planning import commit_planned, planning_again


def update_config(table: TableVersion, entries: Mapping[str, str | None]) -> TableVersion:
    """Set or remove config entries; see `Dataset.update_config`."""
    as_mapping(entries, "config must be a mapping from text to text, {'key': 'value'}")
    for key, value in entries.items():
        if not isinstance(key, str) or not key or not (value is None or isinstance(value, str)):
            raise InvalidInputError(
                f"config must be a mapping from text to text, but has {key!r}: {value!r}"
            )
    check_entries(entries)

    def attempt() -> TableVersion:
        newest = checkout(table, None)
        if all(newest.manifest.config.get(key) == value for key, value in entries.items()):
            return newest
        operation = UpdateConfig(config=MapUpdate(tuple(entries.items())))
        return commit_planned(newest, operation).table

    return planning_again(attempt)
