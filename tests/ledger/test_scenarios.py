"""Scenarios of streams that repeat batches, as text: commands, and under ---- the verdicts.

    app brings batch 3 rows=1,2    the sink of a stream writes a batch; rows may be empty
        ... of query q             the streaming query's id; "q" if omitted
        ... by rules               a fingerprint of the sink's rules; "r" if omitted
        ... recomputed             its plan may give other rows each time
        ... after app, app         sinks of the same run that have committed the batch before
        ... undigested             as releases without digests wrote it
    cleanup                        all versions but the newest are deleted
    another program restores 2     as a program does that does not know the ledger
    rows                           the table's rows

An answer is the verdict, and the version that has the batch. `#` begins a comment.
"""

import re
import uuid
from pathlib import Path

import pyarrow as pa
import pytest

import lance_stream
from lance_stream.errors import LanceStreamError
from lance_stream.ledger.replay_check import PendingBatch
from lance_stream.ledger.row_digests import digest_of
from lance_stream.ledger.verdicts import Verdict
from lance_stream.table.operations.versions import Restore
from lance_stream.verbs.append import append
from lance_stream.write.planning import commit_operation

SCENARIOS = sorted((Path(__file__).parent / "scenarios").glob("*.txt"))
SCHEMA = pa.schema([("id", pa.int64())])
COMMAND = re.compile(
    r"(?P<app>\w+) brings batch (?P<batch>\d+) rows=(?P<rows>[\d,]*)(?: of query (?P<query>\w+))?"
    r"(?: by (?P<rules>\w+))?(?P<recomputed> recomputed)?(?: after (?P<after>[\w, ]+?))?"
    r"(?P<undigested> undigested)?"
)


class Scenario:
    """A table, and which sinks have committed which batch in which version."""

    def __init__(self) -> None:
        uri = f"memory://{uuid.uuid4()}/table"
        self.ds = lance_stream.create_dataset(uri, SCHEMA)
        self.versions: dict[tuple[str, int], int] = {}

    def run(self, command: str) -> str:
        self.ds = self.ds.checkout(None)
        if command == "rows":
            return ",".join(map(str, sorted(self.ds.to_table()["id"].to_pylist()))) or "none"
        if command == "cleanup":
            self.ds.cleanup(retain_versions=1, older_than="0 seconds")
            return ""
        restored = re.fullmatch(r"another program restores (\d+)", command)
        if restored:
            table = self.ds.table
            commit_operation(table.log, table.manifest, Restore(int(restored[1])))
            return ""
        parsed = COMMAND.fullmatch(command)
        assert parsed, f"no such command: {command!r}"
        return self.bring(parsed)

    def bring(self, parsed: re.Match[str]) -> str:
        table, batch_id = self.ds.table, int(parsed["batch"])
        rows = pa.table({"id": [int(text) for text in parsed["rows"].split(",") if text]}, SCHEMA)
        earlier = [name.strip() for name in (parsed["after"] or "").split(",") if name]
        pending = PendingBatch.of(
            parsed["app"],
            batch_id,
            parsed["query"] or "q",
            "" if parsed["undigested"] else parsed["rules"] or "r",
            digest=None if parsed["undigested"] else digest_of(rows),
            may_differ=bool(parsed["recomputed"]),
            claimed=frozenset(self.versions[name, batch_id] for name in earlier),
        )
        answer = pending.check(table)
        try:
            outcome = append(table, rows, pending)
        except LanceStreamError:
            assert answer.verdict not in (Verdict.NEW, Verdict.REPLAY)
            return answer.verdict.value
        version = outcome.table.version if outcome.is_new else outcome.already_committed_in
        assert answer.verdict is (Verdict.NEW if outcome.is_new else Verdict.REPLAY)
        self.versions[parsed["app"], batch_id] = version or 0
        return f"{answer.verdict.value}: version {version}"


def blocks(text: str) -> list[tuple[list[str], list[str]]]:
    """Split a scenario into its commands and the answers it expects."""
    text = re.sub(r"^#.*\n", "", text, flags=re.MULTILINE)
    parts = [part.split("----\n") for part in re.split(r"\n{2,}", text.strip())]
    return [(commands.splitlines(), answers.splitlines()) for commands, answers in parts]


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_scenario_has_the_stated_verdicts(path: Path) -> None:
    """Each command has the verdict that the file states, and the commit agrees with it."""
    scenario = Scenario()
    for commands, expected in blocks(path.read_text()):
        answers = [answer for command in commands if (answer := scenario.run(command))]
        assert answers == expected, commands


def test_scenarios_show_every_verdict() -> None:
    """A verdict without a scenario would have no example."""
    answers = {
        answer.split(":")[0]
        for path in SCENARIOS
        for _, expected in blocks(path.read_text())
        for answer in expected
    }
    assert {verdict.value for verdict in Verdict} <= answers
