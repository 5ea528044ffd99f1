import os
import sqlite3
from pathlib import Path

import pytest

from lance_stream.commit.manifest_stores import retrying
from lance_stream.commit.manifest_stores.choice import choose, location_of_files
from lance_stream.commit.manifest_stores.protocol import ManifestStore
from lance_stream.commit.manifest_stores.sqlite import SqliteManifests
from lance_stream.errors import InvalidInputError, StoreRefusedError, StoreUnavailableError
from lance_stream.storage.objects.object_requests import RequestPolicy
from tests.contracts.manifest_stores import URI, ManifestStoreContract, item


class TestSqlite(ManifestStoreContract):
    @pytest.fixture
    def manifests(self, tmp_path: Path) -> ManifestStore:
        return SqliteManifests(str(tmp_path / "manifests.db"))

    def test_tables_in_one_file_are_separate(self, tmp_path: Path) -> None:
        """One database may serve several environments by the name of the table."""
        one, other = (SqliteManifests(str(tmp_path / "m.db"), name) for name in ("one", "other"))
        assert one.put_if_not_exists(URI, item(1))
        assert other.latest(URI) is None

    def test_uncreatable_files_are_refused_by_name(self, tmp_path: Path) -> None:
        """SQLite's own error names neither the file nor the missing folder."""
        manifests = SqliteManifests(str(tmp_path / "no" / "folder" / "m.db"))
        with pytest.raises(StoreRefusedError, match=r"no/folder/m\.db.*its folder does not exist"):
            manifests.latest(URI)

    def test_files_of_other_formats_are_refused(self, tmp_path: Path) -> None:
        """A wrong path must not overwrite a file that is no database."""
        (tmp_path / "m.db").write_bytes(b"this is not a database, and never was one" * 100)
        with pytest.raises(StoreRefusedError, match=r"m\.db.*not a database\. Check the path"):
            SqliteManifests(str(tmp_path / "m.db")).latest(URI)

    def test_full_disks_are_reported_with_remedy(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Advice about permissions would mislead, and the commit succeeds once there is space."""
        manifests = SqliteManifests(str(tmp_path / "m.db"))
        connect = sqlite3.connect

        def connect_to_small_disk(*words: object, **named: object) -> sqlite3.Connection:
            database = connect(*words, **named)  # type: ignore[call-overload]  # arguments are passed on
            database.execute("PRAGMA max_page_count = 3")
            return database

        with monkeypatch.context() as patched:
            patched.setattr(sqlite3, "connect", connect_to_small_disk)
            with pytest.raises(StoreRefusedError, match=r"m\.db.*is full\. Free some space"):
                all(manifests.put_if_not_exists(URI, item(version)) for version in range(1, 999))
        assert manifests.put_if_not_exists(URI, item(999))

    def test_locked_databases_are_given_up(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A process that hangs in a transaction must not block commits forever."""
        manifests = SqliteManifests(str(tmp_path / "m.db"))
        assert manifests.latest(URI) is None
        few = RequestPolicy(max_attempts=2, request_seconds=0.05, first_delay_seconds=0.0)
        monkeypatch.setattr(retrying, "POLICY", few)
        holder = sqlite3.connect(tmp_path / "m.db", isolation_level=None)
        holder.execute("BEGIN EXCLUSIVE")
        with pytest.raises(StoreUnavailableError, match=r"2 attempts in .*locked"):
            manifests.put_if_not_exists(URI, item(1))
        holder.execute("ROLLBACK")
        holder.close()
        assert manifests.put_if_not_exists(URI, item(1))


# --- what a user writes


def test_by_default_versions_use_the_directory() -> None:
    """A manifest store must be chosen explicitly, because all writers of a table have to use the
    same.
    """
    assert choose("s3://bucket/t", {}).manifests is None
    assert choose(Path("/data/t"), {"aws_region": "x"}).manifests is None


def test_sqlite_files_need_absolute_paths() -> None:
    """A relative path would be another database in each process."""
    chosen = choose("/data/t", {"manifest_store": "sqlite:///data/my%20m.db?table=t_1&base_uri=x"})
    assert chosen.manifests == SqliteManifests("/data/my m.db", "t_1")
    assert chosen.base_uri == "x"
    for wrong in (
        *("sqlite://data/m.db", "sqlite:///data/", "sqlite://", "sqlite:///a%00b"),
        *("sqlite://?table=t", "sqlite:///m.db?tabel=x", "sqlite:///m.db?base_uri="),
    ):
        with pytest.raises(InvalidInputError, match="manifest"):
            choose("/data/t", {"manifest_store": wrong})


def test_unknown_manifest_stores_are_refused() -> None:
    """The value is not shown because it may contain a password."""
    for wrong in ("mysql://me:secret@host/db", "secret", "dynamodb:secret"):
        with pytest.raises(InvalidInputError, match="dynamodb://, postgresql://") as caught:
            choose("/data/t", {"manifest_store": wrong})
        assert "secret" not in str(caught.value)


@pytest.mark.parametrize("table", ["a b", "x;y", 'x"y', "", "a.b.c", "1x", "a.1x", "1x.a", "a."])
@pytest.mark.parametrize("scheme", ["sqlite:///m.db", "postgresql://host/db"])
def test_table_names_are_restricted_to_identifiers(scheme: str, table: str) -> None:
    """The name becomes part of SQL statements."""
    with pytest.raises(InvalidInputError, match="cannot be the table"):
        choose("/data/t", {"manifest_store": f"{scheme}?table={table}"})


@pytest.mark.parametrize(
    "uri",
    [
        "s3+ddb://bucket/t",
        "s3+ddb://bucket/t?ddbTableName=",
        "s3+ddb://bucket/t?ddbtablename=T",
        "s3+ddb://bucket/t?ddbTableName=T&ddbTableName=T",
        "s3+ddb://bucket/t?ddbTableName=T&x=1",
    ],
)
def test_s3_uris_take_one_dynamodb_query(uri: str) -> None:
    """The scheme `s3+ddb` is the reference's, and a misspelt query would commit
    without DynamoDB.
    """
    with pytest.raises(InvalidInputError, match="exactly one query, ddbTableName"):
        choose(uri, {})


@pytest.mark.parametrize("uri", ["dynamodb://", "dynamodb://T/path", "dynamodb://key@T"])
def test_dynamodb_uris_name_a_table_alone(uri: str) -> None:
    """A path or a key in the URI would be dropped silently."""
    with pytest.raises(InvalidInputError, match="is 'dynamodb://table"):
        choose("s3://bucket/t", {"manifest_store": uri})


def test_files_lie_beside_dynamodb() -> None:
    """A base path in a clone may be the URI by which the reference opened the table."""
    assert location_of_files("S3+DDB://bucket/t?ddbTableName=T") == "s3://bucket/t"
    assert location_of_files("s3://bucket/t?ddbTableName=T") == "s3://bucket/t?ddbTableName=T"


def test_manifest_stores_are_chosen_by_text() -> None:
    """Another type is a mistake in a program."""
    options: dict[str, object] = {"manifest_store": 5}
    with pytest.raises(InvalidInputError, match="must be a URI, not int"):
        choose("/data/t", options)


def test_tables_have_one_manifest_store() -> None:
    """A precedence between URI and option would hide a mistake that loses versions."""
    options = {"manifest_store": "sqlite:///m.db"}
    with pytest.raises(InvalidInputError, match="omit one of them"):
        choose("s3+ddb://bucket/t?ddbTableName=T", options)


def test_dynamodb_uses_s3_keys_and_region() -> None:
    """Bucket and table usually belong to one account, and both spellings of the location must
    agree.
    """
    keys = {"aws_access_key_id": "k", "aws_secret_access_key": "s", "aws_region": "eu-west-1"}
    by_uri = choose("s3+ddb://bucket/a/t?ddbTableName=T", keys)
    assert by_uri.uri == "s3://bucket/a/t"
    assert choose("s3://bucket/a/t", {**keys, "manifest_store": "dynamodb://T"}) == by_uri
    chosen = choose(
        "s3://b/t", {**keys, "manifest_store": "dynamodb://T?region=x&endpoint=http://h:1"}
    )
    assert "region='x', endpoint='http://h:1'" in repr(chosen.manifests)


def test_dynamodbs_endpoint_follows_option_or_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Other implementations read the same environment variable, and an option must take
    precedence.
    """
    uri = "s3+ddb://bucket/t?ddbTableName=T"
    monkeypatch.setenv("DYNAMODB_ENDPOINT", "http://of.environment:1")
    assert "http://of.environment:1" in repr(choose(uri, {}))
    assert "http://x:2" in repr(choose(uri, {"dynamodb_endpoint": "http://x:2"}))
    by_option = choose("s3://bucket/t", {"manifest_store": "dynamodb://T?region=x"})
    assert "http://of.environment:1" in repr(by_option)
    monkeypatch.setenv("DYNAMODB_ENDPOINT", "")
    assert "endpoint=None" in repr(choose(uri, {}))


def test_postgresql_passwords_stay_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    """The URI with the password appears in logs and plans, and psycopg's errors quote it."""
    pytest.importorskip("psycopg", reason="the extra postgresql is not installed")
    for uri in (
        "postgresql://me:secret@h:5433/db?sslmode=require&table=a.b",
        "postgres:///db?host=h&port=5433&password=secret&user=me&table=a.b",
    ):
        chosen = choose("/t", {"manifest_store": uri})
        assert chosen.manifests is not None
        assert chosen.manifests.where == "the table 'a.b' of PostgreSQL at h:5433, database 'db'"
        assert "secret" not in repr(chosen)
    with pytest.raises(InvalidInputError, match="libpq") as caught:
        choose("/t", {"manifest_store": "postgresql://me@h/db?passwort=secret"})
    assert "secret" not in repr(caught.value)
    assert caught.value.__cause__ is None
    assert os.environ.get("PGPASSWORD") is None
