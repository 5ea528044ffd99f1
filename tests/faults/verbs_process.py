"""Runs verbs on a table in random order, beside its writers: run by a test, which kills it.

It prints the name of each verb before it begins. Refusals are part of the game: a column that is
there already, a commit that others were faster with. Anything else ends the process.
"""

import random
import shutil
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import lance
import pyarrow as pa

import lance_stream
from lance_stream import Dataset
from lance_stream.errors import CommitError, InvalidInputError, NotFoundError
from tests.keys.keyed_tables import use_small_runs

COLUMNS = ("a", "b", "c")
"""Columns that come and go; `id`, `x`, `n` and `w` stay."""

FIRST_PERMANENT_KEY = 300
"""No batch deletes the keys from here on."""

Verb = Callable[[Dataset, random.Random], object]


def compact(ds: Dataset, dice: random.Random) -> object:
    return ds.compact(dice.choice([100, 1000, 100_000]))


def cleanup(ds: Dataset, dice: random.Random) -> object:
    return ds.cleanup(retain_versions=dice.randint(1, 20))


def add_column(ds: Dataset, dice: random.Random) -> object:
    return ds.add_columns(pa.field(dice.choice(COLUMNS), dice.choice([pa.int32(), pa.string()])))


def compute_column(ds: Dataset, dice: random.Random) -> object:
    return ds.add_columns({dice.choice(COLUMNS): "id % 100"})


def drop_column(ds: Dataset, dice: random.Random) -> object:
    return ds.drop_columns(dice.choice(COLUMNS))


def rename_column(ds: Dataset, dice: random.Random) -> object:
    one, other = dice.sample(COLUMNS, 2)
    return ds.rename_columns({one: other})


def alter_column(ds: Dataset, dice: random.Random) -> object:
    kind = dice.choice([pa.int64(), pa.large_string()])
    return ds.alter_columns({"path": dice.choice(COLUMNS), "data_type": kind})


def update_column(ds: Dataset, dice: random.Random) -> object:
    """Change a column of scattered rows, which stay in place beside their wide column."""
    return ds.update({"n": "n + 1"}, f"id % 7 = {dice.randint(0, 6)}")


def upsert_column(ds: Dataset, dice: random.Random) -> object:
    """Change a column of rows by their keys, which nobody deletes."""
    keys = ds.scan(["id"], filter=f"id >= {FIRST_PERMANENT_KEY}").read_all()["id"].to_pylist()
    some = dice.sample(keys, min(20, len(keys)))
    batch = pa.table({"id": pa.array(some, pa.int64()), "n": [dice.randint(0, 99)] * len(some)})
    return ds.upsert(batch, on="id")


def harm_side_files(ds: Dataset, dice: random.Random) -> object:
    """Damage, cut short, exchange or delete a file that only saves work."""
    caches = Path(ds.uri) / "_lance_stream"
    files = sorted([*caches.glob("key_index/*"), *caches.glob("key_bounds/*")])
    if not files:
        return None
    chosen = dice.choice(files)
    with suppress(FileNotFoundError):  # merged or cleaned up meanwhile
        content = bytearray(chosen.read_bytes())
        way = dice.randrange(4)
        if way == 0:
            chosen.unlink()
        elif way == 1:
            content[dice.randrange(len(content))] ^= 1 << dice.randrange(8)
            chosen.write_bytes(content)
        elif way == 2:
            chosen.write_bytes(content[: dice.randrange(len(content))])
        else:
            chosen.write_bytes(dice.choice(files).read_bytes())
    return None


def tag(ds: Dataset, dice: random.Random) -> object:
    name = dice.choice(["one", "two"])
    if name not in ds.tags.list():
        return ds.tags.create(name)
    if dice.random() < 0.5:
        return ds.tags.update(name)
    return ds.tags.delete(name)


def branch(ds: Dataset, dice: random.Random) -> object:
    """Make a branch, write to it and restore it, or delete it."""
    if "side" not in ds.branches.list():
        with suppress(InvalidInputError):
            return ds.branches.create("side")
        return ds.branches.delete("side")  # what an interrupted deletion has left
    if dice.random() < 0.4:
        return ds.branches.delete("side")
    side = ds.checkout(("side", None))
    side.delete(f"id % 5 = {dice.randint(0, 4)}").compact()
    return side.restore(side.version)


def clone(ds: Dataset, dice: random.Random) -> object:
    """Make a clone, and forget it; an interrupted one is removed first."""
    target = Path(f"{ds.uri}-clone")
    shutil.rmtree(target, ignore_errors=True)
    for name, file in ds.tags.list().items():
        if (file.metadata or {}).get("clone") == str(target):
            ds.tags.delete(name)
    cloned = ds.shallow_clone(target)
    assert cloned.count_rows() == ds.count_rows()
    return cloned


def index(ds: Dataset, dice: random.Random) -> object:
    """Another program's index; upserts and compactions have to keep it right, or drop it."""
    try:
        return lance.dataset(ds.uri).create_scalar_index("x", "BTREE", replace=True)
    except (OSError, RuntimeError) as error:  # another commit was faster, or files were cleaned up
        print(f"pylance: {str(error)[:100]}", flush=True)


VERBS: tuple[Verb, ...] = (
    compact,
    cleanup,
    add_column,
    compute_column,
    drop_column,
    rename_column,
    alter_column,
    update_column,
    upsert_column,
    harm_side_files,
    tag,
    branch,
    clone,
    index,
)


def main(uri: str, seed: str) -> None:
    """Run verbs until the process is killed."""
    use_small_runs(setattr)
    dice = random.Random(seed)
    while True:
        verb = dice.choice(VERBS)
        print(verb.__name__, flush=True)
        with suppress(InvalidInputError, NotFoundError, CommitError):
            verb(lance_stream.open_dataset(uri), dice)


if __name__ == "__main__":
    main(*sys.argv[1:])
