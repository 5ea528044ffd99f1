"""How many rows each index covers: what pylance's statistics say, after each kind of write."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest

import lance_stream
from lance_stream.maintenance.indices.coverage import IndexCoverage, index_coverage
from lance_stream.monitoring.measures import TableWatch
from lance_stream.table.index_kinds import kind_of
from lance_stream.table.indices import IndexMetadata, decode_index_section, encode_index_section

pytestmark = pytest.mark.oracle

SCALAR = {
    "id": "BTREE", "g": "BITMAP", "x": "ZONEMAP", "s": "BLOOMFILTER", "name": "NGRAM",
    "text": "INVERTED", "tags": "LABEL_LIST",
}  # fmt: skip
VECTOR = ("IVF_FLAT", "IVF_PQ", "IVF_SQ", "IVF_RQ", "IVF_HNSW_FLAT", "IVF_HNSW_PQ", "IVF_HNSW_SQ")


def rows(start: int, stop: int) -> pa.Table:
    keys = range(start, stop)
    vectors = np.random.default_rng(start).random((len(keys), 8), np.float32)
    return pa.table(
        {
            "id": pa.array(keys),
            "g": [key % 3 for key in keys],
            "x": [float(key) for key in keys],
            "s": [f"s{key % 5}" for key in keys],
            "name": [f"name {key}" for key in keys],
            "text": [f"apple {key % 7}" for key in keys],
            "tags": [[f"t{key % 4}"] for key in keys],
            "place": [{"city": f"c{key % 4}"} for key in keys],
            "v": pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), 8),
        }
    )


@pytest.fixture
def uri(tmp_path: Path) -> str:
    """A table with an index of each scalar kind."""
    uri = str(tmp_path / "t")
    lance.write_dataset(rows(0, 60), uri, max_rows_per_file=20, enable_stable_row_ids=True)
    for column, kind in SCALAR.items():
        lance.dataset(uri).create_scalar_index(column, kind)
    lance.dataset(uri).create_scalar_index("place.city", "BITMAP", name="city")
    lance.dataset(uri).create_index("v", "IVF_FLAT", num_partitions=2)
    return uri


def by_name(uri: str) -> dict[str, IndexCoverage]:
    return {coverage.name: coverage for coverage in lance_stream.open_dataset(uri).index_coverage()}


WRITES: dict[str, Callable[[Any], Any]] = {
    "nothing": lambda ds: ds,
    "append": lambda ds: ds.append(rows(60, 75)),
    "delete": lambda ds: ds.delete("id % 3 = 0"),
    "upsert": lambda ds: ds.upsert(rows(10, 25), on="id"),
    "columns": lambda ds: ds.upsert(rows(10, 18).select(["id", "g"]), on="id"),
    "compact": lambda ds: ds.append(rows(60, 75)).delete("id < 5").compact(),
    "overwrite": lambda ds: ds.overwrite(rows(0, 9)),
    "all deleted": lambda ds: ds.delete("true"),
}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES.keys())
def test_coverage_equals_the_statistics_of_pylance(uri: str, write: Callable[[Any], Any]) -> None:
    """Users compare both numbers, and maintenance decides by them."""
    ds = write(lance_stream.open_dataset(uri))
    theirs = lance.dataset(uri)
    for coverage in ds.index_coverage():
        statistics = theirs.stats.index_stats(coverage.name)
        assert coverage.rows_unindexed == statistics["num_unindexed_rows"], coverage
        assert coverage.rows_indexed == statistics["num_indexed_rows"], coverage
    assert len(ds.index_coverage()) == len(theirs.describe_indices())


def test_each_index_is_described(uri: str) -> None:
    """Kind, columns and coverage come from stored details of pylance."""
    coverages = by_name(uri)
    assert {
        request.columns[0]: request.kind for request in coverages.values() if request.name != "city"
    } == {
        **SCALAR,
        "v": "IVF_FLAT",
    }
    city = coverages["city"]
    assert (city.columns, city.kind, city.num_segments) == (("place.city",), "BITMAP", 1)
    assert (city.rows_indexed, city.rows_unindexed, city.fraction) == (60, 0, 1.0)
    for described in lance.dataset(uri).describe_indices():
        assert coverages[described.name].size_bytes == described.total_size_bytes
    assert city.built_at is not None
    assert city.age(city.built_at).total_seconds() == 0


@pytest.mark.quick_cases(one_in=3)
@pytest.mark.parametrize("kind", VECTOR)
def test_vector_index_kinds_are_distinguished(tmp_path: Path, kind: str) -> None:
    """All vector indices have one stored type, and only fields of its details tell the kind."""
    uri = str(tmp_path / "t")
    lance.write_dataset(rows(0, 300), uri)
    codes = {"num_sub_vectors": 2} if kind.endswith("PQ") else {}
    lance.dataset(uri).create_index("v", kind, num_partitions=2, metric="cosine", **codes)
    assert by_name(uri)["v_idx"].kind == kind == lance.dataset(uri).describe_indices()[0].index_type


def test_unknown_coverage_has_no_numbers(uri: str) -> None:
    """A guess would report rows as covered that no index holds."""
    table = lance_stream.open_dataset(uri).table
    section = decode_index_section(table.manifest.index_section or b"")
    bare = IndexMetadata(b"1" * 16, (0,), "bare", 1)
    assert kind_of(bare) == "UNKNOWN"
    assert kind_of(IndexMetadata(b"", (), "", 1, details=("/a.b.NewIndexDetails", b""))) == "NEW"
    assert kind_of(IndexMetadata(b"", (), "", 1, details=("/VectorIndexDetails", b""))) == "VECTOR"
    changed = table.at(
        replace(table.manifest, index_section=encode_index_section([*section, bare]))
    )
    (coverage,) = (entry for entry in index_coverage(changed) if entry.name == "bare")
    assert (coverage.rows_indexed, coverage.rows_unindexed, coverage.fraction) == (None, None, None)
    assert (coverage.built_at, coverage.size_bytes) == (None, None)


def test_metrics_and_reports_show_uncovered_rows(uri: str) -> None:
    """Operators see in them that queries become scans."""
    ds = lance_stream.open_dataset(uri).append(rows(60, 80))
    measured = {index.name: index for index in TableWatch(uri).measure().indices}
    assert {value.unindexed_rows for value in measured.values()} == {20}
    assert {value.coverage for value in measured.values()} == {0.75}
    indices = ds.report().series.indices
    assert indices is not None
    assert {(value.covered, value.unindexed) for value in indices} == {(0.75, 20)}
