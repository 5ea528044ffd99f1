"""Shows what a table is: columns, rows, files, streams that write to it, consumers that read it."""

import argparse
from collections.abc import Iterator, Mapping
from typing import Any, Final

from lance_stream.cli import output
from lance_stream.cli.arguments import (
    add_json,
    add_table,
    add_version,
    open_table,
    parse_version,
)
from lance_stream.dataset.consumers import CONSUMER_PREFIX, list_consumers
from lance_stream.dataset.dataset import Dataset
from lance_stream.schema.fields import Field
from lance_stream.table.indices import decode_index_section
from lance_stream.table.ledger import read_entries
from lance_stream.table.manifest import Manifest
from lance_stream.table.tombstones import read_tombstones

HELP: Final = "columns, versions, sizes, streams, tags and consumers"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Say what the verb takes."""
    add_table(parser)
    add_version(parser)
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    """Show the table."""
    ds = open_table(arguments)
    told = describe(ds.checkout(parse_version(arguments.version)))
    print(output.to_json(told) if arguments.json else "\n".join(_lines(told)))
    return 0


def describe(ds: Dataset) -> dict[str, Any]:
    """Return what is to be said of a table at a version.

    No data file is opened, and a deletion file only where the manifest does not tell how many
    offsets it has.
    """
    table, manifest = ds.table, ds.table.manifest
    versions = table.log.versions()
    fragments = list(manifest.fragments)
    physical = sum(map(table.physical_rows, fragments))
    live = sum(map(table.num_live_rows, fragments))
    files = [file for each in fragments for file in each.files]
    consumers = list_consumers(table.store)
    return {
        "uri": ds.uri,
        "version": ds.version,
        "timestamp": ds.timestamp,
        "file_version": ds.file_version,
        "stable_row_ids": ds.has_stable_row_ids,
        "versions": {"count": len(versions), "oldest": versions[0], "newest": versions[-1]},
        "num_rows": live,
        "num_dead_rows": physical - live,
        "num_fragments": len(fragments),
        "num_deletion_files": sum(each.deletion_file is not None for each in fragments),
        "num_data_files": len(files),
        "data_bytes": sum(each.size_bytes for each in files),
        "columns": [
            {"name": name, "type": str(ds.schema.field(name).type), "nullable": field.nullable}
            for name, field in zip(table.schema.names, table.schema.fields, strict=True)
        ],
        "indices": _indices(manifest, {each.id: each for each in table.schema.walk()}),
        "config": {k: v for k, v in sorted(ds.config.items()) if not k.startswith("lance_stream.")},
        "remembered_deletes": _remembered_deletes(manifest),
        "streams": [
            {
                "app_id": app_id,
                "batch": entry.batch_id,
                "version": entry.version,
                "query": entry.query_id,
            }
            for app_id, entry in sorted(read_entries(manifest.config).items())
        ],
        "tags": {
            name: tag.version
            for name, tag in ds.tags.list().items()
            if not name.startswith(CONSUMER_PREFIX)
        },
        "consumers": [
            {
                "name": each.name,
                "version": each.version,
                "versions_behind": sum(version > each.version for version in versions),
                "updated_at": each.updated_at,
            }
            for each in consumers
        ],
    }


def _indices(manifest: Manifest, fields: Mapping[int, Field]) -> list[dict[str, Any]]:
    if manifest.index_section is None:
        return []
    return [
        {
            "name": each.name,
            "columns": [fields[i].name if i in fields else f"field {i}" for i in each.field_ids],
        }
        for each in decode_index_section(manifest.index_section)
    ]


def _remembered_deletes(manifest: Manifest) -> dict[str, Any] | None:
    known = read_tombstones(manifest.config)
    if known is None:
        return None
    return {
        "on": list(known.on),
        "sequence_by": known.sequence_by,
        "num_rows": sum(each.num_rows for each in known.files),
    }


def _lines(told: Mapping[str, Any]) -> Iterator[str]:
    there = told["versions"]
    has_ids = "with" if told["stable_row_ids"] else "without"
    yield f"{told['uri']} at version {told['version']} of {output.moment(told['timestamp'])}"
    yield (
        f"{output.count(there['count'], 'version')}, {there['oldest']} to {there['newest']}; file "
        f"version {told['file_version']}, {has_ids} stable row ids"
    )
    yield (
        f"{output.count(told['num_rows'], 'row')} and {told['num_dead_rows']} dead in "
        f"{output.count(told['num_fragments'], 'fragment')}; "
        f"{output.count(told['num_data_files'], 'data file')} of "
        f"{output.size(told['data_bytes'])}, "
        f"{output.count(told['num_deletion_files'], 'deletion file')}"
    )
    deletes = told["remembered_deletes"]
    if deletes is not None:
        yield (
            f"remembers {output.count(deletes['num_rows'], 'delete')} by "
            f"{', '.join(deletes['on'])} in the order of {deletes['sequence_by']}"
        )
    for title, header, rows in (
        (
            "columns",
            ["NAME", "TYPE", ""],
            [
                [each["name"], each["type"], "" if each["nullable"] else "not null"]
                for each in told["columns"]
            ],
        ),
        (
            "indices",
            ["NAME", "COLUMNS"],
            [[each["name"], ", ".join(each["columns"])] for each in told["indices"]],
        ),
        ("config", ["KEY", "VALUE"], [list(each) for each in told["config"].items()]),
        (
            "streams into it",
            ["APP ID", "BATCH", "IN VERSION"],
            [
                [each["app_id"], str(each["batch"]), str(each["version"] or "?")]
                for each in told["streams"]
            ],
        ),
        ("tags", ["NAME", "VERSION"], [[k, str(v)] for k, v in told["tags"].items()]),
        (
            "consumers",
            ["NAME", "DONE WITH", "BEHIND", "SINCE"],
            [
                [
                    each["name"],
                    f"version {each['version']}",
                    output.count(each["versions_behind"], "version"),
                    output.moment(each["updated_at"]),
                ]
                for each in told["consumers"]
            ],
        ),
    ):
        if rows:
            yield f"\n{title}"
            yield from (f"  {line}" for line in output.lines_of(header, rows))
