import pytest

from lance_stream._proto import file_pb2
from lance_stream.errors import CorruptDataError
from lance_stream.schema.fields import Field, Schema, fields_from_proto


def message(number: int, parent: int) -> file_pb2.Field:
    return file_pb2.Field(name=f"f{number}", id=number, parent_id=parent, logical_type="int8")


def test_duplicate_field_ids_are_corrupt() -> None:
    """Data files refer to columns by id, so two fields with one id would share their values."""
    with pytest.raises(CorruptDataError, match=r"field id 3 .* twice"):
        fields_from_proto([message(3, -1), message(3, -1)])


def test_a_self_parented_field_is_corrupt() -> None:
    """Without the check the field would be in no tree and silently vanish."""
    with pytest.raises(CorruptDataError, match="names the parent 3"):
        fields_from_proto([message(3, 3)])


def test_parents_must_precede_their_children() -> None:
    """The format lists fields depth first, and a cycle of parents is excluded by the
    order alone.
    """
    with pytest.raises(CorruptDataError, match="names the parent 4"):
        fields_from_proto([message(3, 4), message(4, -1)])


def test_absurdly_deep_nesting_is_corrupt() -> None:
    """A damaged manifest must not exhaust the stack of its reader."""
    with pytest.raises(CorruptDataError, match="deeper than 64"):
        fields_from_proto([message(n, n - 1) for n in range(100)])


def test_leaves_are_the_fields_without_parts() -> None:
    """Data files store values of leaves only, and look them up by id."""
    tree = Field("s", "struct", 0, children=(Field("a", "int8", 1), Field("b", "int8", 2)))
    assert [leaf.name for leaf in tree.leaves()] == ["a", "b"]
    schema = Schema((tree,))
    assert schema.field_by_id(2) == Field("b", "int8", 2)
    assert schema.field_by_id(9) is None
