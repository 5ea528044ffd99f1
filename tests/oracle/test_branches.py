"""Branches that pylance makes: opened, tagged, written to, followed and cleaned up by both."""

import errno
import os
import pickle
from datetime import timedelta
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

import lance_stream
from lance_stream import Dataset, InvalidInputError, NotFoundError, open_dataset
from lance_stream.cli.main import main
from lance_stream.errors import StoreRefusedError
from lance_stream.maintenance.consumers import list_consumers, read_progress, record_progress
from lance_stream.snapshot.references import Branch, Refs
from tests.dataset.manifest_edits import edit_manifest

pytestmark = pytest.mark.oracle


def rows(*ids: int) -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64())})


def ids(ds: Dataset | lance.LanceDataset) -> list[int]:
    return sorted(ds.to_table()["id"].to_pylist())


@pytest.fixture
def uri(tmp_path: Path) -> str:
    """A table of three versions, `dev` made from its second, `dev/deep` from version 3 of that."""
    path = str(tmp_path / "t")
    table = lance.write_dataset(rows(1, 2), path, enable_stable_row_ids=True)
    table = lance.write_dataset(rows(3), path, mode="append")
    dev = table.create_branch("dev", 2)
    dev.insert(rows(10))
    dev.create_branch("dev/deep", ("dev", 3)).insert(rows(100))
    table.delete("id = 1")
    return path


def of_both(uri: str, branch: str | None, version: int | None = None) -> list[int]:
    theirs = lance.dataset(uri).checkout_version((branch, version))
    ours = open_dataset(uri, (branch, version))
    assert (ours.version, ours.branch) == (theirs.version, branch)
    assert ids(ours) == ids(theirs)
    return ids(ours)


def test_names_folders_and_tags_open_branches(uri: str) -> None:
    """pylance accepts all three, and each must lead to the same version."""
    assert of_both(uri, None) == [2, 3]
    assert of_both(uri, "dev") == [1, 2, 3, 10]
    assert of_both(uri, "dev", 2) == [1, 2, 3]
    assert of_both(uri, "dev/deep") == [1, 2, 3, 10, 100]
    lance.dataset(uri).tags.create("deep", ("dev/deep", 4))
    for ds in (
        open_dataset(uri, "deep"),
        open_dataset(f"{uri}/tree/dev", "deep"),
        open_dataset(f"{uri}/tree/dev").checkout("deep"),
        open_dataset(f"{uri}/tree/dev/").checkout(("main", 1)).checkout("deep"),
        open_dataset(f"{uri}/tree/dev/deep", 4),
    ):
        assert (ids(ds), ds.branch, ds.uri) == (
            [1, 2, 3, 10, 100],
            "dev/deep",
            f"{uri}/tree/dev/deep",
        )


def test_branches_are_listed_from_every_branch(uri: str) -> None:
    """The list belongs to the table, not to the branch from which it is asked for."""
    theirs = lance.dataset(uri).branches.list()
    for version in (None, ("dev", None), ("dev/deep", None)):
        branches = open_dataset(uri, version).branches.list()
        assert {
            entry.name: (entry.parent, entry.parent_version, int(entry.created_at.timestamp()))
            for entry in branches.values()
            if entry.created_at
        } == {
            name: (row["parent_branch"], row["parent_version"], row["create_at"])
            for name, row in theirs.items()
        }
    assert isinstance(branches["dev"], Branch)


@pytest.mark.parametrize(
    ("version", "error", "match"),
    [
        (("left", None), NotFoundError, "no branch 'left'; existing branches: dev, dev/deep"),
        (("dev", 9), NotFoundError, "has no version 9"),
        (("dev", 1), NotFoundError, "has no version 1"),
        (("../t", None), InvalidInputError, "cannot be the name of a branch"),
        (("dev", "x"), InvalidInputError, "a whole number from 1"),
        ((3, 1), InvalidInputError, "must be a string, not 3"),
    ],
)
def test_missing_branches_and_versions_are_reported(
    uri: str, version: object, error: type[Exception], match: str
) -> None:
    """A typing mistake must not open the main branch instead."""
    with pytest.raises(error, match=match):
        open_dataset(uri, version)  # type: ignore[arg-type]  # what is refused


def test_pylance_reads_our_commits_to_branches(uri: str) -> None:
    """Files of a branch lie in its own folder, and those of its parent behind base paths."""
    ds = open_dataset(f"{uri}/tree/dev").append(rows(11)).delete("id = 2").compact().restore(4)
    assert ds.verify() == []
    assert of_both(uri, "dev") == [1, 2, 3, 10, 11]
    assert of_both(uri, None) == [2, 3]
    deep = lance.dataset(uri).create_branch("from-ours", ("dev", ds.version))
    deep.insert(rows(12))
    assert of_both(uri, "from-ours") == [1, 2, 3, 10, 11, 12]


def test_pylance_reads_tags_on_branches(uri: str) -> None:
    """A tag names branch and version, as the same number exists in both."""
    dev = open_dataset(f"{uri}/tree/dev")
    dev.tags.create("ours")
    open_dataset(uri).tags.create("other", ("dev", 2))
    open_dataset(uri).tags.create("same", "ours")
    theirs = lance.dataset(uri)
    assert {
        name: (file["branch"], file["version"]) for name, file in theirs.tags.list().items()
    } == {
        "ours": ("dev", 3),
        "other": ("dev", 2),
        "same": ("dev", 3),
    }
    assert ids(theirs.checkout_version("ours")) == ids(dev)
    assert list(dev.tags.list()) == ["other", "ours", "same"]
    open_dataset(uri).tags.update("ours", 1)
    assert ids(theirs.checkout_version("ours")) == [1, 2]
    dev.tags.delete("ours")
    assert "ours" not in theirs.tags.list()


def test_branches_are_followed_from_their_start(uri: str) -> None:
    """Versions before the start belong to the parent, and consumers are kept per branch."""
    dev = open_dataset(f"{uri}/tree/dev").append(rows(11)).delete("id = 3")
    changes = dev.changes(2, columns=["id"]).read_all()
    assert [
        (row["_commit_version"], row["_change_type"], row["id"]) for row in changes.to_pylist()
    ] == [(3, "insert", 10), (4, "insert", 11), (5, "delete", 3)]
    record_progress(dev.table.refs, "me", 3)
    assert dev.tags.list()["lance_stream.consumer.me"].branch == "dev"
    assert [consumer.name for consumer in list_consumers(dev.table.refs)] == ["me"]
    assert list_consumers(open_dataset(uri).table.refs) == []
    with pytest.raises(InvalidInputError, match="'me' follows its branch 'dev'"):
        record_progress(open_dataset(uri).table.refs, "me", 1)
    assert open_dataset(f"{uri}/tree/dev").cleanup(retain_versions=1).versions == (2,)


def test_consumers_stored_in_branches_continue(uri: str) -> None:
    """An early release kept the consumers of a branch in the branch's own directory."""
    dev = open_dataset(f"{uri}/tree/dev").append(rows(11)).append(rows(12))
    early = Refs(dev.table.log)
    record_progress(early, "me", 3)
    record_progress(open_dataset(uri).table.refs, "me", 1)
    assert read_progress(dev.table.refs, "me") == 3
    record_progress(dev.table.refs, "me", 4)
    assert (read_progress(early, "me"), read_progress(dev.table.refs, "me")) == (4, 4)
    assert read_progress(open_dataset(uri).table.refs, "me") == 1
    early_tag = open_dataset(f"{uri}/tree/dev").tags.list()["lance_stream.consumer.me"]
    assert early_tag.branch is None  # the table's own comes first in what users see
    assert dev.cleanup(retain_versions=1).versions == (2,)  # version 3 is held by dev/deep


def test_cleanup_keeps_branches_and_tags(uri: str) -> None:
    """A branch reads files of its parent, which must outlive the parent's versions."""
    dev = open_dataset(f"{uri}/tree/dev").append(rows(11))
    lance.dataset(uri).tags.create("held", ("dev", 4))
    dev = dev.overwrite(rows(12)).append(rows(13))
    main = open_dataset(uri).overwrite(rows(7)).append(rows(8))
    report = main.cleanup(retain_versions=1, delete_unverified=True)
    assert (report.versions, report.protected) == ((1, 3, 4), {"branch dev": 1})
    assert "kept 1 for the branch dev" in str(report)
    report = dev.cleanup(retain_versions=1, delete_unverified=True)
    assert (report.versions, report.protected) == ((2, 5), {"branch dev/deep": 1, "held": 1})
    assert of_both(uri, None) == [7, 8]
    assert of_both(uri, "dev") == [12, 13]
    assert of_both(uri, "dev", 3) == [1, 2, 3, 10]
    assert of_both(uri, "dev", 4) == [1, 2, 3, 10, 11]
    assert of_both(uri, "dev/deep") == [1, 2, 3, 10, 100]


def test_branches_being_created_keep_files(uri: str) -> None:
    """The reference writes the branch's first version before its file below `_refs`."""
    lance.dataset(uri).create_branch("young", 1)
    Path(uri, "_refs/branches/young.json").unlink()
    open_dataset(uri).overwrite(rows(7)).cleanup(retain_versions=1, delete_unverified=True)
    assert ids(lance.dataset(f"{uri}/tree/young")) == [1, 2]


def test_branches_may_resemble_table_folders(tmp_path: Path) -> None:
    """Cleanup must not mistake the files of such a branch for the table's."""
    uri = str(tmp_path / "t")
    table = lance.write_dataset(rows(1), uri)
    for name in ("a", "a/data", "a/data/x", "a/_indices", "a/_transactions", "a/_versions"):
        table.create_branch(name, 1).insert(rows(2))
    open_dataset(f"{uri}/tree/a").append(rows(3)).cleanup(retain_versions=1, delete_unverified=True)
    for name in ("a/data", "a/data/x", "a/_indices", "a/_transactions", "a/_versions"):
        branch = open_dataset(uri, (name, None))
        assert ids(branch) == ids(lance.dataset(uri).checkout_version((name, None))) == [1, 2]
        assert all(version.operation for version in branch.versions())


def test_moved_branches_are_only_read(uri: str, tmp_path: Path) -> None:
    """Without its table, nobody knows which files others still need."""
    moved = tmp_path / "moved"
    Path(uri, "tree/dev").rename(moved)
    ds = open_dataset(moved)
    assert ids(ds) == [1, 2, 3, 10]
    for attempt in (ds.cleanup, ds.tags.list, lambda: ds.tags.create("x")):
        with pytest.raises(InvalidInputError, match="it was moved or copied"):
            attempt()


@pytest.mark.parametrize("has_file", [True, False])
@pytest.mark.parametrize("branch", ["dev", "dev/deep"])
def test_cleanup_protects_files_of_unstated_branches(uri: str, branch: str, has_file: bool) -> None:
    """A writer that knows of no branches does not state the branch in what it commits."""
    folder = f"{uri}/tree/{branch}"
    lance.dataset(uri).tags.create("held", (branch, 4 if branch == "dev/deep" else 3))
    young = lance.dataset(uri).create_branch("young", (branch, None))
    young.insert(rows(50))
    before = ids(lance.dataset(uri).checkout_version("held"))
    open_dataset(folder).overwrite(rows(7)).append(rows(8))
    edit_manifest(Path(folder), lambda message: message.ClearField("branch"))
    if not has_file:
        Path(uri, "_refs/branches", f"{branch.replace('/', '%2F')}.json").unlink()
    ds = open_dataset(folder)
    assert ds.branch is None
    if has_file:
        ds.cleanup(retain_versions=1, delete_unverified=True)
        assert ids(lance.dataset(uri).checkout_version("held")) == before
        assert of_both(uri, "young") == sorted({*before, 50})
    assert ids(open_dataset(folder)) == [7, 8]
    assert of_both(uri, None) == [2, 3]


@pytest.mark.parametrize("name", ["a" * 256, "dev/" + "a" * 256, "\u00e9" * 128])
def test_overlong_reference_names_are_refused(uri: str, name: str) -> None:
    """The file system would refuse the name later, with an error that names no cause."""
    with pytest.raises(InvalidInputError, match="256 bytes, but a name can have 255"):
        open_dataset(uri, (name, None))
    if name.isascii() and "/" not in name:
        ds = open_dataset(uri)
        for ask in (ds.tags.create, ds.tags.delete, ds.checkout):
            with pytest.raises(InvalidInputError, match="bytes, but a name can have 255"):
                ask(name)


def test_pylance_lists_our_longest_tags(uri: str) -> None:
    """Both programs share a folder of tags, so a name that is valid here must be valid there."""
    longest = "a" * 211
    lance.dataset(uri).tags.create(longest, 1)
    open_dataset(uri).tags.create("b" * 248, 2)
    assert sorted(lance.dataset(uri).tags.list()) == [longest, "b" * 248]


def test_workers_read_branches_by_relative_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reference notes the relative path, but workers start in another directory."""
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    lance.write_dataset(rows(1), "t")
    lance.dataset("./t").create_branch("dev", 1)
    lance.dataset("t").shallow_clone("clone", 1)
    for folder in (tmp_path / "t/tree/dev", tmp_path / "clone"):
        monkeypatch.chdir(tmp_path)
        ds = open_dataset(folder)
        files = pickle.dumps(ds.table.files)
        assert ids(ds) == [1]
        (finding,) = ds.verify()
        assert "is relative" in finding.message
        monkeypatch.chdir(tmp_path / "elsewhere")
        (fragment,) = ds.table.manifest.fragments
        assert pickle.loads(files).num_rows(fragment.files[0]) == 1
        with pytest.raises(NotFoundError, match=r"by the relative path .*Start this program"):
            open_dataset(folder).to_table()


def test_cleaning_a_clone_spares_its_base(uri: str, tmp_path: Path) -> None:
    """The base may even be in a folder of the clone's own."""
    base = lance.dataset(uri)
    for folder in (tmp_path / "clone", tmp_path / "outer"):
        clone = base.shallow_clone(str(folder), 2)
        clone.insert(rows(5))
        ours = open_dataset(folder).overwrite(rows(6))
        ours.cleanup(timedelta(0), delete_unverified=True)
        assert ids(ours) == ids(lance.dataset(str(folder))) == [6]
        assert ids(lance.dataset(uri, version=2)) == [1, 2, 3]
    inner = lance.write_dataset(rows(1), str(tmp_path / "outer/data/base"))
    inner.insert(rows(2))
    lance.dataset(str(tmp_path / "outer/data/base")).shallow_clone(str(tmp_path / "outer/x"), 2)
    open_dataset(tmp_path / "outer").append(rows(9)).cleanup(timedelta(0), delete_unverified=True)
    assert ids(lance.dataset(str(tmp_path / "outer/data/base"), version=1)) == [1]
    assert ids(lance.dataset(str(tmp_path / "outer/x"))) == [1, 2]


def test_branches_are_recognized_through_links(uri: str, tmp_path: Path) -> None:
    """A tag would otherwise be created for the wrong branch."""
    (tmp_path / "link").symlink_to(Path(uri, "tree/dev"))
    open_dataset(tmp_path / "link").tags.create("gold", 3)
    assert lance.dataset(uri).tags.list()["gold"]["branch"] == "dev"
    assert ids(open_dataset(tmp_path / "link", "gold")) == [1, 2, 3, 10]


def test_the_command_line_shows_branches(uri: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The user sees which branch is open, what holds it, and files that do not belong there."""
    open_dataset(uri).tags.create("gold", ("dev", 3))
    Path(uri, "_refs/tags/stray.json").write_text("?")
    assert main(["show", f"{uri}/tree/dev"]) == 0
    output = capsys.readouterr().out
    assert f"{uri}/tree/dev, the branch dev, at version 3" in output
    assert ["dev/deep", "dev:3"] in [line.split() for line in output.splitlines()]
    assert "dev:3" in output.partition("tags\n")[2]
    assert "_refs/tags/stray.json" in output


def test_folders_named_tree_hold_tables(tmp_path: Path) -> None:
    """Only the path looks like a branch's: `tree/dev` is a table of its own."""
    ds = lance_stream.create_dataset(tmp_path / "tree/dev", rows().schema).append(rows(1))
    ds.tags.create("gold", 2)
    assert (tmp_path / "tree/dev/_refs/tags/gold.json").exists()
    assert ids(open_dataset(tmp_path / "tree/dev", "gold")) == [1]
    assert ds.append(rows(2)).cleanup(retain_versions=1).versions == (1,)


def test_spark_reads_branches_of_tags(uri: str) -> None:
    """The option `tag` must lead to the branch that the tag names."""
    from lance_stream.spark.source.lance_source import LanceSource

    open_dataset(uri).tags.create("dev-3", ("dev", 3))
    source = LanceSource({"path": uri, "tag": "dev-3"})
    reader = source.reader(source.schema())
    keys = [
        row for part in reader.partitions() for batch in reader.read(part) for row in batch["id"]
    ]
    assert sorted(value.as_py() for value in keys) == [1, 2, 3, 10]


def test_streams_and_consumers_follow_branches(uri: str) -> None:
    """A stream that opens a branch must never deliver rows of the main branch."""
    from lance_stream.spark.versions import HAS_READ_LIMITS
    from tests.spark.feed.query_runs import Query

    dev = f"{uri}/tree/dev"
    stream = Query(dev, {"consumer": "me"}, not HAS_READ_LIMITS)
    (snapshot,) = stream.run()
    assert sorted(row["id"] for row in snapshot) == [1, 2, 3, 10]
    open_dataset(dev).append(rows(11)).delete("id = 2")
    assert [[(row["_change_type"], row["id"]) for row in batch] for batch in stream.run()] == [
        [("insert", 11), ("delete", 2)]
    ]
    stream.run()
    tags = lance.dataset(uri).tags.list()
    assert {name: tag["branch"] for name, tag in tags.items()} == {
        "lance_stream.consumer.me": "dev"
    }


@pytest.mark.parametrize(
    "folder",
    ["_refs", "_refs/tags", "_refs/branches", "tree", "tree/dev", "_transactions", "_versions"],
)
def test_an_unlistable_folder_stops_cleanup(
    uri: str, folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Branches and tags that cannot be listed may need every file."""
    main = open_dataset(uri).overwrite(rows(7))
    main.tags.create("gold", 1)
    before = {path for path in Path(uri).rglob("*") if path.is_file()}
    scandir = os.scandir

    def guarded(path: Any) -> Any:
        if Path(path) == Path(uri, folder):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return scandir(path)

    with monkeypatch.context() as patched:
        patched.setattr(os, "scandir", guarded)
        with pytest.raises(StoreRefusedError, match=folder):
            main.cleanup(retain_versions=1)
    assert {path for path in Path(uri).rglob("*") if path.is_file()} == before
    assert of_both(uri, "dev/deep") == [1, 2, 3, 10, 100]
    assert ids(main.checkout("gold")) == [1, 2]
