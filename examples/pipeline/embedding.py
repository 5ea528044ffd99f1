"""Text to vectors without a model: character n-grams and words, hashed into 256 dimensions.

    for each word      the word, and its n-grams of 3 to 5 letters with a mark at both ends
    for each of these  a hash; one dimension of the vector gets +1 or -1, by the hash
    the vector         each count damped by its square root, then scaled to length 1

Texts that share words, or parts of words, are near each other: "restarts" is near "restarting". It
needs no download, and the same text has the same vector, bit by bit, so the end of a run can be
checked. For meaning rather than spelling, exchange `embed` for a model; see
docs/database-to-search.md.
"""

from collections.abc import Iterable
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import pyarrow as pa

DIMENSIONS = 256
VERSION = "1"
"""Changes whenever the vectors of texts do."""

_SIZES = (3, 4, 5)
_WORD_WEIGHT = 3.0
_COMMON = frozenset(
    [
        *(
            "a",
            "after",
            "all",
            "an",
            "and",
            "are",
            "as",
            "at",
            "be",
            "but",
            "by",
            "can",
            "do",
            "does",
        ),
        *(
            "for",
            "from",
            "has",
            "have",
            "if",
            "in",
            "is",
            "it",
            "its",
            "no",
            "not",
            "of",
            "on",
            "or",
        ),
        *("our", "so", "that", "the", "then", "there", "this", "to", "was", "we", "when", "will"),
        *("with", "you", "your"),
    ]
)


def embed_texts(texts: Iterable[str | None]) -> npt.NDArray[np.float32]:
    """Return (n, 256) vectors of length 1; those of texts without a word are zero."""
    rows = [_vector(text or "") for text in texts]
    return np.stack(rows) if rows else np.zeros((0, DIMENSIONS), np.float32)


def embed(batch: pa.RecordBatch) -> pa.FixedSizeListArray:
    """Return the vectors of rows: of their title, which counts twice, and their body."""
    titles, bodies = batch.column("title").to_pylist(), batch.column("body").to_pylist()
    return as_array(embed_texts(map(text_of, titles, bodies)))


def text_of(title: str | None, body: str | None) -> str:
    """Return the text that stands for an article."""
    return f"{title or ''} {title or ''} {body or ''}"


def as_array(vectors: npt.NDArray[np.float32]) -> pa.FixedSizeListArray:
    """Return (n, 256) vectors as a column."""
    return pa.FixedSizeListArray.from_arrays(pa.array(vectors.reshape(-1)), DIMENSIONS)


def words_of(text: str) -> list[str]:
    """Return the words of a text, in lower case: runs of letters and digits."""
    return "".join(each if each.isalnum() else " " for each in text.lower()).split()


def _vector(text: str) -> npt.NDArray[np.float32]:
    total = np.zeros(DIMENSIONS)
    for word in words_of(text):
        if word not in _COMMON:
            places, signs = _features(word)
            np.add.at(total, places, signs)
    damped = np.sign(total) * np.sqrt(np.abs(total))
    length = np.sqrt(np.square(damped).sum())
    return (damped / length if length else damped).astype(np.float32)


@lru_cache(maxsize=100_000)
def _features(word: str) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.float64]]:
    """Return which dimensions a word changes, and by how much."""
    marked = f"<{word}>"
    grams = [
        marked[start : start + size]
        for size in _SIZES
        for start in range(max(len(marked) - size + 1, 0))
    ]
    hashes = [_hash(f"word:{word}"), *map(_hash, grams)]
    weights = [_WORD_WEIGHT, *[1.0] * len(grams)]
    places = np.array([each % DIMENSIONS for each in hashes])
    signs = np.array([1.0 if each >> 40 & 1 else -1.0 for each in hashes])
    return places, signs * np.array(weights)


def _hash(text: str) -> int:
    """Return 64 bits: FNV-1a, then a round of mixing, as its low bits alone are poor."""
    value = 0xCBF29CE484222325
    for byte in text.encode():
        value = (value ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    value ^= value >> 33
    value = value * 0xFF51AFD7ED558CCD & 0xFFFFFFFFFFFFFFFF
    return value ^ value >> 33
