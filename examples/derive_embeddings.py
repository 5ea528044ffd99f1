"""Keep embeddings of text chunks up to date beside a stream, and search them.

    python examples/derive_embeddings.py [FOLDER]

A stream upserts chunks of text into FOLDER/chunks.lance. Their embeddings are a derived column: the
model runs in Spark's workers, only for chunks that are new or whose text changed. An index of the
vectors is brought up to date, and searched.

MODEL names a model of sentence-transformers, or its folder, for example all-MiniLM-L6-v2, which has
to be installed on all machines. If MODEL is not set, words are hashed into a vector, which finds
equal words.
"""

import os
import re
import sys
import tempfile
import zlib
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
DIMENSION = 384
MODEL = os.environ.get("MODEL", "")
"""A name or folder that SentenceTransformer loads; with HF_HUB_OFFLINE=1 it downloads nothing."""

SUBJECTS = ["streams", "tables", "vectors", "indices", "versions", "embeddings", "queries", "keys"]
VERBS = ["follow", "replace", "describe", "need", "precede", "extend"]


def load_model() -> Any:
    """Return the model, or None to hash words; runs once in each worker."""
    if not MODEL:
        return None
    from sentence_transformers import SentenceTransformer

    return SentenceTransformer(MODEL)


def embed(batch: pa.RecordBatch, model: Any) -> np.ndarray:
    """Return (n, 384) f32 of length 1: the embeddings of n texts."""
    texts = [each or "" for each in batch["text"].to_pylist()]
    if model is not None:
        return np.asarray(model.encode(texts, normalize_embeddings=True), np.float32)
    vectors = np.zeros((len(texts), DIMENSION), np.float32)
    for row, text in enumerate(texts):
        for word in re.findall(r"\w+", text.lower()):
            number = zlib.crc32(word.encode())
            vectors[row, number % DIMENSION] += 1 if number & 1 << 31 else -1
    return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-9)


def embeddings_of(spark: SparkSession, chunks: str) -> Derivation:
    """Return the derivation of the embeddings; another model computes all of them again."""
    return derive(
        spark,
        chunks,
        {"embedding": pa.list_(pa.float32(), DIMENSION)},
        embed,
        inputs=["text"],
        function_version=MODEL or "hashed words 1",
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
    found = lance.dataset(chunks).to_table(columns=["id", "text"], nearest=nearest)
    rows: list[dict[str, Any]] = found.to_pylist()
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
    for each in search(chunks, "Which penguin sings?"):
        print(f"  {each['id']:5}  {each['text']}")
    print(embeddings.status())


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp())
