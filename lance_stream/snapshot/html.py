"""The HTML that a notebook shows for a version of a table."""

from html import escape
from typing import Final

import pyarrow as pa

from lance_stream.snapshot.table_version import TableVersion

_MAX_COLUMNS: Final = 50
"""How many columns are listed."""


def as_html(table: TableVersion, schema: pa.Schema) -> str:
    """Return a small HTML table: location, version, rows, fragments and columns.

    A data or deletion file is opened only if the manifest does not state its number of rows.

    Args:
        table: The version.
        schema: Its columns, as users see them.
    """
    fragments = table.manifest.fragments
    rows = int(table.row_counts.live.sum())
    listed = list(schema)[:_MAX_COLUMNS]
    lines = [
        f"<tr><td>{_escaped(column.name)}</td><td>{_escaped(str(column.type))}</td>"
        f"<td>{'' if column.nullable else 'not null'}</td></tr>"
        for column in listed
    ]
    if len(schema) > len(listed):
        lines.append(f"<tr><td colspan='3'>and {len(schema) - len(listed)} more</td></tr>")
    return (
        f"<p><b>{_escaped(table.uri)}</b><br>version {table.version}: {_number(rows, 'row')} in "
        f"{_number(len(fragments), 'fragment')}</p>"
        "<table><thead><tr><th>column</th><th>type</th><th></th></tr></thead>"
        f"<tbody>{''.join(lines)}</tbody></table>"
    )


def _number(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def _escaped(text: str) -> str:
    printable = "".join(
        character if character.isprintable() else "\N{MIDDLE DOT}" for character in text
    )
    return escape(printable[:200])
