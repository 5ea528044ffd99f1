"""Metadata of columns, spelled in every way that pylance takes: what it writes we read.

After our append pylance reads the table as well as it did before.
"""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

import lance
import pyarrow as pa
import pytest

import lance_stream
from lance_stream.errors import InvalidInputError
from tests.sampling import some_of

pytestmark = pytest.mark.oracle

T = TypeVar("T")

VERSIONS: Final = ("2.0", "2.1", "2.2")
NUM_ROWS: Final = 300

PACKED_KEYS: Final = ("lance-encoding:packed", "packed")
PACKED_SPELLINGS: Final = (
    *("true", "True", "TRUE", "1", "yes", "on", "y", "t"),
    *("false", "0", "no", "off", "", "maybe", " true ", "2"),
)

SPELLINGS: Final = {
    "lance-encoding:compression": ["none", "LZ4", "zstd", "Zstd", "fsst", "gzip", "", " zstd "],
    "lance-encoding:compression-level": ["3", "0", "-1", "99", "abc", "", "3.5"],
    "lance-encoding:structural-encoding": ["MiniBlock", "FULLZIP", "sparse", "full_zip", ""],
    "lance-encoding:rle-threshold": ["0.5", "1", "0", "2", "-1", "abc", ""],
    "lance-encoding:bss": ["off", "on", "ON", "true", "maybe", ""],
    "lance-encoding:minichunk-size": ["1024", "0", "-1", "abc", "99999999999", ""],
    "lance-encoding:dict-divisor": ["2", "0", "abc", "1.5", "-1", ""],
    "lance-encoding:dict-size-ratio": ["0.5", "0", "1.5", "abc", "-1", ""],
    "lance-encoding:dict-max-size": ["1000", "0", "-5", "abc", ""],
    "lance-encoding:dict-values-compression": ["none", "LZ4", "zstd", "fsst", "gzip", ""],
    "lance-encoding:dict-values-compression-level": ["3", "99", "abc", ""],
    "lance-encoding:blob": ["true", "false", "1", "0", "", "maybe"],
    "lance-encoding:blob-inline-size-threshold": ["0", "1", "abc", "-1", ""],
    "lance-encoding:blob-dedicated-size-threshold": ["0", "1", "abc", ""],
    "lance-encoding:blob-version": ["1", "2", "abc"],
    "lance-encoding:not-known-yet": ["x"],
    "lance-schema:storage-class": ["default", "x"],
    "lance-schema:unenforced-primary-key": ["TRUE", "1", "yes", "on", "false", "maybe", ""],
    "lance-schema:unenforced-primary-key:position": ["1", "-1", "abc", "+1", "01"],
    "lance-schema:unenforced-clustering-key": ["true", "1"],
    "ARROW:extension:name": ["some.extension"],
}
"""Some spellings of the values of each key, right and wrong ones."""

VALUES: Final = {
    "texts": pa.array([f"value {number % 9}" for number in range(NUM_ROWS)]),
    "floats": pa.array([number / 7 for number in range(NUM_ROWS)], pa.float32()),
    "numbers": pa.array([number // 20 for number in range(NUM_ROWS)]),
    "bytes": pa.array([b"x" * (number % 40) for number in range(NUM_ROWS)], pa.large_binary()),
}


def cases() -> Iterator[tuple[str, str, str]]:
    for key, spellings in SPELLINGS.items():
        for spelling in spellings:
            for kind in VALUES:
                if not key.startswith("lance-encoding:blob") or kind == "bytes":
                    yield key, spelling, kind


def unless_refused(ask: Callable[[], T]) -> T | None:
    """Return pylance's answer; None where it has none, for a panic in Rust is no Exception."""
    try:
        return ask()
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException:
        return None


def pylance_reads(path: str) -> Any:
    """Return what pylance reads; None where it cannot."""
    return unless_refused(lambda: lance.dataset(path).to_table().to_pydict())


def check_read_and_appended(path: str, rows: pa.Table) -> None:
    """Check that we read what pylance wrote, and that our append changes nothing of that."""
    ds = lance_stream.open_dataset(path)
    assert ds.to_table().to_pydict() == rows.to_pydict()
    assert ds.verify() == []
    before = pylance_reads(path)
    grown = ds.append(pa.Table.from_arrays(rows.columns, names=rows.schema.names))
    assert grown.to_table().to_pydict() == pa.concat_tables([rows, rows]).to_pydict()
    if before is not None:
        after = pylance_reads(path)
        assert after is not None
        assert {name: len(column) for name, column in after.items()} == {
            name: 2 * len(column) for name, column in before.items()
        }
        if before == rows.to_pydict():
            assert after == pa.concat_tables([rows, rows]).to_pydict()


@pytest.mark.quick_cases(one_in=2)
@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("key", PACKED_KEYS)
def test_every_spelling_of_packed_is_read(version: str, key: str, tmp_path: Path) -> None:
    """pylance accepts several spellings, which decide how many columns a struct has."""
    values = [{"a": number, "b": number * 2.5} for number in range(50)]
    parts = pa.struct([pa.field("a", pa.int32()), pa.field("b", pa.float64())])
    for index, spelling in enumerate(PACKED_SPELLINGS):
        path = str(tmp_path / f"{index}.lance")
        schema = pa.schema(
            [pa.field("id", pa.int64()), pa.field("s", parts, metadata={key: spelling})]
        )
        rows = pa.table({"id": list(range(50)), "s": values}, schema=schema)
        lance.write_dataset(rows, path, data_storage_version=version)
        check_read_and_appended(path, rows)
        one_part = lance_stream.open_dataset(path).to_table(["s.b"], filter="s.a = 7")
        assert one_part.to_pydict() == {"s": [{"b": 17.5}] * 2}, spelling


@pytest.mark.quick_cases(one_in=2)
@pytest.mark.parametrize("version", VERSIONS)
def test_every_metadata_spelling_reads_and_appends(version: str, tmp_path: Path) -> None:
    """Values that pylance accepts must not make a table unusable here."""
    num_written = 0
    for case in some_of(cases(), 12, version):
        key, spelling, kind = case
        path = str(tmp_path / f"{num_written}.lance")
        may_be_null = not key.startswith("lance-schema:unenforced")
        schema = pa.schema([pa.field("c", VALUES[kind].type, may_be_null, {key: spelling})])
        rows = pa.Table.from_arrays([VALUES[kind]], schema=schema)
        write = partial(lance.write_dataset, rows, path, data_storage_version=version)
        if unless_refused(write) is None:
            continue
        num_written += 1
        try:
            check_read_and_appended(path, rows)
        except Exception as error:
            error.add_note(str(case))
            raise
    assert num_written >= 15


@pytest.mark.parametrize("spelling", ["1", "yes", "false", "0"])
def test_packed_is_written_as_readers_expect(spelling: str, tmp_path: Path) -> None:
    """Older releases of pylance know only some of the spellings."""
    for version in VERSIONS:
        path = str(tmp_path / f"{version}.lance")
        parts = pa.struct([pa.field("a", pa.int32())])
        schema = pa.schema([pa.field("s", parts, metadata={PACKED_KEYS[0]: spelling})])
        rows = pa.table({"s": [{"a": 1}, {"a": 2}]}, schema=schema)
        lance_stream.create_dataset(path, schema, version).append(rows)
        lance.write_dataset(rows, path, mode="append")
        assert pylance_reads(path) == {"s": [{"a": 1}, {"a": 2}] * 2}


def test_invalid_encoding_options_are_refused_early(tmp_path: Path) -> None:
    """The first append would fail instead, when the table exists already."""
    schema = pa.schema([pa.field("c", pa.int64(), metadata={"lance-encoding:bss": "maybe"})])
    with pytest.raises(InvalidInputError, match="'lance-encoding:bss' is 'maybe'"):
        lance_stream.create_dataset(tmp_path / "t", schema)
    assert not list(tmp_path.iterdir())
