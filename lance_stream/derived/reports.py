"""What a derivation says of itself."""

from dataclasses import dataclass


@dataclass(frozen=True)
class DerivedPiece:
    """The outcome of one or more pieces.

    Attributes:
        version: The version that was committed last, of the table with the values; None if there
            was nothing to do.
        source_version: The version of the source that was read last.
        num_commits: How many versions were committed.
        num_checked: How many rows were looked at.
        num_computed: For how many the function ran, whether or not it failed.
        num_failed: For how many it failed.
        num_written: How many rows have new values. Rows that others changed or deleted meanwhile
            were computed and not written.
        num_in_place: How many of them stayed where they are: no other column was read.
        num_deleted: How many rows a table beside lost.
        num_pending: How many rows are still to be looked at.
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

    def __add__(self, later: "DerivedPiece") -> "DerivedPiece":
        """Return the outcome of this piece and a later one."""
        return DerivedPiece(
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
    """How far the values of a table are those of its inputs.

    Attributes:
        source_version: The newest version of the source.
        through: The version of the source through which rows were looked at; None if there was no
            round yet.
        function_version: The version of the function that is being applied; None if none is yet.
        is_same_function: Whether that is the declared one. If not, the next round begins anew.
        num_rows: How many live rows the source has.
        num_pending: How many of them are to be looked at; those that changed in other columns alone
            are among them.
        num_failed: For how many rows the function failed, with the inputs they had then.
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
        """How many rows have the value of their inputs, or null where the function failed."""
        return self.num_rows - self.num_pending

    @property
    def is_current(self) -> bool:
        """Whether all rows are current."""
        return self.num_pending == 0 and self.is_same_function
