import pyarrow as pa
import pytest

from lance_stream.errors import InvalidInputError
from lance_stream.file.type_support import check_types
from lance_stream.file.versions import FileVersion
from lance_stream.file.writer import FileWriter
from lance_stream.schema.arrow_schemas import from_arrow
from lance_stream.schema.fields import assign_ids

MAPS = pa.list_(pa.map_(pa.string(), pa.int8()))
POINTS = pa.list_(pa.struct([("x", pa.int8())]), 2)


@pytest.mark.parametrize("arrow", [MAPS, POINTS], ids=["maps", "points"])
@pytest.mark.parametrize("version", ["0.1", "2.0", "2.1"])
def test_older_versions_refuse_newer_types(arrow: pa.DataType, version: str) -> None:
    """Files of the older version with such a column could not be read by Lance."""
    schema = assign_ids(from_arrow(pa.schema([("id", pa.int8()), ("c", arrow)])))
    with pytest.raises(InvalidInputError, match=r"column 'c'.*version 2\.2"):
        check_types(schema.fields, FileVersion(version))
    check_types(schema.fields[:1], FileVersion(version))
    check_types(schema.fields, FileVersion.V2_2)


def test_a_writer_checks_types_before_writing() -> None:
    """A late failure would leave a partial file."""
    schema = assign_ids(from_arrow(pa.schema([("c", MAPS)])))
    with pytest.raises(InvalidInputError, match="maps"):
        FileWriter(schema, FileVersion.V2_1)
