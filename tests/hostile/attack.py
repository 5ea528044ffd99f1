"""Reads, verifies, writes and cleans up tables that were made to do harm.

    python -m tests.hostile.attack FOLDER LOCATION SEED ROUNDS [OPTIONS]

makes one table a round below LOCATION, a legal one with some fields of its messages or bytes of
its small files changed by chance, and lets each verb work on it. A verb has to end in an answer
or in an error of ours, within SECONDS_OF_WORK, without asking the canary (a server that counts who
comes), without memory beyond the limit, and without touching a file outside of the table. What
else it does is printed, one line a finding, and the process ends with 1. Its last line says how
many verbs ended how.
"""

import faulthandler
import hashlib
import json
import logging
import random
import resource
import signal
import socket
import sys
import threading
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from io import StringIO
from pathlib import Path
from types import FrameType
from typing import Any

import pyarrow as pa

import lance_stream
from lance_stream._proto import table_pb2, transaction_pb2
from lance_stream.cli.main import main as command_line
from lance_stream.dataset import Dataset
from lance_stream.errors import LanceStreamError
from lance_stream.keys.bounds import cached_key_bounds
from lance_stream.storage.locations import open_store
from lance_stream.storage.store import Store
from tests.dataset.manifest_edits import join_manifest, split_manifest
from tests.hostile.hostile_messages import Attacker

SECONDS_OF_WORK = 20
BYTES_OF_GROWTH = 1 << 30

Files = dict[str, bytes]


class Canary:
    """A server that records connections: there should be none."""

    def __init__(self) -> None:
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port = self._server.getsockname()[1]
        self.visits: list[bytes] = []
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        while True:
            visitor, _ = self._server.accept()
            with visitor, suppress(OSError):
                visitor.settimeout(1)
                self.visits.append(visitor.recv(4096))


def legal_tables(folder: Path) -> list[Files]:
    """Return the files of legal tables: one of each shape that a writer makes."""
    rows = pa.table(
        {
            "id": pa.array(range(40), pa.int64()),
            "n": pa.array([number % 7 for number in range(40)], pa.int32()),
            "v": pa.array([f"text {number}" for number in range(40)]),
            "l": pa.array([[number] * (number % 3) for number in range(40)], pa.list_(pa.int32())),
        }
    )
    tables = []
    for file_version in ("2.2", "2.0"):
        uri = str(folder / f"legal {file_version}")
        ds = lance_stream.create_dataset(
            uri, rows.schema, file_version, primary_key=["id"], config={"k": "v"}
        )
        ds = ds.append(rows).append(rows.slice(0, 5)).delete("id < 3")
        changes = rows.slice(10, 8).append_column("op", pa.array(["d", "u"] * 4))
        ds = ds.upsert(changes, "id", "n", "op = 'd'", except_columns="op", tombstones="7 days")
        ds.tags.create("gold", 2)
        (column,) = cached_key_bounds.key_bounds(ds.table, ["id"]).columns
        cached_key_bounds.write_bounds(ds.table.store, column, ds.table.manifest.fragments)
        store = ds.table.store
        tables.append({file.path: bytes(store.read(file.path)) for file in store.list()})
    plain = str(folder / "legal plain")
    ds = lance_stream.create_dataset(plain, rows.schema, "2.1", stable_row_ids=False)
    store = ds.append(rows).delete("id = 7").table.store
    tables.append({file.path: bytes(store.read(file.path)) for file in store.list()})
    return tables


def newest(files: Files) -> str:
    """Return the path of the newest manifest."""
    return min(file for file in files if file.startswith("_versions/") and "hint" not in file)


def hostile(files: Files, attacker: Attacker) -> tuple[Files, str]:
    """Return a table with something changed, and what."""
    files = dict(files)
    dice = attacker.dice
    path = newest(files)
    if dice.random() < 0.7:
        before, body, behind = split_manifest(files[path])
        manifest = table_pb2.Manifest.FromString(body)
        what = attacker.change(manifest) if dice.random() < 0.85 else promise(manifest, dice)
        files[path] = join_manifest(before, manifest.SerializeToString(), behind)
        return files, f"manifest {what}"
    small = [file for file in files if not file.startswith("data/") and file != path]
    path = dice.choice([*small, dice.choice([file for file in files if file.startswith("data/")])])
    if path.endswith(".txn") and dice.random() < 0.7:
        message = transaction_pb2.Transaction.FromString(files[path])
        what = attacker.change(message)
        files[path] = message.SerializeToString()
        return files, f"{path} {what}"
    if path.endswith(".json") and dice.random() < 0.7:
        document = json.loads(files[path])
        key = dice.choice([*document, "branch", "version"]) if isinstance(document, dict) else ""
        value = dice.choice([-1, 0, 1 << 70, 1e300, None, [], {}, True, attacker.text()])
        files[path] = json.dumps(
            {**document, key: value} if isinstance(document, dict) else []
        ).encode()
        return files, f"{path} {key} = {value!r:.80}"
    if "key_bounds" in path:
        data = attacker.damage(files[path][:-32])
        files[path] = data + hashlib.blake2b(data, digest_size=32).digest()
        return files, f"{path} damaged, its digest recomputed"
    if dice.random() < 0.1:
        other = f"{path.rpartition('/')[0]}/{attacker.text()[:100].replace('/', '_')}"
        files[other.replace("\0", "0").replace("\ud7ff", "x")] = files[path]
        return files, f"{path} again as {other!r}"
    files[path] = attacker.damage(files[path])
    return files, f"{path} damaged"


def promise(manifest: Any, dice: random.Random) -> str:
    """Let a fragment promise rows that it has not, its row ids too."""
    fragment = dice.choice(manifest.fragments)
    rows = dice.choice([1 << 20, 1 << 26, 1 << 28, 1 << 31])
    fragment.physical_rows = rows
    varint = _varint(rows)
    inner = b"\x10" + varint
    segment = b"\x0a" + bytes([len(inner)]) + inner
    if fragment.inline_row_ids or dice.random() < 0.5:
        fragment.inline_row_ids = b"\x0a" + bytes([len(segment)]) + segment
    run = b"\x0a" + bytes([len(segment)]) + segment + b"\x10\x02"
    if dice.random() < 0.5:
        fragment.inline_created_at_versions = b"\x0a" + bytes([len(run)]) + run
        fragment.inline_last_updated_at_versions = b"\x0a" + bytes([len(run)]) + run
    manifest.next_row_id = max(manifest.next_row_id, rows)
    return f"fragment {fragment.id} promises {rows} rows"


def _varint(value: int) -> bytes:
    parts = b""
    while value >= 0x80:
        parts += bytes([value & 0x7F | 0x80])
        value >>= 7
    return parts + bytes([value])


ROWS = pa.table({"id": pa.array([1, 900], pa.int64()), "n": pa.array([99, 99], pa.int32())})


def verbs(uri: str, options: dict[str, Any]) -> dict[str, Callable[[], object]]:
    """Return all that is done to a table, what writes to it last."""

    def opened(version: Any = None) -> Dataset:
        return lance_stream.open_dataset(uri, version, options)

    def run_command(*words: str) -> None:
        option_words = [item for key, value in options.items() for item in ("-o", f"{key}={value}")]
        printed = StringIO()
        with redirect_stdout(printed):
            code = command_line([*words, uri, *option_words])
        if code not in (0, 1, 2, 3, 4, 5, 6):
            raise AssertionError(f"exit code {code}")
        if escapes := [
            value for value in printed.getvalue() if not (value.isprintable() or value == "\n")
        ]:
            raise AssertionError(f"terminal escapes in the output: {set(escapes)}")

    return {
        "open": opened,
        "open 2": lambda: opened(2),
        "repr": lambda: repr(opened()),
        "scan": lambda: opened().to_table(with_row_id=True, with_row_versions=True).validate(),
        "filter": lambda: opened().to_table(["id"], filter="n = 3 AND id > 4"),
        "count": lambda: opened().count_rows(),
        "take": lambda: opened().take(row_ids=[1, 5]) if opened().table.has_stable_row_ids else 0,
        "changes": lambda: opened().changes(0).read_all(),
        "net changes": lambda: opened().changes(1, deduplication_mode="netChanges").read_all(),
        "versions": lambda: opened().versions(),
        "ledger": lambda: opened().ledger(),
        "verify": lambda: opened().verify(),
        "digest": lambda: opened().digest(),
        "tag": lambda: opened("gold"),
        "tags": lambda: opened().tags.list(),
        "branches": lambda: opened().branches.list(),
        "consumers": lambda: run_command("consumers", "list"),
        "show": lambda: run_command("show"),
        "log": lambda: run_command("log"),
        "cli verify": lambda: run_command("verify"),
        "dry run": lambda: opened().cleanup(older_than="0s", dry_run=True),
        "delete": lambda: opened().delete("id = 20"),
        "update": lambda: opened().update({"n": "n + 1"}, "id = 21"),
        "upsert": lambda: opened().upsert(ROWS, "id", "n"),
        "append": lambda: opened().append(ROWS),
        "compact": lambda: opened().compact(),
        "config": lambda: opened().update_config({"k": "w"}),
        "restore": lambda: opened().restore(2),
        "cleanup": lambda: opened().cleanup(older_than="0s", delete_unverified=True),
    }


@contextmanager
def within_bounds() -> Iterator[None]:
    """Let what takes too long, or too much memory, fail."""
    with Path("/proc/self/statm").open() as file:
        used = int(file.read().split()[0]) * resource.getpagesize()
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + BYTES_OF_GROWTH, hard))
    signal.setitimer(signal.ITIMER_VIRTUAL, SECONDS_OF_WORK)
    signal.alarm(6 * SECONDS_OF_WORK)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


class TakesTooLongError(Exception):
    """A verb works for too long."""


def _stop(_number: int, _frame: FrameType | None) -> None:
    raise TakesTooLongError


def put(store: Store, files: Files) -> None:
    """Write the files of a table."""
    for path, data in files.items():
        store.write(path, data)


def attack(uri: str, options: dict[str, Any], files: Files, endings: Counter[str]) -> list[str]:
    """Let each verb work on a table; return what went wrong."""
    with suppress(LanceStreamError):  # a name that the store does not take
        put(open_store(uri, options), files)
    findings = []
    for name, verb in verbs(uri, options).items():
        try:
            with within_bounds():
                verb()
            endings["answered"] += 1
        except LanceStreamError as error:
            endings["refused"] += 1
            secret = next((secret for secret in SECRETS if secret in f"{error}{error!r}"), None)
            raw = [value for value in str(error) if not (value.isprintable() or value == "\n")]
            if secret or raw:
                findings.append(f"{name}: the error shows {secret or raw}: {error!r:.300}")
        except BaseException as error:
            where = traceback.extract_tb(error.__traceback__)
            package_frames = [value for value in where if "lance_stream/" in value.filename]
            at = (
                f"{package_frames[-1].filename.partition('lance_stream/')[2]}:{package_frames[-1].lineno}"
                if package_frames
                else ""
            )
            findings.append(f"{name}: {type(error).__name__} at {at}: {error!s:.200}")
    return findings


SECRETS = ("hostile-secret",)


def main(words: list[str]) -> int:
    folder, location, seed, rounds = Path(words[0]), words[1], int(words[2]), int(words[3])
    options = json.loads(words[4]) if len(words) > 4 else {}
    faulthandler.enable()
    logging.disable(logging.CRITICAL)
    for number in (signal.SIGVTALRM, signal.SIGALRM):
        signal.signal(number, _stop)
    folder.mkdir(parents=True, exist_ok=True)
    canary = Canary()
    legal = legal_tables(folder)
    outside = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    endings: Counter[str] = Counter()
    outcomes: Counter[str] = Counter()
    for number in range(rounds):
        attacker = Attacker(random.Random(f"{seed} {number}"), f"127.0.0.1:{canary.port}")
        files, what = hostile(attacker.dice.choice(legal), attacker)
        uri = (
            f"{location}/hostile {seed} {number}"
            if "://" not in location
            else f"{location}/h{seed}-{number}"
        )
        print(f"{number} {what!r:.300}", file=sys.stderr, flush=True)
        for name in attack(uri, options, files, endings):
            kind = name.partition(": ")[2]
            outcomes[kind] += 1
            if outcomes[kind] == 1:
                print(f"FINDING round {number} ({what!r:.200}): {name!r}", flush=True)
    if canary.visits:
        print(f"FINDING the canary was asked: {canary.visits[:3]!r}")
    now = {value: value.read_bytes() for value in outside if value.exists()}
    if now != outside:
        print("FINDING files outside of the table were touched")
    print(json.dumps(endings))
    return 1 if outcomes or canary.visits or now != outside else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
