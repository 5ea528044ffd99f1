"""Random histories of tables with branches, tags, clones and consumers, cleaned up under errors.

    python -m tests.oracle.cleanup_histories --minutes 10 --seed 1

Both writers change a table, its branches and shallow clones of them; tag versions; make branches
and clones of any of these and delete branches; make consumers (ours); write rows that are committed
later, and detached versions.
In between our cleanup runs with random arguments on a table or branch, while listings, looks, reads
and deletes fail at random, files are said to be missing that are there, and others do something at
a random step of it. However that ends, read with pylance:

    every version that is left                 has the rows that it had
    left is at least                           the newest and as many more as were to stay, those
                                               that are young, have a tag, or that a branch was made
                                               from, and all that a consumer has yet to read
    on all other branches, tables and clones   nothing is gone
    what was written, and no version names     can be committed, unless the cleanup was told that
                                               nobody writes

The version that pylance clones gets a tag, as decision 029 requires; our own clones create it
themselves. A branch is deleted exactly if no tag and no other branch needs it.
"""

import errno
import os
import random
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

import lance
import pyarrow as pa
from lance.fragment import write_fragments

from lance_stream import BadDataError, Dataset, LanceStreamError, NotFoundError, open_dataset
from lance_stream.maintenance.consumers import drop_consumer, list_consumers, record_progress
from lance_stream.storage.local_store import LocalStore
from tests import seeded_runs as histories

SCHEMA: Final = pa.schema([pa.field("id", pa.int64()), pa.field("x", pa.int64())])
CALLS: Final = (
    "list",
    "list_names",
    "list_files",
    "read",
    "read_ranges",
    "read_end",
    "exists",
    "delete",
)
READS: Final = ("read", "read_ranges", "read_end")
FOLDERS: Final = (
    "_refs",
    "_refs/tags",
    "_refs/branches",
    "tree",
    "tree/dev",
    "_transactions",
    "_versions",
    "data",
    "_deletions",
)
BRANCH_NAMES: Final = ("dev", "dev/deep", "a.b", "data", "dev/data", "dev/_indices", "x/_versions")
STRAYS: Final = (
    ("_refs/tags/torn.json", b'{"version": '),
    ("_refs/tags/a copy.json", b'{"version": 1}'),
    ("_refs/branches/torn.json", b""),
    ("_refs/others/x.json", b"{}"),
    ("_versions/new.manifest", b"?"),
)

Rows = list[dict[str, Any]]


@dataclass
class Place:
    """A table, or a branch of one, and what its versions hold."""

    table: str
    branch: str | None = None
    rows: dict[int, Rows] = field(default_factory=dict)
    detached: dict[int, Rows] = field(default_factory=dict)
    pending: list[tuple[Any, int]] = field(default_factory=list)

    @property
    def uri(self) -> str:
        return self.table if self.branch is None else f"{self.table}/tree/{self.branch}"

    def ours(self) -> Dataset:
        return open_dataset(self.uri)

    def theirs(self, version: int | None = None) -> lance.LanceDataset:
        return lance.dataset(self.table).checkout_version((self.branch, version))

    def __str__(self) -> str:
        return f"{Path(self.table).name}:{self.branch or 'main'}"


class BrokenPromiseError(AssertionError):
    """A law does not hold."""


def rows_of(ds: lance.LanceDataset) -> Rows:
    return sorted(ds.to_table().to_pylist(), key=str)


class History:
    """One table and what grows out of it.

    Args:
        folder: An empty folder.
        seed: Settles what is done.
    """

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder = folder
        self.dice = random.Random(seed)
        self.counts: Counter[str] = Counter()
        self.log: list[str] = []
        self.places: list[Place] = []
        # pylance leaves what is in the folder of a deleted branch that others lie in, and then
        # cannot make a branch of that name again
        self.taken: set[tuple[str, str]] = set()
        self._next_id = 0
        self._serial = 0
        uri = str(folder / "t")
        stable = self.dice.random() < 0.7
        lance.write_dataset(self.new_rows(), uri, enable_stable_row_ids=stable)
        self.places.append(Place(uri))
        self.note(self.places[0])

    def serial(self) -> int:
        self._serial += 1
        return self._serial

    def new_rows(self) -> pa.Table:
        ids = range(self._next_id, self._next_id + self.dice.randint(1, 8))
        self._next_id = ids.stop
        return pa.table({"id": ids, "x": [each % 5 for each in ids]}, schema=SCHEMA)

    def note(self, place: Place) -> None:
        """Take note of the versions of a place that are new."""
        newest = place.theirs()
        for version in newest.versions():
            if version["version"] not in place.rows:
                place.rows[version["version"]] = rows_of(place.theirs(version["version"]))

    def say(self, what: str) -> None:
        self.counts[what.partition(":")[0]] += 1
        self.log.append(what)

    # --- what happens

    def step(self) -> None:
        place = self.dice.choice(self.places)
        acts: list[tuple[int, Callable[[Place], None]]] = [
            (9, self.write),
            (2, self.branch),
            (1, self.clone),
            (3, self.tag),
            (1, self.untag),
            (2, self.consume),
            (1, self.forget_consumer),
            (1, self.delete_branch),
            (2, self.write_ahead),
            (2, self.commit_ahead),
            (1, self.detach),
            (6, self.cleanup),
            (2, self.let_pylance_clean_up),
            (1, self.cleanup_with_a_stray),
        ]
        (act,) = self.dice.choices([act for _, act in acts], [weight for weight, _ in acts])
        act(place)

    def write(self, place: Place) -> None:
        """Let one of the two writers make a version, or several."""
        state, key = place.ours(), self.dice.randrange(self._next_id)
        versions = sorted(place.rows)
        if self.dice.random() < 0.55:
            verb, do = self.dice.choice(
                [
                    ("append", lambda: state.append(self._fit(state.schema))),
                    ("delete", lambda: state.delete(f"id % 7 = {key % 7}")),
                    ("update", lambda: state.update({"x": "x + 1"}, f"id % 3 = {key % 3}")),
                    ("overwrite", lambda: state.overwrite(self.new_rows())),
                    ("compact", state.compact),
                    ("restore", lambda: state.restore(self.dice.choice(versions))),
                    ("upsert", lambda: state.upsert(self._fit(state.schema), "id")),
                    ("add", lambda: state.add_columns(pa.field(f"y{self.serial()}", pa.int64()))),
                ]
            )
            do()
            self.say(f"we {verb}: {place}")
        else:
            theirs = place.theirs()
            verb, do = self.dice.choice(
                [
                    ("append", lambda: theirs.insert(self._fit(state.schema))),
                    ("delete", lambda: theirs.delete(f"id % 7 = {key % 7}")),
                    ("update", lambda: theirs.update({"x": "x + 1"}, f"id % 3 = {key % 3}")),
                    ("compact", lambda: theirs.optimize.compact_files(target_rows_per_fragment=50)),
                    ("restore", lambda: place.theirs(self.dice.choice(versions)).restore()),
                ]
            )
            do()
            self.say(f"they {verb}: {place}")
        self.note(place)

    def _fit(self, schema: pa.Schema) -> pa.Table:
        """Return new rows with the columns of a table."""
        rows = self.new_rows()
        for name in schema.names[2:]:
            rows = rows.append_column(name, pa.nulls(len(rows), pa.int64()))
        return rows

    def branch(self, place: Place) -> None:
        free = [name for name in BRANCH_NAMES if (place.table, name) not in self.taken]
        if not free or len(self.places) > 7:
            return
        name, version = self.dice.choice(free), self.dice.choice(sorted(place.rows))
        if self.dice.random() < 0.5:
            place.ours().branches.create(name, version)
            self.say(f"we branch: {name} from {place} at {version}")
        else:
            lance.dataset(place.table).create_branch(name, (place.branch, version))
            self.say(f"they branch: {name} from {place} at {version}")
        self.taken.add((place.table, name))
        self.places.append(Place(place.table, name))
        self.note(self.places[-1])

    def clone(self, place: Place) -> None:
        if len(self.places) > 7:
            return
        number, version = self.serial(), self.dice.choice(sorted(place.rows))
        uri = str(self.folder / f"clone{number}")
        if self.dice.random() < 0.5:
            place.ours().shallow_clone(uri, version)
            self.say(f"we clone: {number} of {place} at {version}")
        else:
            place.ours().tags.create(f"clone-{number}", version)
            place.theirs(version).shallow_clone(uri, version)
            self.say(f"they clone: {number} of {place} at {version}")
        self.places.append(Place(uri))
        self.note(self.places[-1])

    def tag(self, place: Place) -> None:
        version, name = self.dice.choice(sorted(place.rows)), f"tag-{self.dice.randrange(8)}"
        is_there = name in lance.dataset(place.table).tags.list()
        if self.dice.random() < 0.5:
            tags = place.ours().tags
            (tags.update if is_there else tags.create)(name, version)
        else:
            theirs = lance.dataset(place.table).tags
            (theirs.update if is_there else theirs.create)(name, (place.branch or "main", version))
        self.say(f"tag: {name} at {place} {version}")

    def untag(self, place: Place) -> None:
        names = [name for name in place.ours().tags.list() if name.startswith("tag-")]
        if names:
            name = self.dice.choice(names)
            if self.dice.random() < 0.5:
                place.ours().tags.delete(name)
            else:
                lance.dataset(place.table).tags.delete(name)
            self.say(f"untag: {name}")

    def consume(self, place: Place) -> None:
        version = self.dice.choice(sorted(place.rows))
        name = f"reader-{(place.branch or 'main').replace('/', '-')}"
        record_progress(place.ours().table.refs, name, version)
        self.say(f"consume: {place} is done with {version}")

    def forget_consumer(self, place: Place) -> None:
        refs = place.ours().table.refs
        for consumer in list_consumers(refs):
            drop_consumer(refs, consumer.name)
            self.say(f"forget consumer: {consumer.name}")

    def delete_branch(self, place: Place) -> None:
        if place.branch is None or place.pending:
            return
        table = lance.dataset(place.table)
        # the reference deletes the whole folder of `dev/data`, which is the data folder of `dev`
        by_us = self.dice.random() < 0.5 or "/" in place.branch
        try:
            if by_us:
                open_dataset(self.dice.choice([place.table, place.uri])).branches.delete(
                    place.branch
                )
            else:
                table.branches.delete(place.branch)
        except (OSError, ValueError) as error:
            tags = [each["branch"] for each in table.tags.list().values()]
            parents = [each["parent_branch"] for each in table.branches.list().values()]
            if place.branch not in (*tags, *parents):
                raise BrokenPromiseError(f"{place} cannot be deleted: {error}") from error
            self.say(f"kept branch: {place}")
            return
        self.places.remove(place)
        if by_us:  # pylance can then make it again
            self.taken.remove((place.table, place.branch))
        self.say(f"{'we' if by_us else 'they'} delete branch: {place}")
        self.check(place, set())

    def write_ahead(self, place: Place) -> None:
        """Write rows that no version names yet."""
        state = place.ours()
        if len(state.schema) == 2:
            found = write_fragments(self.new_rows(), place.theirs())
            place.pending.append((found, state.version))
            self.say(f"write ahead: {place}")

    def commit_ahead(self, place: Place) -> None:
        """Commit rows that were written a while ago."""
        while place.pending:
            fragments, read_version = place.pending.pop()
            if place.ours().schema.names != ["id", "x"]:
                continue
            theirs = place.theirs()
            done = lance.LanceDataset.commit(
                theirs, lance.LanceOperation.Append(fragments), read_version=theirs.version
            )
            assert done.count_rows() >= 1, read_version
            self.say(f"commit ahead: {place}")
        self.note(place)

    def detach(self, place: Place) -> None:
        """Commit a version that stands outside the history."""
        if place.branch is not None or len(place.ours().schema) != 2:
            return  # pylance opens detached versions of the main branch only
        theirs = place.theirs()
        fragments = write_fragments(self.new_rows(), theirs)
        made = lance.LanceDataset.commit(
            theirs,
            lance.LanceOperation.Append(fragments),
            read_version=theirs.version,
            detached=True,
        )
        place.detached[made.version] = rows_of(made)
        self.say(f"detach: {place}")

    # --- cleanup

    def cleanup(self, place: Place) -> None:
        """Clean up, and hold what is left against what was."""
        arguments = self._arguments(place)
        must = self._must_stay(place, arguments)
        trouble = Trouble(self.dice)
        if self.dice.random() < 0.3:
            trouble.at(self.dice.randrange(60), lambda: self._meanwhile(place, arguments, must))
        try:
            ds = place.ours()
            with trouble:
                ds.cleanup(**arguments)
        except (LanceStreamError, OSError) as error:
            if not trouble.num_faults:
                raise BrokenPromiseError(f"cleanup of {place} {arguments}: {error!r}") from error
            how = f"ended in {type(error).__name__}"
        else:
            how = "done"
        self.say(f"cleanup {how}: {place} {arguments}, {trouble.num_faults} faults")
        self.check(place, must)

    def let_pylance_clean_up(self, place: Place) -> None:
        """Let pylance clean up.

        It keeps tagged versions, those of clones too, and files that branches need; but not what
        consumers need, no detached versions, and not those that a branch was made from.
        """
        must = self._must_stay(place, {}, only_tags=True)
        place.theirs().cleanup_old_versions(timedelta(0), error_if_tagged_old_versions=False)
        place.detached.clear()
        self.say(f"they clean up: {place}")
        self.check(place, must)

    def cleanup_with_a_stray(self, place: Place) -> None:
        """Clean up beside a file that cannot be understood: nothing goes."""
        path, content = self.dice.choice(STRAYS)
        root = place.uri if path.startswith("_versions") else place.table
        stray = Path(root, path)
        stray.parent.mkdir(parents=True, exist_ok=True)
        stray.write_bytes(content)
        try:
            place.ours().cleanup(timedelta(0), delete_unverified=True)
        except BadDataError:
            self.say(f"cleanup refused: {place} for {path}")
        else:
            raise BrokenPromiseError(f"cleanup of {place} went on beside {path}")
        finally:
            stray.unlink()
            if not any(stray.parent.iterdir()):
                stray.parent.rmdir()
        self.check(place, set(place.rows))

    def _arguments(self, place: Place) -> dict[str, Any]:
        nobody_writes = self.dice.random() < 0.6 and not place.pending
        return self.dice.choice(
            [
                {"older_than": timedelta(0)},
                {"retain_versions": self.dice.randint(1, 4)},
                {"older_than": timedelta(0), "retain_versions": self.dice.randint(1, 4)},
                {"older_than": timedelta(0), "expire_consumers": timedelta(days=1)},
                {"older_than": timedelta(hours=1)},
                {"retain_versions": 1, "dry_run": True},
            ]
        ) | {"delete_unverified": nobody_writes}

    def _must_stay(
        self, place: Place, arguments: dict[str, Any], *, only_tags: bool = False
    ) -> set[int]:
        versions = sorted(place.rows)
        if arguments.get("dry_run") or arguments.get("older_than") == timedelta(hours=1):
            return set(versions)
        table = lance.dataset(place.table)
        prefix = "lance_stream.consumer."
        stay = set(versions[-arguments.get("retain_versions", 1) :])
        for name, tag in table.tags.list().items():
            if tag["branch"] == place.branch and name.startswith(prefix) and not only_tags:
                stay |= {version for version in versions if version >= tag["version"]}
            elif tag["branch"] == place.branch:
                stay.add(tag["version"])
        for branch in table.branches.list().values():
            if branch["parent_branch"] == place.branch and not only_tags:
                stay.add(branch["parent_version"])
        return stay & set(versions)

    def _meanwhile(self, cleaned: Place, arguments: dict[str, Any], must: set[int]) -> None:
        """Do something beside a cleanup: a tag or consumer that moves on holds other versions."""
        place = self.dice.choice(self.places)
        act = self.dice.choice([self.branch, self.tag, self.write, self.consume, self.clone])
        try:
            act(place)
        except (NotFoundError, OSError, ValueError) as error:
            self.say(f"failed beside a cleanup: {type(error).__name__}")
        for position in self.places:
            self._note_what_is_there(position)
        must &= self._must_stay(cleaned, arguments)

    def _note_what_is_there(self, place: Place) -> None:
        for version in place.theirs().versions():
            if version["version"] not in place.rows:
                place.rows[version["version"]] = rows_of(place.theirs(version["version"]))

    def check(self, cleaned: Place, must: set[int]) -> None:
        """Hold every version of every place against what it was."""
        for place in self.places:
            there = {each["version"] for each in place.theirs().versions()}
            missing = (must if place is cleaned else set(place.rows)) - there
            if missing:
                raise BrokenPromiseError(f"{place} has lost the versions {sorted(missing)}")
            for version, rows in place.rows.items():
                if version in there:
                    self._check_rows(place, version, rows)
            for version, rows in place.detached.items():
                self._check_rows(place, version, rows)
            place.rows = {version: rows for version, rows in place.rows.items() if version in there}

    def _check_rows(self, place: Place, version: int, rows: Rows) -> None:
        self.counts["versions read"] += 1
        try:
            found = rows_of(place.theirs(version))
        except Exception as error:
            raise BrokenPromiseError(f"{place} cannot be read at {version}: {error}") from error
        if found != rows:
            raise BrokenPromiseError(f"{place} at {version}: {found} is not {rows}")

    def end(self) -> None:
        """Look at all that is left with our own eyes, too."""
        for place in list(self.places):
            self.commit_ahead(place)
            for version in sorted(place.rows):
                findings = open_dataset(place.uri, version).verify()
                if findings:
                    raise BrokenPromiseError(f"{place} at {version}: {findings}")
                self.counts["versions verified"] += 1


class Trouble:
    """Lets calls of the store fail at random, and others in at one of them, within a `with`."""

    def __init__(self, dice: random.Random) -> None:
        self._dice = dice
        self._share = dice.choice([0, 0, 0.005, 0.02, 0.1, 0.3])
        # all kinds of calls, or one: where most fail, a cleanup does not come far
        self._kinds = dice.choice([(*CALLS, "scandir"), ("scandir",), (dice.choice(CALLS),)])
        # or what fails each time: a folder cannot be listed, a manifest is listed and not there
        self._folder = dice.choice([*[None] * 9, *FOLDERS])
        self._loses_manifests = dice.random() < 0.25
        self._lost: dict[str, bool] = {}
        if self._folder is not None or self._loses_manifests:
            self._share = 0
        self._calls = 0
        self._at: tuple[int, Callable[[], None]] | None = None
        self.num_faults = 0
        self._is_off = False
        self._patches: list[Any] = []

    def at(self, call: int, act: Callable[[], None]) -> None:
        self._at = call, act

    @contextmanager
    def _off(self) -> Iterator[None]:
        self._is_off, before = True, self._is_off
        try:
            yield
        finally:
            self._is_off = before

    def __enter__(self) -> "Trouble":
        for name in CALLS:
            self._patches.append(patch.object(LocalStore, name, self._guard(name)))
        scandir = os.scandir

        def guarded(path: Any) -> Any:
            if self._folder is not None and str(path).endswith(f"/{self._folder}"):
                self.num_faults += 1
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
            self._toss(str(path), "scandir")
            return scandir(path)

        self._patches.append(patch.object(os, "scandir", guarded))
        for each in self._patches:
            each.start()
        return self

    def __exit__(self, *_: object) -> None:
        for each in self._patches:
            each.stop()

    def _guard(self, name: str) -> Callable[..., Any]:
        real = getattr(LocalStore, name)

        def call(store: LocalStore, *arguments: Any) -> Any:
            if not self._is_off:
                self._calls += 1
                if self._at is not None and self._calls > self._at[0]:
                    (_, act), self._at = self._at, None
                    with self._off():
                        act()
                path = str(arguments[0] if arguments else "")
                if name in READS and path.startswith("_versions/") and self._loses_manifests:
                    self._lose(f"{store.root}/{path}")
                self._toss(path, name)
            return real(store, *arguments)

        return call

    def _lose(self, path: str) -> None:
        if self._lost.setdefault(path, self._dice.random() < 0.3):
            self.num_faults += 1
            raise NotFoundError(f"made up: there is no {path}")

    def _toss(self, what: str, name: str) -> None:
        if self._is_off or name not in self._kinds or self._dice.random() >= self._share:
            return
        self.num_faults += 1
        if name in READS and self._dice.random() < 0.3:
            raise NotFoundError(f"made up: there is no {what}")
        number = self._dice.choice([errno.EIO, errno.EACCES, errno.ESTALE, errno.EMFILE])
        raise OSError(number, os.strerror(number), what)


def play(seed: int, steps: int) -> Counter[str]:
    """Play a history, and return what happened how often.

    Raises:
        BrokenPromiseError: A law does not hold; the notes say what happened.
    """
    folder = Path(tempfile.mkdtemp(prefix="cleanup-"))
    history = None
    try:
        history = History(folder, seed)
        for _ in range(steps):
            history.step()
        history.end()
        return history.counts
    except BaseException as error:
        error.add_note(f"seed {seed}, {steps} steps")
        for line in history.log if history else ():
            error.add_note(line)
        raise
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(histories.main(play, steps=60))
