"""Which columns a derivation may write: new ones and its own, never a user's or another's."""

import json
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

import lance_stream
from lance_stream import Derivation, InvalidInputError, derive
from lance_stream.derived import derivation

LENGTH = {"length": pa.int64()}
KEYLESS = pa.schema(dict.fromkeys(["source_row_id", "length", "length_state"], pa.int64()))


def lengths(batch: pa.RecordBatch) -> list[int]:
    return [len(text) for text in batch["text"].to_pylist()]


def new_table(path: Path) -> str:
    uri = str(path / "t.lance")
    rows = pa.table({"id": range(20), "text": [f"text {n}" for n in range(20)], "n": [7] * 20})
    lance_stream.create_dataset(uri, rows, primary_key=["id"])
    return uri


def lengths_in(uri: str, **arguments: Any) -> Derivation:
    arguments = {"outputs": LENGTH, "function": lengths, "function_version": "1", **arguments}
    return derive(uri, inputs="text", **arguments)


def check_refused(derivation: Derivation, problem: str) -> None:
    """Check that a run is refused, and that nothing was written."""
    where = derivation.target or derivation.uri
    before = lance_stream.open_dataset(where)
    with pytest.raises(InvalidInputError, match=problem):
        derivation.run()
    after = lance_stream.open_dataset(where)
    assert after.version == before.version
    assert after.to_table() == before.to_table()


@pytest.mark.parametrize("name", [None, "other"])
def test_user_columns_are_never_overwritten(tmp_path: Path, name: str | None) -> None:
    """A misspelt output must not destroy a column that only resembles a derived one."""
    uri = new_table(tmp_path)
    column = lengths_in(uri, outputs={"n": pa.int64()}, name=name)
    check_refused(column, r"column 'n' that .* did not create.*another name; or drop.*\(\['n'\]\)")
    lance_stream.open_dataset(uri).drop_columns(["n"])
    assert column.run().num_written == 20


def test_key_columns_are_never_overwritten(tmp_path: Path) -> None:
    """Changing keys would change the identity of all rows."""
    uri = new_table(tmp_path)
    check_refused(
        lengths_in(uri, outputs={"id": pa.int64()}), "'id', which is part of the primary key"
    )
    target = str(tmp_path / "beside.lance")
    lengths_in(uri, target=target).run()
    row_id = {"source_row_id": pa.int64(), "length": pa.int64()}
    copy = str(tmp_path / "copy.lance")  # by a program that declares no key
    lance_stream.create_dataset(copy, lance_stream.open_dataset(target).to_table().cast(KEYLESS))
    for uri_of_values in (target, copy):
        check_refused(
            lengths_in(uri, target=uri_of_values, outputs=row_id),
            "'source_row_id', which is part of",
        )


def test_lookalike_state_columns_belong_to_users(tmp_path: Path) -> None:
    """The name alone does not prove that a derivation has created the column."""
    uri = new_table(tmp_path)
    lance_stream.open_dataset(uri).add_columns({"length_state": "n + 1"})
    column = lengths_in(uri)
    check_refused(
        column, r"column 'length_state' that .* the derivation, name=\.\.\., another name"
    )
    assert lengths_in(uri, name="size").run().num_written == 20


@pytest.mark.parametrize("is_beside", [False, True])
def test_derivations_do_not_share_columns(tmp_path: Path, is_beside: bool) -> None:
    """Two functions would overwrite each other's values at every run."""
    uri = new_table(tmp_path)
    target = str(tmp_path / "beside.lance") if is_beside else None
    first = lengths_in(uri, target=target)
    first.run()
    other = lengths_in(uri, target=target, name="other", function=lambda b: [0] * b.num_rows)
    check_refused(
        other,
        r"belongs to the derived column 'length' of .*drop_columns\(\['length', 'length_state'\]\)",
    )
    assert first.run().num_computed == 0
    lance_stream.open_dataset(target or uri).drop_columns(["length", "length_state"])
    assert other.run().num_written == 20
    check_refused(first, "belongs to the derived column 'other'")


@pytest.mark.parametrize("is_lookalike", [False, True])
def test_dropped_derivations_own_no_columns(tmp_path: Path, is_lookalike: bool) -> None:
    """Their entries remain, and later columns may reuse the ids that they state."""
    uri = new_table(tmp_path)
    lengths_in(uri).run()
    ds = lance_stream.open_dataset(uri).drop_columns(["length", "length_state"])
    ds = ds.add_columns({"size": "n"})
    assert f'"outputs": [{ds.table.schema.fields[-1].id}, ' in str(ds.config)
    if is_lookalike:
        ds.add_columns({"more": "n"}).add_columns({"length_state": "n"})
    other = lengths_in(uri, outputs={"size": pa.int64()}, name="other")
    check_refused(other, "has a column 'size' that .* did not create")


@pytest.mark.parametrize("is_beside", [False, True])
def test_entries_of_older_releases_count(tmp_path: Path, is_beside: bool) -> None:
    """They state the columns that are read and written, but not which of them are outputs."""
    uri, target = new_table(tmp_path), str(tmp_path / "beside.lance") if is_beside else None
    column = lengths_in(uri, target=target)
    column.run()
    key = "lance_stream.derived.length"
    ds = lance_stream.open_dataset(target or uri)
    entry = json.loads(ds.config[key])
    for name in ("outputs", "renews", "source"):
        del entry[name]
    ds = ds.update_config({key: json.dumps(entry)})
    assert column.run().num_checked == 0
    if not is_beside:
        ds.drop_columns(["length"]).add_columns({"length": "n"})
        check_refused(column, "has a column 'length' that .* did not create")


def test_derivations_can_be_chained(tmp_path: Path) -> None:
    """Embeddings of summaries are a common chain, and results must become current in order."""
    uri = new_table(tmp_path)
    double = derive(
        uri, {"double": pa.int64()}, lambda b: b["length"], "length", function_version="1"
    )
    for _ in range(2):
        lengths_in(uri).run()
        double.run()
    rows = lance_stream.open_dataset(uri).to_table()
    assert rows["double"].to_pylist() == rows["length"].to_pylist()
    assert not rows["double"].null_count


@pytest.mark.parametrize("is_beside", [False, True])
def test_names_do_not_grant_other_columns(tmp_path: Path, is_beside: bool) -> None:
    """Ownership is recorded per column, not by the name of the derivation."""
    uri, target = new_table(tmp_path), str(tmp_path / "beside.lance") if is_beside else None
    lengths_in(uri, name="d", target=target).run()
    ds = lance_stream.open_dataset(target or uri)
    ds = ds.add_columns({"n": "7"}) if is_beside else ds
    more = {"length": pa.int64(), "n": pa.int64()}
    check_refused(lengths_in(uri, name="d", outputs=more, target=target), "has a column 'n'")
    # A column that the user puts in the place of a dropped one is the user's.
    ds.drop_columns(["length"]).add_columns({"length": "n"})
    check_refused(lengths_in(uri, name="d", target=target), "has a column 'length'")


@pytest.mark.oracle
@pytest.mark.parametrize("writer", ["ours", "pylance"])
@pytest.mark.parametrize("dropped", [["length", "length_state"], ["length_state"]])
def test_without_states_no_column_is_owned(tmp_path: Path, writer: str, dropped: list[str]) -> None:
    """A column created after the outputs were dropped may get the field id of one of them."""
    uri = new_table(tmp_path)
    lengths_in(uri).run()
    if writer == "ours":
        ds = lance_stream.open_dataset(uri).drop_columns(dropped)
        if "length" in dropped:
            ds.add_columns({"length": "n"})
    else:
        other = lance.dataset(uri)
        other.drop_columns(dropped)
        if "length" in dropped:
            other.add_columns({"length": "n"})
    check_refused(lengths_in(uri), "has a column 'length' that .* did not create")
    lance_stream.open_dataset(uri).drop_columns(["length"])
    assert lengths_in(uri).run().num_written == 20


def test_targets_belong_to_one_source(tmp_path: Path) -> None:
    """A copy of the source may continue, while another table is refused until the user decides."""
    uri, target = new_table(tmp_path), str(tmp_path / "beside.lance")
    lengths_in(uri, target=target).run()
    copy = str(tmp_path / "copy.lance")
    shutil.copytree(uri, copy)
    lance_stream.open_dataset(copy).update({"text": "'x'"}, where="id = 3")
    assert lengths_in(copy, target=target).run().num_computed == 1
    (tmp_path / "other").mkdir()
    other = new_table(tmp_path / "other")
    lance_stream.open_dataset(other).delete("id > 2")
    check_refused(
        lengths_in(other, target=target), "'length' of .*copy.lance, whose rows would be replaced"
    )
    check_refused(lengths_in(other, target=target), "update_config.*lance_stream.derived.length")
    lance_stream.open_dataset(target).update_config({"lance_stream.derived.length": None})
    assert lengths_in(other, target=target).run().num_deleted > 0
    assert lance_stream.open_dataset(target).count_rows() == 3
    # A table that was created again in the same place is the same source.
    shutil.rmtree(other)
    new_table(tmp_path / "other")
    lengths_in(other, target=target).run()
    assert lance_stream.open_dataset(target).count_rows() == 20


def test_changed_types_name_columns_to_drop(tmp_path: Path) -> None:
    """Values of the old type cannot be kept, and dropping them is the user's decision."""
    uri = new_table(tmp_path)
    lengths_in(uri).run()
    text = lengths_in(uri, outputs={"length": pa.string()}, function=lambda b: b["text"])
    check_refused(text, r"type int64 .*, not string.*drop_columns\(\['length', 'length_state'\]\)")
    both = lengths_in(uri, outputs={"more": pa.int64(), "length": pa.string()}, name="length")
    check_refused(both, r"int64 .*, not string.*drop_columns\(\['length', 'length_state'\]\)")
    lance_stream.open_dataset(uri).drop_columns(["length", "length_state"])
    assert text.run().num_written == 20


class KilledError(BaseException):
    """Ends a process."""


@pytest.mark.parametrize("step", ["update_config", "drop_columns", "add_columns", "_commit"])
@pytest.mark.parametrize("is_done", [False, True])
@pytest.mark.parametrize(
    ("dropped", "has_progress"),
    [
        ((), False),
        (("length",), False),
        (("length",), True),
        (("more", "length"), True),
    ],
)
def test_killed_runs_recognise_their_columns(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    step: str,
    is_done: bool,
    dropped: tuple[str, ...],
    has_progress: bool,
) -> None:
    """Adding columns and recording ownership are separate commits, and a kill between them must
    not lock the derivation out.
    """
    uri = new_table(tmp_path)
    outputs = {"length": pa.int64(), "more": pa.int64()}
    column = lengths_in(
        uri, outputs=outputs, name="d", function=lambda b: dict.fromkeys(outputs, lengths(b))
    )
    if dropped:
        column.run()
        ds = lance_stream.open_dataset(uri).drop_columns(list(dropped))
        if not has_progress:
            ds.update_config({"lance_stream.derived.d": None})
    owner = Derivation if step == "_commit" else derivation
    real = getattr(owner, step)

    def killed(*arguments: Any, **named: Any) -> Any:
        if is_done:
            real(*arguments, **named)
        raise KilledError

    with monkeypatch.context() as patched:
        patched.setattr(owner, step, killed)
        with suppress(KilledError):
            column.run()
    column.run()
    assert column.status().is_current
    actual = lance_stream.open_dataset(uri).to_table(["length", "more"]).to_pylist()
    assert actual == [{"length": len(f"text {n}"), "more": len(f"text {n}")} for n in range(20)]


@pytest.mark.parametrize("is_restored_before", ["the values", "the columns"])
def test_restores_before_progress_are_continued(tmp_path: Path, is_restored_before: str) -> None:
    """A restore also restores the progress together with the values."""
    uri = new_table(tmp_path)
    column = lengths_in(uri)
    column.run()
    first = 2 if is_restored_before == "the values" else 1
    lance_stream.open_dataset(uri).restore(first)
    assert column.run().num_computed == 20
    assert column.run().num_checked == 0


def test_lost_progress_does_not_lose_columns(tmp_path: Path) -> None:
    """The states in the rows show what was computed, also after an overwrite with other field
    ids.
    """
    uri = new_table(tmp_path)
    column = lengths_in(uri)
    column.run()
    lance_stream.open_dataset(uri).update_config({"lance_stream.derived.length": None})
    assert column.run().num_computed == 0
    # So are those of a table that was written as a whole, whose columns have other ids.
    ds = lance_stream.open_dataset(uri)
    ds.overwrite(ds.to_table().drop_columns(["n"]))
    assert column.run().num_computed == 0


def test_renamed_columns_keep_their_owner(tmp_path: Path) -> None:
    """Ownership follows the field id."""
    uri = new_table(tmp_path)
    lengths_in(uri).run()
    lance_stream.open_dataset(uri).rename_columns({"length": "size"})
    assert lengths_in(uri, outputs={"size": pa.int64()}, name="length").run().num_written == 20
    lance_stream.open_dataset(uri).rename_columns({"length_state": "size_state"})
    assert lengths_in(uri, outputs={"size": pa.int64()}).run().num_checked == 20
    check_refused(lengths_in(uri, outputs={"size": pa.int64()}, name="x"), "derived column 'size'")


@pytest.mark.parametrize("is_beside", [False, True])
def test_inputs_with_swapped_names_are_reread(tmp_path: Path, is_beside: bool) -> None:
    """The same columns are read as before, but the function gets each under the other's name."""
    uri = str(tmp_path / "t.lance")
    target = str(tmp_path / "d.lance") if is_beside else None
    ds = lance_stream.create_dataset(uri, pa.table({"a": [1, 2, 3], "b": [10, 20, 2]}))
    quotients = derive(
        uri,
        {"text": pa.string()},
        lambda batch: [f"{row['a']}/{row['b']}" for row in batch.to_pylist()],
        ["a", "b"],
        function_version="1",
        target=target,
    )
    quotients.run()
    ds.rename_columns({"a": "b", "b": "a"})
    assert quotients.run().num_computed == 3
    stored = lance_stream.open_dataset(target or uri).to_table(["text"])
    assert sorted(stored["text"].to_pylist()) == ["10/1", "2/3", "20/2"]
    assert quotients.run().version is None


def test_outputs_that_swap_names_are_refused(tmp_path: Path) -> None:
    """Each would keep the values of the other, since no input has changed."""
    uri = new_table(tmp_path)
    sizes = derive(
        uri,
        {"length": pa.int64(), "twice": pa.int64()},
        lambda batch: {"length": [1] * batch.num_rows, "twice": [2] * batch.num_rows},
        "text",
        function_version="1",
    )
    sizes.run()
    ds = lance_stream.open_dataset(uri).rename_columns({"length": "twice", "twice": "length"})
    check_refused(sizes, "have swapped their names")
    ds.drop_columns(["length", "twice", "length_state"])
    assert sizes.run().num_written == 20
    assert set(lance_stream.open_dataset(uri).to_table()["twice"].to_pylist()) == {2}


def test_outputs_may_change_their_order(tmp_path: Path) -> None:
    """Another order is another declaration, and does not mean that columns were renamed."""
    uri = new_table(tmp_path)
    for names in (["length", "twice"], ["twice", "length"]):
        sizes = derive(
            uri,
            dict.fromkeys(names, pa.int64()),
            lambda batch: {"length": [1] * batch.num_rows, "twice": [2] * batch.num_rows},
            "text",
            function_version="1",
            name="sizes",
        )
        assert sizes.run().num_written == 20
        assert sizes.run().version is None
    stored = lance_stream.open_dataset(uri).to_table(["length", "twice"]).to_pylist()
    assert stored == [{"length": 1, "twice": 2}] * 20


def test_branches_and_clones_resume(tmp_path: Path) -> None:
    """A copy has the same columns and states, and must not compute everything again."""
    uri = new_table(tmp_path)
    lengths_in(uri).run()
    clone = str(tmp_path / "clone.lance")
    lance_stream.open_dataset(uri).shallow_clone(clone)
    lance_stream.open_dataset(uri).branches.create("dev")
    copy = str(tmp_path / "copy.lance")
    shutil.copytree(uri, copy)
    for value in (clone, f"{uri}/tree/dev", copy):
        lance_stream.open_dataset(value).update({"text": "'x'"}, where="id = 3")
        assert lengths_in(value).run().num_computed == 1


def test_concurrent_changes_are_computed(tmp_path: Path) -> None:
    """A change and a restore during the first run must not leave values of the older text."""
    uri = new_table(tmp_path)
    is_first = True

    def disturbed(batch: pa.RecordBatch) -> list[int]:
        nonlocal is_first
        if is_first:
            is_first = False
            lance_stream.open_dataset(uri).update({"text": "'x'"}, where="id = 3").restore(1)
        return lengths(batch)

    column = lengths_in(uri, function=disturbed)
    column.run()
    assert column.run().num_checked == 0
    actual = lance_stream.open_dataset(uri).to_table(["text", "length"]).to_pylist()
    assert all(row["length"] == len(row["text"]) for row in actual)


def test_concurrently_added_user_columns_stay(tmp_path: Path) -> None:
    """The check before the run is too early, so it is repeated at the commit."""
    uri = new_table(tmp_path)

    def slow(batch: pa.RecordBatch) -> list[int]:
        lance_stream.open_dataset(uri).add_columns({"length": "n"})
        return lengths(batch)

    with pytest.raises(InvalidInputError, match="column 'length' that"):
        lengths_in(uri, function=slow).run()
    assert lance_stream.open_dataset(uri).to_table()["length"].to_pylist() == [7] * 20


def test_concurrently_restored_columns_are_continued(tmp_path: Path) -> None:
    """The columns that a restore brings back have states, and need neither to be dropped nor
    computed.
    """
    uri = new_table(tmp_path)
    lengths_in(uri).run()
    ds = lance_stream.open_dataset(uri).update_config({"lance_stream.derived.length": None})
    ds.drop_columns(["length", "length_state"])
    num_calls = 0

    def slow(batch: pa.RecordBatch) -> list[int]:
        nonlocal num_calls
        num_calls += 1
        lance_stream.open_dataset(uri).restore(ds.version)
        return lengths(batch)

    assert lengths_in(uri, function=slow).run().num_computed == 0
    assert num_calls == 1
    assert lance_stream.open_dataset(uri).table.schema == ds.table.schema
    assert lengths_in(uri).run().num_checked == 0


def test_outputs_dropped_from_targets_are_recomputed(tmp_path: Path) -> None:
    """The states remain in the target and would claim that all rows are current."""
    uri, target = new_table(tmp_path), str(tmp_path / "beside.lance")
    column = lengths_in(uri, target=target)
    column.run()
    lance_stream.open_dataset(target).drop_columns(["length"])
    assert column.run().num_written == 20
    assert None not in lance_stream.open_dataset(target).to_table()["length"].to_pylist()
