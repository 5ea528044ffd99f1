"""Shows a table's columns, rows, files, the streams that write to it and its consumers."""

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
from lance_stream.dataset import Dataset
from lance_stream.maintenance.consumers import is_consumers, list_consumers
from lance_stream.schema.fields import Field
from lance_stream.snapshot.references import Branch, read_branches
from lance_stream.snapshot.table_version import TableVersion
from lance_stream.snapshot.tag_files import read_tags
from lance_stream.snapshot.write_ahead_logs import unmerged_files
from lance_stream.table.fragments import total_size
from lance_stream.table.indices import decode_index_section
from lance_stream.table.ledger import read_entries
from lance_stream.table.manifest import Manifest
from lance_stream.table.tombstones import read_tombstones

HELP: Final = "show columns, versions, sizes, streams, tags and consumers"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verb's arguments."""
    add_table(parser)
    add_version(parser)
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    """Show the table."""
    ds = open_table(arguments)
    info = describe(ds.checkout(parse_version(arguments.version)))
    print(output.to_json(info) if arguments.json else "\n".join(_lines(info)))
    return 0


def describe(ds: Dataset) -> dict[str, Any]:
    """Return a description of a table at a version.

    A data or deletion file is opened only if the manifest does not state its number of rows.
    """
    table, manifest = ds.table, ds.table.manifest
    versions = table.log.versions()
    fragments = list(manifest.fragments)
    physical = sum(map(table.physical_rows, fragments))
    live = sum(map(table.num_live_rows, fragments))
    files = [file for each in fragments for file in each.files]
    consumers = list_consumers(table.refs)
    tags, branches = read_tags(table.refs), read_branches(table.refs)
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
        "data_bytes": total_size(files),
        "columns": [
            {"name": name, "type": str(ds.schema.field(name).type), "nullable": field.nullable}
            for name, field in zip(table.schema.names, table.schema.fields, strict=True)
        ],
        "indices": _indices(manifest, {each.id: each for each in table.schema.walk()}),
        "config": {k: v for k, v in sorted(ds.config.items()) if not k.startswith("lance_stream.")},
        "remembered_deletes": _remembered_deletes(manifest),
        "write_ahead_log": _write_ahead_log(table),
        "streams": [
            {
                "app_id": app_id,
                "batch": entry.batch_id,
                "version": entry.version,
                "query": entry.query_id,
                "rows": entry.num_rows,
                "digest": entry.digest or None,
            }
            for app_id, entry in sorted(read_entries(manifest.config).items())
        ],
        "branch": ds.branch,
        "branches": [
            {"name": each.name, "from": _version_of(each.parent, each.parent_version)}
            for each in branches.values()
            if isinstance(each, Branch)
        ],
        "tags": {
            each.name: _version_of(each.branch, each.version)
            for each in sorted(tags.tags, key=lambda each: each.name)
            if not is_consumers(each.name)
        },
        "unreadable": {
            **{path: str(error) for path, error in tags.unreadable.items()},
            **{
                f"{table.refs.root.uri}/{path}": str(error)
                for path, error in branches.items()
                if not isinstance(error, Branch)
            },
        },
        "consumers": [
            {
                "name": each.name,
                "version": each.version,
                "is_beginning": each.is_beginning,
                "versions_behind": sum(version > each.version for version in versions),
                "updated_at": each.updated_at,
            }
            for each in consumers
        ],
    }


def _version_of(branch: str | None, version: int) -> int | str:
    """Return a version's number, prefixed by its branch if it has one."""
    return version if branch is None else f"{branch}:{version}"


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


def _write_ahead_log(table: TableVersion) -> dict[str, int] | None:
    found = unmerged_files(table)
    return None if found is None else {"num_files": found.num_files, "bytes": found.num_bytes}


def _lines(info: Mapping[str, Any]) -> Iterator[str]:
    there = info["versions"]
    has_ids = "with" if info["stable_row_ids"] else "without"
    branch = "" if info["branch"] is None else f", the branch {info['branch']},"
    yield (
        f"{info['uri']}{branch} at version {info['version']} of {output.moment(info['timestamp'])}"
    )
    yield (
        f"{output.count(there['count'], 'version')}, {there['oldest']} to {there['newest']}; file "
        f"version {info['file_version']}, {has_ids} stable row ids"
    )
    num_bytes = info["data_bytes"]
    size = "unknown size" if num_bytes is None else output.size(num_bytes)
    yield (
        f"{output.count(info['num_rows'], 'row')} and {info['num_dead_rows']} deleted in "
        f"{output.count(info['num_fragments'], 'fragment')}; "
        f"{output.count(info['num_data_files'], 'data file')} of "
        f"{size}, "
        f"{output.count(info['num_deletion_files'], 'deletion file')}"
    )
    deletes = info["remembered_deletes"]
    if deletes is not None:
        yield (
            f"{output.count(deletes['num_rows'], 'tombstone')} by "
            f"{', '.join(deletes['on'])}, ordered by {deletes['sequence_by']}"
        )
    ahead = info["write_ahead_log"]
    if ahead is not None:
        yield (
            "written by a write-ahead log (MemWAL) with "
            f"{output.count(ahead['num_files'], 'file')} of {output.size(ahead['bytes'])}: "
            "unmerged rows are not part of any version"
        )
    for title, header, rows in (
        (
            "columns",
            ["NAME", "TYPE", ""],
            [
                [each["name"], each["type"], "" if each["nullable"] else "not null"]
                for each in info["columns"]
            ],
        ),
        (
            "indices",
            ["NAME", "COLUMNS"],
            [[each["name"], ", ".join(each["columns"])] for each in info["indices"]],
        ),
        ("config", ["KEY", "VALUE"], [list(each) for each in info["config"].items()]),
        (
            "streams into it",
            ["APP ID", "BATCH", "IN VERSION", "ROWS", "DIGEST"],
            [
                [
                    each["app_id"],
                    str(each["batch"]),
                    str(each["version"] or "?"),
                    "?" if each["rows"] is None else str(each["rows"]),
                    each["digest"] or "?",
                ]
                for each in info["streams"]
            ],
        ),
        (
            "branches",
            ["NAME", "FROM VERSION"],
            [[each["name"], str(each["from"])] for each in info["branches"]],
        ),
        (
            "files that look like tags or branches but are not",
            ["FILE", "REASON"],
            [list(each) for each in info["unreadable"].items()],
        ),
        ("tags", ["NAME", "VERSION"], [[k, str(v)] for k, v in info["tags"].items()]),
        (
            "consumers",
            ["NAME", "FINISHED", "BEHIND", "UPDATED"],
            [
                [
                    each["name"],
                    f"{'starts with ' if each['is_beginning'] else ''}version {each['version']}",
                    output.count(each["versions_behind"], "version"),
                    output.moment(each["updated_at"]),
                ]
                for each in info["consumers"]
            ],
        ),
    ):
        if rows:
            yield f"\n{title}"
            yield from (f"  {line}" for line in output.lines_of(header, rows))
