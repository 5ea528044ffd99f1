"""The table in PostgreSQL: its columns, its first rows, and what it has at the end."""

import random
from collections.abc import Iterable
from contextlib import closing
from typing import Any

import psycopg

from examples.pipeline.texts import Article, article

NAME = "articles"
COLUMNS = ("id", "title", "body", "product", "state", "price", "revision", "updated_at")
FIRST_ROWS = 2000

_CREATE = f"""
CREATE TABLE IF NOT EXISTS {NAME} (
    id BIGINT PRIMARY KEY,
    title TEXT NOT NULL,
    body TEXT,
    product TEXT NOT NULL,
    state TEXT NOT NULL,
    price NUMERIC(10, 2),
    revision INT NOT NULL,
    updated_at TIMESTAMPTZ NOT NULL
)
"""
_INDEX = f"CREATE INDEX IF NOT EXISTS newest ON {NAME} (updated_at)"
_WHOLE_ROWS = f"ALTER TABLE {NAME} REPLICA IDENTITY FULL"
INSERT = f"INSERT INTO {NAME} VALUES (%s, %s, %s, %s, %s, %s, %s, clock_timestamp())"


def prepare(url: str, num_rows: int = FIRST_ROWS) -> None:
    """Create the table with its first rows, unless it is there."""
    with closing(psycopg.connect(url)) as connection, connection.transaction():
        connection.execute(_CREATE)
        connection.execute(_INDEX)
        connection.execute(_WHOLE_ROWS)
        first_row = connection.execute(f"SELECT 1 FROM {NAME} LIMIT 1").fetchone()
        if first_row is None:
            chance = random.Random(0)
            rows = [values(number, article(chance)) for number in range(1, num_rows + 1)]
            with connection.cursor() as cursor:
                cursor.executemany(INSERT, rows)


def values(key: int, item: Article, revision: int = 0) -> tuple[Any, ...]:
    """Return the parameters of `INSERT`."""
    return (key, item.title, item.body, item.product, item.state, item.price, revision)


def rows_of(url: str) -> list[tuple[Any, ...]]:
    """Return all rows, by id."""
    with closing(psycopg.connect(url)) as connection:
        connection.execute("SET TIME ZONE 'UTC'")
        return connection.execute(f"SELECT {', '.join(COLUMNS)} FROM {NAME} ORDER BY id").fetchall()


def differences(
    database_rows: Iterable[tuple[Any, ...]], table_rows: Iterable[tuple[Any, ...]]
) -> dict[str, list[Any]]:
    """Return the ids of rows that are missing, twice, too many, or different.

    Args:
        database_rows: The rows of the database.
        table_rows: Those of the table, in the same order of columns.
    """
    expected = {row[0]: row for row in database_rows}
    seen: dict[Any, tuple[Any, ...]] = {}
    twice = []
    for row in table_rows:
        if row[0] in seen:
            twice.append(row[0])
        seen[row[0]] = row
    return {
        "missing": sorted(expected.keys() - seen.keys()),
        "too many": sorted(seen.keys() - expected.keys()),
        "twice": sorted(twice),
        "different": sorted(
            key for key in expected.keys() & seen.keys() if expected[key] != seen[key]
        ),
    }
