"""Transactions: a version follows from the one before it and its transaction.

A reader of transactions, such as LanceDB's materialized views, keeps the fragments that it has
seen. Those of an Append or an Update are new rows; those of a Rewrite are rows that have moved. So
a transaction has to name its fragments as the manifest does.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import lance
import pytest

from lance_stream._proto.table_pb2 import FragmentReuseIndexDetails
from lance_stream.commit.committer import read_transaction
from lance_stream.commit.object_store_log import ObjectStoreLog
from lance_stream.errors import InvalidInputError, UnsupportedFeatureError
from lance_stream.schema.computed_columns import check_declarations_hold
from lance_stream.table.apply import Commit, Creation, apply
from lance_stream.table.apply.index_coverage import FRAGMENT_REUSE, coverage
from lance_stream.table.feature_flags import TABLE_CONFIG
from lance_stream.table.fragments.fragment import Fragment
from lance_stream.table.indices import IndexMetadata, decode_index_section
from lance_stream.table.lineage.row_ids import decode_row_ids
from lance_stream.table.lineage.row_versions import decode_row_versions
from lance_stream.table.manifest import WRITER_LIBRARY, FragmentList, Manifest
from lance_stream.table.operations.columns import DataReplacement
from lance_stream.table.operations.rows import Update
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
    """A transaction applied to the version before it makes the next version, whoever wrote it."""
    line = life.line(choose)
    checked: set[int] = line.memory.setdefault("applied", set())
    log = line.ours().table.log
    for version in sorted(line.existing - checked):
        if version - 1 in line.existing and version > line.start + 1:
            life.counts["transactions applied"] += check_applied(log, version)
        checked.add(version)


def check_applied(log: ObjectStoreLog, version: int) -> bool:
    """Check that a transaction applied by us makes the stored manifest, but for its encoding.

    Returns:
        Whether it could be applied.
    """
    stored = log.read(version)
    before = log.read(version - 1) if version > 1 else None
    transaction = read_transaction(log, stored)
    if transaction is None:
        return False
    writer = stored.writer_version
    is_ours = writer is not None and writer.library == WRITER_LIBRARY
    operation = transaction.operation
    restored = operation.version if isinstance(operation, Restore) else None
    is_in_place = isinstance(operation, DataReplacement) or (
        isinstance(operation, Update) and bool(operation.fields_modified)
    )
    if restored is not None and restored not in log.versions():
        return False
    try:
        manifest = apply(
            before,
            operation,
            Commit(timestamp_nanos=stored.timestamp_nanos or 0),
            Creation(stored.data_format) if version == 1 else None,
            None if restored is None else log.read(restored),
        )
    except InvalidInputError:
        if is_ours:
            raise
        with pytest.raises(InvalidInputError):  # LanceDB alone changes declarations of columns
            check_declarations_hold(None if before is None else before.schema, stored.schema)
        return False
    except UnsupportedFeatureError:
        if before is None or not before.fragments.has_hidden_lineage:
            raise
        return False  # the lineage of moved rows is in data files, which `apply` does not read
    assert [_decoded(fragment) for fragment in manifest.fragments] == [
        _decoded(fragment) for fragment in stored.fragments
    ]
    # The reference writes base paths in the order of a hash map.
    assert sorted(manifest.base_paths, key=str) == sorted(stored.base_paths, key=str)
    if restored is not None or is_ours:
        manifest, stored = _without_our_config(manifest), _without_our_config(stored)
    assert replace(manifest, **NOT_COMPARED) == replace(stored, **NOT_COMPARED)
    moves = _moved_fragments(before)
    if not (moves and is_in_place):  # which we never plan, see `keep_old_values`
        assert _index_coverage(manifest, moves) == _index_coverage(stored, moves)
    return True


def _without_our_config(manifest: Manifest) -> Manifest:
    """Return a version without the config that only our commits write, and our restores keep."""
    config = {k: v for k, v in manifest.config.items() if not k.startswith("lance_stream.")}
    flags = manifest.writer_feature_flags & ~TABLE_CONFIG
    return replace(manifest, config=config, writer_feature_flags=flags)


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


Moves = list[tuple[set[int], set[int]]]
"""Of each rewrite: the old fragments, and those that replace them."""


def _moved_fragments(before: Manifest | None) -> Moves:
    """Return the rewrites that the fragment reuse index of a version records."""
    section = None if before is None else before.index_section
    moves: Moves = []
    for index in decode_index_section(section or b""):
        if index.name == FRAGMENT_REUSE and index.details is not None:
            details = FragmentReuseIndexDetails.FromString(index.details[1])
            assert not details.HasField("external"), "the history is in a file"
            for group in (group for entry in details.inline.versions for group in entry.groups):
                old, new = group.old_fragments, group.new_fragments
                moves.append(({fragment.id for fragment in old}, {fragment.id for fragment in new}))
    return moves


def _index_coverage(manifest: Manifest, moves: Moves) -> list[Any]:
    """Return the indices, with the fragments of the version that each covers.

    pylance's deferred compactions add an index of moved rows, which their transactions omit. The
    next commit of pylance's replaces the moved fragments in the coverage of other indices. Ours
    leaves that to the reader, which does the same.
    """
    existing = set(manifest.fragments.ids)

    def covered(index: IndexMetadata) -> set[int]:
        ids = {*coverage(index)}
        for old, new in moves:
            if ids & old:
                ids = ids - old | new
        return ids & existing

    indices = decode_index_section(manifest.index_section or b"")
    return sorted(
        (
            (replace(index, fragment_bitmap=b""), covered(index))
            for index in indices
            if index.name != FRAGMENT_REUSE
        ),
        key=lambda entry: entry[0].uuid,
    )
