"""Every error that lance-stream raises on purpose.

    LanceStreamError
        BadDataError                     the bytes are not what the format promises
            CorruptDataError             a value is wrong: damaged or cut short
            UnsupportedFeatureError      a value is right, but we do not know it
                UntrustedLocationError       it leads where the reader did not say to go
        CommitError                      a transaction did not become a version
            CommitConflictError          another writer's version stands in the way
                RetryableConflictError       plan the operation again on it
                IncompatibleConflictError    the operation no longer means the same
                    TableReplacedError           it was planned on another table of this location
            CommitUncertainError         the store did not say whether it landed
        StoreError (OSError)             the store did not do what it was asked
            StoreUnavailableError        it did not answer, or was too busy, each time it was asked
            StoreRefusedError            it said no: credentials, permissions, no such bucket
        NotFoundError                    no such dataset, version or column
        InvalidInputError (ValueError)   the caller asked for something impossible
            OtherBatchError                  other rows are in under a batch's number

There is a class for each thing that a caller does differently. A message says the problem, its
cause and the way out, with the numbers. Pure code says *what* is wrong; the code that read the
bytes adds *where* with `add_note`.

Every field goes to `super().__init__` in order, so that an error survives the pickling by which
Spark carries it from a worker to the driver.
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
    """A table names a location that is not opened unless its reader trusts it."""


class CommitError(LanceStreamError):
    """A transaction did not become a version."""


class CommitConflictError(CommitError):
    """Another writer's version stands in the way.

    Args:
        message: Problem, cause and way out.
        version: The version that stands in the way, if one is to blame.
    """

    def __init__(self, message: str, version: int | None = None) -> None:
        super().__init__(message, version)
        self.message = message
        self.version = version

    def __str__(self) -> str:
        return self.message


class RetryableConflictError(CommitConflictError):
    """The operation is still meant, but has to be planned again on the newer version."""


class IncompatibleConflictError(CommitConflictError):
    """The operation no longer means what it meant on the version it was planned on."""


class TableReplacedError(IncompatibleConflictError):
    """The table that the operation was planned on is not the one that is there any more.

    It was deleted and made anew under its location, or put back from a copy.
    """


class CommitUncertainError(CommitError):
    """The store did not say whether the version landed; nothing was deleted."""


class StoreError(LanceStreamError, OSError):
    """The store did not do what it was asked."""


class StoreUnavailableError(StoreError):
    """The store gave no answer, or none but "later", each time that it was asked."""


class StoreRefusedError(StoreError):
    """The store said no, and would again: credentials, permissions, no such bucket."""


class NotFoundError(LanceStreamError):
    """There is no such dataset, version, file or column."""


class InvalidInputError(LanceStreamError, ValueError):
    """The caller asked for something impossible."""


class OtherBatchError(InvalidInputError):
    """Another batch of a stream than this one has been taken in under its number."""
