"""Derived columns after 1 % of the rows changed, beside computing all rows anew, in one run.

    python -m benchmarks.derive [--rows 1000000] [--dimension 64] [--percent 1] [--micros 20]

Rows are an id, a text and a price, in ten fragments. The function makes a vector of each text by
hashing its words, and takes so many microseconds a row at least, as a small model would. Shown are
the rows that it ran for, seconds and CPU seconds, and bytes of all data files that were written:

    all rows         a new version of the function
    texts changed    an upsert of new texts for random rows, 1 % of all
    prices changed   an upsert of new prices for as many
    nothing changed
"""

import argparse
import hashlib
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import lance_stream
from lance_stream import Derivation, derive


class Embedding:
    """A vector for each text: the sum of those of its words, which are random.

    Args:
        dimension: Of the vectors.
        micros: How long each row takes at least.
    """

    def __init__(self, dimension: int, micros: float) -> None:
        self.dimension = dimension
        self.micros = micros
        self._words: dict[str, np.ndarray] = {}

    def __call__(self, batch: pa.RecordBatch) -> np.ndarray:
        """Return (n, dimension) f32."""
        end = time.perf_counter() + self.micros * batch.num_rows / 1e6
        vectors = np.stack([self._vector(text) for text in batch["text"].to_pylist()])
        while time.perf_counter() < end:
            pass
        return vectors

    def _vector(self, text: str) -> np.ndarray:
        return np.sum([self._word(part) for part in text.split()], axis=0)

    def _word(self, word: str) -> np.ndarray:
        if word not in self._words:
            seed = int.from_bytes(hashlib.blake2b(word.encode(), digest_size=8).digest(), "big")
            vector = np.random.default_rng(seed).standard_normal(self.dimension)
            self._words[word] = vector.astype(np.float32)
        return self._words[word]


def texts(numbers: np.ndarray, word: str) -> list[str]:
    return [f"{word} w{n % 997} w{n % 89} w{n % 7}" for n in numbers.tolist()]


def new_table(uri: str, num_rows: int) -> None:
    """Create a table in ten fragments."""
    ids = np.arange(num_rows)
    rows = pa.table({"id": ids, "text": texts(ids, "row"), "price": ids * 0.5})
    ds = lance_stream.create_dataset(uri, rows.schema)
    for part in range(10):
        ds = ds.append(rows.slice(part * num_rows // 10, num_rows // 10))


def stored_bytes(uri: str) -> int:
    return sum(path.stat().st_size for path in Path(uri, "data").rglob("*") if path.is_file())


def measure(name: str, derivation: Derivation) -> tuple[int, float]:
    """Compute what is not current; print and return for how many rows, and in what time."""
    before = stored_bytes(derivation.uri)
    begin = time.perf_counter(), time.process_time()
    result = derivation.run()
    seconds, cpu = time.perf_counter() - begin[0], time.process_time() - begin[1]
    written = (stored_bytes(derivation.uri) - before) / 1e6
    print(
        f"{name:16} {result.num_computed:10,} {seconds:9.2f} {cpu:9.2f} {written:9.1f} MB",
        flush=True,
    )
    return result.num_computed, seconds


def main() -> None:
    """Print a table, and the ratios that matter."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--dimension", type=int, default=64)
    parser.add_argument("--percent", type=float, default=1.0)
    parser.add_argument("--micros", type=float, default=20.0)
    arguments = parser.parse_args()
    function = Embedding(arguments.dimension, arguments.micros)
    outputs = {"embedding": pa.list_(pa.float32(), arguments.dimension)}
    dice = np.random.default_rng(1)
    num_changed = max(int(arguments.rows * arguments.percent / 100), 1)

    def declared(uri: str, version: str) -> Derivation:
        options: dict[str, Any] = {"function_version": version, "batch_rows": 4096}
        return derive(uri, outputs, function, "text", **options)

    with tempfile.TemporaryDirectory() as folder:
        uri = f"{folder}/texts.lance"
        new_table(uri, arguments.rows)
        print("                       rows   seconds     CPU s   written")
        declared(uri, "1").run()
        _, of_all = measure("all rows", declared(uri, "2"))
        chosen = np.sort(dice.choice(arguments.rows, num_changed, replace=False))
        changed = pa.table({"id": chosen, "text": texts(chosen, "changed")})
        lance_stream.open_dataset(uri).upsert(changed, on="id")
        num_computed, of_some = measure("texts changed", declared(uri, "2"))
        chosen = np.sort(dice.choice(arguments.rows, num_changed, replace=False))
        prices = pa.table({"id": chosen, "price": chosen * 1.0})
        lance_stream.open_dataset(uri).upsert(prices, on="id")
        measure("prices changed", declared(uri, "2"))
        measure("nothing changed", declared(uri, "2"))
        print(
            f"computed {num_computed / num_changed:.4f} rows for each changed one; "
            f"{of_all / of_some:.1f} times as fast as all rows"
        )


if __name__ == "__main__":
    main()
