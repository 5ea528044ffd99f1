"""Random histories of a table with a derived column: what changes rows, and rounds in between.

    python -m tests.derived.histories --minutes 10 [--seed 1]

Ours and pylance's verbs change inputs, other columns, whole rows; delete, compact and restore. Some
come while the function runs, others between the placing of values and their commit. The value is
made from the text so that no two texts have the same: whether a row is current shows in the row.
"""

import random
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

import lance_stream
from lance_stream.dataset import Dataset
from lance_stream.derived import derivation
from lance_stream.derived.derivation import Derivation, derive
from lance_stream.derived.fingerprints import fingerprints_of
from lance_stream.errors import CommitConflictError
from tests import seeded_runs as histories

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("text", pa.string()),
        pa.field("price", pa.float64()),
        pa.field("note", pa.string()),
    ]
)
VERBS = (
    "append",
    "change text",
    "change price",
    "upsert parts",
    "write whole rows back",
    "delete",
    "compact",
    "restore",
    "pylance append",
    "pylance change text",
    "pylance change price",
    "pylance merge",
    "pylance delete",
    "pylance compact",
    "pylance restore",
)


class History:
    """One table, the derivation of a column, and what has been done.

    Args:
        folder: Where the table is made.
        seed: Of the dice.
        beside: Whether the values are in a table beside.
    """

    def __init__(self, folder: Path, seed: int, *, beside: bool = False) -> None:
        self.dice = random.Random(seed)
        self.uri = str(folder / "t.lance")
        self.target = str(folder / "beside.lance") if beside else None
        self.function_version = 1
        self.next_id = 0
        self.done: list[str] = []
        self.calls = 0
        self.between: Callable[[], None] | None = None
        self.open: Dataset = lance_stream.create_dataset(self.uri, SCHEMA)
        self.oldest = 1
        self.open.append(self.rows(40))

    # --- the function

    @property
    def derivation(self) -> Derivation:
        return derive(
            self.uri,
            {"value": pa.string()},
            self.compute,
            ["text"],
            function_version=str(self.function_version),
            target=self.target,
            copy_columns=["id"] if self.target else (),
            batch_rows=self.dice.choice([3, 1000]),
            rows_per_commit=self.dice.choice([7, 30, 100_000]),
        )

    def value_of(self, text: str | None) -> str:
        return f"{self.function_version}:{text}"

    def compute(self, batch: pa.RecordBatch) -> list[str]:
        self.calls += batch.num_rows
        made = [self.value_of(each) for each in batch["text"].to_pylist()]
        between, self.between = self.between, None
        if between is not None:
            between()
        return made

    # --- the rows

    def rows(self, count: int) -> pa.Table:
        ids = range(self.next_id, self.next_id + count)
        self.next_id += count
        return self.table_of(list(ids))

    def table_of(self, ids: list[int]) -> pa.Table:
        texts = [self.dice.choice([None, "", *map(str, range(50))]) for _ in ids]
        prices = [float(self.dice.randrange(100)) for _ in ids]
        return pa.table([ids, texts, prices, ["n"] * len(ids)], schema=SCHEMA)

    def some_ids(self) -> list[int]:
        count = self.dice.choice([1, 3, 20])
        return sorted({self.dice.randrange(self.next_id) for _ in range(count)})

    def values(self) -> dict[int, tuple[str | None, str | None, bool]]:
        """Return the text and the value of each row, and whether it has a value, by id."""
        source = lance_stream.open_dataset(self.uri)
        rows = source.to_table(with_row_id=True).to_pylist()
        if self.target is None:
            return {
                row["id"]: (row["text"], row.get("value"), row.get("value") is not None)
                for row in rows
            }
        with suppress(lance_stream.NotFoundError):
            beside = lance_stream.open_dataset(self.target).to_table().to_pylist()
            known = {each["source_row_id"]: each for each in beside}
            assert len(known) == len(beside)
            return {
                row["id"]: (
                    row["text"],
                    known.get(row["_rowid"], {}).get("value"),
                    row["_rowid"] in known,
                )
                for row in rows
            }
        return {row["id"]: (row["text"], None, False) for row in rows}

    def num_stale(self) -> int:
        return sum(
            value != self.value_of(text) or not has for text, value, has in self.values().values()
        )

    # --- verbs

    def do(self, verb: str) -> None:
        self.done.append(verb)
        ids = self.some_ids()
        listed = ", ".join(map(str, ids))
        ds = lance_stream.open_dataset(self.uri)
        text = str(self.dice.randrange(50))
        with suppress(CommitConflictError):
            match verb:
                case "append":
                    ds.append(self.rows(self.dice.choice([1, 12])))
                case "change text":
                    ds.update({"text": f"'{text}'"}, where=f"id IN ({listed})")
                case "change price":
                    ds.update({"price": "price + 1"}, where=f"id IN ({listed})")
                case "upsert parts":
                    parts = self.table_of([*ids, self.next_id]).select(["id", "text"])
                    self.next_id += 1
                    ds.upsert(parts, on="id")
                case "write whole rows back":
                    rows = ds.to_table(filter=f"id IN ({listed})")
                    texts = pa.array([text] * rows.num_rows, pa.string())
                    place = rows.schema.get_field_index("text")
                    ds.upsert(rows.set_column(place, "text", texts), on="id")
                case "delete":
                    ds.delete(f"id IN ({listed})")
                case "compact":
                    ds.compact()
                case "restore":
                    ds.restore(self.dice.randrange(max(2, ds.version - 6), ds.version + 1))
                case _:
                    self.do_by_pylance(verb, listed, text)

    def do_by_pylance(self, verb: str, listed: str, text: str) -> None:
        ds = lance.dataset(self.uri)
        match verb:
            case "pylance append":
                rows = self.rows(4)
                for field in ds.schema:
                    if field.name not in rows.column_names:
                        rows = rows.append_column(field, pa.nulls(rows.num_rows, field.type))
                lance.write_dataset(rows, ds, mode="append")
            case "pylance change text":
                ds.update({"text": f"'{text}'"}, where=f"id IN ({listed})")
            case "pylance change price":
                ds.update({"price": "price + 1"}, where=f"id IN ({listed})")
            case "pylance merge":
                rows = ds.to_table(filter=f"id IN ({listed})")
                texts = pa.array([text] * rows.num_rows, pa.string())
                rows = rows.set_column(rows.schema.get_field_index("text"), "text", texts)
                merge = ds.merge_insert("id").when_matched_update_all()
                merge.when_not_matched_insert_all().execute(rows)
            case "pylance delete":
                ds.delete(f"id IN ({listed})")
            case "pylance compact":
                ds.optimize.compact_files()
            case "pylance restore":
                version = self.dice.randrange(max(2, ds.version - 6), ds.version + 1)
                lance.dataset(self.uri, version=version).restore()

    def some_verb(self) -> None:
        self.do(self.dice.choice(VERBS))

    # --- rounds

    def round(self) -> None:
        """Compute with nobody between: each row that is not current once, and no other."""
        stale = self.num_stale()
        before = self.calls
        self.done.append(f"round, {stale} stale")
        outcome = self.derivation.run()
        assert self.calls - before == stale == outcome.num_computed, self.done
        assert outcome.num_pending == 0
        assert self.num_stale() == 0, self.done

    def disturbed_round(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Compute while others commit; what they changed is computed in the next round."""
        self.done.append("disturbed round")
        if self.dice.random() < 0.7:
            self.between = self.some_verb
        real = derivation.commit_planned
        left = self.dice.choice([0, 1, 2])

        def commit(*given: Any, **named: Any) -> Any:
            nonlocal left
            if left:
                left -= 1
                self.some_verb()
            return real(*given, **named)

        with monkeypatch.context() as patched:
            patched.setattr(derivation, "commit_planned", commit)
            self.derivation.run(max_commits=self.dice.choice([1, None]))
        self.between = None

    def check_all_versions(self) -> None:
        """No version says that a row is current whose value is of another text."""
        if self.target is not None:
            return
        for each in lance_stream.open_dataset(self.uri).versions():
            ds = lance_stream.open_dataset(self.uri, each.version)
            if "value_state" not in ds.schema.names:
                continue
            rows = ds.to_table(["text", "value", "value_state"])
            for version in range(1, self.function_version + 1):
                function = self.derivation_of(version).declaration.fingerprint
                batch = rows.select(["text"]).combine_chunks().to_batches()
                if not batch:
                    continue
                wanted = fingerprints_of(batch[0], function)
                for row, fingerprint in zip(rows.to_pylist(), wanted.tolist(), strict=True):
                    if row["value_state"] == fingerprint:
                        assert row["value"] == f"{version}:{row['text']}", (each.version, self.done)

    def derivation_of(self, version: int) -> Derivation:
        return derive(
            self.uri, {"value": pa.string()}, self.compute, "text", function_version=str(version)
        )

    def run(self, steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
        for _ in range(steps):
            kind = self.dice.random()
            if kind < 0.6:
                self.some_verb()
            elif kind < 0.8:
                self.round()
            elif kind < 0.93:
                self.disturbed_round(monkeypatch)
            else:
                self.function_version += 1
                self.done.append("new function")
        self.round()
        self.check_all_versions()


def play(seed: int, num_steps: int) -> dict[str, int]:
    """Make a history, and count its versions and the rows that were computed."""
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patched:
        history = History(Path(folder), seed, beside=seed % 3 == 0)
        history.run(num_steps, patched)
        version = lance_stream.open_dataset(history.uri).version
        return {"versions": version, "rows computed": history.calls}


if __name__ == "__main__":
    sys.exit(histories.main(play, steps=25, what="verbs"))
