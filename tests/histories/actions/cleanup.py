"""Cleanups whose calls to the store fail, beside other writers and rows that no version has yet.

However a cleanup ends: what it was to keep is there, other lines have lost nothing, and of each
line the versions that are left have the rows that they had.
"""

import random
from collections.abc import Mapping
from contextlib import suppress
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import lance
import pytest
from lance.fragment import write_fragments

from lance_stream import BadDataError, LanceStreamError, NotFoundError
from lance_stream.snapshot.tag_files import HOLD_PREFIX
from tests.histories.actions.rows import append
from tests.histories.actions.versions import (
    clone,
    consume,
    create_branch,
    forget_batches,
    protected,
    tag,
)
from tests.histories.life import Life, Line, check_rows, plain_rows
from tests.histories.model import KEY
from tests.histories.replacements import check_is_alone, draw_replacement, replace_table
from tests.histories.steps import Choices, DoesNotFit, Function, action
from tests.histories.trouble import Trouble


def replace_line(life: Life, choose: Choices) -> None:
    """Another table takes the place of the one that is cleaned up."""
    line = life.line(choose)
    check_is_alone(line)
    replace_table(line, *choose("replacement", lambda dice: draw_replacement(line, dice)))


BESIDE: Mapping[str, Function] = {
    "append": append,
    "tag": tag,
    "consume": consume,
    "create_branch": create_branch,
    "clone": clone,
    "replace": replace_line,
}
STRAYS = {
    "_refs/tags/torn.json": b'{"version": ',
    "_refs/tags/a copy.json": b'{"version": 1}',
    "_refs/branches/torn.json": b"",
    "_refs/others/x.json": b"{}",
    "_versions/new.manifest": b"?",
}
OLD, YOUNG = 0, 3600


def _draw_arguments(dice: random.Random) -> dict[str, Any]:
    """Draw the arguments of a cleanup; times in seconds."""
    arguments: dict[str, Any] = dice.choice(
        [
            {"older_than": OLD},
            {"retain_versions": dice.randint(1, 4)},
            {"older_than": OLD, "retain_versions": dice.randint(1, 4)},
            {"older_than": OLD, "expire_consumers": 86_400},
            {"older_than": YOUNG},
            {"retain_versions": 1, "dry_run": True},
        ]
    )
    return {**arguments, "delete_unverified": dice.random() < 0.6}


def must_stay(line: Line, arguments: Mapping[str, Any]) -> set[int]:
    if arguments.get("dry_run") or arguments.get("older_than") == YOUNG:
        return set(line.existing)
    newest = sorted(line.existing)[-arguments.get("retain_versions", 1) :]
    return protected(line) | {*newest}


@action(weight=0.8)
def troubled_cleanup(life: Life, choose: Choices) -> None:
    """A cleanup with calls that fail, files that seem missing, or another action beside it."""
    line = life.line(choose)
    arguments = dict(choose("arguments", _draw_arguments))
    if has_pending_rows(life, line):
        arguments["delete_unverified"] = False
    seed = choose("seed", lambda dice: dice.randrange(1_000_000))
    beside = choose(
        "beside",
        lambda dice: [dice.randrange(60), dice.choice([*BESIDE])] if dice.random() < 0.3 else [],
    )
    must = must_stay(line, arguments)
    typed_arguments = {
        name: timedelta(seconds=value) if name in ("older_than", "expire_consumers") else value
        for name, value in arguments.items()
    }
    trouble = Trouble(random.Random(seed))
    handle, num_replaced = line.ours(), life.counts["tables replaced"]
    continues: list[bool] = []

    def act(name: str) -> None:
        _act_beside(life, choose, BESIDE[name])
        if life.counts["tables replaced"] > num_replaced:
            continues.append(line.has_version_of(handle))

    if beside:
        call, name = beside
        may_delete = name != "replace"  # between a check and the deletions nobody could notice it
        trouble.at(call, partial(act, name), before_deletions=may_delete)
    try:
        with trouble:
            handle.cleanup(**typed_arguments)
    except (LanceStreamError, OSError):
        if not trouble.num_faults and not continues:
            raise
        life.counts["cleanups that failed"] += 1
    if continues == [False]:
        life.counts["tables replaced beside a cleanup"] += 1
        must = set(line.existing)
    elif continues:
        must = must_stay(line, arguments)
    else:
        must &= must_stay(line, arguments)
    check_remaining_versions(life, line, must, seed)


def _act_beside(life: Life, choose: Choices, function: Function) -> None:
    """Do another action in the middle of a cleanup; what it needs may be gone."""
    inner = Choices(choose.dice, choose("choices beside", lambda _: {}))
    life.memory["in a cleanup"] = True
    with suppress(DoesNotFit, NotFoundError, OSError, ValueError):
        function(life, inner)
    del life.memory["in a cleanup"]
    choose.recorded["choices beside"] = inner.recorded


def check_remaining_versions(life: Life, cleaned: Line, must: set[int], seed: int) -> None:
    """Check the versions of all lines, and the rows of some, as pylance reads them."""
    dice = random.Random(seed)
    for line in life.lines:
        there = {version["version"] for version in line.pylance().versions()}
        missing = (must if line is cleaned else line.existing) - there
        assert not missing, f"{line.name} has lost the versions {sorted(missing)}"
        line.existing &= there
        versions = sorted(version for version in line.existing if version > line.start)
        for version in dice.sample(versions, min(len(versions), 3)):
            state = line.states[version]
            rows = plain_rows(line.pylance(version).to_table(columns=[KEY, *state.names]))
            check_rows(rows, state)
    forget_batches(cleaned)


@action(weight=0.3)
def cleanup_beside_a_stray(life: Life, choose: Choices) -> None:
    """Beside a file that cannot be understood nothing is removed."""
    line = life.line(choose)
    path = choose.one_of("path", [*STRAYS])
    root = line.uri if path.startswith("_versions") else line.root
    stray = Path(root, path)
    stray.parent.mkdir(parents=True, exist_ok=True)
    stray.write_bytes(STRAYS[path])
    try:
        with pytest.raises(BadDataError):
            line.ours().cleanup(timedelta(0), delete_unverified=True)
    finally:
        stray.unlink()
        if not any(stray.parent.iterdir()):
            stray.parent.rmdir()
    check_remaining_versions(life, line, set(line.existing), 0)


@action(weight=0.4)
def delete_branch(life: Life, choose: Choices) -> None:
    """A branch is deleted exactly if no tag, consumer, clone or other branch needs it."""
    branches = [index for index, line in enumerate(life.lines) if line.branch is not None]
    line = life.lines[choose.one_of("line", branches)]
    if "ahead" in line.memory:
        raise DoesNotFit("rows that no version has yet")
    children = [other for other in life.lines if other.memory.get("parent") is line]
    tags = [name for name, (tagged, _) in life.tags.items() if tagged is line]
    main = next(other for other in life.lines if (other.root, other.branch) == (line.root, None))
    delete = partial(main.ours().branches.delete, line.branch)
    if children or tags or line.memory.get("consumers"):
        with pytest.raises((LanceStreamError, OSError)):
            delete()
        life.counts["branches that are needed"] += 1
    else:
        for tag in main.ours().tags.list():
            if tag.startswith(HOLD_PREFIX):  # of a killed operation
                main.ours().tags.delete(tag)
        delete()
        life.lines.remove(line)
    for other in life.lines:
        other.compare(other.ours(), other.newest)


def has_pending_rows(life: Life, line: Line) -> bool:
    return any("ahead" in other.memory for other in life.lines if other.root == line.root)


@action(weight=0.5)
def commit_ahead(life: Life, choose: Choices) -> None:
    """Writes rows that no version has yet, or commits those that were written a while ago."""
    line = life.line(choose)
    now, theirs = line.now, line.pylance()
    if "ahead" not in line.memory:
        rows = choose("rows", lambda dice: life.draw_new_rows(now, dice, 3))
        rows = life.fitting_new_rows(now, rows)
        line.memory["ahead"] = write_fragments(now.table(rows), theirs), rows, now.columns
        return
    fragments, rows, columns = line.memory.pop("ahead")
    if columns != now.columns or not rows.keys().isdisjoint(now.rows):
        raise DoesNotFit("other columns, or keys that exist")
    operation = lance.LanceOperation.Append(fragments)
    lance.LanceDataset.commit(theirs, operation, read_version=theirs.version)
    line.advance(lambda state, at: life.inserted(state, rows, at))
