"""A report about a table: its history, size and readers, on one page."""

import os
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from lance_stream.arguments import as_number
from lance_stream.environment import MACHINE, Environment
from lance_stream.errors import InvalidInputError
from lance_stream.monitoring.page import in_notebook, page_of
from lance_stream.monitoring.series import CommitTimes, Series, collect, commit_times
from lance_stream.snapshot.table_version import TableVersion

DEFAULT_VERSIONS: Final = 2000
"""The number of newest versions that a report shows."""


class Report:
    """A report about a table, returned by `Dataset.report`. Notebooks display it.

    Attributes:
        series: The data that it shows.
    """

    def __init__(self, series: Series) -> None:
        self.series = series

    def __repr__(self) -> str:
        return f"<Report of {self.series.uri!r}, {len(self.series.versions)} versions>"

    @cached_property
    def html(self) -> str:
        """The page, which loads nothing from the network.

        Raises:
            InvalidInputError: Plotly is missing: pip install 'lance-stream[report]'.
        """
        return page_of(self.series)

    def _repr_html_(self) -> str:
        return in_notebook(self.html)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the page to a file, and return its path.

        Raises:
            InvalidInputError: The path is not valid, or its folder does not exist; or Plotly is
                missing: pip install 'lance-stream[report]'.
            OSError: The file cannot be written.
        """
        if not isinstance(path, str | os.PathLike):
            raise InvalidInputError(f"save() takes a path, not {path!r:.200}")
        file = Path(path)
        if not file.parent.is_dir():
            raise InvalidInputError(
                f"the report cannot be saved to {str(file)!r}: there is no folder "
                f"{str(file.parent)!r}. Create it, or choose another folder"
            )
        text = self.html
        try:
            file.write_text(text, encoding="utf-8")
        except OSError as error:
            raise type(error)(
                f"the report cannot be saved to {str(file)!r}: {error.strerror}. Choose a file "
                "in a folder that this account may write to"
            ) from error
        return file


def make_report(
    table: TableVersion,
    versions: object = DEFAULT_VERSIONS,
    commits: Iterable[Any] = (),
    environment: Environment = MACHINE,
) -> Report:
    """Return a report about a table.

    Args:
        table: The version whose fragments and indices are shown.
        versions: The number of newest versions to show; None for all.
        commits: Reports of batches (`SinkCommit`), or their `CommitTimes`.
        environment: The clock.

    Raises:
        InvalidInputError: An argument is invalid.
    """
    number = None if versions is None else as_number(versions)
    if versions is not None and (number is None or number < 1):
        raise InvalidInputError(f"versions must be an integer of at least 1, not {versions!r:.200}")
    if not isinstance(commits, Iterable):
        raise InvalidInputError(
            "commits must be a list of reports of batches, such as [sink.last_commit], not "
            f"{commits!r:.200}"
        )
    times = [
        commit if isinstance(commit, CommitTimes) else commit_times(commit) for commit in commits
    ]
    return Report(collect(table, number, filter(None, times), environment))
