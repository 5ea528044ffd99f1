"""The state of a load or save, which Spark pickles with every task.

It is apart from the class of the format, because the modules that choose a reader or a writer need
it, and that class needs them.
"""

from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

from lance_stream.spark.session.session_options import SessionOptions
from lance_stream.spark.versions import DataSource


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
