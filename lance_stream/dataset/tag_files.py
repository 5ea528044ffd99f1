"""The files of tags: names for versions, one small file each.

    _refs/tags/{name}.json

    {
      "branch": null,
      "version": 7,
      "createdAt": "2026-11-21T20:53:46.544756592Z",
      "updatedAt": "2026-11-21T20:53:46.544756592Z",
      "manifestSize": 494,
      "metadata": {}
    }

Both times may be missing, as in files of old writers. A tag is created once: of two who create one
name, one succeeds. Moving it keeps what else the file says.

Source:  files that the reference wrote, and its refs.rs.
Differs: Tags on branches are listed, but a version of a branch is not opened yet. The reference
         writes a letter beyond ASCII percent-encoded, and from then on its own listing of all tags
         fails: such tags are read here, but not made.
"""

import json
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from lance_stream.commit.world import REAL_WORLD, World
from lance_stream.dataset.timestamps import as_rfc3339
from lance_stream.errors import (
    CorruptDataError,
    InvalidInputError,
    NotFoundError,
    UnsupportedFeatureError,
)
from lance_stream.storage.store import Store
from lance_stream.table.paths import (
    TAGS_DIRECTORY,
    NamingScheme,
    manifest_path,
    parse_tag_file_name,
    tag_path,
)

HOLD_PREFIX: Final = "lance_stream.hold."
"""What the names of tags begin with that hold a version while something is done with it."""


@dataclass(frozen=True, slots=True)
class Tag:
    """A name for a version.

    Attributes:
        name: The name.
        version: The version that it stands for.
        created_at: When it was made, in UTC; None if its writer did not say.
        updated_at: When it was moved last, in UTC; None if its writer did not say.
        branch: The branch that the version belongs to; None for the main one.
        metadata: What its writer noted with it.
    """

    name: str
    version: int
    created_at: datetime | None = None
    updated_at: datetime | None = None
    branch: str | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)


def list_tags(store: Store) -> dict[str, Tag]:
    """Return all tags by name, in the order of their names.

    Raises:
        CorruptDataError: The file of one is damaged.
    """
    names = map(parse_tag_file_name, store.list_names(TAGS_DIRECTORY))
    found: dict[str, Tag] = {}
    for name in sorted(each for each in names if each is not None):
        try:
            found[name] = get_tag(store, name)
        except NotFoundError:
            continue  # deleted since it was listed
    return found


def get_tag(store: Store, name: str) -> Tag:
    """Return a tag.

    Raises:
        NotFoundError: There is no such tag; the message lists those that are.
        InvalidInputError: No tag can have this name.
        CorruptDataError: The tag's file is damaged.
    """
    return _as_tag(name, _read(store, name))


def find_tag(store: Store, name: str) -> Tag | None:
    """Return a tag, or None if there is no such tag; see `get_tag`."""
    try:
        return get_tag(store, name)
    except NotFoundError:
        return None


def read_tag(store: Store, name: str) -> int:
    """Return the version of the table that a tag names.

    Raises:
        UnsupportedFeatureError: The tag names a version of a branch.
        LanceStreamError: As `get_tag`.
    """
    tag = get_tag(store, name)
    if tag.branch is not None:
        raise UnsupportedFeatureError(
            f"the tag {name!r} names a version of the branch {tag.branch!r}; branches are not "
            "supported yet"
        )
    return tag.version


def check_new_tag(name: str) -> str:
    """Return the name that a new tag is to have, if it can.

    Raises:
        InvalidInputError: It cannot.
    """
    tag_path(name)
    if not name.isascii():
        raise InvalidInputError(
            f"{name!r} cannot be the name of a new tag: with a tag in the table that has letters "
            "beyond ASCII, pylance fails to list any of them. Use a-z, A-Z, 0-9, '.', '-' and '_'"
        )
    return name


def create_tag(store: Store, name: str, version: int, world: World = REAL_WORLD) -> Tag:
    """Make a tag for a version.

    Raises:
        InvalidInputError: There is such a tag already, or none can have this name.
        NotFoundError: There is no such version.
    """
    path = tag_path(check_new_tag(name))
    now = as_rfc3339(world.now_nanos())
    content: dict[str, Any] = {
        "branch": None,
        "version": version,
        "createdAt": now,
        "updatedAt": now,
        "manifestSize": _manifest_size(store, version),
        "metadata": {},
    }
    if not _create(store, path, _encode(content)):
        raise InvalidInputError(
            f"there is a tag {name!r} already: it stands for version "
            f"{get_tag(store, name).version}. Move it with `update`, or delete it"
        )
    _check_is_still_there(store, version, lambda: store.delete(path))
    return _as_tag(name, content)


def move_tag(store: Store, name: str, version: int, world: World = REAL_WORLD) -> Tag:
    """Let a tag that is there stand for another version.

    Raises:
        NotFoundError: There is no such tag or version.
        LanceStreamError: As `get_tag`.
    """
    before = _read(store, name)
    _as_tag(name, before)
    content = before | {
        "branch": None,
        "version": version,
        "updatedAt": as_rfc3339(world.now_nanos()),
        "manifestSize": _manifest_size(store, version),
    }
    store.write(tag_path(name), _encode(content))
    _check_is_still_there(store, version, lambda: store.write(tag_path(name), _encode(before)))
    return _as_tag(name, content)


def delete_tag(store: Store, name: str) -> None:
    """Delete a tag; the version that it named stays.

    Raises:
        NotFoundError: There is no such tag; the message lists those that are.
        InvalidInputError: No tag can have this name.
    """
    path = tag_path(name)
    if not store.exists(path):
        raise _no_such_tag(store, name)
    store.delete(path)


@contextmanager
def holding(store: Store, version: int) -> Iterator[None]:
    """Keep a version from being cleaned up, by a tag of its own, while a body runs.

    A process that is killed meanwhile leaves the tag: cleanup ignores it once it is old.

    Raises:
        NotFoundError: There is no such version.
    """
    name = f"{HOLD_PREFIX}{uuid.uuid4().hex}"
    create_tag(store, name, version)
    try:
        yield
    finally:
        with suppress(NotFoundError):
            delete_tag(store, name)


def _create(store: Store, path: str, data: bytes) -> bool:
    """Create a tag's file; where the store cannot create a name once, by a look before.

    Of two who create one name at once there, the later one's version stands, as with pylance.
    """
    try:
        return store.create_once(path, data)
    except UnsupportedFeatureError:
        if store.exists(path):
            return False
        store.write(path, data)
        return True


def _read(store: Store, name: str) -> dict[str, Any]:
    try:
        data = store.read(tag_path(name))
    except NotFoundError:
        raise _no_such_tag(store, name) from None
    try:
        content: Any = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise CorruptDataError(f"the tag {name!r} is not JSON: {error}") from None
    if not isinstance(content, dict):
        raise CorruptDataError(f"the tag {name!r} names no version: {data[:200]!r}")
    return content


def _no_such_tag(store: Store, name: str) -> NotFoundError:
    names = map(parse_tag_file_name, store.list_names(TAGS_DIRECTORY))
    tags = ", ".join(sorted(each for each in names if each is not None))
    there = f"there are: {tags}" if tags else "there are no tags"
    return NotFoundError(f"there is no tag {name!r}; {there}")


def _as_tag(name: str, content: Mapping[str, Any]) -> Tag:
    """Return the tag that a file's content describes.

    Raises:
        CorruptDataError: It describes none.
    """
    version, branch = content.get("version"), content.get("branch")
    metadata = content.get("metadata", {})
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise CorruptDataError(f"the tag {name!r} names no version: {content!r:.200}")
    if not (branch is None or isinstance(branch, str)) or not isinstance(metadata, dict):
        raise CorruptDataError(
            f"the tag {name!r} has a branch or metadata of no kind: {content!r:.200}"
        )
    created, updated = (_moment(name, content.get(key)) for key in ("createdAt", "updatedAt"))
    return Tag(
        name, version, created, updated, branch, {str(k): str(v) for k, v in metadata.items()}
    )


def _moment(name: str, text: object) -> datetime | None:
    if text is None:
        return None
    try:
        moment = datetime.fromisoformat(str(text))
        return moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)
    except (ValueError, OverflowError) as error:
        raise CorruptDataError(
            f"the tag {name!r} was made or moved at no moment: {error}"
        ) from None


def _manifest_size(store: Store, version: int) -> int:
    """Return the size in bytes of a version's manifest.

    Raises:
        NotFoundError: There is no such version.
    """
    for scheme in (NamingScheme.V2, NamingScheme.V1):
        with suppress(NotFoundError):
            return store.size(manifest_path(version, scheme))
    raise NotFoundError(
        f"the dataset at {store.uri} has no version {version}; a tag stands for one that is there"
    )


def _check_is_still_there(store: Store, version: int, undo: Callable[[], None]) -> None:
    """Raise if a cleanup has removed a version before it could see the new tag.

    Raises:
        NotFoundError: There is no such version any more; the tag is as it was.
    """
    try:
        _manifest_size(store, version)
    except NotFoundError:
        undo()
        raise


def _encode(content: Mapping[str, Any]) -> bytes:
    return json.dumps(content, indent=2, ensure_ascii=False).encode()
