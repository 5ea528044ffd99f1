"""Indices, which pylance makes and both keep up to date; and searches in them."""

from typing import Any

import numpy as np
from lance.indices import IndexConfig

from tests.histories.life import Life, unchanged
from tests.histories.model import ALL_KINDS, KEY
from tests.histories.steps import Choices, DoesNotFit, action, check

SCALAR = ALL_KINDS.keys() - {"list", "pair", "vector", "uuid"}


@action(weight=0.8)
def create_index(life: Life, choose: Choices) -> None:
    line = life.line(choose)
    if line.branch is not None or line.memory.get("parent"):
        raise DoesNotFit("indices of the table itself only")
    names = [KEY, *(c.name for c in line.now.columns if c.kind in SCALAR)]
    names += [f"{c.name}.{part}" for c in line.now.columns if c.kind == "pair" for part in "xy"]
    name = choose.one_of("column", names)
    kind = choose("kind", lambda dice: dice.choice(["BTREE", "BITMAP", 3, 8, "ZONEMAP"]))
    kind_of_index = IndexConfig("btree", {"zone_size": kind}) if isinstance(kind, int) else kind
    line.pylance().create_scalar_index(name, kind_of_index, replace=True)
    line.memory["indices"] = True
    line.advance(unchanged)


@action(weight=0.4)
def create_vector_index(life: Life, choose: Choices) -> None:
    line = life.line(choose)
    if line.branch is not None or line.memory.get("parent"):
        raise DoesNotFit("indices of the table itself only")
    name = choose.one_of("column", [c.name for c in line.now.columns if c.kind == "vector"])
    column = line.now.column(name)
    assert column is not None
    if sum(row.values.get(column.ident) is not None for row in line.now.rows.values()) < 4:
        raise DoesNotFit("vectors")
    line.pylance().create_index(name, "IVF_FLAT", metric="l2", num_partitions=1, replace=True)
    line.memory["indices"] = True
    line.advance(unchanged)


@action(weight=0.8)
def optimize_indices(life: Life, choose: Choices) -> None:
    line = life.line(choose)
    if "indices" not in line.memory or line.branch is not None:
        raise DoesNotFit("no index")
    merged = choose("merged", lambda dice: dice.choice([0, 1, 5]))
    line.write(
        choose,
        lambda ds: ds.optimize_indices(),
        unchanged,
        pylance=lambda ds: ds.optimize.optimize_indices(num_indices_to_merge=merged),
        rivals=("append", "delete", "configure", "compact"),
    )


@check(weight=1)
def search(life: Life, choose: Choices) -> None:
    """A search finds the nearest vectors, whatever the index covers."""
    line = life.line(choose)
    name = choose.one_of("column", [c.name for c in line.now.columns if c.kind == "vector"])
    column = line.now.column(name)
    assert column is not None
    vectors = {k: row.values.get(column.ident) for k, row in line.now.rows.items()}
    vectors = {key: vector for key, vector in vectors.items() if vector is not None}
    if not vectors:
        raise DoesNotFit("no vectors")
    query = np.array([3.0, 1.0, 4.0, 1.0], np.float32)
    distances: dict[int, float] = {
        key: float(((np.array(v, np.float32) - query) ** 2).sum()) for key, v in vectors.items()
    }
    nearest: Any = {"column": name, "q": query, "k": 3, "nprobes": 10}
    found = line.pylance().to_table(columns=[KEY, "_distance"], nearest=nearest).to_pylist()
    best = sorted(distances.values())[:3]
    assert [row["_distance"] for row in found] == best, (found, best)
    for row in found:
        assert distances[row[KEY]] == row["_distance"], row
