"""One stream into several tables: one after the other, or all at once."""

import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lance_stream
from lance_stream.errors import InvalidInputError
from lance_stream.spark import LanceSinks, lance_sink, lance_sinks
from lance_stream.spark.sink import several
from tests.commit.table_groups import exists

pytestmark = pytest.mark.spark

ORDERS = pa.schema(
    [
        pa.field("id", pa.int64()),
        pa.field("customer", pa.string()),
        pa.field("skus", pa.list_(pa.string())),
    ]
)


def orders(*ids: int, customer: str = "ada") -> pa.Table:
    rows = [{"id": i, "customer": customer, "skus": [f"s{i}", "gift"]} for i in ids]
    return pa.Table.from_pylist(rows, ORDERS)


def header(df: Any) -> Any:
    return df.drop("skus")


def lines(df: Any) -> Any:
    return df.selectExpr("id AS order_id", "posexplode(skus) AS (position, sku)")


class Tables:
    """Two tables on the local disk, in one manifest store or in none."""

    def __init__(self, folder: Path, *, in_store: bool) -> None:
        self.orders, self.lines = str(folder / "orders"), str(folder / "lines")
        self.options = {"manifest_store": f"sqlite://{folder}/m.db"} if in_store else {}

    def sinks(self, atomic: bool, **options: Any) -> LanceSinks:
        return lance_sinks(
            {
                "orders": (
                    header,
                    lance_sink(
                        self.orders, "upsert", on="id", storage_options=self.options, **options
                    ),
                ),
                "lines": (lines, lance_sink(self.lines, storage_options=self.options, **options)),
            },
            atomic=atomic,
        )

    def ids_in_both(self) -> tuple[list[int], list[int]]:
        opened = [
            lance_stream.open_dataset(uri, storage_options=self.options)
            for uri in (self.orders, self.lines)
        ]
        assert [value.verify() for value in opened] == [[], []]
        return self.ids(*opened)

    def ids(self, *opened: lance_stream.Dataset) -> tuple[list[int], list[int]]:
        ids, of_lines = opened[0].to_table()["id"], opened[1].to_table()["order_id"]
        return sorted(ids.to_pylist()), sorted(of_lines.to_pylist())

    def versions(self) -> list[int]:
        return [
            lance_stream.open_dataset(uri, storage_options=self.options).version
            for uri in (self.orders, self.lines)
        ]


@pytest.mark.floors
@pytest.mark.parametrize("atomic", [False, True], ids=["in order", "atomic"])
def test_each_table_has_each_batch_once(file_stream: Any, tmp_path: Path, atomic: bool) -> None:
    """A replay of a batch must be skipped in every table, both in order and in one transaction."""
    tables = Tables(tmp_path, in_store=atomic)
    sinks = tables.sinks(atomic)
    for value in (orders(1, 2), orders(3), orders(2, 4, customer="bob")):
        file_stream.add(value)
    file_stream.run(sinks)
    expected = [1, 2, 3, 4], [1, 1, 2, 2, 2, 2, 3, 3, 4, 4]
    assert tables.ids_in_both() == expected
    assert tables.versions() == [3, 3]
    commits = sinks.last_commits
    assert [commits[name].version for name in ("orders", "lines")] == [3, 3]  # type: ignore[union-attr]  # both are there
    assert sinks["orders"].last_commit.rows_updated == 1  # type: ignore[union-attr]  # it is there
    assert list(sinks) == ["orders", "lines"]
    assert len(sinks) == 2

    file_stream.forget_newest_commit()
    file_stream.run(sinks)
    assert [last_commit.skipped for last_commit in sinks.last_commits.values()] == [True, True]  # type: ignore[union-attr]  # both are there
    assert tables.ids_in_both() == expected
    if atomic:
        options = tables.options
        both = lance_stream.open_together([tables.orders, tables.lines], options)
        assert tables.ids(*both) == expected


@pytest.mark.parametrize("on_cluster", [False, True], ids=["one machine", "cluster"])
def test_a_batch_is_computed_once(
    spark: Any,
    file_stream: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    on_cluster: bool,
) -> None:
    """Several sinks read the same batch, and computing it for each would multiply the cost and
    could give them different rows.
    """
    monkeypatch.setattr(several, "is_cluster", lambda _spark: on_cluster)
    computed = spark.sparkContext.accumulator(0)

    def count(batches: Any) -> Any:
        for batch in batches:
            computed.add(batch.num_rows)
            yield batch

    def counting(sinks: LanceSinks) -> Callable[[Any, int], None]:
        return lambda df, batch_id: sinks(df.mapInArrow(count, df.schema), batch_id)

    num_persisted = spark.sparkContext._jsc.getPersistentRDDs().size()
    file_stream.add(orders(*range(50)))
    file_stream.run(counting(Tables(tmp_path, in_store=True).sinks(atomic=True)))
    assert computed.value == 50
    assert spark.sparkContext._jsc.getPersistentRDDs().size() == num_persisted


@pytest.mark.parametrize("atomic", [False, True], ids=["in order", "atomic"])
def test_a_failing_table_is_named(file_stream: Any, tmp_path: Path, atomic: bool) -> None:
    """In order, the tables before the failing one have the batch; with
    `atomic=True` none has it.
    """
    tables = Tables(tmp_path, in_store=True)
    bad = lance_sinks(
        {
            "orders": tables.sinks(False)["orders"],
            "lines": (
                lambda df: df.selectExpr("id AS order_id", "CAST(raise_error('no line') AS int)"),
                lance_sink(tables.lines, storage_options=tables.options),
            ),
        },
        atomic=atomic,
    )
    file_stream.add(orders(1))
    with pytest.raises(Exception, match=r"(?s)no line.*table 'lines'"):
        file_stream.run(bad)
    assert exists(tables.orders, tables.options) is not atomic
    files = [*Path(tables.orders).glob("data/*"), *Path(tables.orders).glob("_versions/*")]
    assert bool(files) is not atomic  # nothing is left behind
    file_stream.run(
        lance_sinks(
            {
                "orders": tables.sinks(False)["orders"],
                "lines": (lines, tables.sinks(False)["lines"]),
            },
            atomic=atomic,
        )
    )
    assert tables.ids_in_both() == ([1], [1, 1])
    assert tables.versions() == [1, 1]


def test_tables_without_rows_keep_their_version(file_stream: Any, tmp_path: Path) -> None:
    """A batch often has rows for some of the tables, and the others need no empty version."""
    tables = Tables(tmp_path, in_store=True)
    file_stream.add(orders(1))
    no_lines = pa.Table.from_pylist([{"id": 2, "customer": "c", "skus": []}], ORDERS)
    file_stream.add(no_lines)
    file_stream.run(tables.sinks(atomic=True))
    assert tables.ids_in_both() == ([1, 2], [1, 1])
    assert tables.versions() == [2, 1]


@pytest.mark.slow
def test_readers_see_whole_batches_only(file_stream: Any, tmp_path: Path) -> None:
    """`atomic=True` promises that readers who open the tables together never see one half of a
    batch.
    """
    tables = Tables(tmp_path, in_store=True)
    file_stream.add(orders(0))
    file_stream.run(tables.sinks(atomic=True))
    for number in range(1, 12):
        file_stream.add(orders(number))
    seen: list[tuple[list[int], list[int]]] = []
    ended = threading.Event()

    def read() -> None:
        while not ended.is_set():
            opened = lance_stream.open_together([tables.orders, tables.lines], tables.options)
            seen.append(tables.ids(*opened))

    reading = threading.Thread(target=read)
    reading.start()
    try:
        file_stream.run(tables.sinks(atomic=True))
    finally:
        ended.set()
        reading.join()
    assert len({len(ids) for ids, _ in seen}) > 2
    assert [pair for pair in seen if [i for i in pair[0] for _ in range(2)] != pair[1]] == []


def test_added_columns_commit_before_atomic_rows(
    file_stream: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch that widens a table adds the column in a commit of its own, and its rows together
    with the other tables.
    """
    from lance_stream.spark.sink import modes

    monkeypatch.setattr(modes, "MAX_ROWS_ON_DRIVER", 5)
    tables = Tables(tmp_path, in_store=True)
    file_stream.add(orders(*range(10)))
    file_stream.run(tables.sinks(atomic=True))
    sinks = lance_sinks(
        {
            "orders": (
                lambda df: df.selectExpr("id", "customer", "size(skus) AS num_lines"),
                lance_sink(
                    tables.orders,
                    "upsert",
                    on="id",
                    schema_evolution="add_columns",
                    storage_options=tables.options,
                ),
            ),
            "lines": tables.sinks(False)["lines"],
        },
        atomic=True,
    )
    sinks._targets["lines"] = sinks._targets["lines"]._replace(rows=lines)
    file_stream.add(orders(*range(5, 20)))
    file_stream.run(sinks)
    assert tables.ids_in_both()[0] == [*range(20)]
    ds = lance_stream.open_dataset(tables.orders, storage_options=tables.options)
    assert [version.operation for version in ds.versions()] == ["Create", "Merge", "Update"]


def test_every_table_quarantines_bad_rows(file_stream: Any, tmp_path: Path) -> None:
    """Every table has its own checks and quarantine, also if the good rows are committed in one
    transaction.
    """
    tables = Tables(tmp_path, in_store=True)
    sinks = lance_sinks(
        {
            "orders": (
                header,
                lance_sink(
                    tables.orders,
                    expect={"known": "customer <> 'nobody'"},
                    bad_rows="quarantine",
                    storage_options=tables.options,
                ),
            ),
            "lines": (lines, lance_sink(tables.lines, storage_options=tables.options)),
        },
        atomic=True,
    )
    file_stream.add(pa.concat_tables([orders(1), orders(2, customer="nobody")]))
    file_stream.run(sinks)
    assert tables.ids_in_both() == ([1], [1, 1, 2, 2])
    assert sinks["orders"].last_commit.rows_quarantined == {"known": 1}  # type: ignore[union-attr]  # it is there
    file_stream.forget_newest_commit()
    file_stream.run(sinks)
    assert tables.ids_in_both() == ([1], [1, 1, 2, 2])


@pytest.mark.floors
def test_tables_in_different_stores_are_refused(file_stream: Any, tmp_path: Path) -> None:
    """One transaction cannot span two stores, and a silent fallback would break the promise of
    `atomic=True`.
    """
    file_stream.add(orders(1))
    tables = Tables(tmp_path, in_store=False)
    with pytest.raises(Exception, match=r"'orders', .*its own directory.*manifest_store"):
        file_stream.run(tables.sinks(atomic=True))
    assert not Path(tables.orders).exists()
    other = {"manifest_store": f"sqlite://{tmp_path}/other.db"}
    two_stores = lance_sinks(
        {
            "orders": Tables(tmp_path, in_store=True).sinks(False)["orders"],
            "lines": lance_sink(tables.lines, storage_options=other),
        },
        atomic=True,
    )
    with pytest.raises(Exception, match=r"'orders' is in .*m\.db, and 'lines' in .*other\.db"):
        file_stream.run(two_stores)


def test_invalid_table_mappings_are_refused(tmp_path: Path) -> None:
    """Mistakes in the mapping of tables must fail when the sinks are built, not in the first
    batch.
    """
    sink = lance_sink(tmp_path / "t")
    for wrong in ({}, [sink], None):
        with pytest.raises(InvalidInputError, match="a mapping of names to sinks"):
            lance_sinks(wrong)  # type: ignore[arg-type]  # what is tested
    for wrong in (header, (sink, header), (header, sink, 3), str(tmp_path), 5):
        with pytest.raises(
            InvalidInputError, match=r"'a' must be a sink, lance_sink\(\.\.\.\), or a pair"
        ):
            lance_sinks({"a": wrong})  # type: ignore[dict-item]  # what is tested
    with pytest.raises(InvalidInputError, match="'a' and 'b' write the same table"):
        lance_sinks({"a": sink, "b": (header, lance_sink(f"file://{tmp_path}/x/../t/"))})
    with pytest.raises(InvalidInputError, match="atomic must be True or False, not 'no'"):
        lance_sinks({"a": sink}, atomic="no")  # type: ignore[arg-type]  # what is tested
    assert repr(lance_sinks({"a": sink}, atomic=True)) == (
        f"lance_sinks({{'a': lance_sink('{tmp_path}/t')}}, atomic=True)"
    )


def test_functions_must_return_a_dataframe(file_stream: Any, tmp_path: Path) -> None:
    """A function without a return statement or with pandas rows is a common mistake that Spark
    would report far from its cause.
    """
    file_stream.add(orders(1))
    for function, got in (
        (lambda _df: None, "None"),
        (lambda df: df.toPandas(), r"a pandas\.\S*DataFrame"),
        (lambda df: df.collect(), "a list"),
    ):
        sinks = lance_sinks({"a": (function, lance_sink(tmp_path / "t"))})
        message = (
            f"the function of 'a' must return the table's rows .*, a DataFrame of Spark, not {got}"
        )
        with pytest.raises(Exception, match=message):
            file_stream.run(sinks)
    sinks = lance_sinks({"a": (lambda _df: sys.exit(3), lance_sink(tmp_path / "t"))})
    with pytest.raises(
        Exception, match=r"the function of 'a' called sys.exit\(3\); raise an error"
    ):
        file_stream.run(sinks)
