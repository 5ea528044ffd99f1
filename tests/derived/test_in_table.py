"""Values that are written to the source while other writers commit."""

from pathlib import Path

import lance
import pyarrow as pa
import pytest

import lance_stream
from lance_stream import derive
from tests.derived.test_derivation import LENGTH, Lengths, lengths_of, new_table


@pytest.mark.parametrize("changed", [{2, 13}, set(range(6)) | {13}], ids=["moved", "in place"])
def test_only_rows_with_unchanged_inputs_get_values(tmp_path: Path, changed: set[int]) -> None:
    """The values of moved rows are still valid; those of changed inputs are not."""
    uri = new_table(tmp_path, (0, 6), (6, 12), (12, 18), (18, 24))

    def meanwhile(batch: pa.RecordBatch) -> list[int]:
        ds = lance_stream.open_dataset(uri)
        texts = pa.table({"id": sorted(changed), "text": ["changed"] * len(changed)})
        ds.upsert(texts, on="id").update({"price": "7"}, where="id in (3, 7, 19)")
        return [len(text) for text in batch["text"].to_pylist()]

    done = derive(uri, LENGTH, meanwhile, "text", function_version="1").run(max_commits=1)
    assert (done.num_computed, done.num_written) == (24, 24 - len(changed))
    assert lengths_of(uri) == {n: None if n in changed else len(f"text {n}") for n in range(24)}


def test_an_index_on_values_follows_a_new_function(tmp_path: Path) -> None:
    """Values are replaced in place, so rows stay where an index has them."""
    uri = new_table(tmp_path, (0, 50))
    derive(uri, LENGTH, Lengths(), "text", function_version="1").run()
    lance.dataset(uri).create_scalar_index("length", "BTREE")
    thrice = derive(
        uri, LENGTH, lambda batch: [3 * len(text.as_py()) for text in batch["text"]], "text",
        function_version="2",
    )  # fmt: skip
    assert thrice.run().num_in_place == 50
    for ds in (lance_stream.open_dataset(uri), lance.dataset(uri)):
        rows = ds.to_table(["id"], filter="length = 18")
        assert sorted(rows["id"].to_pylist()) == list(range(10))
        assert ds.to_table(["id"], filter="length = 6").num_rows == 0
