"""Indices, which pylance makes and both keep up to date; and searches in them."""

from collections.abc import Mapping
from contextlib import nullcontext, suppress
from typing import Any

import numpy as np
from lance.indices import IndexConfig

from lance_stream.dataset import Dataset
from lance_stream.errors import IndexBuildError
from tests.histories.life import Life, unchanged
from tests.histories.model import ALL_KINDS, KEY, State
from tests.histories.steps import Choices, DoesNotFit, action, check

SCALAR = ALL_KINDS.keys() - {"list", "pair", "vector", "uuid"}


VECTOR_KINDS: Mapping[str, dict[str, int]] = {
    "IVF_FLAT": {},
    "IVF_SQ": {},
    "IVF_PQ": {"num_sub_vectors": 4, "num_bits": 4},
    "IVF_HNSW_FLAT": {},
    "IVF_HNSW_SQ": {},
}


BY_LANCEDB = ("BTREE", "BITMAP", "LABEL_LIST")
"""The kinds of index on scalars that LanceDB creates, too."""


def kinds_for(state: State, name: str) -> list[Any]:
    """Return the kinds of index that a column may have; a number is that of a BTREE's zone."""
    column = state.column(name)
    if column is not None and column.kind == "list":
        return ["LABEL_LIST"]
    texts = ["NGRAM", "INVERTED"] if column is not None and column.kind == "string" else []
    blooms = [] if column is not None and column.kind in ("bool", "decimal") else ["BLOOMFILTER"]
    return ["BTREE", "BITMAP", 3, 8, "ZONEMAP", *blooms, *texts]


@action(weight=1.5)
def create_index(life: Life, choose: Choices) -> None:
    line = life.line(choose)
    if line.branch is not None or line.memory.get("parent"):
        raise DoesNotFit("indices of the table itself only")
    names = [KEY, *(c.name for c in line.now.columns if c.kind in SCALAR or c.kind == "list")]
    names += [f"{c.name}.{part}" for c in line.now.columns if c.kind == "pair" for part in "xy"]
    name = choose.one_of("column", names)
    kind = choose.one_of("kind", kinds_for(line.now, name))
    kind_of_index = IndexConfig("btree", {"zone_size": kind}) if isinstance(kind, int) else kind
    column = line.now.column(name.partition(".")[0])  # renamed columns keep their indices
    index_name = f"{name.replace('.', '_')}_{kind}_{0 if column is None else column.ident}"
    chance = 0.6 if line.is_for_lancedb else 0
    if kind in BY_LANCEDB and choose.happens("by_lancedb", chance):
        table = line.lancedb()
        try:
            table.create_scalar_index(name, index_type=kind, name=index_name, replace=True)
        except ValueError as error:  # it supports fewer types
            life.counts[f"lancedb fails: {kind} {str(error)[:60]}"] += 1
            raise DoesNotFit(str(error)) from None
    else:
        line.pylance().create_scalar_index(name, kind_of_index, name=index_name, replace=True)
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
    kind = choose.one_of("kind", [*VECTOR_KINDS])
    options = VECTOR_KINDS[kind]
    try:
        line.pylance().create_index(name, kind, num_partitions=1, replace=True, **options)
    except (OSError, ValueError) as error:  # of some kinds it needs more rows
        life.counts[f"pylance fails: {kind} {str(error)[:60]}"] += 1
        return line.advance(unchanged, may_stay=True)
    line.memory["indices"] = True
    life.counts[f"index {kind}"] += 1
    return line.advance(unchanged)


@action(weight=0.4)
def drop_index(life: Life, choose: Choices) -> None:
    """pylance drops an index: what it has served is scanned."""
    line = life.line(choose)
    if "indices" not in line.memory or line.branch is not None:
        raise DoesNotFit("no index")
    name = choose.one_of(
        "name", sorted({coverage.name for coverage in line.ours().index_coverage()})
    )
    line.pylance().drop_index(name)
    line.advance(unchanged)


@action(weight=0.8)
def optimize_indices(life: Life, choose: Choices) -> None:
    line = life.line(choose)
    if "indices" not in line.memory or line.branch is not None:
        raise DoesNotFit("no index")
    merged = choose("merged", lambda dice: dice.choice([0, 1, 5]))
    names = sorted({coverage.name for coverage in line.ours().index_coverage()})
    one = choose("one", lambda dice: dice.choice([None, None, *names]))
    if one is not None and one not in names:
        raise DoesNotFit("the index is gone")
    line.write(
        choose,
        lambda ds: brought_up_to_date(ds, one),
        unchanged,
        pylance=lambda ds: ds.optimize.optimize_indices(num_indices_to_merge=merged),
        lancedb=lambda table: table.optimize(),
        rivals=("append", "delete", "configure", "compact"),
    )
    if choose.recorded["by"][0] in ("we", "cold", "stale", "process"):
        vectors = {column.name for column in line.now.columns if column.kind == "vector"}
        for index in line.ours().index_coverage():
            is_of_a_part = "." in index.columns[0]
            if one in (None, index.name) and vectors.isdisjoint(index.columns) and not is_of_a_part:
                assert not index.rows_unindexed, index


def brought_up_to_date(ds: Dataset, name: str | None = None) -> Dataset:
    """Bring indices up to date; pylance may fail to do so for one on a part of a struct."""
    has_parts = any("." in index.columns[0] for index in ds.index_coverage())
    with suppress(IndexBuildError) if has_parts else nullcontext():
        return ds.optimize_indices(name)
    return ds


@check(weight=1)
def indexed_answers(life: Life, choose: Choices) -> None:
    """What only indices of texts and lists answer is answered as the rows say, in any version."""
    line = life.line(choose)
    version = choose.one_of("version", sorted(v for v in line.existing if v > line.start))
    state, theirs = line.states[version], line.pylance(version)
    text = choose("text", lambda dice: dice.choice(["s1", "s2", "zeb", "ab"]))
    items = choose("items", lambda dice: dice.sample([0, 1, 7, 9], 2))
    has_words = {i["fields"][0] for i in theirs.list_indices() if i["type"] == "Inverted"}
    for column in state.columns:
        values = {key: row.values.get(column.ident) for key, row in state.rows.items()}
        there = {key: value for key, value in values.items() if value is not None}
        questions: list[tuple[dict[str, Any], set[int]]] = []
        if column.kind == "string":
            condition = f"contains({column.name}, '{text}')"
            questions.append(({"filter": condition}, {k for k, v in there.items() if text in v}))
            if column.name in has_words:
                words = {"full_text_query": text}
                questions.append((words, {k for k, v in there.items() if text == v}))
        elif column.kind == "list":
            for function, holds in (("any", set(items).intersection), ("all", set(items).issubset)):
                condition = f"array_has_{function}({column.name}, {items})"
                questions.append(({"filter": condition}, {k for k, v in there.items() if holds(v)}))
        for question, expected in questions:
            keys = theirs.to_table(columns=[KEY], **question)[KEY].to_pylist()
            assert sorted(keys) == sorted(expected), (question, sorted(keys), sorted(expected))
            life.counts["answers of indices"] += 1


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
    nearest |= {"refine_factor": 100, "ef": 300}
    theirs = line.pylance()
    kinds = {index["type"] for index in theirs.list_indices() if index["fields"] == [name]}
    if line.has_deferred_remaps and any("HNSW" in kind for kind in kinds):
        raise DoesNotFit("pylance's graphs keep vectors that a deferred remap has removed")
    neighbours = theirs.to_table(columns=[KEY, "_distance"], nearest=nearest).to_pylist()
    best = sorted(distances.values())[:3]
    assert [row["_distance"] for row in neighbours] == best, (neighbours, best)
    for row in neighbours:
        assert distances[row[KEY]] == row["_distance"], row
