"""Tables with and without an external manifest store, and moves between them."""

import errno
import os
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lance_stream
from lance_stream import InvalidInputError, NotFoundError, open_dataset
from lance_stream.commit.external_log import ExternalLog
from lance_stream.commit.opening import open_log
from lance_stream.maintenance.cleanup.rules import GRACE
from lance_stream.table.config.manifest_store_mark import CONFIG_KEY

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("x", pa.string())])


def rows(*ids: int) -> pa.Table:
    return pa.table({"id": list(ids), "x": [f"row {id_}" for id_ in ids]}, schema=SCHEMA)


def ids_of(uri: Path, options: dict[str, str] | None = None) -> list[int]:
    table = open_dataset(uri, storage_options=options).to_table(["id"])
    return sorted(table["id"].to_pylist())


@pytest.fixture
def uri(tmp_path: Path) -> Path:
    return tmp_path / "t"


@pytest.fixture
def options(tmp_path: Path) -> dict[str, str]:
    return {"manifest_store": f"sqlite://{tmp_path}/manifests.db"}


@pytest.fixture
def external(uri: Path, options: dict[str, str]) -> Path:
    """A table with rows 1 and 2, in a manifest store from the beginning."""
    ds = lance_stream.create_dataset(uri, SCHEMA, primary_key=["id"], storage_options=options)
    ds.append(rows(1)).append(rows(2))
    return uri


def items(uri: Path, options: dict[str, str]) -> list[int]:
    log = open_log(uri, options)
    assert isinstance(log, ExternalLog)
    return [manifest.version for manifest in log.manifests.items(log.base_uri)]


def test_all_verbs_work_without_hard_links(
    uri: Path, options: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A manifest store replaces atomic creation, so every verb and tags must work where links
    are impossible.
    """

    def no_links(*_: Any, **__: Any) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", no_links)
    with pytest.raises(lance_stream.UnsupportedFeatureError, match="no hard links"):
        lance_stream.create_dataset(uri.with_name("plain"), SCHEMA)
    ds = lance_stream.create_dataset(uri, SCHEMA, primary_key=["id"], storage_options=options)
    ds = ds.append(rows(1, 2, 3)).append(rows(4, 5))
    ds = ds.upsert(rows(5, 6), on=["id"]).delete("id = 1").update({"x": "'new'"}, where="id = 2")
    ds.tags.create("before", 2)
    with pytest.raises(InvalidInputError, match="already"):
        ds.tags.create("before", 3)
    assert ds.tags.list()["before"].version == 2
    ds = ds.compact()
    ds = ds.restore(ds.version)
    assert ids_of(uri, options) == [2, 3, 4, 5, 6]
    assert ds.verify() == []
    assert ds.changes(after=0).read_all().num_rows > 0
    ds.cleanup(older_than=timedelta(0), delete_unverified=True)
    assert open_dataset(uri, "before", storage_options=options).count_rows() == 3
    assert ids_of(uri) == [2, 3, 4, 5, 6]


def test_plain_tables_move_into_a_store(uri: Path, options: dict[str, str]) -> None:
    """The first commit with the option claims the table, and later commits without it must be
    refused.
    """
    plain = lance_stream.create_dataset(uri, SCHEMA).append(rows(1))
    assert items(uri, options) == []
    open_dataset(uri, storage_options=options).append(rows(2))
    assert items(uri, options) == [3]
    assert ids_of(uri) == ids_of(uri, options) == [1, 2]
    assert [
        version.version for version in open_dataset(uri, storage_options=options).versions()
    ] == [
        1,
        2,
        3,
    ]
    with pytest.raises(InvalidInputError, match="Set the storage option manifest_store"):
        plain.append(rows(3))
    assert ids_of(uri, options) == [1, 2]


@pytest.mark.parametrize(
    "verb",
    [
        lambda ds: ds.append(rows(3)),
        lambda ds: ds.overwrite(rows(3)),
        lambda ds: ds.delete("id = 1"),
        lambda ds: ds.update({"x": "'y'"}),
        lambda ds: ds.upsert(rows(2, 3), on=["id"]),
        lambda ds: ds.restore(1),
        lambda ds: ds.update_config({"a": "b"}),
        lambda ds: ds.drop_columns(["x"]),
        lambda ds: ds.cleanup(older_than=timedelta(0)),
        lambda ds: ds.compact(),
    ],
)
def test_tables_without_stores_are_read_only(external: Path, verb: Any) -> None:
    """A commit past the store could overwrite a version that the store has promised to another
    writer.
    """
    files = {path: path.read_bytes() for path in (external / "_versions").iterdir()}
    ds = open_dataset(external)
    assert ids_of(external) == [1, 2]
    with pytest.raises(InvalidInputError, match="leave_manifest_store"):
        verb(ds)
    assert files == {path: path.read_bytes() for path in (external / "_versions").iterdir()}
    assert open_dataset(external).version == 3


def test_tables_can_leave_their_manifest_store(external: Path, options: dict[str, str]) -> None:
    """After leaving, plain writers must work, and no restored version may bring the setting
    back.
    """
    assert lance_stream.leave_manifest_store(external, options) == 4
    assert items(external, options) == []
    ds = open_dataset(external)
    assert CONFIG_KEY not in ds.config
    ds = ds.append(rows(3)).restore(3)
    assert CONFIG_KEY not in ds.config
    assert ids_of(external) == ids_of(external, options) == [1, 2]
    assert lance_stream.leave_manifest_store(external, options) == 6  # nothing to do


def test_stale_writers_reclaim_the_table(external: Path, options: dict[str, str]) -> None:
    """Such writers are still configured with the manifest store that the table has left."""
    late = open_dataset(external, storage_options=options)
    lance_stream.leave_manifest_store(external, options)
    open_dataset(external).append(rows(3))
    late.append(rows(4))
    assert ids_of(external) == ids_of(external, options) == [1, 2, 3, 4]
    with pytest.raises(InvalidInputError, match="manifest_store"):
        open_dataset(external).append(rows(5))


def test_leaving_can_resume_after_a_crash(
    external: Path, options: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last step deletes the store's items, and a crash before it must not block the table."""
    with monkeypatch.context() as patches:
        patches.setattr(ExternalLog, "forget", lambda *_, **__: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            lance_stream.leave_manifest_store(external, options)
    open_dataset(external).append(rows(3))
    lance_stream.leave_manifest_store(external, options)
    assert items(external, options) == []
    assert ids_of(external) == ids_of(external, options) == [1, 2, 3]
    open_dataset(external).append(rows(4))


def test_copied_tables_can_be_claimed(
    external: Path, options: dict[str, str], tmp_path: Path
) -> None:
    """A copy needs entries for its own directory, or in another manifest store."""
    copy, other = tmp_path / "copy", {"manifest_store": f"sqlite://{tmp_path}/other.db"}
    shutil.copytree(external, copy)
    assert ids_of(copy) == ids_of(copy, other) == [1, 2]
    for store_options in (None, other, options):
        with pytest.raises(InvalidInputError, match="claim_versions"):
            open_dataset(copy, storage_options=store_options).append(rows(3))
    assert lance_stream.claim_versions(copy) == 4
    open_dataset(copy).append(rows(3))
    open_dataset(copy, storage_options=other).append(rows(4))
    assert lance_stream.claim_versions(copy, options) == 7
    assert ids_of(copy, options) == [1, 2, 3, 4]
    assert ids_of(external, options) == [1, 2]


def test_emptied_stores_can_be_claimed_again(
    external: Path, options: dict[str, str], tmp_path: Path
) -> None:
    """A lost database must not make the table unwritable for ever, nor be accepted silently."""
    (tmp_path / "manifests.db").unlink()
    with pytest.raises(InvalidInputError, match="has no versions under"):
        open_dataset(external, storage_options=options).append(rows(3))
    lance_stream.claim_versions(external, options)
    open_dataset(external, storage_options=options).append(rows(3))
    assert ids_of(external, options) == [1, 2, 3]


def test_forgotten_tables_can_be_recreated(external: Path, options: dict[str, str]) -> None:
    """The store still names versions of a deleted table, which would corrupt a new one at the
    same place.
    """
    with pytest.raises(InvalidInputError, match=r"the table at .* exists"):
        lance_stream.forget_versions(external, options)
    shutil.rmtree(external)
    with pytest.raises(NotFoundError, match="has versions up to 3"):
        open_dataset(external, storage_options=options)
    with pytest.raises(InvalidInputError, match="forget_versions"):
        lance_stream.create_dataset(external, SCHEMA, storage_options=options)
    lance_stream.forget_versions(external, options)
    lance_stream.create_dataset(external, SCHEMA, storage_options=options).append(rows(9))
    assert ids_of(external, options) == [9]


def test_leaving_and_forgetting_need_a_store(external: Path) -> None:
    """Without the option these functions would have no effect and look successful."""
    for function in (lance_stream.leave_manifest_store, lance_stream.forget_versions):
        with pytest.raises(InvalidInputError, match="has no manifest store"):
            function(external)


def test_tables_have_one_name_in_stores(
    external: Path, options: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Opening the table by another path must not create a second set of entries."""
    (tmp_path / "link").symlink_to(external)
    monkeypatch.chdir(tmp_path)
    for number, way in enumerate(("link", "./t/../t", f"file://{external}"), start=3):
        open_dataset(way, storage_options=options).append(rows(number))
    assert ids_of(external, options) == [1, 2, 3, 4, 5]


def test_writers_can_agree_on_a_name(external: Path, tmp_path: Path) -> None:
    """`base_uri` is for writers that open the table by different paths."""
    options = {"manifest_store": f"sqlite://{tmp_path}/m.db?base_uri=warehouse/t"}
    lance_stream.claim_versions(external, options)
    external.rename(tmp_path / "mounted elsewhere")
    open_dataset(tmp_path / "mounted elsewhere", storage_options=options).append(rows(3))
    assert ids_of(tmp_path / "mounted elsewhere", options) == [1, 2, 3]


# --- cleanup


def cleaned(uri: Path, options: dict[str, str] | None, **rules: Any) -> dict[str, int]:
    report = open_dataset(uri, storage_options=options).cleanup(
        **{"older_than": timedelta(0), **rules}
    )
    return dict(report.num_files)


def stage(uri: Path, version: int, *, age: timedelta) -> Path:
    path = uri / "_versions" / f"{(1 << 64) - 1 - version:020}.manifest-{version}"
    path.write_bytes(b"staged")
    moment = (datetime.now(UTC) - age).timestamp()
    os.utime(path, (moment, moment))
    return path


def test_cleanup_removes_items_of_versions(external: Path, options: dict[str, str]) -> None:
    """Items of removed versions would lead readers to manifests that are gone."""
    cleaned(external, options, delete_unverified=True)
    assert items(external, options) == [3]
    ds = open_dataset(external, storage_options=options)
    assert [version.version for version in ds.versions()] == [3]
    with pytest.raises(NotFoundError, match="no version 2: its only version is 3"):
        open_dataset(external, 2, storage_options=options)
    assert ds.append(rows(3)).version == 4


def test_abandoned_staged_manifests_expire(external: Path, options: dict[str, str]) -> None:
    """A killed writer leaves its staged manifest, which is young while its commit may still
    succeed.
    """
    old, next_one = (stage(external, number, age=GRACE * 2) for number in (2, 4))
    young = stage(external, 5, age=GRACE / 2)
    assert cleaned(external, options)["staged manifests"] == 2
    assert [value.exists() for value in (old, next_one, young)] == [False, False, True]
    assert cleaned(external, options, delete_unverified=True)["staged manifests"] == 1


def test_named_staged_manifests_are_finished(external: Path, options: dict[str, str]) -> None:
    """The writer of version 2 died before its item named the final file."""
    log = open_log(external, options)
    assert isinstance(log, ExternalLog)
    path = stage(external, 2, age=GRACE * 2)
    path.write_bytes((external / log.manifest_path(2)).read_bytes())
    actual = log.manifests.get(log.base_uri, 2)
    assert actual is not None
    staged = actual._replace(path=f"{log.base_uri}/_versions/{path.name}")
    log.manifests.put_if_exists(log.base_uri, staged)
    assert log.obsolete_staged_files([f"_versions/{path.name}"]) == set()
    cleaned(external, options, delete_unverified=True, retain_versions=3)
    assert open_dataset(external, 2, storage_options=options).count_rows() == 1
    assert log.manifests.get(log.base_uri, 2) == actual


def test_storeless_cleanup_keeps_newer_manifests(
    uri: Path,
) -> None:
    """Tables of pylance with DynamoDB carry no mark that they belong to a manifest store."""
    lance_stream.create_dataset(uri, SCHEMA).append(rows(1))
    old, newer = (stage(uri, number, age=GRACE * 2) for number in (2, 3))
    cleaned(uri, None, delete_unverified=True)
    assert [value.exists() for value in (old, newer)] == [False, True]


def test_cleanup_keeps_a_killed_writers_version(
    external: Path, options: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The item is in the store but the manifest still staged, so deleting it would lose a
    committed version.
    """
    with monkeypatch.context() as patches:
        patches.setattr(ExternalLog, "_finish", lambda *_: 1 / 0)
        with pytest.raises(lance_stream.CommitUncertainError):
            open_dataset(external, storage_options=options).append(rows(3))
    with pytest.raises(InvalidInputError):
        cleaned(external, None, delete_unverified=True)
    cleaned(external, options, delete_unverified=True)
    assert ids_of(external, options) == ids_of(external) == [1, 2, 3]
    assert items(external, options) == [4]
