"""Publishes the first version of a branch or shallow clone in its own directory.

    1  create a file with the transaction, under a name that all creators of the directory use
    2  create the transaction's own file
    3  copy the tombstone files, which cannot be below a base path
    4  publish the manifest under the number of the version that it was cloned from

The first creator of the first file decides from which version the directory is cloned. So two
creators cannot publish two first versions with different numbers, which is possible with the
reference. A creator that is killed leaves the file, and the next one that clones the same version
completes the work.

Source:  the reference's Clone operation, measured.
"""

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, replace

from lance_stream.commit.committer import POLICY
from lance_stream.commit.publishing import publish_and_confirm
from lance_stream.commit.repairs import inlined, with_counts
from lance_stream.commit.version_log import VersionLog
from lance_stream.environment import MACHINE, Environment
from lance_stream.errors import BadDataError, InvalidInputError
from lance_stream.retries import Retrying
from lance_stream.storage.store import Store, create_if_absent
from lance_stream.table.apply import check_may_write
from lance_stream.table.cloning import clone_of
from lance_stream.table.config.tombstones import read_tombstones
from lance_stream.table.manifest import (
    WRITER_LIBRARY,
    BasePath,
    Manifest,
    WriterVersion,
    encode_manifest,
)
from lance_stream.table.operations.transaction import (
    Transaction,
    decode_transaction,
    encode_transaction,
)
from lance_stream.table.operations.versions import Clone
from lance_stream.table.paths import (
    CLONED_FROM,
    tombstone_path,
    transaction_file_name,
    transaction_path,
)
from lance_stream.version import VERSION


@dataclass(frozen=True, slots=True)
class CloneSource:
    """A version to clone.

    Attributes:
        store: Its table's directory.
        manifest: The version.
        base_paths: Its base paths, absolute.
        location: Its table's directory, as a path or URI that is the same for every process.
    """

    store: Store
    manifest: Manifest
    base_paths: Sequence[BasePath]
    location: str


def publish_clone(
    log: VersionLog, source: CloneSource, branch: str | None, environment: Environment = MACHINE
) -> Manifest:
    """Publish the first version of a branch or clone.

    Args:
        log: Its history, without any version.
        source: The version to clone. The caller keeps it from being cleaned up meanwhile.
        branch: The branch's name; None for a clone.
        environment: The clock and randomness.

    Raises:
        InvalidInputError: Another version's clone was started in the directory.
        UnsupportedFeatureError: The version has a feature that we may not write.
        CommitUncertainError: It is unknown whether it was published.
    """
    check_may_write(source.manifest)
    counted = with_counts(source.store, source.manifest)
    clone = clone_of(
        counted,
        [inlined(source.store, fragment) for fragment in counted.fragments],
        tuple(source.base_paths),
        source.location,
        branch,
    )
    transaction, _ = begin_clone(log.store, source, branch)
    file = transaction_file_name(transaction.read_version, transaction.uuid)
    data = encode_transaction(transaction)
    log.store.write(transaction_path(file), data)
    _copy_tombstones(source, log.store)
    clone = replace(
        clone,
        timestamp_nanos=max(environment.now_nanos(), (source.manifest.timestamp_nanos or 0) + 1),
        transaction_file=file,
        inline_transaction=data,
        writer_version=WriterVersion(WRITER_LIBRARY, VERSION),
        config={**clone.config, **log.mark},
    )
    with Retrying(POLICY, environment):
        is_ours = publish_and_confirm(log, clone.version, encode_manifest(clone), file, environment)
    if not is_ours:
        raise InvalidInputError(
            f"another program created version {clone.version} of {log.store.uri} first: open it, "
            "or "
            "choose another location"
        )
    return log.read(clone.version)


def begin_clone(store: Store, source: CloneSource, branch: str | None) -> tuple[Transaction, bool]:
    """Return the transaction by which a directory is cloned, and whether this call started it.

    If not, it is an equal one that was started before.

    Raises:
        InvalidInputError: Another one was started there, or the directory cannot be created.
    """
    operation = Clone(
        is_shallow=True,
        ref_version=source.manifest.version,
        ref_path=source.location,
        ref_name=source.manifest.branch,
        branch_name=branch,
    )
    ours = Transaction(operation.ref_version, str(uuid.uuid4()), operation)
    if create_if_absent(store, CLONED_FROM, encode_transaction(ours)):
        return ours, True
    try:
        started = decode_transaction(store.read(CLONED_FROM))
    except BadDataError as error:
        error.add_note(f"{store.uri}/{CLONED_FROM}")
        raise
    earlier = started.operation
    if earlier == operation:
        return started, False
    of_what = (
        f"version {earlier.ref_version} of {earlier.ref_path}"
        if isinstance(earlier, Clone)
        else "?"
    )
    raise InvalidInputError(
        f"another clone, of {of_what}, was started in {store.uri} and is not finished. If the "
        "program that started it is no longer running, finish it by cloning that version; or "
        "remove it: a branch with ds.branches.delete(name), a clone by deleting its directory"
    )


def _copy_tombstones(source: CloneSource, target: Store) -> None:
    tombstones = read_tombstones(source.manifest.config)
    for file in tombstones.files if tombstones else ():
        path = tombstone_path(file.name)
        target.write(path, source.store.read(path))
