"""Stable row ids for a table that was created without them.

    row ids          of every physical row, including deleted ones: consecutive, fragment by
                     fragment, from the first unused one
    created at       version 1, which readers reported before: the real version is unknown
    last updated     likewise
    next row id      one past the last

As in the reference, this is a Merge that lists the table's fragments, unchanged except for row ids.
A Merge conflicts with every concurrent operation that moves rows. Appends do not conflict, since
their rows get ids from the version on which they are committed.

Ids start with the first unused one. That is 0 unless ids were assigned and removed again, which no
known program does: an id is never reused.

Source:  row ids and lineage, "Row ID Assignment"; measured on the reference.
Differs: According to the specification, row ids cannot be enabled later. The reference omits the
         row versions, and later does not set those of rows whose columns are rewritten in place.
"""

from collections.abc import Iterable
from dataclasses import replace

from lance_stream.errors import InvalidInputError, UnsupportedFeatureError
from lance_stream.table.apply import index_coverage
from lance_stream.table.apply.new_fragments import MAX_ROW_ID, uniform_stamps
from lance_stream.table.feature_flags import FRAGMENT_REUSE_INDEX, STABLE_ROW_IDS
from lance_stream.table.fragments.fragment import Fragment
from lance_stream.table.indices import decode_index_section
from lance_stream.table.lineage.row_ids import RowIdSequence, encode_row_ids
from lance_stream.table.lineage.row_versions import FIRST_VERSION
from lance_stream.table.manifest import FragmentList, Manifest
from lance_stream.table.operations.columns import Merge


def with_row_ids(fragments: Iterable[Fragment], next_row_id: int) -> tuple[list[Fragment], int]:
    """Return fragments with stable row ids and row versions, and the next unused id.

    Args:
        fragments: The fragments, with their numbers of physical rows.
        next_row_id: The first id to assign.

    Raises:
        InvalidInputError: There are not enough ids left.
    """
    numbered = []
    for fragment in fragments:
        stop = next_row_id + fragment.physical_rows
        if stop > MAX_ROW_ID:
            raise InvalidInputError(f"the table has used up its row ids: the next is {next_row_id}")
        stamps = uniform_stamps(fragment, FIRST_VERSION)
        numbered.append(
            replace(
                fragment,
                row_ids=encode_row_ids(RowIdSequence.from_range(next_row_id, stop)),
                created_at_versions=stamps,
                last_updated_at_versions=stamps,
            )
        )
        next_row_id = stop
    return numbered, next_row_id


def check_can_have_row_ids(manifest: Manifest) -> None:
    """Raise if rows cannot get stable ids because indices refer to them by address.

    A fragment reuse index without a history does not prevent it, and is dropped.

    Raises:
        InvalidInputError: There are indices.
        UnsupportedFeatureError: The table keeps a history of moved rows for its indices.
    """
    section = manifest.index_section
    names = {index.name for index in (() if section is None else decode_index_section(section))}
    names.discard(index_coverage.FRAGMENT_REUSE)
    if names:
        raise InvalidInputError(
            "rows cannot get stable ids while there are indices, which refer to rows by address: "
            f"{', '.join(map(repr, sorted(names)))}. Drop them with the program that created them, "
            "and create them again afterwards"
        )
    if manifest.writer_feature_flags & FRAGMENT_REUSE_INDEX:
        raise UnsupportedFeatureError(
            "rows cannot get stable ids in a table whose fragment reuse index keeps a history of "
            "moved rows; write the rows into a new table"
        )


def activate(start: Manifest, operation: Merge) -> Manifest:
    """Return the version of a table in which every row has a stable id.

    Args:
        start: The version being created, of a table without stable row ids.
        operation: Lists the fragments with their row ids, and the schema.

    Raises:
        InvalidInputError: The operation lists other ids or fragments; or there are indices.
    """
    check_can_have_row_ids(start)
    physical_rows = {fragment.id: fragment.physical_rows for fragment in operation.fragments}
    sized = [
        replace(fragment, physical_rows=fragment.physical_rows or physical_rows.get(fragment.id, 0))
        for fragment in start.fragments  # old writers omitted the row count
    ]
    fragments, next_row_id = with_row_ids(sized, start.next_row_id)
    planned = [(fragment.id, fragment.row_ids) for fragment in operation.fragments]
    if (
        planned != [(fragment.id, fragment.row_ids) for fragment in fragments]
        or operation.schema != start.schema
    ):
        raise InvalidInputError(
            "a merge that adds stable row ids must change nothing else, but this one has other "
            "fragments, ids or columns"
        )
    return replace(
        start,
        fragments=FragmentList.of(fragments),
        next_row_id=next_row_id,
        index_section=None,
        reader_feature_flags=start.reader_feature_flags | STABLE_ROW_IDS,
        writer_feature_flags=start.writer_feature_flags | STABLE_ROW_IDS,
    )
