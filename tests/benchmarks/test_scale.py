"""What a table's fragments cost if nothing asks for one of them: no decoding, one by one."""

from pathlib import Path

import lance
import pytest

import lance_stream
from benchmarks.scale import actions
from benchmarks.scale.actions import HISTORY, TABLE
from benchmarks.scale.forging import FORGED_VERSION, forge_history, forge_table
from lance_stream.read import units
from lance_stream.table.fragments import fragment_list
from lance_stream.table.fragments.fragment import Fragment, decode_fragment
from tests.sampling import ALL_CASES

NUM_FRAGMENTS = 1100
"""More than are looked up in an index of all rows."""

FEW = 30
"""Fragments that an action may decode: those of its rows, and of the newest versions."""

UNMEASURED = {
    "plan a cleanup": "the names of all files are compared with those of the folders",
    "verify": "every file is opened",
    "feed of 100 versions": "this table has fewer",
}


@pytest.fixture(scope="module")
def forged(tmp_path_factory: pytest.TempPathFactory) -> str:
    uri = str(tmp_path_factory.mktemp("scale") / "t.lance")
    forge_table(uri, NUM_FRAGMENTS, num_rows=100)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(actions, "NUM_APPENDED", 10)
        actions.append_versions(uri)
    return uri


def test_forged_tables_are_sound(forged: str) -> None:
    """Both programs must accept the forged manifest, or measurements on it prove nothing."""
    ds = lance_stream.open_dataset(forged, version=FORGED_VERSION)
    num_rows = NUM_FRAGMENTS * 100 - NUM_FRAGMENTS // 10
    assert ds.count_rows() == num_rows
    assert not ds.verify()
    theirs = lance.dataset(forged, version=FORGED_VERSION)
    assert theirs.count_rows() == num_rows
    assert len(theirs.get_fragments()) == NUM_FRAGMENTS


@pytest.mark.parametrize("name", [value for value in TABLE if value not in UNMEASURED])
def test_actions_decode_few_fragments(
    forged: str, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Counting decoded fragments shows growth with the table on any machine, without measuring
    time.
    """
    decoded: list[int] = []

    def counted(data: bytes) -> Fragment:
        decoded.append(len(data))
        return decode_fragment(data)

    TABLE[name](forged)  # what is read once of a table by each process
    monkeypatch.setattr(fragment_list, "decode_fragment", counted)
    monkeypatch.setattr(units, "decode_fragment", counted)
    TABLE[name](forged)
    assert len(decoded) <= FEW


@pytest.mark.slow
@pytest.mark.nightly
def test_forged_histories_have_their_versions(tmp_path: Path) -> None:
    """Measurements over many versions need each of them readable."""
    num_versions = 2000 if ALL_CASES else 300
    uri = str(tmp_path / "h.lance")
    forge_history(uri, num_versions)
    ds = lance_stream.open_dataset(uri)
    assert [version.version for version in ds.versions()] == list(range(1, num_versions + 1))
    assert {version.num_rows for version in ds.versions()} == {0, 10}
    for action in HISTORY.values():
        action(uri)
