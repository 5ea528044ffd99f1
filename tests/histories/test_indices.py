"""Indices of each kind: what they answer is what the rows say."""

import pytest

from tests.histories.actions.indices import VECTOR_KINDS
from tests.histories.engine import replay, replay_whole
from tests.histories.steps import step

CREATE = step(
    "create",
    file_version="2.2",
    columns=[["a", "string"], ["b", "list"], ["c", "vector"]],
    rows={
        key: {"a": f"s{key % 4}", "b": [key % 3, None], "c": [float(key % 5), 1.0, 2.0, 3.0]}
        for key in range(16)
    },
    way="rows",
)
ROW = {20: {"a": "s1", "b": [7], "c": [3.0, 1.0, 4.0, 1.0]}}


@pytest.mark.oracle
@pytest.mark.parametrize("kind", sorted(VECTOR_KINDS))
def test_searches_find_rows_behind_the_index(kind: str) -> None:
    """Pylance scans what an index lacks, and our refresh brings the index up to date."""
    steps = [
        CREATE,
        step("create_vector_index", column="c", kind=kind),
        step("append", rows=ROW, by=["we"]),
        step("search", column="c"),
        step("optimize_indices", merged=1, one=None, by=["we"]),
        step("search", column="c"),
    ]
    outcome = replay(steps)
    assert outcome.error is None
    assert outcome.counts["search"] == 2


@pytest.mark.oracle
@pytest.mark.parametrize(
    ("column", "kind"), [("a", "INVERTED"), ("a", "NGRAM"), ("b", "LABEL_LIST")]
)
def test_refreshed_text_and_list_indices_answer(column: str, kind: str) -> None:
    """Each of these indices answers questions that no other index answers."""
    answers = step("indexed_answers", version=4, text="s1", items=[0, 7])
    steps = [
        CREATE,
        step("create_index", column=column, kind=kind),
        step("append", rows=ROW, by=["we"]),
        step("optimize_indices", merged=1, one=None, by=["we"]),
        answers,
    ]
    outcome = replay(steps)
    assert outcome.error is None
    assert outcome.counts["answers of indices"] == (4 if kind == "INVERTED" else 3)


@pytest.mark.oracle
@pytest.mark.parametrize("writer", ["we", "pylance"])
def test_deferred_compactions_keep_coverage(writer: str) -> None:
    """pylance replaces moved fragments in the coverage by its next commit, we let readers do so."""
    rows = {key: {"a": key} for key in range(4)}
    columns = [["a", "int64"]]
    counts = replay_whole(
        step("create", unstable=True, file_version="2.2", columns=columns, rows=rows, way="rows"),
        step("append", rows={5: {"a": 5}}, by=["we"]),
        step("create_index", column="a", kind="BTREE"),
        step("compact", size=30, defers=True, by=["pylance"]),
        step("append", rows={6: {"a": 6}}, by=[writer]),
        step("append", rows={7: {"a": 7}}, by=["pylance"]),
        step("rewrite_column", column="a", fragment_of=0, rows={0: {"a": 20}}, by=["pylance"]),
        step("applied_transactions"),
        step("valid"),
    )
    assert counts["transactions applied"] == 7


@pytest.mark.oracle
def test_deferred_remaps_stay_deferred() -> None:
    """pylance's BTREE loses rows that it moves again without deferring, and merges then insert."""
    rows = {1: {"a": 1}, 5: {"a": 2}, 10: {"a": 3}}
    columns = [["a", "int64"]]
    replay_whole(
        step("create", unstable=True, file_version="2.2", columns=columns, rows=rows, way="rows"),
        step("append", rows={11: {"a": 4}}, by=["we"]),
        step("create_index", column="id", kind="BTREE"),
        step("compact", size=1000, defers=True, by=["pylance"]),
        step("upsert", names=["a"], rows={10: {"a": 5}}, by=["we"]),
        step("compact", size=1000, by=["pylance"]),
        step("upsert", names=["a"], rows={5: {"a": 6}}, by=["pylance"]),
    )


@pytest.mark.oracle
def test_searches_avoid_graphs_deferring_remaps() -> None:
    """pylance's HNSW graphs keep the nodes of rows whose vectors a compaction has removed."""
    rows = {key: {"a": [float(key), 0.0, 1.0, 2.0]} for key in range(4)}
    columns = [["a", "vector"]]
    steps = [
        step("create", unstable=True, file_version="2.0", columns=columns, rows=rows, way="rows"),
        step("create_vector_index", column="a", kind="IVF_HNSW_SQ"),
        step("search", column="a"),
        step("merge", form="update only", rows={0: {"a": [7.0] * 4}}, by=["pylance"]),
        step("compact", size=3, defers=True, by=["pylance"]),
        step("search", column="a"),
    ]
    outcome = replay(steps)
    assert outcome.error is None
    assert (outcome.counts["search"], outcome.counts["unfit search"]) == (1, 1)


@pytest.mark.oracle
def test_filters_avoid_segments_of_zone_maps() -> None:
    """For `IS NULL`, pylance also selects values that have replaced nulls of an older segment."""
    rows = {0: {"e": 8.0}}
    columns = [["e", "float64"]]
    replay_whole(
        step("create", file_version="2.2", columns=columns, rows=rows, way="rows"),
        step("append", rows={27: {"e": None}}, by=["we"]),
        step("create_index", column="e", kind="ZONEMAP"),
        step("rewrite_column", column="e", fragment_of=27, rows={27: {"e": 91.0}}, by=["pylance"]),
        step("optimize_indices", merged=0, one=None, by=["pylance"]),
        *(step("filters", range=[10, 29], place=number) for number in range(8)),
    )


@pytest.mark.oracle
@pytest.mark.parametrize("defers", [False, True])
def test_pylance_misplaces_no_inherited_indices(defers: bool) -> None:
    """Its filters would fail after it has compacted a clone, unless it defers remaps."""
    rows = {key: {"a": key} for key in range(4)}
    columns = [["a", "int64"]]
    outcome = replay(
        [
            step(
                "create", unstable=True, file_version="2.2", columns=columns, rows=rows, way="rows"
            ),
            step("append", rows={5: {"a": 5}}, by=["we"]),
            step("create_index", column="a", kind="BTREE"),
            step("clone", version=3),
            step("compact", size=30, defers=defers, by=["pylance"], line=1),
            step("append", rows={6: {"a": 6}}, by=["we"], line=1),
            step("optimize_indices", merged=1, one=None, by=["we"], line=1),
            *(step("filters", range=[1, 5], place=number, line=1) for number in range(7)),
            step("valid", line=1),
        ]
    )
    if outcome.error is not None:
        raise outcome.error
    assert outcome.counts["unfit compact"] == (not defers)
    assert outcome.counts["filters"] == 7
