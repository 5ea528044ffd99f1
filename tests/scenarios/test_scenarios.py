"""Stories of several writers, as text: commands, and under ---- what they answer.

    table rows=10,5            a table with two fragments
    a plans delete rows=1,2    by row id, on the newest version; also append rows=4,
                               overwrite rows=4, config k=v (k=- takes it away),
                               batch 3 of app rows=4 (an append that the ledger is asked about)
    a commits                  answers what a met, and the version it made or why it made none
    a commits up to publishing     stops at that call of the store; also: up to planning,
                               up to its transaction, past publishing
    a goes on                  from where it stopped
    a dies                     where it stopped
    a commits without an answer    the version lands, the store reports an error
    a commits into silence     as before, and nothing can be read afterwards
    another program compacts 0,1 | merges | restores 1 | does something unknown | says nothing
    rows                       the live row ids
    versions                   what is there

Only what changed is said of a version. A story is a file; `#` begins a comment.
"""

import re
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from lance_stream.commit import committer
from lance_stream.commit.committer import CommittedTransaction, commit
from lance_stream.commit.object_store_log import ObjectStoreLog
from lance_stream.errors import (
    CommitUncertainError,
    IncompatibleConflictError,
    RetryableConflictError,
)
from lance_stream.ledger.lookup import has_batch_id
from lance_stream.ledger.micro_batch import MicroBatch
from lance_stream.table.config import ledger_entries
from lance_stream.table.manifest import Manifest
from lance_stream.table.operations.columns import Merge
from lance_stream.table.operations.moved_rows import Rewrite, RewriteGroup
from lance_stream.table.operations.operation import Operation, UnknownOperation, operation_name
from lance_stream.table.operations.rows import Append
from lance_stream.table.operations.transaction import Transaction
from lance_stream.table.operations.versions import Restore
from tests.commit import tables
from tests.contracts.watched_stores import WatchedStore

STORIES = sorted(Path(__file__).parent.glob("*.txt"))
STEPS = {
    "up to planning": ("before", "list_files", "_versions"),
    "up to its transaction": ("before", "create_once", ".txn"),
    "up to publishing": ("before", "create_once", ".manifest"),
    "past publishing": ("after", "create_once", ".manifest"),
}
_current_writer = threading.local()


class DiedError(BaseException):
    """The writer was killed."""


@dataclass
class Writer:
    planned: Transaction | None = None
    options: dict[str, Any] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)
    thread: threading.Thread | None = None
    stopped: threading.Event = field(default_factory=threading.Event)
    go_on: threading.Event = field(default_factory=threading.Event)
    is_killed: bool = False


class Story:
    def __init__(self) -> None:
        self.log = ObjectStoreLog(tables.make_store())
        self.writers: dict[str, Writer] = {}

    def run(self, command: str) -> list[str]:
        for pattern, act in (
            (r"table rows=(\S*)", self.make_table),
            (r"(\w+) plans (\w+) ?(.*)", self.plan),
            (r"(\w+) commits ?(.*)", self.commit),
            (r"(\w+) goes on", self.go_on),
            (r"(\w+) dies", self.die),
            (r"another program (.*)", self.foreign),
            (r"rows", self.rows),
            (r"versions", self.versions),
        ):
            match = re.fullmatch(pattern, command)
            if match:
                return act(*match.groups())
        raise AssertionError(f"no such command: {command!r}")

    def make_table(self, rows: str) -> list[str]:
        tables.create(*numbers(rows), store=self.log.store)
        return [self.tell()]

    def plan(self, writer_name: str, what: str, rest: str) -> list[str]:
        version = self.log.latest()
        settings = dict(part.split("=") for part in rest.split() if "=" in part)
        options: dict[str, Any] = {}
        if what == "delete":
            planned = tables.delete(self.log, version, numbers(settings["rows"]))
        elif what == "config":
            planned = tables.configure(
                version, **{key: None if value == "-" else value for key, value in settings.items()}
            )
        elif what == "batch":
            planned, options = self.plan_batch(version, rest)
        else:
            make = {"append": tables.append, "overwrite": tables.overwrite}[what]
            planned = make(version, *numbers(settings["rows"]))
        self.writers[writer_name] = Writer(planned, options)
        return []

    def plan_batch(self, version: int, rest: str) -> tuple[Transaction, dict[str, Any]]:
        match = re.fullmatch(r"(\d+) of (\w+) rows=(\S+)", rest)
        assert match
        batch_id, app_id = int(match[1]), match[2]
        batch = MicroBatch(app_id, batch_id, "query")
        planned = Transaction(
            version,
            batch.uuid,
            Append(tuple(map(tables.new_fragment, numbers(match[3])))),
        )

        def is_in(manifest: Manifest | None) -> str | None:
            assert manifest is not None
            is_committed = has_batch_id(manifest.config, batch, "memory://table")
            return f"batch {batch_id} of {app_id} is in the table" if is_committed else None

        def entries(_newest: Manifest | None, new_version: int) -> dict[str, str]:
            return ledger_entries.config_entries(
                app_id, ledger_entries.LedgerEntry(batch_id, "query", new_version)
            )

        return planned, {"before_attempt": is_in, "config_entries": entries}

    def commit(self, writer_name: str, how: str) -> list[str]:
        writer = self.writers[writer_name]
        store = WatchedStore(self.log.store)
        silent = False

        def watch(when: str) -> Callable[[str, str], None]:
            def look(call: str, path: str) -> None:
                nonlocal silent
                if silent:
                    raise OSError("no answer")
                if is_step(how, when, call, path) and not writer.stopped.is_set():
                    writer.stopped.set()
                    writer.go_on.wait(10)
                    if writer.is_killed:
                        raise DiedError
                lost = how in ("without an answer", "into silence")
                if lost and is_step("past publishing", when, call, path):
                    silent = how == "into silence"
                    raise OSError("no answer")

            return look

        store.before, store.after = watch("before"), watch("after")
        writer.thread = threading.Thread(target=self.work, args=(writer_name, writer, store))
        writer.thread.start()
        while writer.thread.is_alive() and not writer.stopped.is_set():
            writer.thread.join(0.001)
        return self.answer(writer)

    def work(self, writer_name: str, writer: Writer, store: WatchedStore) -> None:
        _current_writer.name, _current_writer.lines = writer_name, writer.lines
        assert writer.planned is not None
        try:
            result = commit(
                ObjectStoreLog(store),
                writer.planned,
                environment=tables.make_environment(),
                **writer.options,
            )
        except DiedError:
            writer.lines.append(f"{writer_name} is gone")
        except RetryableConflictError:
            writer.lines.append(f"{writer_name} has to plan again")
        except IncompatibleConflictError:
            writer.lines.append(f"{writer_name} gives up")
        except CommitUncertainError:
            writer.lines.append(f"{writer_name} does not know")
        else:
            if isinstance(result, CommittedTransaction):
                writer.lines.append(self.tell(result.manifest))
            else:
                writer.lines.append(f"{writer_name} skips: {result.reason}")

    def answer(self, writer: Writer) -> list[str]:
        lines, writer.lines[:] = list(writer.lines), []
        if writer.thread is not None and writer.thread.is_alive():
            lines.append("...")
        return lines

    def go_on(self, writer_name: str) -> list[str]:
        writer = self.writers[writer_name]
        assert writer.thread is not None
        writer.go_on.set()
        writer.thread.join(10)
        return self.answer(writer)

    def die(self, writer_name: str) -> list[str]:
        self.writers[writer_name].is_killed = True
        return self.go_on(writer_name)

    def foreign(self, what: str) -> list[str]:
        operation: Operation | None
        verb, _, rest = what.partition(" ")
        fragments = self.log.read_latest().fragments
        if verb == "compacts":
            old = tuple(fragment for fragment in fragments if fragment.id in numbers(rest))
            new = tables.new_fragment(sum(value.num_live_rows for value in old))
            operation = Rewrite((RewriteGroup(old, (new,)),))
        elif verb == "merges":
            operation = Merge(tuple(fragments), tables.SCHEMA, preserves_nullability=True)
        elif verb == "restores":
            operation = Restore(int(rest))
        else:
            operation = UnknownOperation(199, b"\xba\x0c\x00") if verb == "does" else None
        return [self.tell(tables.publish_foreign(self.log, operation))]

    def rows(self) -> list[str]:
        return [spans(tables.live_ids(self.log)) or "none"]

    def versions(self) -> list[str]:
        return [", ".join(map(str, self.log.versions()))]

    def tell(self, manifest: Manifest | None = None) -> str:
        """Describe what a version has that the previous one had not."""
        newer = manifest or self.log.read_latest()
        older = self.log.read(newer.version - 1) if newer.version > 1 else None
        parts: list[str] = []
        before = {fragment.id: fragment for fragment in older.fragments} if older else {}
        for fragment in newer.fragments:
            if fragment.id not in before:
                parts.append(
                    f"fragment {fragment.id} rows={spans(tables.ids_of(fragment).tolist())}"
                )
            elif fragment.deletion_file != before[fragment.id].deletion_file:
                deleted = tables.deleted_offsets_of(self.log.store, fragment).tolist()
                parts.append(f"fragment {fragment.id} dead={','.join(map(str, deleted))}")
        removed = before.keys() - {fragment.id for fragment in newer.fragments}
        parts += [f"fragment {number} gone" for number in sorted(removed)]
        config = older.config if older else {}
        parts += [
            f"{key}={newer.config.get(key, '-')}"
            for key in sorted({*config, *newer.config})
            if config.get(key) != newer.config.get(key)
            and not key.startswith(ledger_entries.PREFIX)
        ]
        return f"version {newer.version}: {'; '.join(parts) or 'as before'}"


def is_step(name: str, when: str, call: str, path: str) -> bool:
    step_when, step_call, end = STEPS.get(name, ("", "", ""))
    return (when, call) == (step_when, step_call) and path.endswith(end)


def numbers(text: str) -> list[int]:
    values: list[int] = []
    for part in filter(None, text.split(",")):
        start, dots, stop = part.partition("..")
        values += range(int(start), int(stop)) if dots else [int(part)]
    return values


def spans(values: list[int]) -> str:
    """Write ascending runs of two and more as start..stop, half open."""
    runs: list[list[int]] = []
    for value in values:
        if runs and runs[-1][1] == value:
            runs[-1][1] += 1
        else:
            runs.append([value, value + 1])
    return ",".join(str(a) if b == a + 1 else f"{a}..{b}" for a, b in runs)


def blocks(text: str) -> list[tuple[list[str], str]]:
    """Split a story into its commands and the answers it expects."""
    story = re.sub(r"^#.*\n", "", text, flags=re.MULTILINE)
    pairs: list[tuple[list[str], str]] = []
    commands: list[str] = []
    lines = iter(story.splitlines())
    for line in lines:
        if line == "----":
            answer: list[str] = []
            for line in lines:
                if not line:
                    break
                answer.append(line)
            pairs.append((commands, "\n".join(answer)))
            commands = []
        elif line:
            commands.append(line)
    assert not commands, f"a story ends without an answer to {commands}"
    return pairs


@pytest.mark.parametrize("path", STORIES, ids=lambda path: path.stem)
def test_story_prints_its_stated_answers(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The stories are read as documentation of concurrent commits, so each line has to be what
    really happens.
    """
    real = committer.check

    def check(ours: Transaction, theirs: Transaction | None, version: int) -> Any:
        name = operation_name(theirs.operation) if theirs else "no transaction"
        try:
            verdict = real(ours, theirs, version)
        except (RetryableConflictError, IncompatibleConflictError) as error:
            word = "retry" if isinstance(error, RetryableConflictError) else "no"
            _current_writer.lines.append(
                f"{_current_writer.name} meets version {version} ({name}): {word}"
            )
            raise
        _current_writer.lines.append(
            f"{_current_writer.name} meets version {version} ({name}): {verdict.value}"
        )
        return verdict

    monkeypatch.setattr(committer, "check", check)
    story = Story()
    for commands, expected in blocks(path.read_text()):
        answers = [line for command in commands for line in story.run(command)]
        assert "\n".join(answers) == expected, commands


def test_enough_stories_exist() -> None:
    """A wrong path would find no story, and the test above would pass without a case."""
    assert len(STORIES) >= 8
    assert all(path.read_text().startswith("# ") for path in STORIES)
    assert all(blocks(path.read_text()) for path in STORIES)
