"""Updates indices: pylance builds their files, and one CreateIndex of ours commits them.

Other writers continue, and the built files remain useful:

    rows added, deleted, moved by an update    the indices do not cover them, or skip them
    columns changed in place                   the fragments leave the coverage (`rebase`)
    rows moved by a compaction, a restore,     the update starts again from the newest version
    an overwrite; the same indices changed

Source: facts of the format, section 5; measured on the reference.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from lance_stream.arguments import as_names
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
from lance_stream.retries import RetryPolicy
from lance_stream.snapshot.opening import newest_version_of
from lance_stream.snapshot.table_version import TableVersion
from lance_stream.storage.lance_options import lance_location
from lance_stream.table.apply import check_may_write
from lance_stream.write.planning import StagedFiles, commit_planned, planning_again

_OF_VECTORS = ("IVF", "VECTOR")


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
        names: Which; None for all that need it.
        retrain: Whether to train vector indices again, even if they are up to date.
        environment: The clock and randomness.

    Raises:
        NotFoundError: There is no index of a name.
        InvalidInputError: pylance is not installed, or a setting of the store has no counterpart
            there.
        UnsupportedFeatureError: pylance does not support the store, or the table has a feature that
            we may not write.
        IndexBuildError: pylance could not build some indices; the others are committed.
        CommitError: Every attempt met a conflict.
    """
    requested = None if names is None else as_names(names, "names")
    check_pylance()
    check_may_write(table.manifest)
    lance_location(table.store)

    def attempt() -> UpdatedIndices:
        newest = newest_version_of(table)
        indices = index_coverage(newest)
        chosen = names_to_build(indices, requested, retrain=retrain)
        if not chosen:
            return UpdatedIndices(newest)
        built = build(request_of(newest, chosen, retrain=retrain), newest.store)
        if built.transaction is not None:
            newest = commit_built(newest, built, environment=environment)
        untrained = {index.name for index in indices if _is_of_vectors(index) and _is_empty(index)}
        problems = {
            name: problem
            for name, problem in built.problems.items()
            if problem != UNCHANGED or name not in untrained
        }
        if problems:
            raise IndexBuildError(_message_about(problems, newest, built.names))
        return UpdatedIndices(newest, tuple(sorted(built.names)))

    return planning_again(attempt, environment=environment)


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
        "If an index is damaged, create it again with pylance"
    )


def needs_work(index: IndexCoverage) -> bool:
    """Return whether an index lacks rows, or has segments to merge.

    Vector indices may have several segments; for the others see `building`.
    """
    return index.rows_unindexed != 0 or (index.num_segments > 1 and not _is_of_vectors(index))


def _is_empty(index: IndexCoverage) -> bool:
    return not index.rows_indexed


def _is_of_vectors(index: IndexCoverage) -> bool:
    return index.kind.startswith(_OF_VECTORS)


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
            there = ", ".join(map(repr, existing)) if existing else "none"
            raise NotFoundError(f"there is no index {name!r}; the table's indices are: {there}")
    return tuple(
        index.name
        for index in indices
        if (requested is None or index.name in requested)
        and (needs_work(index) or (retrain and _is_of_vectors(index)))
    )


def request_of(table: TableVersion, names: Sequence[str], *, retrain: bool = False) -> BuildRequest:
    """Return what pylance is asked to build.

    Raises:
        UnsupportedFeatureError: It does not know the store.
        InvalidInputError: A setting of the store has no counterpart there.
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
        table: The version that they were built from.
        built: What was built, which is something. The files are deleted if it is known that no
            version names them.
        retries: The limits of the commit, which tries again after losing to another writer.
        environment: The clock and randomness.

    Raises:
        RetryableConflictError: Other writers moved the rows; or were faster each time.
        TableReplacedError: The table was replaced.
        CommitUncertainError: It is unknown whether it was committed; the files stay.
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
