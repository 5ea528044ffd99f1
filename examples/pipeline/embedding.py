"""Text to vectors by WordLlama, a small model that its package of PyPI carries: no download.

A text's vector is the mean of those of its tokens, scaled to length 1, so texts about the same are
near each other even if they share no word. The same text has the same vector, bit by bit, whichever
texts are embedded with it, so the end of a run can be checked.
"""

import logging
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

DIMENSIONS = 256
VERSION = "wordllama l2_supercat 256"
"""Changes whenever the vectors of texts do."""


@cache
def load_model() -> Any:
    """Return the model; about a second the first time."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    import wordllama  # gives all loggers a handler, and the level INFO

    root.handlers[:] = handlers
    root.setLevel(level)
    model_folder = Path(wordllama.__file__).parent  # where it would only look for the weights
    return wordllama.WordLlama.load(dim=DIMENSIONS, cache_dir=model_folder, disable_download=True)


def embed_texts(texts: Iterable[str | None]) -> npt.NDArray[np.float32]:
    """Return (n, 256) vectors of length 1; those of empty texts are zero."""
    strings = [text or "" for text in texts]
    if not strings:
        return np.zeros((0, DIMENSIONS), np.float32)
    order = np.argsort([len(value) for value in strings], kind="stable")  # the model pads texts
    vectors = np.empty((len(strings), DIMENSIONS), np.float32)
    vectors[order] = load_model().embed([strings[index] for index in order])
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors / np.where(lengths, lengths, np.float32(1))


def embed(batch: pa.RecordBatch) -> pa.FixedSizeListArray:
    """Return the vectors of rows: of their title, which counts twice, and their body."""
    titles, bodies = batch.column("title").to_pylist(), batch.column("body").to_pylist()
    return as_array(embed_texts(map(text_of, titles, bodies)))


def text_of(title: str | None, body: str | None) -> str:
    """Return the text that stands for an article."""
    return f"{title or ''} {title or ''} {body or ''}".strip()


def as_array(vectors: npt.NDArray[np.float32]) -> pa.FixedSizeListArray:
    """Return (n, 256) vectors as a column."""
    return pa.FixedSizeListArray.from_arrays(pa.array(vectors.reshape(-1)), DIMENSIONS)


def words_of(text: str) -> list[str]:
    """Return the words of a text, in lower case: runs of letters and digits."""
    return "".join(value if value.isalnum() else " " for value in text.lower()).split()
