"""Updates indices: pylance builds their files, and our committer commits them in one CreateIndex.

Other writers continue, and the built files remain useful:

    rows added, deleted, moved by an update    the indices do not cover them, or skip them
    columns changed in place                   the fragments leave the coverage (`rebase`)
    rows moved by a compaction, a restore,     the update starts again from the newest version
    an overwrite; the same indices changed

Source: transaction.proto; measured on the reference.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from lance_stream.arguments import as_flag, as_names
from lance_stream.commit.committer import POLICY
from lance_stream.environment import MACHINE, Environment
from lance_stream.errors import (
    IncompatibleConflictError,
    IndexBuildError,
    NotFoundError,
    RetryableConflictError,
    TableReplacedError,
)
from lance_stream.maintenance.indices.building import (
    UNCHANGED,
    BuildRequest,
    Built,
    build,
    check_pylance,
    file_paths,
)
from lance_stream.maintenance.indices.coverage import IndexCoverage, index_coverage
from lance_stream.maintenance.indices.missing_files import with_missing_files
from lance_stream.retries import RetryPolicy
from lance_stream.snapshot.opening import newest_version_of
from lance_stream.snapshot.table_version import TableVersion
from lance_stream.storage.lance_options import lance_location
from lance_stream.table.apply import check_may_write
from lance_stream.write.planning import StagedFiles, commit_planned, replan_on_conflict

_VECTOR_KINDS = ("IVF", "VECTOR")


@dataclass(frozen=True)
class UpdatedIndices:
    """The outcome of an update of indices.

    Attributes:
        table: The committed version; the newest one if there was nothing to do.
        names: The updated indices.
    """

    table: TableVersion
    names: tuple[str, ...] = ()


def update_indices(
    table: TableVersion,
    names: str | Iterable[str] | None = None,
    *,
    retrain: bool = False,
    environment: Environment = MACHINE,
) -> UpdatedIndices:
    """Update indices; see `Dataset.optimize_indices`.

    Args:
        table: Any version; the indices of the newest one are brought up to date.
        names: The indices to update; None for all that need it.
        retrain: Whether to train vector indices again, even if they are up to date.
        environment: The clock and randomness.

    Raises:
        NotFoundError: There is no index of a name.
        InvalidInputError: pylance is not installed, or has no counterpart for a setting of the
            store.
        UnsupportedFeatureError: pylance does not support the store, or the table has a feature that
            we may not write.
        IndexBuildError: pylance could not build some indices; the others are committed.
        CommitError: Every attempt conflicted with other commits.
    """
    as_flag("retrain", retrain)
    requested = None if names is None else as_names(names, "names")
    check_pylance()
    check_may_write(table.manifest)
    lance_location(table.store)

    def attempt() -> UpdatedIndices:
        newest = newest_version_of(table)
        indices = index_coverage(newest)
        to_build = names_to_build(indices, requested, retrain=retrain)
        if not to_build:
            return UpdatedIndices(newest)
        built = build(request_of(newest, to_build, retrain=retrain), newest.store)
        if built.transaction is not None:
            newest = commit_built(newest, built, environment=environment)
        untrained = {
            index.name for index in indices if _is_vector_index(index) and not index.rows_indexed
        }
        problems = {
            name: problem
            for name, problem in built.problems.items()
            if problem != UNCHANGED or name not in untrained
        }
        if problems:
            causes = with_missing_files(problems, newest)
            raise IndexBuildError(_message_about(causes, newest, built.names))
        return UpdatedIndices(newest, tuple(sorted(built.names)))

    return replan_on_conflict(attempt, environment=environment)


def _message_about(
    problems: Mapping[str, str], table: TableVersion, others: Collection[str]
) -> str:
    """Return the message about indices that could not be updated."""
    many = "indices" if len(problems) > 1 else "index"
    reasons = ". ".join(f"{name}: {problem}" for name, problem in problems.items())
    state = "The table is unchanged"
    if others:
        state = f"{', '.join(sorted(others))} are up to date in version {table.version}"
    return (
        f"pylance could not update the {many} {', '.join(problems)}. {reasons}. {state}. "
        "If an index is damaged, create it again with pylance (replace=True)"
    )


def needs_work(index: IndexCoverage) -> bool:
    """Return whether an index lacks rows, or has segments to merge.

    Vector indices may have several segments; for the others see `building`.
    """
    return index.rows_unindexed != 0 or (index.num_segments > 1 and not _is_vector_index(index))


def _is_vector_index(index: IndexCoverage) -> bool:
    return index.kind.startswith(_VECTOR_KINDS)


def names_to_build(
    indices: Sequence[IndexCoverage], requested: Sequence[str] | None, *, retrain: bool = False
) -> tuple[str, ...]:
    """Return the names of the indices to update.

    Args:
        indices: Those of the table.
        requested: The names to choose from; None for all.
        retrain: Whether to include vector indices that are up to date.

    Raises:
        NotFoundError: There is no index of a name.
    """
    existing = [index.name for index in indices]
    for name in requested or ():
        if name not in existing:
            names = ", ".join(map(repr, existing)) or "none"
            raise NotFoundError(f"there is no index {name!r}; the table's indices are: {names}")
    return tuple(
        index.name
        for index in indices
        if (requested is None or index.name in requested)
        and (needs_work(index) or (retrain and _is_vector_index(index)))
    )


def request_of(table: TableVersion, names: Sequence[str], *, retrain: bool = False) -> BuildRequest:
    """Return the request to pylance to update some indices.

    Raises:
        UnsupportedFeatureError: pylance does not support the store.
        InvalidInputError: pylance has no counterpart for a setting of the store.
    """
    location = lance_location(table.store)
    return BuildRequest(
        location.uri, location.storage_options, table.version, tuple(names), retrain
    )


def commit_built(
    table: TableVersion,
    built: Built,
    retries: RetryPolicy = POLICY,
    environment: Environment = MACHINE,
) -> TableVersion:
    """Commit the files of indices, and return the version.

    Args:
        table: The version from which they were built.
        built: At least one index. Its files are deleted if they are certainly not committed.
        retries: The limits of the commit.
        environment: The clock and randomness.

    Raises:
        RetryableConflictError: Other writers moved the rows, or were faster in every attempt.
        TableReplacedError: The table was replaced.
        CommitUncertainError: The store did not report whether the version was published; the files
            are not deleted.
    """
    try:
        return commit_planned(
            table,
            built.operation,
            StagedFiles(others=file_paths(built)),
            retries=retries,
            environment=environment,
        ).table
    except TableReplacedError:
        raise
    except IncompatibleConflictError as error:
        raise RetryableConflictError(str(error), error.version) from error
