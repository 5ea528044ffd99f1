"""Transactions: a version follows from the one before it and its transaction.

A reader of transactions, such as LanceDB's materialized views, keeps the fragments that it has
seen. Those of an Append or an Update are new rows; those of a Rewrite are rows that have moved. So
a transaction has to name its fragments as the manifest does.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import lance

from lance_stream.commit.committer import read_transaction
from lance_stream.commit.object_store_log import ObjectStoreLog
from lance_stream.table.apply import Commit, Creation, apply
from lance_stream.table.apply.index_coverage import coverage
from lance_stream.table.fragments.fragment import Fragment
from lance_stream.table.indices import decode_index_section
from lance_stream.table.lineage.row_ids import decode_row_ids
from lance_stream.table.lineage.row_versions import decode_row_versions
from lance_stream.table.manifest import WRITER_LIBRARY, FragmentList, Manifest
from lance_stream.table.operations.versions import Restore
from tests.histories.life import Life, Line
from tests.histories.steps import Choices, check

Operation = lance.LanceOperation


@check(weight=1.5)
def transactions(life: Life, choose: Choices) -> None:
    """Each version's fragments follow from those of the one before and the transaction."""
    line = life.line(choose)
    checked: set[int] = line.memory.setdefault("transactions", set())
    for version in sorted(line.existing - checked):
        if version - 1 in line.existing and version > line.start + 1:
            check_transaction(line, version)
        checked.add(version)


def fragments_of(line: Line, version: int) -> dict[int, Any]:
    return {f.fragment_id: f.metadata for f in line.pylance(version).get_fragments()}


def check_transaction(line: Line, version: int) -> None:
    before, after = fragments_of(line, version - 1), fragments_of(line, version)
    try:
        transaction = line.pylance(version).read_transaction(version)
    except TypeError:  # pylance cannot show a rewritten index
        return
    if transaction is None:
        return
    operation = transaction.operation
    added = after.keys() - before.keys()
    removed = before.keys() - after.keys()
    name = type(operation).__name__
    if isinstance(operation, Operation.Rewrite):
        old = {f.id for group in operation.groups for f in group.old_fragments}
        new = {f.id for group in operation.groups for f in group.new_fragments}
        assert old == removed, f"version {version} rewrites {removed}, its transaction {old}"
        assert new == added, f"version {version} has the new {added}, its transaction {new}"
        for group in operation.groups:
            num_old = sum(live_rows(before[f.id]) for f in group.old_fragments)
            num_new = sum(live_rows(after[f.id]) for f in group.new_fragments)
            assert num_new <= num_old
    elif isinstance(operation, Operation.Append):
        assert not removed, name
        assert len(operation.fragments) == len(added), name
    elif isinstance(operation, Operation.Delete):
        assert not added, name
        assert set(operation.deleted_fragment_ids) == removed, name
    elif isinstance(operation, Operation.Update):
        assert set(operation.removed_fragment_ids) == removed, name
        assert len(operation.new_fragments) == len(added), name
        updated = {f.id for f in operation.updated_fragments}
        changed = {i for i in before.keys() & after.keys() if before[i] != after[i]}
        assert changed <= updated <= after.keys(), (name, changed, updated)


def live_rows(fragment: Any) -> int:
    return int(fragment.num_rows)


@check(weight=1.5)
def applied_transactions(life: Life, choose: Choices) -> None:
    """A transaction of others that we apply to the version before it makes their version."""
    line = life.line(choose)
    checked: set[int] = line.memory.setdefault("applied", set())
    log = line.ours().table.log
    for version in sorted(line.existing - checked):
        if (
            version - 1 in line.existing
            and version > line.start + 1
            and not is_ours(log.read(version))
            and not line.states[version].computed_from  # which only LanceDB may declare
        ):
            check_applied(log, version)
            life.counts["transactions applied"] += 1
        checked.add(version)


def is_ours(manifest: Manifest) -> bool:
    writer = manifest.writer_version
    return writer is not None and writer.library == WRITER_LIBRARY


def check_applied(log: ObjectStoreLog, version: int) -> None:
    """Check that a transaction applied by us makes the stored manifest, but for its encoding."""
    stored = log.read(version)
    before = log.read(version - 1) if version > 1 else None
    transaction = read_transaction(log, stored)
    if transaction is None or (
        before is not None and any(f.has_hidden_lineage for f in before.fragments)
    ):
        return
    operation = transaction.operation
    if isinstance(operation, Restore) and operation.version not in log.versions():
        return
    manifest = apply(
        before,
        operation,
        Commit(timestamp_nanos=stored.timestamp_nanos or 0),
        Creation(stored.data_format) if version == 1 else None,
        log.read(operation.version) if isinstance(operation, Restore) else None,
    )
    assert [_decoded(fragment) for fragment in manifest.fragments] == [
        _decoded(fragment) for fragment in stored.fragments
    ]
    ignored = {**NOT_COMPARED, **(LEDGER if isinstance(operation, Restore) else {})}
    # The reference writes base paths in the order of a hash map.
    assert sorted(manifest.base_paths, key=str) == sorted(stored.base_paths, key=str)
    assert replace(manifest, **ignored) == replace(stored, **ignored)
    assert _index_coverage(manifest) == _index_coverage(stored)


LEDGER: Mapping[str, Any] = {"config": {}, "writer_feature_flags": 0}
"""What a restore of ours keeps of the version before it."""

NOT_COMPARED: Mapping[str, Any] = {
    "base_paths": (),
    "fragments": FragmentList(),
    "timestamp_nanos": None,
    "transaction_file": "",
    "inline_transaction": None,
    "writer_version": None,
    "index_section": None,
}


def _decoded(fragment: Fragment) -> Any:
    """Return a fragment in words that do not depend on the encoding of its sequences."""
    num_rows, row_ids = fragment.physical_rows, fragment.row_ids
    stamps = [fragment.created_at_versions, fragment.last_updated_at_versions]
    bare = replace(fragment, row_ids=None, created_at_versions=None, last_updated_at_versions=None)
    return (
        bare,
        decode_row_ids(row_ids, num_rows).to_array().tolist()
        if isinstance(row_ids, bytes)
        else row_ids,
        [
            decode_row_versions(sequence, num_rows).to_array().tolist()
            if isinstance(sequence, bytes)
            else sequence
            for sequence in stamps
        ],
    )


def _index_coverage(manifest: Manifest) -> list[Any]:
    """Return the indices, with the fragments of the version that each covers.

    pylance's deferred compactions add an index of moved rows, which their transactions omit.
    """
    existing = set(manifest.fragments.ids)
    indices = decode_index_section(manifest.index_section or b"")
    return sorted(
        (
            (replace(index, fragment_bitmap=b""), existing & {*coverage(index)})
            for index in indices
            if index.name != "__lance_frag_reuse"
        ),
        key=lambda entry: entry[0].uuid,
    )
