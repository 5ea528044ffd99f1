"""Random lives of tables to which LanceDB writes, too."""

from collections import Counter
from typing import Any

import pytest

from tests.histories.engine import as_test, make_life, replay_whole, shrink
from tests.histories.steps import step
from tests.recipes import need

pytestmark = [pytest.mark.recipes, pytest.mark.filterwarnings("ignore")]


def test_lancedb_lives_agree_with_model() -> None:
    """LanceDB writes and reads tables beside all other features."""
    need("lancedb")
    counts: Counter[str] = Counter()
    for seed in range(2000, 2006):
        outcome = make_life(seed, 40)
        if outcome.error is not None:
            shrunk = shrink(outcome)
            assert shrunk.error is not None
            shrunk.error.add_note(f"seed {seed}:\n{as_test(shrunk)}")
            raise shrunk.error
        counts += outcome.counts
    assert counts["by lancedb"] > 0
    assert counts["reads by LanceDB"] > 0


def test_views_follow_every_writer() -> None:
    """Random lives rarely have views, so one life here certainly does."""
    need("lancedb")
    rows = {key: {"b": key} for key in range(4)}
    follow = {"view": 1, "limits": {"rows": 3}, "batches": 1}
    counts = replay_whole(
        step("create", file_version="2.1", columns=[["b", "int64"]], rows=rows, way="rows"),
        step("create_view", column="b", min_key=1, min_value=None),
        *(
            part
            for value, by in enumerate(("we", "pylance", "lancedb"), 10)
            for part in (
                step("upsert", names=["b"], rows={1: {"b": value}}, by=[by]),
                step("refresh_view", **follow),
            )
        ),
        step("rewrite_column", column="b", fragment_of=1, rows={1: {"b": 20}}, by=["pylance"]),
        step("refresh_view", compacts=True, size=30, **follow),
        step("upsert", names=["b"], rows={2: {"b": 21}}, by=["we"]),
        step("refresh_view", **follow),
        step("restore", version=1, by=["we"]),
        step("refresh_view", **follow),
    )
    assert counts["views: incremental"] == 4
    assert counts["views: rebuild"] == 2


NUMBERS = step(
    "create",
    file_version="2.1",
    columns=[["a", "int64"], ["b", "int64"]],
    rows={key: {"a": key, "b": key} for key in range(6)},
    way="rows",
)

RIVALS: dict[str, Any] = {
    "append": {20: {"a": 1, "b": 1}},
    "delete": [1, 3],
    "upsert": {2: {"a": 30, "b": 30}, 21: {"a": 31, "b": 31}},
    "update": [[1, 2], 40],
    "drop": 1,
    "restore": 0,
    "compact": 30,
}


@pytest.mark.parametrize("rival", RIVALS)
def test_lancedb_may_write_between_any_calls(rival: str) -> None:
    """Before our plan, between plan and commit, and after it: the table has both changes."""
    need("lancedb")
    rows = {1: {"a": 70, "b": 70}, 2: {"a": 71, "b": 71}, 9: {"a": 72, "b": 72}}
    num_rivals = 0
    for at in range(12):
        by = ["beaten", rival, RIVALS[rival], "lancedb", at]
        counts = replay_whole(
            NUMBERS, step("upsert", names=["a", "b"], rows=rows, by=by), step("valid")
        )
        num_rivals += counts["rivals: lancedb"]
    assert num_rivals > 5


def test_refreshes_cover_all_writers() -> None:
    """LanceDB finds rows to compute by the versions and fragments that a writer leaves."""
    need("lancedb")
    upserts = (
        step(
            "upsert",
            names=["a", "b"],
            rows={n: {"a": n, "b": 50}, 10 + n: {"a": n, "b": n}},
            by=[by],
        )
        for n, by in enumerate(("we", "pylance", "lancedb"))
    )
    verbs = ("append", "upsert", "overwrite", "update", "drop the input", "rename the input",
             "cast", "cast the input", "declare")  # fmt: skip
    refresh = step("refresh_computed_column")
    counts = replay_whole(
        NUMBERS,
        step("declare_computed_column", source="b"),
        refresh,
        *upserts,
        step("move_keys", limit=3, plus=1, by=["we"]),
        refresh,
        step("update", column="b", limit=2, by=["we"]),
        step("compact", size=7, by=["we"]),
        refresh,
        *(step("computed_columns_are_protected", verb=verb) for verb in verbs),
        step("restore", version=4, by=["we"]),
        refresh,
        step("drop_column", name="a", by=["we"]),
        step("applied_transactions"),
        step("drop_computed_column", by=["we"]),
        step("valid"),
    )
    assert counts["transactions applied"] > 10
    assert counts["refreshes of computed columns"] == 4
