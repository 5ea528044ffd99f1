"""The errors of lance-stream.

    LanceStreamError
        BadDataError                     the bytes are not what the format promises
            CorruptDataError             a value is wrong: damaged or truncated
            UnsupportedFeatureError      a value is valid, but not supported
                UntrustedLocationError       a location is not trusted by the reader
        CommitError                      a transaction did not become a version
            CommitConflictError          another writer's version conflicts with it
                RetryableConflictError       plan the operation again on that version
                IncompatibleConflictError    the operation no longer means the same
                    TableReplacedError           it was planned on another table at this location
            CommitAbortedError           another table of the same commit failed
            CommitUncertainError         it is unknown whether the store published it
        StoreError (OSError)             a request to the store failed
            StoreUnavailableError        every attempt got no response, or a temporary error
            StoreRefusedError            it refused: credentials, permissions, no such bucket
        IndexBuildError                  pylance could not bring indices up to date
        DerivedFunctionError             a user's function failed for too many rows
        NotFoundError                    no such dataset, version or column
        InvalidInputError (ValueError)   the caller asked for something impossible
            OtherBatchError                  the batch id was committed with other rows
            ColumnsChangedError              rows were written for columns that others have changed

There is one class for each case that callers handle differently. A message states the problem, its
cause and the remedy, with the numbers. Pure code states *what* is wrong; the code that read the
bytes adds *where* with `add_note`.

Every field goes to `super().__init__` in order: Spark pickles errors from worker to driver, and
keyword-only fields would be lost.
"""


class LanceStreamError(Exception):
    """The base class of all errors of lance-stream."""


class BadDataError(LanceStreamError):
    """The bytes are not what the format promises."""


class CorruptDataError(BadDataError):
    """A value is wrong: damaged or truncated."""


class UnsupportedFeatureError(BadDataError):
    """A value is valid, but this version of lance-stream does not support it."""


class UntrustedLocationError(UnsupportedFeatureError):
    """A table refers to a location that its reader does not trust; it was not opened."""


class CommitError(LanceStreamError):
    """A transaction did not become a version."""


class CommitConflictError(CommitError):
    """Another writer's version conflicts with the transaction.

    Args:
        message: Problem, cause and remedy.
        version: The conflicting version, if it is a single one.
    """

    def __init__(self, message: str, version: int | None = None) -> None:
        super().__init__(message, version)
        self.message = message
        self.version = version

    def __str__(self) -> str:
        return self.message


class RetryableConflictError(CommitConflictError):
    """The operation is still valid, but must be planned again on the newer version."""


class IncompatibleConflictError(CommitConflictError):
    """The operation no longer means what it meant on the version it was planned on."""


class TableReplacedError(IncompatibleConflictError):
    """The table that the operation was planned on has been replaced.

    It was deleted and recreated at the same location, or restored from a copy.
    """


class CommitAbortedError(CommitError):
    """Another table of the same commit failed, and nothing was committed."""


class CommitUncertainError(CommitError):
    """It is unknown whether the store published the version; nothing was deleted."""


class StoreError(LanceStreamError, OSError):
    """A request to the store failed."""


class StoreUnavailableError(StoreError):
    """Every attempt got no response, or a temporary error."""


class StoreRefusedError(StoreError):
    """The store refused, and would refuse again: credentials, permissions, no such bucket."""


class IndexBuildError(LanceStreamError):
    """pylance could not bring some indices up to date; they are unchanged."""


class DerivedFunctionError(LanceStreamError):
    """The function of a derived column, or its setup, failed; its rows were not committed."""


class NotFoundError(LanceStreamError):
    """There is no such dataset, version, file or column."""


class InvalidInputError(LanceStreamError, ValueError):
    """The caller asked for something impossible."""


class OtherBatchError(InvalidInputError):
    """A batch with the same id but other rows or rules has already been committed."""


class ColumnsChangedError(InvalidInputError):
    """Rows were written for columns that another writer has changed; nothing was committed.

    The rows must be written again, for the table's current columns.
    """
