"""Missing files: the error says whether the version was cleaned up or the table is damaged."""

import uuid
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

import lance_stream
from lance_stream import Dataset, NotFoundError, open_dataset
from lance_stream.snapshot.files.missing_files import explaining_missing_files
from lance_stream.table.manifest import BasePath, encode_manifest


@pytest.fixture
def ds() -> Dataset:
    dataset = lance_stream.create_dataset(
        f"memory://{uuid.uuid4()}/t", pa.schema([pa.field("id", pa.int64())])
    )
    dataset.append(pa.table({"id": range(9)})).delete("id = 3")
    return open_dataset(dataset.uri)  # which has nothing in memory


def test_reading_a_removed_version_reports_cleanup(ds: Dataset) -> None:
    """A version that was cleaned up is not damaged, and the message must not say so."""
    ds.overwrite(pa.table({"id": [1]})).cleanup(retain_versions=1)
    for read in (
        ds.to_table,
        lambda: ds.count_rows("id > 3"),
        lambda: ds.take([0]),
        lambda: ds.changes(2, 3).read_all(),
    ):
        with pytest.raises(NotFoundError, match=r"has been cleaned up|no version 3"):
            read()
    with pytest.raises(NotFoundError, match=r"Version 3 of .* nothing is damaged.*create it again"):
        ds.to_table()


def test_missing_newest_files_are_damage(ds: Dataset) -> None:
    """The user has to know whether to open a newer version or to repair the table."""
    (file,) = (file.path for file in ds.table.store.list("data"))
    ds.table.store.delete(file)
    with pytest.raises(NotFoundError, match=rf"{file}.* the table is damaged"):
        open_dataset(ds.uri).to_table()


def test_moved_tables_still_have_the_files(tmp_path: Path) -> None:
    """Nobody has deleted them: the branch looks for them where the table was."""
    ds = lance_stream.create_dataset(tmp_path / "a", pa.table({"id": [1]}))
    ds.branches.create("dev")
    ds.branches.create("dev/2", ("dev", None))
    (tmp_path / "a").rename(tmp_path / "b")
    for branch in ("dev", "dev/2"):
        moved = open_dataset(tmp_path / "b", branch=branch)
        with pytest.raises(
            NotFoundError, match=rf"{tmp_path / 'a'}'. The table was moved or copied"
        ):
            moved.to_table()
    assert open_dataset(tmp_path / "b").to_table().num_rows == 1


def test_a_clones_missing_files_suggest_cleanup(tmp_path: Path) -> None:
    """The table that the clone was made from may have removed them."""
    lance = pytest.importorskip("lance", reason="only pylance makes clones")
    base = lance.write_dataset(pa.table({"id": [1]}), str(tmp_path / "base"))
    base.shallow_clone(str(tmp_path / "clone"), 1)
    open_dataset(tmp_path / "base").overwrite(pa.table({"id": [2]})).cleanup(retain_versions=1)
    with pytest.raises(
        NotFoundError, match=r"does not consider clones\. A tag on the cloned version"
    ):
        open_dataset(tmp_path / "clone").to_table()


@pytest.mark.parametrize(
    ("bases", "branch", "used", "reason"),
    [
        ({1: "/source"}, None, (1,), "does not consider clones"),
        ({1: "/source", 2: "relative"}, None, (1,), "does not consider clones"),
        ({1: "/source", 2: "relative"}, None, (1, 2), "by the relative path 'relative'"),
        ({1: "/source"}, "dev", (1,), "moved or copied"),
        ({1: "/source", 2: "/other"}, "dev", (1, 2), "moved or copied"),
        ({2: "/other"}, "dev", (2,), "does not consider clones"),
        ({1: "/source", 2: "/other"}, "dev", (2,), "does not consider clones"),
        ({1: "/source"}, "dev", (None,), "the table is damaged"),
    ],
)
def test_reasons_are_those_of_the_fragment(
    tmp_path: Path,
    bases: dict[int, str],
    branch: str | None,
    used: tuple[int | None, ...],
    reason: str,
) -> None:
    """A version may declare more base paths than a fragment has files in."""
    ds = lance_stream.create_dataset(tmp_path / "t", pa.table({"id": [1]}))
    (fragment,) = ds.table.manifest.fragments
    (file,) = fragment.files
    store = ds.table.store.at_root(f"{ds.table.store.root}/tree/dev")
    files = [
        replace(file, base_id=base_id, path=file.path if base_id in (1, None) else "gone.lance")
        for base_id in used
    ]
    manifest = replace(
        ds.table.manifest,
        branch=branch,
        base_paths=tuple(BasePath(id_, path, None, True) for id_, path in bases.items()),
    )
    store.write(ds.table.log.manifest_path(1), encode_manifest(manifest))
    with (
        pytest.raises(NotFoundError, match=f"no such file. Version 1 of .*{reason}"),
        explaining_missing_files(store, 1, replace(fragment, files=tuple(files))),
    ):
        raise NotFoundError("no such file")
