"""The state of a load or save, which Spark pickles with every task.

It is apart from the class of the format, because the modules that choose a reader or a writer need
it, and that class needs them. Tasks import this module, so it imports nothing of tables.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from lance_stream.errors import NotFoundError
from lance_stream.spark.session.session_options import SessionOptions
from lance_stream.spark.versions import DataSource

if TYPE_CHECKING:
    from lance_stream.snapshot.table_version import TableVersion


class PinnedVersion(NamedTuple):
    """The version whose schema Spark has read.

    Attributes:
        version: Its number.
        uri: The location of its branch.
        options: The options that name columns, in the table's own spelling.
        mark: Distinguishes it from another table's version of the same number.
    """

    version: int
    uri: str
    options: Mapping[str, Any]
    mark: str


class SourceState(DataSource):
    """The options of a load or save.

    Args:
        options: The user's options.

    Attributes:
        session_options: The session's settings of stores, used where the user gives none.
        pinned: The version to read, once its schema has been read; None before, and for a writer.
    """

    session_options: ClassVar[SessionOptions] = SessionOptions()

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        self.pinned: PinnedVersion | None = None


def check_is_same_table(table: "TableVersion", mark: str) -> None:
    """Check that a version is the one from which the columns of a DataFrame were read.

    Args:
        table: The version.
        mark: The mark of the version that was read; empty to accept any table.

    Raises:
        NotFoundError: It is another table's version of the same number.
    """
    from lance_stream.table.version_marks import mark_of

    if mark and mark_of(table.manifest) != mark:
        raise NotFoundError(
            f"version {table.version} of {table.uri} is not the version of that number from which "
            "the DataFrame or view was created: the table was deleted and re-created, or restored "
            "from a copy. Create the DataFrame or view again"
        )
