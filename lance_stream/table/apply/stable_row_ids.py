"""Stable row ids for a table that was made without them.

    row ids          of every physical row, dead ones too: consecutive, fragment by fragment, from
                     the first one never used
    created at       version 1: when a row really came is not known any more, and 1 is what every
    last updated       reader said of it before
    next row id      one past the last

It is done by a Merge that states the table's fragments as they are, but with row ids, as in the
reference. A Merge does not follow, and is not followed by, whatever else moves rows at the same
time, but for appends, whose rows get their ids from the version that they are committed on.

Ids begin with the first one never used. That is 0 unless ids were given and taken away again, which
no program does that we know: an id that was given once is not given again.

Source:  row ids and lineage, "Row ID Assignment"; facts of the format, sections 1.5 and 4;
         measured on the reference.
Differs: The specification says that ids cannot be switched on later. The reference leaves the
         stamps out; then it does not stamp rows whose columns are rewritten in place.
"""

from collections.abc import Iterable
from dataclasses import replace

from lance_stream.errors import InvalidInputError, UnsupportedFeatureError
from lance_stream.table.apply import index_coverage
from lance_stream.table.apply.new_fragments import MAX_ROW_ID, uniform_stamps
from lance_stream.table.feature_flags import FRAGMENT_REUSE_INDEX, STABLE_ROW_IDS
from lance_stream.table.fragments import Fragment
from lance_stream.table.indices import decode_index_section
from lance_stream.table.manifest import FragmentList, Manifest
from lance_stream.table.operations import Merge
from lance_stream.table.row_ids import RowIdSequence, encode_row_ids
from lance_stream.table.row_versions import FIRST_VERSION


def with_row_ids(fragments: Iterable[Fragment], next_row_id: int) -> tuple[list[Fragment], int]:
    """Return fragments with stable row ids and stamps, and the first id that is left.

    Args:
        fragments: Each with its number of physical rows.
        next_row_id: The first id to give.

    Raises:
        InvalidInputError: There are not so many ids.
    """
    made = []
    for fragment in fragments:
        stop = next_row_id + fragment.physical_rows
        if stop > MAX_ROW_ID:
            raise InvalidInputError(f"the table has used up its row ids: the next is {next_row_id}")
        stamps = uniform_stamps(fragment, FIRST_VERSION)
        made.append(
            replace(
                fragment,
                row_ids=encode_row_ids(RowIdSequence.from_range(next_row_id, stop)),
                created_at_versions=stamps,
                last_updated_at_versions=stamps,
            )
        )
        next_row_id = stop
    return made, next_row_id


def check_can_have_row_ids(manifest: Manifest) -> None:
    """Raise if rows cannot be given stable ids, for indices know them by their addresses.

    An index that says where compactions moved rows is not in the way, and goes.

    Raises:
        InvalidInputError: There are indices.
        UnsupportedFeatureError: The table keeps a history of moved rows for its indices.
    """
    section = manifest.index_section
    names = {each.name for each in (() if section is None else decode_index_section(section))}
    names.discard(index_coverage.FRAGMENT_REUSE)
    if names:
        raise InvalidInputError(
            "rows cannot be given stable ids while there are indices, which know rows by their "
            f"addresses: {', '.join(map(repr, sorted(names)))}. Drop them with the program that "
            "made them, and make them again afterwards"
        )
    if manifest.writer_feature_flags & FRAGMENT_REUSE_INDEX:
        raise UnsupportedFeatureError(
            "rows cannot be given stable ids in a table that keeps for its indices where "
            "compactions have moved rows; write the rows into a new table"
        )


def activate(start: Manifest, operation: Merge) -> Manifest:
    """Return the version of a table in which every row has a stable id.

    Args:
        start: The version being made, of a table without stable row ids.
        operation: States its fragments with row ids, and the schema that it has.

    Raises:
        InvalidInputError: These are not the ids that its rows get, or other fragments; or there
            are indices.
    """
    check_can_have_row_ids(start)
    known = {each.id: each.physical_rows for each in operation.fragments}
    sized = [
        replace(each, physical_rows=each.physical_rows or known.get(each.id, 0))
        for each in start.fragments  # old writers left the number of rows out
    ]
    made, next_row_id = with_row_ids(sized, start.next_row_id)
    stated = [(each.id, each.row_ids) for each in operation.fragments]
    if stated != [(each.id, each.row_ids) for each in made] or operation.schema != start.schema:
        raise InvalidInputError(
            "stable row ids are given to the rows of a table as it is, but the merge states other "
            "fragments, ids or columns"
        )
    return replace(
        start,
        fragments=FragmentList.of(made),
        next_row_id=next_row_id,
        index_section=None,
        reader_feature_flags=start.reader_feature_flags | STABLE_ROW_IDS,
        writer_feature_flags=start.writer_feature_flags | STABLE_ROW_IDS,
    )
