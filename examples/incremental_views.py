"""Keep a join of two tables, and an aggregate of it, up to date with their changes, without Spark.

    python examples/incremental_views.py [FOLDER]

    FOLDER/orders.lance        id, customer, cents        written by others
    FOLDER/customers.lance     id, region                 likewise
    FOLDER/sales.lance         each order with the region of its customer
    FOLDER/regions.lance       by region: orders, cents, and their mean

A refresh reads the net changes of both tables since the last one. The join's rows of these orders,
and of the orders of these customers, are made again; others are not read. The aggregate adds what
the join's changes bring and subtracts what they take away.

Each view has its progress in a row of its own, which is written by the same commit: a refresh that
is killed is either done or not, and the next one goes on from there.
"""

import sys
import tempfile
from collections.abc import Iterable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

import lance_stream
from lance_stream import Dataset

ORDERS = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("customer", pa.int64()),
        pa.field("cents", pa.int64()),
    ]
)
CUSTOMERS = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("region", pa.string())])
SALES = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("customer", pa.int64()),
        pa.field("region", pa.string()),
        pa.field("cents", pa.int64()),
    ]
)
REGIONS = pa.schema(
    [
        pa.field("region", pa.string(), nullable=False),
        pa.field("orders", pa.int64()),
        pa.field("cents", pa.int64()),
        pa.field("mean_cents", pa.float64()),
    ]
)
PROGRESS = -1
"""The id of the row of `sales` with its progress: versions of orders and customers, as `customer`
and `cents`. Ids of orders are not negative."""
PROGRESS_REGION = ""
"""The region of the row of `regions` with its progress: the version of `sales`, as `orders`."""
DELETED = "deleted"


def create(folder: str) -> None:
    """Create the four tables."""
    for name, schema, key in [
        ("orders", ORDERS, "id"),
        ("customers", CUSTOMERS, "id"),
        ("sales", SALES, "id"),
        ("regions", REGIONS, "region"),
    ]:
        lance_stream.create_dataset(f"{folder}/{name}.lance", schema, primary_key=key)


def opened(folder: str, name: str) -> Dataset:
    return lance_stream.open_dataset(f"{folder}/{name}.lance")


def refresh(folder: str) -> None:
    """Bring both views up to date."""
    refresh_sales(folder)
    refresh_regions(folder)


def refresh_sales(folder: str) -> None:
    """Make the join's rows again whose orders or customers changed."""
    orders, customers, sales = (opened(folder, name) for name in ("orders", "customers", "sales"))
    progress = sales.to_table(filter=f"id = {PROGRESS}").to_pylist()
    after = (progress[0]["customer"], progress[0]["cents"]) if progress else (0, 0)
    through = orders.version, customers.version
    if after == through:
        return
    ids = changed(orders, after[0], "id")
    people = changed(customers, after[1], "id")
    changed_orders = orders.to_table(filter=f"{one_of('id', ids)} OR {one_of('customer', people)}")
    # An order whose customer is gone, or that left a changed customer, is among the join's rows.
    before = sales.to_table(filter=f"{one_of('customer', people)} AND id <> {PROGRESS}")
    customer_ids = pc.unique(pc.drop_null(changed_orders["customer"])).to_pylist()
    regions = customers.to_table(filter=one_of("id", customer_ids)).rename_columns(
        ["customer", "region"]
    )
    joined = changed_orders.join(regions, "customer", join_type="inner").select(SALES.names)
    removed = {*ids, *before["id"].to_pylist()} - set(joined["id"].to_pylist())
    rows = [
        joined.append_column(DELETED, pa.array([False] * joined.num_rows)),
        table_of(SALES, [{"id": value, DELETED: True} for value in removed]),
        table_of(
            SALES,
            [{"id": PROGRESS, "customer": through[0], "cents": through[1], DELETED: False}],
        ),
    ]
    schema = SALES.append(pa.field(DELETED, pa.bool_()))
    sales.upsert(
        pa.concat_tables([row.cast(schema) for row in rows]),
        on="id",
        delete_when=DELETED,
        except_columns=[DELETED],
        skip_unchanged=True,
    )


def refresh_regions(folder: str) -> None:
    """Add to the aggregate what the join's changes bring, and subtract what they take away."""
    sales, regions = opened(folder, "sales"), opened(folder, "regions")
    now = {row["region"]: row for row in regions.to_table().to_pylist()}
    after = now[PROGRESS_REGION]["orders"] if PROGRESS_REGION in now else 0
    if after == sales.version:
        return
    sums: dict[str, list[int]] = {}
    for change in net_changes(sales, after):
        if change["id"] == PROGRESS or change["region"] is None:
            continue
        brings = change["_change_type"] in ("insert", "update_postimage")
        totals = sums.setdefault(change["region"], [0, 0])
        totals[0] += 1 if brings else -1
        totals[1] += change["cents"] if brings else -change["cents"]
    rows = []
    for region, (count, cents) in sums.items():
        old = now.get(region, {"orders": 0, "cents": 0})
        count, cents = old["orders"] + count, old["cents"] + cents
        mean = cents / count if count else None
        rows.append({"region": region, "orders": count, "cents": cents, "mean_cents": mean})
    rows.append({"region": PROGRESS_REGION, "orders": sales.version})
    regions.upsert(
        pa.Table.from_pylist(rows, REGIONS),
        on="region",
        delete_when=f"orders = 0 AND region <> '{PROGRESS_REGION}'",
    )


def changed(ds: Dataset, after: int, column: str) -> list[Any]:
    """Return the values of a column in all rows that changed, before and after."""
    return list({change[column] for change in net_changes(ds, after, [column])})


def net_changes(ds: Dataset, after: int, columns: list[str] | None = None) -> list[dict[str, Any]]:
    if ds.version == after:
        return []
    feed = ds.changes(after, columns=columns, deduplication_mode="netChanges")
    rows: list[dict[str, Any]] = feed.read_all().to_pylist()
    return rows


def one_of(column: str, values: Iterable[Any]) -> str:
    listed = ", ".join(map(str, values))
    return f"{column} IN ({listed})" if listed else "false"


def table_of(schema: pa.Schema, rows: list[dict[str, Any]]) -> pa.Table:
    return pa.Table.from_pylist(rows, schema.append(pa.field(DELETED, pa.bool_())))


def views_in_batch(folder: str) -> tuple[dict[int, Any], dict[str, Any]]:
    """Return what both views should have, computed from all rows."""
    regions = {
        row["id"]: row["region"] for row in opened(folder, "customers").to_table().to_pylist()
    }
    sales = {
        row["id"]: (row["customer"], regions[row["customer"]], row["cents"])
        for row in opened(folder, "orders").to_table().to_pylist()
        if row["customer"] in regions
    }
    totals: dict[str, list[int]] = {}
    for _, region, cents in sales.values():
        totals.setdefault(region, []).append(cents)
    return sales, {
        region: (len(cents), sum(cents), sum(cents) / len(cents))
        for region, cents in totals.items()
    }


def views(folder: str) -> tuple[dict[int, Any], dict[str, Any]]:
    """Return what both views have."""
    sales = opened(folder, "sales").to_table(filter=f"id <> {PROGRESS}").to_pylist()
    regions = (
        opened(folder, "regions").to_table(filter=f"region <> '{PROGRESS_REGION}'").to_pylist()
    )
    return {sale["id"]: (sale["customer"], sale["region"], sale["cents"]) for sale in sales}, {
        region["region"]: (region["orders"], region["cents"], region["mean_cents"])
        for region in regions
    }


def main(folder: str) -> None:
    create(folder)
    people = [{"id": n, "region": ["north", "south", "west"][n % 3]} for n in range(100)]
    opened(folder, "customers").append(pa.Table.from_pylist(people, CUSTOMERS))
    orders = [{"id": n, "customer": n % 120, "cents": 1000 + n % 977} for n in range(5000)]
    opened(folder, "orders").append(pa.Table.from_pylist(orders, ORDERS))
    refresh(folder)
    opened(folder, "customers").update({"region": "'east'"}, where="id % 10 = 0")  # they move
    opened(folder, "customers").delete("id = 7")
    opened(folder, "orders").update({"cents": "cents - 500"}, where="id % 9 = 0")  # corrected
    opened(folder, "orders").delete("id % 20 = 0")  # cancelled
    refresh(folder)
    for region, (count, cents, mean) in sorted(views(folder)[1].items()):
        print(f"  {region:6} {count:5,} orders {cents / 100:12,.2f}, {mean / 100:6.2f} each")
    if views(folder) != views_in_batch(folder):
        sys.exit("The views do not match their tables.")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp())
