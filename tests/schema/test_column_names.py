"""Names that columns must not have, and what users do about them."""

import pyarrow as pa
import pytest

import lance_stream
from lance_stream.errors import InvalidInputError
from lance_stream.schema.column_names import check_new_name


def test_stored_changes_are_applied_or_renamed() -> None:
    """A stream of changes into a plain sink is the usual way to meet a reserved name."""
    origin = lance_stream.create_dataset("memory://names/origin", pa.table({"id": [1]}))
    changes = origin.changes(after=0).read_all()
    with pytest.raises(InvalidInputError, match=r"mode='apply_changes'.*_change_type to change_ty"):
        lance_stream.create_dataset("memory://names/copy", changes)


@pytest.mark.parametrize("name", ["_rowid", "_rowaddr", "_rowoffset", "_lance_stream_deletes"])
def test_other_reserved_names_suggest_no_mode(name: str) -> None:
    """The reference cannot read a table with `_rowoffset`, and upserts mark deletes by a column."""
    with pytest.raises(InvalidInputError, match="is reserved") as caught:
        check_new_name(name)
    assert ("apply_changes" in str(caught.value)) == (name == "_rowid")
