import re
from collections.abc import Callable
from pathlib import Path

import pytest

from lance_stream.errors import InvalidInputError, UnsupportedFeatureError
from lance_stream.storage.local_store import LocalStore
from lance_stream.storage.locations import check_is_shared, normalized_location, open_store
from lance_stream.storage.protocols import PROTOCOLS, REFUSED


def root_of(location: str | Path) -> str:
    store = open_store(location)
    assert isinstance(store, LocalStore)
    return store.root


def test_plain_paths_are_taken_literally() -> None:
    """Percent signs and colons are legal in file names, and only a URI has escapes."""
    assert root_of("/data/my table%20x") == "/data/my table%20x"
    assert root_of(Path("/data/t")) == "/data/t"
    assert root_of("/data//t/") == "/data/t"
    assert root_of("/data/a:b") == "/data/a:b"
    assert root_of("/data/file:x") == "/data/file:x"


def test_relative_paths_use_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A relative path is resolved once, so a later change of directory cannot move the table."""
    monkeypatch.chdir(tmp_path)
    assert root_of("some/t") == str(tmp_path / "some/t")
    assert root_of("file:t") == str(tmp_path / "file:t")
    assert root_of("x/../t") == str(tmp_path / "t")


def test_a_tilde_is_the_home_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without expansion a folder named `~` would appear in the working directory."""
    monkeypatch.setenv("HOME", str(tmp_path))
    assert root_of("~/t") == str(tmp_path / "t")


@pytest.mark.parametrize(
    "uri",
    ["file:///data/my%20table%2520", "file:/data/my%20table%2520", "FILE:///data/my%20table%2520"],
)
def test_file_uris_are_unescaped_once(uri: str) -> None:
    """RFC 8089 allows one or three slashes, and resolving escapes twice would turn `%2520` into
    a space.
    """
    assert root_of(uri) == "/data/my table%20"


@pytest.mark.parametrize("path", ["/data/my table", "/data/50% off", "/data/é#?&", "/a%20b"])
def test_a_local_stores_uri_opens_it(path: str) -> None:
    """Spark's workers and Lance open a table by its URI, so every character must survive the
    round trip.
    """
    store = open_store(path)
    assert open_store(store.uri) == store


def test_a_memory_stores_uri_opens_it() -> None:
    """Two spellings of a memory location must be one table, or tests would see different data."""
    store = open_store("memory://some/my table")
    assert open_store(store.uri) == store
    assert open_store("memory:///some//my table/") == store


def test_file_uris_with_hosts_are_refused() -> None:
    """`file://data/t` names the host `data`, which a user who forgot a slash does not mean."""
    with pytest.raises(InvalidInputError, match="host"):
        open_store("file://data/t")
    assert root_of("file://localhost/data/t") == "/data/t"


@pytest.mark.parametrize("location", ["", "memory://", "memory://a/../b", "a\0b"])
def test_invalid_locations_are_refused(location: str) -> None:
    """A location that names nothing, leaves its root or has a null byte must fail before a file
    is created.
    """
    with pytest.raises(InvalidInputError):
        open_store(location)


def test_relative_paths_without_directory_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The working directory has been deleted."""
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    for location in ("t", "~nobody_of_this_name/t"):
        with pytest.raises(InvalidInputError, match="use an absolute path"):
            open_store(location)


@pytest.mark.parametrize("taken", ["t", "t/data", "link"])
def test_files_blocking_folders_are_named(taken: str, tmp_path: Path) -> None:
    """A file or broken link where a folder belongs must be named and must survive the attempt."""
    path = tmp_path / taken
    path.parent.mkdir(exist_ok=True)
    if taken == "link":
        path.symlink_to(tmp_path / "nowhere")
    else:
        path.write_text("x")
    store = open_store(tmp_path / taken.partition("/")[0])
    for write in (store.create_once, store.write):
        with pytest.raises(InvalidInputError, match=re.escape(f"{str(path)!r} exists")):
            write("data/a.lance", b"x")
    assert path.is_symlink() or path.read_text() == "x"


@pytest.mark.parametrize("protocol", sorted(REFUSED))
def test_refused_protocols_give_their_reason(protocol: str) -> None:
    """Every protocol in the table of refusals must reach the user with its own explanation and
    the location.
    """
    with pytest.raises(UnsupportedFeatureError) as caught:
        open_store(f"{protocol}://bucket/t")
    assert REFUSED[protocol] in str(caught.value)
    assert f"{protocol}://bucket/t" in str(caught.value)


@pytest.mark.parametrize(
    ("uri", "remedy"),
    [
        ("hdfs://nameservice/t", "s3://, abfss:// or gs://"),
        ("webhdfs://namenode:9870/t", "s3://, abfss:// or gs://"),
        ("dbfs:///mnt/t", "s3://, abfss:// or gs://"),
        ("dbfs:/mnt/t", "s3://, abfss:// or gs://"),  # as Hadoop writes it: no local directory
        ("hdfs:/t", "s3://, abfss:// or gs://"),
        ("part:/t", "its protocol is unknown"),
        ("https://minio.example/bucket/t", "endpoint_url"),
    ],
)
def test_refused_protocols_name_the_remedy(uri: str, remedy: str) -> None:
    """Users of Hadoop paths need to learn which URI to use instead."""
    with pytest.raises(UnsupportedFeatureError, match=remedy):
        open_store(uri)


@pytest.mark.parametrize("location", ["s3:/bucket/t", "memory:/t", "az:/c/t"])
def test_malformed_uris_are_not_local_paths(location: str) -> None:
    """A URI with too few slashes must not create a directory called `s3:`."""
    with pytest.raises(InvalidInputError):
        open_store(location)
    assert root_of(f"./{location}").endswith(location)


def test_unknown_protocols_are_refused_by_name() -> None:
    """An unknown protocol must not be taken for a relative path and become a local folder."""
    with pytest.raises(UnsupportedFeatureError, match="ftp://host/t"):
        open_store("ftp://host/t")


def test_supported_protocols_are_not_refused() -> None:
    """The table of refusals is consulted first, so an entry in both would disable a store."""
    assert not PROTOCOLS.keys() & REFUSED.keys()


def test_flushing_files_is_an_option() -> None:
    """`durable` has three values with different promises after a power failure, and a misspelt
    one must not select the weakest.
    """
    assert open_store("/t", {"durable": "true"}) == LocalStore("/t", durable=True)
    assert open_store("/t", {"durable": False, "aws_region": "x"}) == LocalStore("/t")
    assert open_store("/t", {"durable": "Never"}) == LocalStore("/t", volatile=True)
    with pytest.raises(InvalidInputError, match="'durable' must be true, never or false"):
        open_store("/t", {"durable": "maybe"})


@pytest.mark.parametrize(
    "spellings",
    [
        (
            "t",
            "./t",
            "x/../t",
            "{folder}/t",
            "{folder}//t/",
            "file://{folder}/t",
            "file:{folder}/t",
        ),
        ("s3://bucket/t", "s3a://bucket/t/", "S3N://bucket/t"),
        ("gs://bucket/t", "gcs://bucket/t"),
    ],
)
def test_spellings_of_a_location_are_equal(
    spellings: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Caches and locks are keyed by location, and two keys for one table would let them
    disagree.
    """
    monkeypatch.chdir(tmp_path)
    actual = {normalized_location(spelling.format(folder=tmp_path)) for spelling in spellings}
    assert len(actual) == 1
    assert normalized_location("s3://bucket/T") not in actual


@pytest.mark.parametrize(
    "uri",
    [
        "s3a://AKIA:hidden@bucket/t",
        "s3n://AKIA:hid/den@bucket/t",
        "hdfs://user:hidden@host/t",
        "ftp://user:hidden@host/t",
        "az://container/t?sv=2024&sig=hidden",
        "s3://bucket/t?X-Amz-Signature=hidden",
        "https://acct.blob.core.windows.net/c/t?sv=2024&sig=hidden",
    ],
)
@pytest.mark.parametrize("check", [open_store, check_is_shared])
def test_secrets_in_locations_are_refused(check: Callable[[str], object], uri: str) -> None:
    """Locations are shown in plans, logs and errors, and Hadoop once took keys in them."""
    with pytest.raises(InvalidInputError, match="credentials as storage options") as raised:
        check(uri)
    assert "hid" not in str(raised.value)


def test_at_signs_and_colons_are_legal() -> None:
    """A container, a port and a name can contain them without being a password."""
    for uri in ("abfss://c@a.dfs.core.windows.net:443/t@1", "s3://bucket/a:b@c", "/d/a:b@c?sig=1"):
        check_is_shared(uri)
