"""Publishes the first version of a branch or shallow clone in its own directory.

    1  create a file with the transaction, under a name that all creators of the directory use
    2  create the transaction's own file
    3  copy the tombstone files, which a base path cannot provide
    4  publish the manifest under the number of the version that it was cloned from

The creator of the first file decides which version is cloned into the directory. So two creators
cannot publish two first versions with different numbers, which is possible with the reference. If a
creator is killed, the file remains, and the next creator that clones the same version completes the
work.

Source:  the reference's Clone operation, measured.
"""

import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from lance_stream.commit.committer import POLICY
from lance_stream.commit.publishing import publish_and_confirm
from lance_stream.commit.repairs import inline_sequences, with_counts
from lance_stream.commit.version_log import VersionLog
from lance_stream.environment import MACHINE, Environment
from lance_stream.errors import BadDataError, InvalidInputError
from lance_stream.retries import Retrying
from lance_stream.storage.store import Store, create_if_absent
from lance_stream.table.apply import check_may_write
from lance_stream.table.cloning import clone_of
from lance_stream.table.config.tombstones import TombstoneFile, read_tombstones
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
        store: The store of the table's directory.
        manifest: The version.
        base_paths: The version's base paths, made absolute.
        location: The table's directory, as a path or URI that is the same for every process.
        read_tombstones: Returns the bytes of a file of remembered deletes.
    """

    store: Store
    manifest: Manifest
    base_paths: Sequence[BasePath]
    location: str
    read_tombstones: Callable[[TombstoneFile], bytes]


def publish_clone(
    log: VersionLog, source: CloneSource, branch: str | None, environment: Environment = MACHINE
) -> Manifest:
    """Publish the first version of a branch or clone.

    Args:
        log: The version log of the branch or clone, which is empty.
        source: The version to clone. The caller protects it from cleanup during the call.
        branch: The branch's name; None for a clone.
        environment: The clock and randomness.

    Returns:
        The manifest of the first version.

    Raises:
        InvalidInputError: A clone of another version was started in the directory.
        UnsupportedFeatureError: The version has a feature that this library cannot write.
        CommitUncertainError: It is unknown whether the version was published.
    """
    check_may_write(source.manifest)
    counted = with_counts(source.store, source.manifest)
    clone = clone_of(
        counted,
        [inline_sequences(source.store, fragment) for fragment in counted.fragments],
        tuple(source.base_paths),
        source.location,
        branch,
    )
    transaction, _ = start_clone(log.store, source, branch)
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
            "or choose another location"
        )
    return log.read(clone.version)


def start_clone(store: Store, source: CloneSource, branch: str | None) -> tuple[Transaction, bool]:
    """Start a clone, unless the same clone was started before.

    Returns:
        The clone's transaction, and whether this call started the clone.

    Raises:
        InvalidInputError: Another clone was started in the directory.
        BadDataError: The file of a clone that was started before is damaged.
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
        existing = decode_transaction(store.read(CLONED_FROM))
    except BadDataError as error:
        error.add_note(f"{store.uri}/{CLONED_FROM}")
        raise
    existing_operation = existing.operation
    if existing_operation == operation:
        return existing, False
    existing_source = (
        f"version {existing_operation.ref_version} of {existing_operation.ref_path}"
        if isinstance(existing_operation, Clone)
        else "an unknown table"
    )
    raise InvalidInputError(
        f"another clone, of {existing_source}, was started in {store.uri} and is not finished. If "
        "the program that started it is no longer running, finish it by cloning that version; or "
        "remove it: a branch with ds.branches.delete(name), a clone by deleting its directory"
    )


def _copy_tombstones(source: CloneSource, target: Store) -> None:
    tombstones = read_tombstones(source.manifest.config)
    for file in tombstones.files if tombstones else ():
        target.write(tombstone_path(file.name), source.read_tombstones(file))
