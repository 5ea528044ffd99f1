"""Keep embeddings of text chunks up to date beside a stream, and search them.

    python examples/derive_embeddings.py [FOLDER]

A stream upserts chunks of text into FOLDER/chunks.lance. Their embeddings are a derived column: the
model runs in Spark's workers, only for chunks that are new or whose text changed. An index of the
vectors is brought up to date, and searched.

The model is WordLlama, whose package of PyPI carries it: pip install wordllama, on all machines. If
MODEL is set, it is a model of sentence-transformers, or its folder, for example all-MiniLM-L6-v2.
"""

import logging
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

import lance_stream
from lance_stream import Derivation
from lance_stream.spark import derive, lance_sink

CHUNKS = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("text", pa.string()),
        pa.field("source", pa.string()),
    ]
)
MODEL = os.environ.get("MODEL", "")
"""A name or folder that SentenceTransformer loads; with HF_HUB_OFFLINE=1 it downloads nothing."""
DIMENSION = 384 if MODEL else 256

SUBJECTS = ["streams", "tables", "vectors", "indices", "versions", "embeddings", "queries", "keys"]
VERBS = ["follow", "replace", "describe", "need", "precede", "extend"]


def load_model() -> Callable[[list[str]], np.ndarray]:
    """Return a function of texts that returns their vectors; called once in each worker."""
    if MODEL:
        from sentence_transformers import SentenceTransformer

        return SentenceTransformer(MODEL).encode
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    import wordllama  # gives all loggers a handler, and the level INFO

    root.handlers[:] = handlers
    root.setLevel(level)
    model_folder = Path(wordllama.__file__).parent  # where it would only look for the weights
    return wordllama.WordLlama.load(cache_dir=model_folder, disable_download=True).embed


def embed(batch: pa.RecordBatch, encode: Callable[[list[str]], np.ndarray]) -> np.ndarray:
    """Return (n, DIMENSION) f32 of length 1: the embeddings of n texts; zero for empty ones."""
    vectors = np.asarray(encode([text or "" for text in batch["text"].to_pylist()]), np.float32)
    return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-9)


def embeddings_of(spark: SparkSession, chunks: str) -> Derivation:
    """Return the derivation of the embeddings; another model computes all of them again."""
    return derive(
        spark,
        chunks,
        {"embedding": pa.list_(pa.float32(), DIMENSION)},
        embed,
        inputs=["text"],
        function_version=MODEL or "wordllama l2_supercat 256",
        setup=load_model,
        batch_rows=256,
    )


def some_chunks(spark: SparkSession, ids: range, prefix: str = "") -> DataFrame:
    rows = [(n, prefix + sentence(n), f"page {n // 10}") for n in ids]
    return spark.createDataFrame(rows, "id long, text string, source string")


def sentence(number: int) -> str:
    words = SUBJECTS[number % 8], VERBS[number // 8 % 6], SUBJECTS[number // 48 % 8]
    return f"{' '.join(words)} in chapter {number}"


def search(chunks: str, question: str, count: int = 3) -> list[dict[str, Any]]:
    """Return the chunks nearest to a question; those that the index lacks are scanned."""
    import lance

    vector = embed(pa.record_batch({"text": [question]}), load_model())[0]
    nearest = {"column": "embedding", "q": vector, "k": count}
    matches = lance.dataset(chunks).to_table(columns=["id", "text"], nearest=nearest)
    rows: list[dict[str, Any]] = matches.to_pylist()
    return rows


def main(folder: str) -> None:
    spark = (
        SparkSession.builder.appName("embeddings")
        .master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .getOrCreate()
    )
    chunks = f"{folder}/chunks.lance"
    lance_stream.create_dataset(chunks, CHUNKS, primary_key=["id"])
    sink = lance_sink(chunks, mode="upsert", on="id", app_id="chunks")  # of a stream, elsewhere

    sink(some_chunks(spark, range(1000)), 0)
    embeddings = embeddings_of(spark, chunks)
    print(f"embedded: {embeddings.run().num_computed:,} of 1,000 chunks")

    import lance

    lance.dataset(chunks).create_index(
        "embedding", "IVF_FLAT", name="embedding_idx", num_partitions=4, metric="cosine"
    )

    sink(some_chunks(spark, range(995, 1010), "A penguin sings: "), 1)  # 5 changed, 10 new
    print(f"embedded: {embeddings.run().num_computed} after 5 changes and 10 new chunks")
    lance_stream.open_dataset(chunks).optimize_indices("embedding_idx")
    for row in search(chunks, "a bird that makes music"):
        print(f"  {row['id']:5}  {row['text']}")
    print(embeddings.status())


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp())
