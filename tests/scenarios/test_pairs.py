"""Every operation after every other, on tables with data: stories of one line for each pair.

    # What the story says.
    we plan delete 1

    append 20,21      yes       0,2..5,6..10,20,21
    upsert 1,30       retry     0,2..5,6..10,30

The first act is planned on a table; then another writer does the act of the line, and the first
one is committed. The line says what becomes of it, and which rows there are in the end: after
`retry` those after planning it again by the same verb, where there is one, and `gone` says that it
has lost its column by then. A row whose x is not
half its id has a quote behind its id. Columns and indices that came or went, and config, follow
the rows.

`by primary key` says that the id is the table's primary key, which pylance heeds, too.

Each pair is played twice, on a table whose rows have stable ids, and the ends have to agree in
rows, ids and stamps:

    pylance does theirs, we commit ours
    we commit theirs, pylance does its own kind of ours with a handle on the previous version

Where pylance decides otherwise, the line ends with `pylance:` and its word. After every pair both
readers see the same rows, both find the table sound, and a query by index finds what a scan finds.
"""

import itertools
import re
import time
from pathlib import Path
from typing import Any, NamedTuple

import lance
import pytest

import lance_stream
from lance_stream.commit import committer
from lance_stream.commit.committer import CommittedTransaction, commit
from lance_stream.commit.object_store_log import ObjectStoreLog
from lance_stream.errors import (
    IncompatibleConflictError,
    LanceStreamError,
    NotFoundError,
    RetryableConflictError,
)
from lance_stream.storage.locations import open_store
from lance_stream.table.apply import APPLY
from lance_stream.table.conflicts.rules import ConflictVerdict
from lance_stream.table.operations.columns import DataOverlay
from lance_stream.table.operations.operation import OPERATIONS, UnknownOperation
from lance_stream.table.operations.versions import Clone, UpdateMemWalState
from tests.commit.tables import make_environment, publish_foreign
from tests.scenarios.acts import ACTS, INDICES, PLANNED_ON, SCHEMA, Planned, Stage

STORIES = sorted((Path(__file__).parent / "pairs").glob("*.txt"))
STAMPS = ["_row_created_at_version", "_row_last_updated_at_version"]
QUERIES = {
    "id": "id >= 4 AND id < 31",
    "x": "x > 0.6 AND x < 90",
    "g": "g = 1",
    "h": "h = 1",
}


PYLANCE_BREAKS = {("index x again", "drop x")}
"""It leaves an index on a column that is gone, and can no longer read its own list of indices."""


REPLANNED_WITHOUT_ROW_IDS = {("upsert 1,30", "update 7")}
"""Pairs of which ours has to be planned again where no row ids tell moved rows from new ones."""


class Line(NamedTuple):
    theirs: str
    answer: str


class Story(NamedTuple):
    ours: str
    by_primary_key: bool
    lines: list[Line]


class End(NamedTuple):
    """How a pair ended: what became of our act, and what is in the table then."""

    verdict: str
    content: str
    rows: list[tuple[Any, ...]]


def read_story(text: str) -> Story:
    commands = [line for line in text.splitlines() if line and not line.startswith("#")]
    match = re.fullmatch(r"we plan (.*?)( by primary key)?", commands[0])
    assert match, commands[0]
    lines = [Line(*re.split(r" {2,}", line, maxsplit=1)) for line in commands[1:]]
    lines = [Line(line.theirs, line.answer.strip()) for line in lines]
    return Story(match[1], bool(match[2]), lines)


class Player:
    """Plays pairs on copies of one table."""

    def __init__(
        self, folder: Path, *, stable_row_ids: bool = True, primary_key: bool = False
    ) -> None:
        self.stage = Stage(folder, stable_row_ids=stable_row_ids, primary_key=primary_key)
        self.stable_row_ids = stable_row_ids
        self.indices = {f"{name}_idx" for name in INDICES if name != "id" or not primary_key}
        self.verdicts: list[ConflictVerdict] = []

    def check(self, ours: Any, theirs: Any, version: int) -> ConflictVerdict:
        self.verdicts.append(committer_check(ours, theirs, version))
        return self.verdicts[-1]

    def we_follow(self, ours: str, theirs: str) -> End:
        """Another writer does theirs, then we commit ours."""
        plan = self.stage.plan(ours)
        table = self.stage.copy(plan)
        act = ACTS[theirs]
        if act.by_pylance is not None:
            act.by_pylance(lance.dataset(str(table)))
        else:
            publish_foreign(log_of(table), act.operation, {"timestamp_nanos": time.time_ns()})
        verdict = self.commit(table, plan)
        verb = ACTS[ours].by_us
        if verdict == "retry" and verb is not None:
            try:
                verb(lance_stream.open_dataset(str(table)))
            except NotFoundError:
                verdict = "gone"
        assert lance_stream.open_dataset(str(table)).verify() == []
        lance.dataset(str(table)).validate()
        return self.end(table, verdict)

    def pylance_follows(self, ours: str, theirs: str) -> End | None:
        """We commit theirs, then pylance does ours with a handle on the previous version."""
        verb = ACTS[ours].by_pylance
        unknown = ACTS[theirs].kind is UnknownOperation
        if verb is None or unknown or (ours, theirs) in PYLANCE_BREAKS:
            return None
        plan = self.stage.plan(theirs)
        table = self.stage.copy(plan)
        stale = lance.dataset(str(table))
        if self.commit(table, plan) != "yes":
            return None
        try:
            verb(stale)
        except OSError as error:
            word = "no" if "incompatible" in str(error).lower() else "retry"
            return End(word, "", [])
        return self.end(table, "yes")

    def play(self, ours: str, theirs: str) -> str:
        """Play a pair both ways; return what the story says of it."""
        end = self.we_follow(ours, theirs)
        other = self.pylance_follows(ours, theirs)
        word = "yes" if end.verdict == "rebase" else end.verdict
        if other is None or other.verdict == word:
            if other is not None and word == "yes":
                assert other.rows == end.rows
                assert other.content == end.content
            return f"{end.verdict:<9} {end.content}"
        return f"{end.verdict:<9} {end.content}    pylance: {other.verdict}"

    def commit(self, table: Path, plan: Planned) -> str:
        self.verdicts = []
        try:
            result = commit(log_of(table), plan.transaction, environment=make_environment())
        except RetryableConflictError:
            return "retry"
        except IncompatibleConflictError:
            return "no"
        except LanceStreamError as error:
            return type(error).__name__
        assert isinstance(result, CommittedTransaction), result
        return "rebase" if ConflictVerdict.REBASE in self.verdicts else "yes"

    def end(self, table: Path, verdict: str) -> End:
        ds = lance_stream.open_dataset(str(table))
        theirs = lance.dataset(str(table))
        system = [*STAMPS] if self.stable_row_ids else []
        expected = theirs.to_table(columns=[*theirs.schema.names, "_rowid", *system])
        actual = ds.to_table(with_row_id=True, with_row_versions=self.stable_row_ids)
        assert actual.select(expected.column_names).to_pylist() == expected.to_pylist()
        check_queries(theirs)
        records = sorted(expected.to_pylist(), key=lambda row: (row["id"], row["_rowid"]))
        row_ids = {row["_rowid"] for row in records}
        assert len(row_ids) == len(records)
        aged_rows = [tuple(aged(name, value) for name, value in row.items()) for row in records]
        return End(verdict, tell(ds, theirs, records, self.indices), aged_rows)


committer_check = committer.check


def aged(name: str, value: Any) -> Any:
    """A version made by one of the two acts is new, whatever its number."""
    return "new" if name in STAMPS and value > PLANNED_ON else value


def log_of(table: Path) -> ObjectStoreLog:
    return ObjectStoreLog(open_store(str(table)))


def check_queries(ds: Any) -> None:
    """Every index finds what a scan finds."""
    for column in ds.schema.names:
        if column not in QUERIES:
            continue
        matches = [
            ds.scanner(filter=QUERIES[column], columns=["id"], use_scalar_index=by_index)
            for by_index in (True, False)
        ]
        by_index, by_scan = (sorted(value.to_table()["id"].to_pylist()) for value in matches)
        assert by_index == by_scan, QUERIES[column]


def tell(ds: Any, theirs: Any, rows: list[dict[str, Any]], normal: set[str]) -> str:
    keys = [
        (row["id"], "" if row.get("x", row["id"] / 2) == row["id"] / 2 else "'") for row in rows
    ]
    parts = [spans(keys) or "none"]
    columns = ds.schema.names
    parts += [f"+{name}" for name in columns if name not in SCHEMA.names]
    parts += [f"-{name}" for name in SCHEMA.names if name not in columns]
    indices = {describe_index.name for describe_index in theirs.describe_indices()}
    parts += [f"+{name}" for name in sorted(indices - normal)]
    parts += [f"-{name}" for name in sorted(normal - indices)]
    parts += [f"{key}={value}" for key, value in sorted(ds.config.items())]
    return " ".join(parts)


def spans(keys: list[tuple[int, str]]) -> str:
    """Write ids as runs start..stop, half open; those with a quote one by one."""
    parts: list[str] = []
    run: list[int] = []
    for key, quote in [*keys, (-1, "")]:
        if run and (quote or key != run[-1] + 1):
            parts.append(str(run[0]) if len(run) == 1 else f"{run[0]}..{run[-1] + 1}")
            run = []
        if quote:
            parts.append(f"{key}{quote}")
        else:
            run.append(key)
    return ",".join(parts)


@pytest.fixture(scope="module")
def player(tmp_path_factory: pytest.TempPathFactory) -> Player:
    return Player(tmp_path_factory.mktemp("pairs"))


@pytest.fixture(scope="module")
def key_player(tmp_path_factory: pytest.TempPathFactory) -> Player:
    return Player(tmp_path_factory.mktemp("key-pairs"), primary_key=True)


@pytest.fixture(scope="module")
def address_player(tmp_path_factory: pytest.TempPathFactory) -> Player:
    return Player(tmp_path_factory.mktemp("address-pairs"), stable_row_ids=False)


STORY_OF = {path.stem: read_story(path.read_text()) for path in STORIES}
OF_THE_SINK = ("append", "delete", "overwrite", "upsert", "upsert_by_primary_key", "compact")


def pairs(*names: str) -> list[Any]:
    """Every line of some stories; those of rarer operations count as slow."""
    return [
        pytest.param(
            STORY_OF[name],
            line,
            id=f"{name}-{line.theirs}",
            marks=() if name in OF_THE_SINK else pytest.mark.slow,
        )
        for name in names
        for line in STORY_OF[name].lines
    ]


@pytest.mark.some_cases(one_in=3)
@pytest.mark.oracle
@pytest.mark.parametrize(("story", "line"), pairs(*STORY_OF))
def test_pairs_end_as_the_story_says(
    story: Story, line: Line, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stories document which operations exclude each other, for us and for pylance, so they
    have to be true.
    """
    player = request.getfixturevalue("key_player" if story.by_primary_key else "player")
    monkeypatch.setattr(committer, "check", player.check)
    assert player.play(story.ours, line.theirs) == line.answer


@pytest.mark.some_cases(one_in=3)
@pytest.mark.oracle
@pytest.mark.slow
@pytest.mark.parametrize(("story", "line"), pairs("append", "delete", "upsert", "compact"))
def test_pairs_without_stable_row_ids_agree(
    story: Story, line: Line, address_player: Player, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without stable row ids moved rows cannot be followed, so some pairs need a retry."""
    monkeypatch.setattr(committer, "check", address_player.check)
    end = address_player.we_follow(story.ours, line.theirs)
    answer = line.answer.split("    pylance:")[0]
    if (story.ours, line.theirs) in REPLANNED_WITHOUT_ROW_IDS:
        answer = answer.replace("yes  ", "retry")
    assert f"{end.verdict:<9} {end.content}" == answer


def test_every_pair_of_operations_is_covered() -> None:
    """Each operation of the format follows each; ours are all that we can commit."""
    covered = {
        (ACTS[story.ours].kind, ACTS[line.theirs].kind)
        for story in STORY_OF.values()
        for line in story.lines
    }
    theirs = {*OPERATIONS.values(), UnknownOperation} - {DataOverlay}
    ours = {*APPLY, Clone, UpdateMemWalState}
    assert covered == set(itertools.product(ours, theirs))
