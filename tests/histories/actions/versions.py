"""Verbs about versions: restore, compaction, cleanup, tags, consumers, branches, clones."""

import random
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

from lance_stream.maintenance.compaction.automatic import AUTO
from lance_stream.maintenance.compaction.background import ROUND, BackgroundCompaction
from lance_stream.maintenance.consumers import drop_consumer, list_consumers, record_progress
from lance_stream.snapshot.tag_files import HOLD_PREFIX
from lance_stream.table.named_files import nameable, names_of
from lance_stream.table.paths import STAGED_ROWS_DIRECTORY
from tests.histories.life import OTHERS, Life, Line, in_list, plain_rows, unchanged
from tests.histories.model import KEY, State
from tests.histories.steps import Choices, DoesNotFit, action

TAGS = ["red", "green", "blue"]
BRANCHES = ["dev", "test", "dev/deep", "data", "dev/data", "x/_versions"]


@action(weight=1.5)
def restore(life: Life, choose: Choices) -> None:
    line = life.line(choose)
    version = choose.one_of("version", sorted(v for v in line.existing if v > line.start))
    state = line.states[version]

    def build(_: State, at: int) -> State:
        line.restored.add(at)
        return state

    result = line.write(
        choose,
        lambda ds: ds.restore(version),
        build,
        pylance=lambda _: line.pylance(version).restore(),
        lancedb=lambda table: table.restore(version),
        rivals=("append", "delete", "configure"),
    )
    if result and choose.recorded["by"][0] in OTHERS:
        line.memory["restored by pylance"] = True
        forget_batches(line)


def forget_batches(line: Line) -> None:
    """Begin other streams, where the ledger cannot know whether it had a batch.

    A restore by pylance takes entries out of the ledger. They are found in the versions before it,
    unless these have been cleaned up.
    """
    first = min(line.existing)
    is_whole = line.existing == set(range(first, line.newest + 1)) and first <= line.start + 1
    if line.memory.get("restored by pylance") and not is_whole:
        line.memory["streams"] = line.memory.get("streams", 0) + 1
        line.memory.pop("batches", None)


@action(weight=4)
def compact(life: Life, choose: Choices) -> None:
    line = life.line(choose)
    size = choose("size", lambda dice: dice.choice([3, 7, 30, 1000]))
    defers = not life.is_stable and (line.has_deferred_remaps or choose.happens("defers", 0.5))

    def by_pylance(ds: Any) -> None:
        ds.optimize.compact_files(target_rows_per_fragment=size, defer_index_remap=defers)

    line.write(
        choose,
        lambda ds: ds.compact(size),
        unchanged,
        pylance=by_pylance if defers or not line.has_indices_to_misplace else None,
        lancedb=lambda table: table.optimize(),
        duckdb=lambda table: table.sql("OPTIMIZE {t}"),
        rivals=("append", "delete", "upsert", "update", "configure", "drop", "restore", "replace"),
    )


@action(weight=0.7)
def compact_in_background(life: Life, choose: Choices) -> None:
    """Batches of upserts and deletes, after which rounds of compaction begin on their own.

    Each round ends before the next batch, so that equal seeds play equal lives.
    """
    line = life.line(choose)
    every = choose("every", lambda dice: dice.choice([AUTO, AUTO, 1, 2]))
    size = choose("size", lambda dice: dice.choice([7, 30, 1000]))

    def draw(dice: random.Random) -> list[list[Any]]:
        batches: list[list[Any]] = []
        for _ in range(dice.randint(2, 6)):
            keys = life.draw_keys(dice, 8)
            rows = {key: life.draw_values(line.now.columns, dice) for key in keys}
            batches.append([rows, life.draw_keys(dice, 3)])
        return batches

    compaction = BackgroundCompaction(every, replace(ROUND, target_rows=size))
    for number, (drawn, deleted) in enumerate(choose("batches", draw)):
        rows = life.fitting_rows(line.now, drawn)
        required = {column.name for column in line.now.columns if column.is_required}
        if any(not required <= values.keys() for values in rows.values()):
            raise DoesNotFit("a required column")
        with compaction.batch():
            ds = line.ours().upsert(line.now.table(rows), on=KEY)
            line.advance(lambda state, at: life.upserted(state, rows, at))  # noqa: B023  # called at once
            ds.delete(in_list(deleted))
            line.advance(lambda state, _: state.without(deleted), may_stay=True)  # noqa: B023  # called at once
        compaction.after_batch(number, lambda: line.ours().table, lookup_seconds=0.0)
        assert compaction.wait(60)
        line.advance(unchanged, may_stay=True)
    last = compaction.last_round
    if last is not None:
        assert last.error is None
        life.counts["rounds of compaction"] += last.version is not None


def protected(line: Line) -> set[int]:
    """Return the versions that a cleanup keeps.

    They are named by tags, consumers, branches and clones, or by the tag of a killed operation.
    """
    versions = {version for tagged, version in line.life.tags.values() if tagged is line}
    holds = [tag for tag in line.ours().tags.list().values() if tag.name.startswith(HOLD_PREFIX)]
    versions |= {tag.version for tag in holds if tag.branch == line.branch}
    starts = [other for other in line.life.lines if other.memory.get("parent") is line]
    versions |= {other.memory["parent_version"] for other in starts}
    for done in line.memory.get("consumers", {}).values():
        versions |= {version for version in line.existing if version >= done}
    return versions & line.existing


def feed_of_some_versions(line: Line, choose: Choices, versions: set[int]) -> dict[int, list[Any]]:
    """Return the changes of at most three of the versions that exist with the one before.

    A restore brings back columns that were renamed, overwritten, or dropped and re-created: they
    can be followed only through the versions that a cleanup may remove. So can columns that were
    rewritten without new row versions.
    """
    if not line.life.is_stable:
        return {}
    restores = {info.version for info in line.ours().versions() if info.operation == "Restore"}
    pairs = sorted(
        version
        for version in versions
        if version - 1 in versions
        and (
            version not in restores
            or (not line.unstamped and _identities(line, version) == _identities(line, version - 1))
        )
    )
    watched = choose("watched", lambda dice: dice.sample(pairs, min(len(pairs), 3)))
    ds = line.ours()
    return {
        version: plain_rows(ds.changes(version - 1, version).read_all())
        for version in watched
        if version in pairs
    }


def _identities(line: Line, version: int) -> list[tuple[int, str]]:
    return sorted((column.ident, column.name) for column in line.states[version].columns)


@action(weight=1)
def cleanup(life: Life, choose: Choices) -> None:
    """Removes old versions; the feed of those that are kept stays as it was."""
    line = life.line(choose)
    retain = choose("retain", lambda dice: dice.randint(1, 4))
    by = choose("by", lambda dice: dice.choice(["we", "we", "we", "pylance", "dry run"]))
    retained = protected(line) | set(sorted(line.existing)[-retain:])
    before = feed_of_some_versions(line, choose, {v for v in retained if v > line.start})
    has_pending = any("ahead" in o.memory for o in life.lines if o.root == line.root)
    if by == "pylance":
        retained = {line.newest, *(v for v in protected(line) if v in _tagged(line))}
        before = {}
        line.pylance().cleanup_old_versions(
            timedelta(0), error_if_tagged_old_versions=False, delete_unverified=False
        )
    else:
        line.ours().cleanup(
            retain_versions=retain, dry_run=by == "dry run", delete_unverified=not has_pending
        )
    listed = {info.version for info in line.ours().versions()}
    existing = {v for v in listed if v in line.states}
    if by == "dry run":
        assert existing >= line.existing
    if by == "we" and not has_pending:
        assert existing & line.existing == retained, f"{existing - retained} were retained"
    if by == "pylance":
        # it keeps the version that a branch starts from, but not always the files of it
        existing -= protected(line) - retained
    assert retained & line.existing <= existing, f"{retained - existing} were removed"
    line.existing &= existing
    if by == "we" and not has_pending and len(life.lines) == 1:
        check_no_unnamed_files(line)
    forget_batches(line)
    if by == "pylance":
        line.memory.pop("replica", None)
        line.memory.pop("consuming_replica", None)
    for version, changes in before.items():
        after = plain_rows(line.ours().changes(version - 1, version).read_all())
        assert after == changes, f"the cleanup has changed what version {version} changed"


def check_no_unnamed_files(line: Line) -> None:
    """Check that each data file is named by a version, and that no staged rows are left."""
    table = line.ours().table
    versions = [*table.log.versions(), *line.memory.get("detached", [])]
    manifests = [line.ours(version).table.manifest for version in versions]
    named = {name for manifest in manifests for name in names_of(manifest, set())}
    files = [(file.path, nameable(file.path)) for file in table.store.list("data")]
    unnamed = [path for path, what in files if what is None or what.name not in named]
    assert not unnamed, unnamed
    assert not table.store.list(STAGED_ROWS_DIRECTORY)


def _tagged(line: Line) -> set[int]:
    result = set(line.memory.get("consumers", {}).values())
    return result | {version for tagged, version in line.life.tags.values() if tagged is line}


@action(weight=0.7)
def tag(life: Life, choose: Choices) -> None:
    line = life.line(choose)
    name = choose.one_of("name", TAGS)
    version = choose.one_of("version", sorted(v for v in line.existing if v > line.start))
    by = choose("by", lambda dice: dice.choice(["we", "pylance"]))
    is_there = (line.root, name) in life.tags
    if by == "we":
        tags = line.ours().tags
        (tags.update if is_there else tags.create)(name, version)
    else:
        theirs = line.pylance().tags
        (theirs.update if is_there else theirs.create)(name, (line.branch, version))
    life.tags[line.root, name] = (line, version)


@action(weight=0.4)
def untag(life: Life, choose: Choices) -> None:
    line = life.line(choose)
    name = choose.one_of("name", [name for root, name in life.tags if root == line.root])
    line.ours().tags.delete(name)
    del life.tags[line.root, name]


@action(weight=0.8)
def consume(life: Life, choose: Choices) -> None:
    """A consumer of the feed is done with a version."""
    line = life.line(choose)
    version = choose.one_of("version", sorted(v for v in line.existing if v > line.start))
    name = f"reader-{(line.branch or 'main').replace('/', '-')}"
    record_progress(line.ours().table.refs, name, version)
    line.memory.setdefault("consumers", {})[name] = version


@action(weight=0.3)
def drop_consumers(life: Life, choose: Choices) -> None:
    line = life.line(choose)
    refs = line.ours().table.refs
    for consumer in list_consumers(refs):
        if consumer.name in line.memory.get("consumers", {}):
            drop_consumer(refs, consumer.name)
    line.memory.pop("consumers", None)
    line.memory.pop("consuming_replica", None)


@action(weight=0.4)
def create_branch(life: Life, choose: Choices) -> None:
    line = life.line(choose)
    names = {other.branch for other in life.lines if other.root == line.root}
    if len(life.lines) > 3:
        raise DoesNotFit("enough lines")
    name = choose.one_of("name", [name for name in BRANCHES if name not in names])
    version = choose.one_of("version", sorted(v for v in line.existing if v > line.start))
    by = choose("by", lambda dice: dice.choice(["we", "pylance"]))
    if by == "we":
        line.ours().branches.create(name, version)
    else:
        line.pylance().create_branch(name, (line.branch, version))
    _begin(life, Line(life, line.root, name), line, version)


@action(weight=0.3)
def clone(life: Life, choose: Choices) -> None:
    line = life.line(choose)
    if len(life.lines) > 3:
        raise DoesNotFit("enough lines")
    version = choose.one_of("version", sorted(v for v in line.existing if v > line.start))
    uri = str(Path(life.folder) / f"clone{life.number()}.lance")
    line.ours().shallow_clone(uri, version)
    _begin(life, Line(life, uri), line, version)


def _begin(life: Life, new: Line, parent: Line, version: int) -> None:
    """Begin a line with the state that another one has at a version."""
    life.lines.append(new)
    first = new.ours().version
    new.states = {v: parent.states[v] for v in parent.states if v < version}
    new.states[version] = new.states[first] = parent.states[version]
    new.states = {v: state for v, state in new.states.items() if v <= first}
    new.existing, new.start = {first}, first - 1
    new.row_ids = dict(parent.row_ids)
    new.restored, new.unstamped = set(parent.restored), dict(parent.unstamped)
    new.memory = {"parent": parent, "parent_version": version}
    if "indices" in parent.memory:
        new.memory["indices"] = True
    new.compare(new.ours(), first)
