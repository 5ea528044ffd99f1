"""Tables beside the table: quarantined rows, dimensions, blobs."""

import shutil
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import lance
import pyarrow as pa
import pytest

import lance_stream
from lance_stream.errors import (
    InvalidInputError,
    NotFoundError,
    TableReplacedError,
    UnsupportedFeatureError,
)
from lance_stream.ledger.micro_batch import MicroBatch
from lance_stream.ledger.replay_check import PendingBatch
from lance_stream.quarantine.listing import READY, QuarantinedRows
from lance_stream.quarantine.quarantine_writer import QuarantineBatch, publish
from lance_stream.quarantine.table import quarantine_uri
from lance_stream.upsert.change_rules import ChangeRules
from lance_stream.verbs.append import append, append_fragments
from lance_stream.write.row_checks import CheckedBatches, RowRules, as_checks
from tests.histories.actions.streams import upsert_by_tasks
from tests.histories.life import Life, Line, in_list
from tests.histories.model import KEY
from tests.histories.replacements import (
    check_is_alone,
    copy_table,
    draw_replacement,
    replace_table,
)
from tests.histories.steps import Choices, DoesNotFit, action
from tests.keys.index.small_runs import restart
from tests.upsert.histories.dimension_models import (
    Change,
    batch_of,
    current,
    history,
    rows_of,
    states,
)

# --- rows that do not fit


@action(weight=0.7)
def quarantined_batch(life: Life, choose: Choices) -> None:
    """A micro-batch in which some rows fail a condition: they are quarantined once.

    A branch or clone has a quarantine of its own. Its stream may be that of the table it began
    from, whose batches, and bad rows, its ledger has.
    """
    line = life.line(choose)
    now = line.now
    rows = life.fitting_new_rows(now, choose("rows", lambda dice: life.draw_new_rows(now, dice)))
    if any({*now.row_names} != values.keys() for values in rows.values()):
        raise DoesNotFit("columns")
    bad = set(choose("bad", lambda dice: [key for key in rows if dice.random() < 0.4]))
    data = now.table(rows)
    checks = as_checks({"fine": f"NOT ({in_list(bad)})"})
    if "quarantined" not in line.memory:
        inherited = [name for name in line.ours().ledger() if name.startswith("q ")]
        app_id = choose.one_of("stream", [f"q {line.name}", *inherited])
        entry = line.ours().ledger().get(app_id)
        line.memory["quarantined"] = {
            "app_id": app_id,
            "number": 0 if entry is None else entry.batch_id + 1,
            "rows": set(),
            "values": {},
        }
    batches = line.memory["quarantined"]
    app_id, number, location = batches["app_id"], batches["number"], quarantine_of(line)
    times = choose("times", lambda dice: dice.choice([1, 1, 2]))
    attempts, dies = choose("attempts", lambda dice: [dice.randint(1, 2), dice.random() < 0.3])
    for _ in range(times):
        checked = CheckedBatches(
            data.to_batches(), RowRules(line.ours().schema, checks, keeps_rows=True)
        )
        good = pa.Table.from_batches(list(checked), data.schema)
        table = line.ours().table
        quarantine = QuarantineBatch(location, {}, MicroBatch(app_id, number))
        entry = line.ours().ledger().get(app_id)
        if entry is not None and entry.batch_id >= number:
            publish(location, {}, table, app_id)
            continue
        try:
            PendingBatch(quarantine.batch).find_in(table)
        except InvalidInputError as error:
            if "restored by pylance" not in line.memory:
                raise
            raise DoesNotFit(str(error)) from None
        quarantine.begin(table)
        for _ in range(attempts):
            quarantine.stage(checked.bad, _recorded(checks), table)
        file = quarantine.file
        identity = PendingBatch.of(app_id, number, digest=checked.digest, quarantined=file)
        if good.num_rows:
            append(table, good, identity)
        else:
            append_fragments(table, [], identity, even_without_rows=True)
        if not dies:
            quarantine.publish(table)
        fine = {key: values for key, values in rows.items() if key not in bad}
        line.advance(lambda state, at: life.inserted(state, fine, at))  # noqa: B023  # called at once
        set_aside = {key: rows[key] for key in rows if key in bad}
        batches["rows"] |= set_aside.keys()
        if set_aside:
            batches["values"][number] = (set_aside, now.columns)
        batches["number"] = number + 1
    groups = check_quarantined(line)
    if dies:  # completed now, because a restore by pylance would undo the batch
        where = {"branch": line.branch, "quarantine": location, "where": "batch_id < 0"}
        lance_stream.replay_quarantine(line.root, **where)
        assert check_quarantined(line) == groups


def quarantine_of(line: Line) -> str:
    """Return the location of a line's quarantine: that of a branch is outside of the table."""
    if line.branch is None:
        return quarantine_uri(line.uri)
    return f"{line.root.removesuffix('.lance')}-{line.branch.replace('/', '-')}_quarantine.lance"


def check_quarantined(line: Line) -> list[QuarantinedRows]:
    """Return the groups of quarantined rows, after checking how many can be replayed.

    Rows become stale where their branch was deleted, or a restore by pylance forgot their stream.
    """
    groups = lance_stream.list_quarantine(
        line.root, branch=line.branch, quarantine=quarantine_of(line)
    )
    num_ready = sum(group.num_rows for group in groups if group.state == READY)
    num_expected = len(line.memory["quarantined"]["rows"])
    if "restored by pylance" in line.memory:
        assert num_ready <= num_expected <= sum(group.num_rows for group in groups), groups
    else:
        assert num_ready == num_expected, groups
    return groups


def _recorded(checks: Any) -> dict[str, Any]:
    conditions = {check.name: {"condition": check.condition, "columns": {}} for check in checks}
    return {
        "mode": "append",
        "on": [],
        "sequence_by": None,
        "except_columns": [],
        "expect": conditions,
    }


# --- dimensions


def _dimension(life: Life, kind: str) -> dict[str, Any]:
    """Return the dimension of a life, its table and the log of its changes."""
    dimensions: dict[str, Any] = life.memory.setdefault("dimensions", {})
    if kind not in dimensions:
        schema = pa.schema([("id", pa.int64()), ("city", pa.string()), ("note", pa.string())])
        if kind == "scd1":
            schema = schema.append(pa.field("seq", pa.int64()))
        else:
            schema = lance_stream.history_schema(schema, pa.int64())
        uri = f"{life.folder}/{kind}"
        lance_stream.create_dataset(uri, schema, life.file_version)
        dimensions[kind] = {"uri": uri, "log": []}
    dimension: dict[str, Any] = dimensions[kind]
    return dimension


@action(weight=1)
def change_dimension(life: Life, choose: Choices) -> None:
    """Changes of keys in any order, into a dimension of type 1 or 2."""
    if not life.lines:
        raise DoesNotFit("there is no table")
    kind = choose("kind", lambda dice: dice.choice(["scd1", "scd2"]))
    dimension = _dimension(life, kind)

    def draw(dice: Any) -> list[list[Any]]:
        changes = []
        for _ in range(dice.randint(1, 6)):
            key, sequence = dice.randrange(4), dice.randrange(60)
            if dice.random() < 0.25:
                changes.append([key, None, None, sequence, "d"])
            else:
                city = dice.choice(["Ulm", "Bonn", None])
                changes.append([key, city, dice.choice("xy"), sequence, "u"])
        return changes

    log: list[Change] = dimension["log"]
    batch: list[Change] = []
    identities = {(change.id, change.seq, change.op) for change in log}
    for change in (Change(*values) for values in choose("changes", draw)):
        if (change.id, change.seq, change.op) not in identities:
            batch.append(change)
            identities.add((change.id, change.seq, change.op))
    if not batch:
        raise DoesNotFit("no changes")
    ds = lance_stream.open_dataset(dimension["uri"])
    way = choose("way", lambda dice: dice.choice(["verb", "cold", "tasks", "compact", "pylance"]))
    if way == "cold":
        restart()
    if way == "compact":
        ds = ds.compact(20)
    if way == "pylance":
        lance.dataset(dimension["uri"]).optimize.compact_files(target_rows_per_fragment=20)
    data = batch_of(batch)
    excluded = ("op",) if kind == "scd1" else ("op", "seq")
    if way == "tasks":
        rules = ChangeRules(
            kind == "scd2", ("id",), ("seq",), "op = 'd'", except_column_list=excluded
        )
        upsert_by_tasks(ds.table, data, rules.upsert_rules())
    else:
        verb = ds.apply_scd1 if kind == "scd1" else ds.apply_scd2
        verb(data, "id", "seq", apply_as_deletes="op = 'd'", except_column_list=excluded)
    log += batch
    rows = lance_stream.open_dataset(dimension["uri"]).to_table()
    if kind == "scd1":
        assert rows_of(rows) == current(log)
    else:
        assert states(rows) == history(log)
    theirs = lance.dataset(dimension["uri"]).to_table()
    assert theirs.sort_by("id").num_rows == rows.num_rows
    assert lance_stream.open_dataset(dimension["uri"]).verify() == []


# --- blobs


@action(weight=0.3)
def blobs_in_structs(life: Life, choose: Choices) -> None:
    """Blobs of pylance in a struct, which we read, copy by a compaction, and find valid."""
    if not life.lines or life.file_version == "2.0":
        raise DoesNotFit("2.0 has no null structs")
    uri = f"{life.folder}/blobs{life.number()}"
    values = choose(
        "values", lambda dice: [dice.choice([None, "", "00ff", "ab" * 50]) for _ in range(3)]
    )
    metadata: Mapping[str, str] = {"lance-encoding:blob": "true"}
    is_marked = choose.happens("marked", 0.8)
    inner = pa.field("b", pa.large_binary(), metadata=metadata if is_marked else None)
    struct = pa.struct([pa.field("x", pa.int64()), inner])
    contents = [None if value is None else bytes.fromhex(value) for value in values]
    rows = [{"x": number, "b": content} for number, content in enumerate(contents)]
    data = pa.table({KEY: list(range(len(rows))), "s": pa.array(rows, struct)})
    try:
        for index in range(2):
            lance.write_dataset(
                data,
                uri,
                mode="append" if index else "create",
                data_storage_version=life.file_version,
                enable_stable_row_ids=True,
            )
    except (OSError, ValueError) as error:
        life.counts[f"pylance fails: blobs {str(error)[:60]}"] += 1
        return
    ds = lance_stream.open_dataset(uri)
    try:
        read = ds.to_table()["s"].to_pylist()
    except UnsupportedFeatureError:
        life.counts["blobs in structs are refused"] += 1
    else:
        assert [row["b"] or b"" for row in read] == [row["b"] or b"" for row in [*rows, *rows]]
    assert ds.verify(deep=True) == []


# --- tables made anew


@action(weight=0.4)
def keep_copy(life: Life, choose: Choices) -> None:
    """A copy of the table, which may take its place later."""
    copy_table(life.line(choose))


@action(weight=0.3)
def replace_by_another(life: Life, choose: Choices) -> None:
    """Another table takes the place of the table; a handle of the old one writes nothing."""
    line = life.line(choose)
    old, now = line.ours(), line.now
    data = now.table({key: now.values_by_name(row) for key, row in now.rows.items()})
    replacement = choose("replacement", lambda dice: draw_replacement(line, dice))
    check_is_alone(line)
    shutil.rmtree(line.root)
    later = PendingBatch.of("later", 3, "query")
    with pytest.raises(NotFoundError, match="first batch"):
        later.check_may_create(line.root, late_start=False)
    later.check_may_create(line.root, late_start=True)
    replace_table(line, *replacement)
    line.snapshot(line.newest)
    if line.may_have_had_version_of(old):
        return
    verbs = {
        "append": lambda: old.append(data),
        "compact": lambda: old.compact(3),
        "upsert": lambda: old.upsert(data, KEY),
        "delete": lambda: old.delete(f"{KEY} >= 0"),
        "configure": lambda: old.update_config({"stale": "handle"}),
    }
    verb = choose("verb", lambda dice: dice.choice([*verbs]))
    with suppress(TableReplacedError):
        verbs[verb]()
    assert line.ours().version == line.newest, (
        f"{verb} with a handle of the old table was committed"
    )
