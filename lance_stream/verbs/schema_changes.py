"""What dropping and renaming columns share: a Project, which states the remaining columns.

No data file is touched: columns are found by their field ids. A Project states the whole schema, so
it is planned again if others change the schema, an index, or the columns that remember deletes.
"""

from collections.abc import Callable, Sequence

from lance_stream.errors import InvalidInputError, RetryableConflictError
from lance_stream.schema.fields import Field
from lance_stream.snapshot.opening import checkout
from lance_stream.snapshot.table_version import TableVersion
from lance_stream.table.indices import decode_index_section
from lance_stream.table.manifest import Manifest
from lance_stream.table.operations import Project
from lance_stream.table.tombstones import CONFIG_KEY, read_tombstones
from lance_stream.write.planning import commit_planned, planning_again


def change_schema(
    table: TableVersion, plan: Callable[[TableVersion], Sequence[Field]]
) -> TableVersion:
    """Change the columns of a table's newest version, keeping a selection of them.

    Args:
        table: Any version.
        plan: Returns the remaining top-level columns, with their ids, given the newest version.

    Returns:
        The committed version; the newest one if no column changes.

    Raises:
        CommitError: Every attempt conflicted with other commits.
    """

    def attempt() -> TableVersion:
        newest = checkout(table, None)
        fields = tuple(plan(newest))
        if fields == newest.schema.fields:
            return newest
        operation = Project(fields, preserves_nullability=True)
        return commit_planned(newest, operation, check=_unchanged_since(newest.manifest)).table

    return planning_again(attempt)


def check_not_remembered_by(table: TableVersion, names: Sequence[str], verb: str) -> None:
    """Raise if the table remembers deletes by one of some columns.

    Raises:
        InvalidInputError: It does.
    """
    remembered = read_tombstones(table.manifest.config)
    if remembered is None or not remembered.files:
        return
    for name in names:
        if name in (*remembered.on, remembered.sequence_by):
            raise InvalidInputError(
                f"the column {name!r} cannot be {verb}: the table remembers deletes by "
                f"{', '.join(remembered.on)} and {remembered.sequence_by}. To forget them, remove "
                f"the key {CONFIG_KEY!r} from the table's config"
            )


def check_no_index(table: TableVersion, name: str, field_ids: set[int]) -> None:
    """Raise if an index is on one of some fields, or includes its values.

    Raises:
        InvalidInputError: There is such an index.
    """
    section = table.manifest.index_section
    for index in () if section is None else decode_index_section(section):
        if not field_ids.isdisjoint((*index.field_ids, *index.covering_field_ids)):
            raise InvalidInputError(
                f"the column {name!r} cannot be dropped because the index {index.name!r} is on it; "
                "drop the index first, with the program that created it"
            )


def _unchanged_since(planned: Manifest) -> Callable[[Manifest], None]:
    def check(newest: Manifest) -> None:
        if (
            newest.schema != planned.schema
            or newest.index_section != planned.index_section
            or newest.config.get(CONFIG_KEY) != planned.config.get(CONFIG_KEY)
        ):
            raise RetryableConflictError(
                f"the plan to drop or rename columns is for version {planned.version}, but others "
                f"have changed columns or indices by version {newest.version}. Plan it again on "
                "the newest version",
                newest.version,
            )

    return check
