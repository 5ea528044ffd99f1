"""Overwriting: other rows, and perhaps another schema, in place of all that a table has.

Row ids and fragment ids go on counting; the change feed shows all old rows as deleted and all new
ones as inserted. Config, base paths and the file version stay. So does the schema, with its primary
key and what must not be null, where the new rows have the same columns of the same types.
"""

import pyarrow as pa

from lance_stream.commit.committer import Skipped
from lance_stream.dataset.arrow_input import ArrowInput, read_input
from lance_stream.dataset.commit_verb import commit_operation, planning_again
from lance_stream.dataset.create import new_schema
from lance_stream.dataset.opening import checkout
from lance_stream.dataset.table_versions import TableVersion
from lance_stream.dataset.write_fragments import WriteTarget, delete_files, write_fragments
from lance_stream.errors import CommitConflictError, InvalidInputError
from lance_stream.file.type_support import check_types
from lance_stream.schema.extension_types import storage_type
from lance_stream.table.operations import Overwrite


def overwrite(table: TableVersion, data: ArrowInput) -> TableVersion:
    """Put rows in place of all that a table has; see `Dataset.overwrite`."""
    table = checkout(table, None)
    rows = read_input(data)
    schema = table.schema
    if not _has_same_columns(rows.schema, table.arrow_schema):
        # field ids go on, so that a data file of an older version is never taken for a column
        schema = new_schema(rows.schema, table.file_version, table.schema.max_field_id() + 1)
    check_types(schema.fields, table.file_version)
    target = WriteTarget(
        table.store, schema, table.file_version, dictionaries=table.manifest.dictionaries
    )
    fragments = write_fragments(rows, target)

    def attempt() -> TableVersion:
        result = commit_operation(
            table.log, checkout(table, None).version, Overwrite(tuple(fragments), schema)
        )
        if isinstance(result, Skipped):
            raise InvalidInputError(f"nothing was overwritten: {result.reason}")
        return table.at(result.manifest)

    try:
        return planning_again(attempt)
    except CommitConflictError:
        delete_files(table.store, fragments)  # known to have failed
        raise


def _has_same_columns(one: pa.Schema, other: pa.Schema) -> bool:
    return bool(
        one.names == other.names and [storage_type(each) for each in one.types] == other.types
    )
