"""Errors about unknown names: they name the member with the same purpose."""

import copy
import pickle
import re
import subprocess
import sys
import uuid
from operator import attrgetter

import pyarrow as pa
import pytest

import lance_stream
import lance_stream.spark
from lance_stream import Dataset
from lance_stream.other_names import OF_DATASET, OF_PACKAGE

ROOTS = {"lance_stream": lance_stream, "ds": Dataset}
PATH = re.compile(r"(?<![\w.])(lance_stream|ds)\.([\w.]+)")


@pytest.fixture
def ds() -> Dataset:
    uri = f"memory://{uuid.uuid4()}/table"
    return lance_stream.create_dataset(uri, pa.table({"id": [1]}))


@pytest.mark.parametrize("member", sorted({*OF_DATASET.values(), *OF_PACKAGE.values()}))
def test_named_members_exist(member: str) -> None:
    """Advice that fails costs the user more than none; a renamed method must be renamed here."""
    paths = PATH.findall(member)
    assert paths or "`lance-stream " in member
    for root, path in paths:
        first, _, rest = path.partition(".")
        value = attrgetter(first)(ROOTS[root])
        if isinstance(value, property):
            value = value.fget.__annotations__["return"] if value.fget else None
        if rest:
            attrgetter(rest)(value)


def test_no_other_name_is_a_member() -> None:
    """An entry for a member would never be read."""
    assert [name for name in OF_DATASET if hasattr(Dataset, name)] == []
    assert {*OF_PACKAGE} & {*lance_stream.__all__} == set()
    in_spark = {name for name in OF_PACKAGE if OF_PACKAGE[name] == f"lance_stream.spark.{name}"}
    assert in_spark <= {*lance_stream.spark.__all__}


@pytest.mark.parametrize(
    ("name", "member"),
    [("vacuum", "ds.cleanup(older_than='7 days')"), ("to_pandas", "ds.to_table().to_pandas()")],
)
def test_unknown_methods_name_the_right_one(ds: Dataset, name: str, member: str) -> None:
    """Users of other libraries try the names that they know."""
    with pytest.raises(AttributeError) as caught:
        getattr(ds, name)
    assert str(caught.value) == f"'Dataset' object has no attribute {name!r}. Use {member}"


def test_pythons_suggestion_does_not_follow_ours() -> None:
    """Python suggests the closest spelling: `drop_table` for `write_table`."""
    code = "import lance_stream; lance_stream.write_table"
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    expected = "no attribute 'write_table'. Use lance_stream.create_dataset(uri, rows)\n"
    assert process.stderr.endswith(expected), process.stderr


def test_misspelled_methods_get_pythons_suggestion(ds: Dataset) -> None:
    """Python finds the closest spelling if the error has the name and the object."""
    with pytest.raises(AttributeError) as caught:
        _ = ds.compactt  # type: ignore[attr-defined]  # wrong on purpose
    assert (caught.value.name, caught.value.obj) == ("compactt", ds)


def test_hints_leave_probes_and_copies_alone(ds: Dataset) -> None:
    """`copy`, `pickle` and notebooks look up attributes that may be absent."""
    assert not hasattr(ds, "vacuum")
    assert not hasattr(ds, "_ipython_display_")
    assert copy.copy(ds).version == 1
    assert pickle.loads(pickle.dumps(ds.table.manifest)) == ds.table.manifest
    with pytest.raises(AttributeError):
        _ = Dataset.__new__(Dataset).table


def test_errors_inside_properties_keep_their_message(
    ds: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python calls `__getattr__` for them, too, which must not replace the cause."""
    monkeypatch.setattr(ds, "table", object())
    with pytest.raises(AttributeError, match="no attribute 'version'") as caught:
        _ = ds.version
    assert caught.value.obj is ds.table
