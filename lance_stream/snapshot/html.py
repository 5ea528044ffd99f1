"""Renders a version of a table as HTML, for notebooks."""

from html import escape
from typing import Final

import pyarrow as pa

from lance_stream.snapshot.table_version import TableVersion

_MAX_COLUMNS: Final = 50
"""The maximum number of columns that are listed."""


def as_html(table: TableVersion, schema: pa.Schema) -> str:
    """Return the location, version, number of rows and fragments, and columns as HTML.

    Data and deletion files are opened only if the manifest does not state their numbers of rows.

    Args:
        table: The version.
        schema: Its columns, as users see them.
    """
    fragments = table.manifest.fragments
    rows = int(table.row_counts.live.sum())
    listed_columns = list(schema)[:_MAX_COLUMNS]
    lines = [
        f"<tr><td>{_escape(column.name)}</td><td>{_escape(str(column.type))}</td>"
        f"<td>{'' if column.nullable else 'not null'}</td></tr>"
        for column in listed_columns
    ]
    if len(schema) > len(listed_columns):
        lines.append(f"<tr><td colspan='3'>and {len(schema) - len(listed_columns)} more</td></tr>")
    return (
        f"<p><b>{_escape(table.uri)}</b><br>version {table.version}: {_count(rows, 'row')} in "
        f"{_count(len(fragments), 'fragment')}</p>"
        "<table><thead><tr><th>column</th><th>type</th><th></th></tr></thead>"
        f"<tbody>{''.join(lines)}</tbody></table>"
    )


def _count(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def _escape(text: str) -> str:
    printable = "".join(
        character if character.isprintable() else "\N{MIDDLE DOT}" for character in text
    )
    return escape(printable[:200])
