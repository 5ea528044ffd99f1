"""Every error that lance-stream raises on purpose.

    LanceStreamError
        BadDataError                     the bytes are not what the format promises
            CorruptDataError             a value is wrong: damaged or cut short
            UnsupportedFeatureError      a value is right, but we do not know it
                UntrustedLocationError       it refers to a location that the reader does not trust
        CommitError                      a transaction did not become a version
            CommitConflictError          another writer's version conflicts with it
                RetryableConflictError       plan the operation again on that version
                IncompatibleConflictError    the operation no longer means the same
                    TableReplacedError           it was planned on another table at this location
            CommitAbortedError           another table of the same commit failed
            CommitUncertainError         it is unknown whether the store published it
        StoreError (OSError)             a request to the store failed
            StoreUnavailableError        it did not answer, or was too busy, on every attempt
            StoreRefusedError            it refused: credentials, permissions, no such bucket
        IndexBuildError                  pylance could not bring indices up to date
        DerivedFunctionError             a user's function failed for too many rows
        NotFoundError                    no such dataset, version or column
        InvalidInputError (ValueError)   the caller asked for something impossible
            OtherBatchError                  the batch id was committed with other rows
            ColumnsChangedError              rows were written for columns that others have changed

There is one class for each case that callers handle differently. A message states the problem, its
cause and the way out, with the numbers. Pure code says *what* is wrong; the code that read the
bytes adds *where* with `add_note`.

Every field goes to `super().__init__` in order: Spark pickles errors from worker to driver, and
keyword-only fields would be lost.
"""


class LanceStreamError(Exception):
    """The root of all errors that lance-stream raises on purpose."""


class BadDataError(LanceStreamError):
    """The bytes are not what the format promises."""


class CorruptDataError(BadDataError):
    """A value is wrong: damaged or cut short."""


class UnsupportedFeatureError(BadDataError):
    """A value is right, but this version of lance-stream does not know it."""


class UntrustedLocationError(UnsupportedFeatureError):
    """A table refers to a location that is opened only if its reader trusts it."""


class CommitError(LanceStreamError):
    """A transaction did not become a version."""


class CommitConflictError(CommitError):
    """Another writer's version conflicts with the transaction.

    Args:
        message: Problem, cause and way out.
        version: The conflicting version, if it is a single one.
    """

    def __init__(self, message: str, version: int | None = None) -> None:
        super().__init__(message, version)
        self.message = message
        self.version = version

    def __str__(self) -> str:
        return self.message


class RetryableConflictError(CommitConflictError):
    """The operation is still valid, but has to be planned again on the newer version."""


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
    """The store did not answer, or only asked to retry later, on every attempt."""


class StoreRefusedError(StoreError):
    """The store refused, and a retry would not help: credentials, permissions, no such bucket."""


class IndexBuildError(LanceStreamError):
    """pylance could not bring some indices up to date; they are as they were."""


class DerivedFunctionError(LanceStreamError):
    """The function of a derived column, or its setup, failed; its piece was not committed."""


class NotFoundError(LanceStreamError):
    """There is no such dataset, version, file or column."""


class InvalidInputError(LanceStreamError, ValueError):
    """The caller asked for something impossible."""


class OtherBatchError(InvalidInputError):
    """A batch with the same id but other rows or rules has already been committed."""


class ColumnsChangedError(InvalidInputError):
    """Rows were written for columns that others have changed; nothing was committed.

    The rows have to be written again, for the columns that the table has now.
    """
