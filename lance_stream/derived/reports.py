"""The reports of a derivation: what a commit did, and how many rows are up to date."""

from dataclasses import dataclass


@dataclass(frozen=True)
class DerivedCommit:
    """The report of one or more commits of a derivation.

    Attributes:
        version: The last version committed to the table with the values; None if nothing was
            committed.
        source_version: The last version of the source that was read.
        num_commits: The number of versions committed.
        num_checked: The number of rows checked.
        num_computed: The number of rows passed to the function, including those that failed.
        num_failed: The number of rows for which the function failed.
        num_written: The number of rows with new values. Rows that other writers changed or deleted
            during the computation are computed but not written.
        num_in_place: The number of these rows that were written in place, without reading other
            columns.
        num_deleted: The number of rows deleted from a separate table.
        num_pending: The number of rows still to be checked.
    """

    version: int | None = None
    source_version: int = 0
    num_commits: int = 0
    num_checked: int = 0
    num_computed: int = 0
    num_failed: int = 0
    num_written: int = 0
    num_in_place: int = 0
    num_deleted: int = 0
    num_pending: int = 0

    def __add__(self, later: "DerivedCommit") -> "DerivedCommit":
        """Return the sum of these commits and later ones."""
        return DerivedCommit(
            self.version if later.version is None else later.version,
            later.source_version,
            self.num_commits + later.num_commits,
            self.num_checked + later.num_checked,
            self.num_computed + later.num_computed,
            self.num_failed + later.num_failed,
            self.num_written + later.num_written,
            self.num_in_place + later.num_in_place,
            self.num_deleted + later.num_deleted,
            later.num_pending,
        )


@dataclass(frozen=True)
class DerivedStatus:
    """The status of a derivation: how many rows have values that match their inputs.

    Attributes:
        source_version: The newest version of the source.
        through: The version of the source through which rows have been checked; None before the
            first round.
        function_version: The version of the function in use; None before the first round.
        is_same_function: Whether this is the declared version. If not, the next round starts over.
        num_rows: The number of live rows in the source.
        num_pending: The number of live rows still to be checked, including rows that changed only
            in other columns.
        num_failed: The number of rows for which the function failed.
    """

    source_version: int
    through: int | None
    function_version: str | None
    is_same_function: bool
    num_rows: int
    num_pending: int
    num_failed: int

    @property
    def num_current(self) -> int:
        """The number of rows whose value matches their inputs, or is null after a failure."""
        return self.num_rows - self.num_pending

    @property
    def is_current(self) -> bool:
        """Whether all rows are current."""
        return self.num_pending == 0 and self.is_same_function
