"""A part: changes the database at a steady rate until it is stopped, from one seed.

    python -m examples.pipeline.load

Inserts, updates of texts, updates of other columns, deletes, changed keys, and rows that are
deleted and inserted again in one transaction. If the database goes away it waits, reads which rows
there are, as the last transaction may or may not have been committed, and goes on.
"""

import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import psycopg

from examples.pipeline import figures
from examples.pipeline.database import INSERT, NAME, values
from examples.pipeline.settings import Settings
from examples.pipeline.texts import CASE, STATES, Article, article, price

_KINDS = {
    "insert": 32,
    "change text": 20,
    "change others": 24,
    "delete": 18,
    "change key": 2,
    "insert again": 4,
}
_TRANSACTIONS_PER_SECOND = 40
"""At most, so that a high rate means larger transactions."""

_UPDATE = "revision = revision + 1, updated_at = clock_timestamp() WHERE id = %s"


class Changes:
    """Makes changes of a table whose ids it keeps in mind.

    Args:
        seed: Determines the changes, as long as none fails.
        counts: Those of earlier runs.

    Attributes:
        counts: How many row changes of each kind were committed.
    """

    def __init__(self, seed: int, counts: Mapping[str, int] | None = None) -> None:
        self.counts: Counter[str] = Counter(counts)
        self._chance = random.Random(seed)
        self._ids: list[int] = []
        self._next = 1

    def look(self, connection: psycopg.Connection) -> None:
        """Learn which rows there are."""
        rows = connection.execute(f"SELECT id FROM {NAME} ORDER BY id").fetchall()
        self._ids = [key for (key,) in rows]
        (last,) = connection.execute(f"SELECT coalesce(max(id), 0) FROM {NAME}").fetchone() or (0,)
        self._next = max(self._next, last + 1)

    def commit(self, connection: psycopg.Connection, num_changes: int) -> int:
        """Commit a transaction of about so many row changes; return of how many it was."""
        counts: Counter[str] = Counter()
        with connection.transaction():
            while counts.total() < num_changes:
                self._change(connection, counts)
        self.counts += counts
        self.counts["transactions"] += 1
        return counts.total()

    def _change(self, connection: psycopg.Connection, counts: Counter[str]) -> None:
        kind = self._chance.choices(list(_KINDS), list(_KINDS.values()))[0]
        if kind == "insert" or not self._ids:
            self._insert(connection, self._new_id())
            counts["inserts"] += 1
            return
        index = self._chance.randrange(len(self._ids))
        key = self._ids[index]
        match kind:
            case "change text":
                new_article = self._article(key)
                query = f"UPDATE {NAME} SET title = %s, body = %s, {_UPDATE}"
                connection.execute(query, (new_article.title, new_article.body, key))
                counts["updates"] += 1
            case "change others":
                query = f"UPDATE {NAME} SET state = %s, price = %s, {_UPDATE}"
                state = self._chance.choice(STATES)
                connection.execute(query, (state, price(self._chance), key))
                counts["updates"] += 1
            case "delete":
                self._ids[index] = self._ids[-1]
                self._ids.pop()
                connection.execute(f"DELETE FROM {NAME} WHERE id = %s", (key,))
                counts["deletes"] += 1
            case "change key":
                self._ids[index] = self._new_id()
                query = f"UPDATE {NAME} SET id = %s, {_UPDATE}"
                connection.execute(query, (self._ids[index], key))
                counts["updates"] += 1
            case "insert again":
                connection.execute(f"DELETE FROM {NAME} WHERE id = %s", (key,))
                self._ids[index] = self._ids[-1]
                self._ids.pop()
                self._insert(connection, key)
                counts["deletes"] += 1
                counts["inserts"] += 1

    def _article(self, key: int) -> Article:
        """Return an article; most have a word that no other has: a search for it finds this one."""
        new_article = article(self._chance)
        if not new_article.body:
            return new_article
        word = f"{key}x{self._chance.getrandbits(32):08x}"
        return replace(new_article, body=f"{new_article.body} {CASE}{word}")

    def _new_id(self) -> int:
        self._next += 1
        return self._next - 1

    def _insert(self, connection: psycopg.Connection, key: int) -> None:
        connection.execute(INSERT, values(key, self._article(key)))
        self._ids.append(key)


def run(
    url: str, rate: float, seed: int, report: Path, is_stopped: Callable[[], bool]
) -> Counter[str]:
    """Change the database until it is stopped; return how many changes were committed.

    Args:
        url: The database.
        rate: Row changes a second, on average.
        seed: Determines the changes.
        report: Where the counts are written once a second.
        is_stopped: Asked after each transaction.
    """
    changes = Changes(seed, before(report))
    per_transaction = max(rate / _TRANSACTIONS_PER_SECOND, 1)
    while not is_stopped():
        try:
            with closing(psycopg.connect(url, autocommit=True, connect_timeout=5)) as connection:
                changes.look(connection)
                _run_connected(connection, changes, rate, per_transaction, report, is_stopped)
        except psycopg.OperationalError as error:
            changes.counts["lost connections"] += 1
            print(f"waiting for the database: {error}", file=sys.stderr, flush=True)
            figures.write(report, dict(changes.counts))
            time.sleep(0.5)
    figures.write(report, dict(changes.counts))
    return changes.counts


def before(report: Path) -> dict[str, int]:
    """Return the counts that a run which was killed has left."""
    return {name: value for name, value in figures.read(report).items() if name != "written_at"}


def _run_connected(
    connection: psycopg.Connection,
    changes: Changes,
    rate: float,
    per_transaction: float,
    report: Path,
    is_stopped: Callable[[], bool],
) -> None:
    due = reported = time.monotonic()
    while not is_stopped():
        now = time.monotonic()
        if now - reported >= 1:
            figures.write(report, dict(changes.counts))
            reported = now
        if now < due:
            time.sleep(min(due - now, 0.2))
            continue
        due = max(due, now - 1) + changes.commit(connection, round(per_transaction)) / rate


def main() -> None:
    """Run until SIGTERM."""
    settings = Settings.read()
    stopped: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: stopped.append(number))
    seed = int(time.time()) if settings.folder.joinpath("loaded").exists() else 1
    settings.folder.joinpath("loaded").touch()
    run(
        settings.database,
        float(settings.load),
        seed,
        settings.figures("load"),
        lambda: bool(stopped),
    )


if __name__ == "__main__":
    main()
