"""Tag files: named versions, one small file per tag.

    _refs/tags/{name}.json

    {
      "branch": null,
      "version": 7,
      "createdAt": "2026-11-21T20:53:46.544756592Z",
      "updatedAt": "2026-11-21T20:53:46.544756592Z",
      "manifestSize": 494,
      "metadata": {}
    }

Both times may be missing, as in files of old writers. If two writers create a tag of the same name,
one of them fails. Moving a tag preserves the other entries of its file.

All tags are stored in the table's directory, including those of versions of a branch (see
`references`). Early releases stored the tags of a branch in the branch's directory. Those tags are
still valid for that branch, with lower precedence.

Source:  files that the reference wrote, and its refs.rs.
Differs: The reference percent-encodes non-ASCII letters, but cannot list tags if one has such a
         name. So such tags are read here, but not created. The reference cannot list tags
         either if a file is not a tag; here, that file is skipped with a warning, and only a
         cleanup fails.
"""

import json
import logging
import re
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Final

from lance_stream.environment import MACHINE, Environment
from lance_stream.errors import (
    CorruptDataError,
    InvalidInputError,
    LanceStreamError,
    NotFoundError,
)
from lance_stream.snapshot.references import Refs
from lance_stream.snapshot.timestamps import as_rfc3339, in_utc, parse_moment
from lance_stream.storage.store import Store, check_is_in_table, create_if_absent
from lance_stream.table.paths import (
    MAIN_BRANCH,
    TAGS_DIRECTORY,
    NamingScheme,
    manifest_path,
    parse_tag_file_name,
    tag_path,
)

_log = logging.getLogger(__name__)

RESERVED_PREFIX: Final = "lance_stream."
"""The prefix of all tag names that users do not choose."""

HOLD_PREFIX: Final = f"{RESERVED_PREFIX}hold."
"""The prefix of tag names that protect a version while an operation uses it."""

CLONE_PREFIX: Final = f"{RESERVED_PREFIX}clone."
"""The prefix of tag names that protect a version for its shallow clones."""

FORM_OF_TIMES: Final = (
    "A time is a datetime in Python, and ISO 8601 on the command line: 2026-11-27T08:00"
)
"""The advice for a string that may be a time, but is read as the name of a tag."""


@dataclass(frozen=True, slots=True)
class Tag:
    """A named version.

    Attributes:
        name: The name.
        version: The version.
        created_at: When the tag was created, in UTC; None if its writer did not record it.
        updated_at: When the tag was last moved, in UTC; None if its writer did not record it.
        branch: The branch of the version; None for the main branch.
        metadata: The metadata that its writer stored.
    """

    name: str
    version: int
    created_at: datetime | None = None
    updated_at: datetime | None = None
    branch: str | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TagListing:
    """The tags of a table.

    Attributes:
        tags: The tags; two may have the same name, if one is in a branch's directory.
        unreadable: The errors of files that look like tags but cannot be read, by path.
    """

    tags: Sequence[Tag]
    unreadable: Mapping[str, Exception]


def read_tags(refs: Refs) -> TagListing:
    """Return all tags of a table and its branches, and files that cannot be read."""
    tags: list[Tag] = []
    unreadable: dict[str, Exception] = {}
    for store, names_branch in _tag_stores(refs):
        for file in store.list(TAGS_DIRECTORY):
            name = parse_tag_file_name(file.path.removeprefix(f"{TAGS_DIRECTORY}/"))
            if name is None:
                continue
            try:
                tag_path(name)
                tag = _as_tag(name, _read(store, file.path, name))
                tags.append(tag if names_branch else replace(tag, branch=refs.branch))
            except NotFoundError:
                if store.exists(file.path):
                    raise  # otherwise it was deleted since it was listed
            except (CorruptDataError, InvalidInputError) as error:
                unreadable[f"{store.uri}/{file.path}"] = error
    return TagListing(tags, unreadable)


def list_tags(refs: Refs) -> dict[str, Tag]:
    """Return all tags by name, sorted by name.

    Files that are not tags are skipped and logged as warnings.
    """
    by_name = {tag.name: tag for tag in reversed(read_valid_tags(refs))}
    return dict(sorted(by_name.items()))


def read_valid_tags(refs: Refs) -> Sequence[Tag]:
    """Return all tags, as `read_tags` does; files that are not tags are logged as warnings."""
    listing = read_tags(refs)
    for path, error in listing.unreadable.items():
        _log.warning("skipped the tag file %s: %s", path, error)
    return listing.tags


def get_tag(refs: Refs, name: str) -> Tag:
    """Return a tag.

    Raises:
        NotFoundError: The tag does not exist; the message lists the existing ones.
        InvalidInputError: The name is not valid for a tag.
        CorruptDataError: The tag's file is damaged.
    """
    for store, names_branch in _tag_stores(refs):
        with suppress(NotFoundError), _remedy_for_damage(store, name):
            tag = _as_tag(name, _read(store, tag_path(name), name))
            return tag if names_branch else replace(tag, branch=refs.branch)
    raise _missing_tag_error(refs, name)


def find_tag(refs: Refs, name: str) -> Tag | None:
    """Return a tag, or None if it does not exist; see `get_tag`."""
    try:
        return get_tag(refs, name)
    except NotFoundError:
        return None


def _tag_stores(refs: Refs) -> Iterator[tuple[Store, bool]]:
    """Yield the stores with tag files, and whether these state the branch of their version."""
    yield refs.root, True
    if refs.branch is not None:
        yield refs.store, False


def check_new_tag(name: str) -> str:
    """Return the name of a new tag, if it is valid.

    Raises:
        InvalidInputError: The name is not valid.
    """
    tag_path(name)
    if not name.isascii():
        raise InvalidInputError(
            f"{name!r} cannot be the name of a new tag: pylance cannot list the tags of a table if "
            "a name has non-ASCII letters. Use a-z, A-Z, 0-9, '.', '-' and '_'"
        )
    return name


def create_tag(
    refs: Refs,
    name: str,
    version: int,
    environment: Environment = MACHINE,
    *,
    metadata: Mapping[str, str] | None = None,
) -> Tag:
    """Create a tag for a version of a table or branch.

    Args:
        refs: The references of the branch.
        name: The name of the tag.
        version: The version.
        environment: Provides the clock.
        metadata: The metadata to store.

    Raises:
        InvalidInputError: The tag already exists, or the name is not valid.
        NotFoundError: The version does not exist.
    """
    path = tag_path(check_new_tag(name))
    check_is_in_table(refs.root, TAGS_DIRECTORY, "a tag")
    now = as_rfc3339(environment.now_nanos())
    content: dict[str, Any] = {
        "branch": refs.branch,
        "version": version,
        "createdAt": now,
        "updatedAt": now,
        "manifestSize": manifest_size(refs.store, version),
        "metadata": dict(metadata or {}),
    }
    if not create_if_absent(refs.root, path, _encode(content)):
        raise InvalidInputError(
            f"the tag {name!r} already exists, for {describe_tag(get_tag(refs, name))}. Move it "
            "with `update`, or delete it"
        )
    _check_still_exists(refs.store, version, lambda: refs.root.delete(path))
    return _as_tag(name, content)


def move_tag(
    refs: Refs,
    name: str,
    version: int,
    environment: Environment = MACHINE,
    *,
    metadata: Mapping[str, str] | None = None,
) -> Tag:
    """Move an existing tag to another version of a branch.

    Args:
        refs: The references of the branch.
        name: The name of the tag.
        version: The version.
        environment: Provides the clock.
        metadata: The metadata to store; None to keep the existing metadata.

    Raises:
        NotFoundError: The tag or version does not exist.
        LanceStreamError: As `get_tag`.
    """
    store = _store_of(refs, name)
    path = tag_path(name)
    check_is_in_table(store, TAGS_DIRECTORY, "a tag")
    with _remedy_for_damage(store, name):
        before = _read(store, path, name)
        _as_tag(name, before)
    content = before | {
        "branch": refs.branch,
        "version": version,
        "updatedAt": as_rfc3339(environment.now_nanos()),
        "manifestSize": manifest_size(refs.store, version),
    }
    if metadata is not None:
        content["metadata"] = dict(metadata)
    store.write(path, _encode(content))
    _check_still_exists(refs.store, version, lambda: store.write(path, _encode(before)))
    return _as_tag(name, content)


def delete_tag(refs: Refs, name: str) -> None:
    """Delete a tag, but not its version.

    Raises:
        NotFoundError: The tag does not exist; the message lists the existing ones.
        InvalidInputError: The name is not valid for a tag.
    """
    _store_of(refs, name).delete(tag_path(name))


def describe_tag(tag: Tag) -> str:
    """Return a phrase that describes the version of a tag."""
    of_branch = "" if tag.branch is None else f" of the branch {tag.branch!r}"
    return f"version {tag.version}{of_branch}"


def _store_of(refs: Refs, name: str) -> Store:
    path = tag_path(name)
    for store, _ in _tag_stores(refs):
        if store.exists(path):
            return store
    raise _missing_tag_error(refs, name)


@contextmanager
def hold_version(refs: Refs, version: int) -> Iterator[None]:
    """Protect a version from cleanup by a temporary tag while the body runs.

    If the process is killed, or the tag cannot be deleted, it remains; cleanup ignores it once it
    is old.

    Raises:
        NotFoundError: The version does not exist.
    """
    name = f"{HOLD_PREFIX}{uuid.uuid4().hex}"
    create_tag(refs, name, version)
    try:
        yield
    finally:
        try:
            delete_tag(refs, name)
        except NotFoundError:
            pass
        except (LanceStreamError, OSError) as error:  # the body may have committed
            _log.warning("the tag %s of %s was not deleted: %s", name, refs.root.uri, error)


@contextmanager
def _remedy_for_damage(store: Store, name: str) -> Iterator[None]:
    """Add the file of a damaged tag, and a remedy, to the error."""
    try:
        yield
    except CorruptDataError as error:
        error.add_note(
            f"tag file {store.uri}/{tag_path(name)}: restore it from a copy, or delete the tag: "
            f"ds.tags.delete({name!r}). A consumer whose tag is deleted starts anew, unless it "
            "passes a position of its own"
        )
        raise


def _read(store: Store, path: str, name: str) -> dict[str, Any]:
    data = store.read(path)
    try:
        content: Any = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise CorruptDataError(f"the tag {name!r} is not JSON: {error}") from None
    if not isinstance(content, dict):
        raise CorruptDataError(f"the tag {name!r} does not state a version: {data[:200]!r}")
    return content


def _missing_tag_error(refs: Refs, name: str) -> NotFoundError:
    files = (file for store, _ in _tag_stores(refs) for file in store.list_names(TAGS_DIRECTORY))
    tags = ", ".join(sorted(filter(None, set(map(parse_tag_file_name, files)))))
    existing = f"existing tags: {tags}" if tags else "the table has no tags"
    error = NotFoundError(f"tag {name!r} does not exist; {existing}")
    if _looks_like_a_date(name):
        error.add_note(FORM_OF_TIMES)
    return error


def _looks_like_a_date(name: str) -> bool:
    return re.match(r"\d{1,4}[-/.]\d", name) is not None


def _as_tag(name: str, content: Mapping[str, Any]) -> Tag:
    """Parse the content of a tag file.

    Raises:
        CorruptDataError: The content is not that of a tag file.
    """
    version, branch = content.get("version"), content.get("branch")
    metadata = content.get("metadata", {})
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise CorruptDataError(f"the tag {name!r} does not state a version: {content!r:.200}")
    if not (branch is None or isinstance(branch, str)) or not isinstance(metadata, dict):
        raise CorruptDataError(
            f"the tag {name!r} has a branch or metadata of the wrong type: {content!r:.200}"
        )
    branch = None if branch == MAIN_BRANCH else branch
    created, updated = (_moment(name, content.get(key)) for key in ("createdAt", "updatedAt"))
    return Tag(
        name, version, created, updated, branch, {str(k): str(v) for k, v in metadata.items()}
    )


def _moment(name: str, text: object) -> datetime | None:
    if text is None:
        return None
    try:
        return in_utc(parse_moment(str(text)))
    except ValueError as error:
        raise CorruptDataError(f"the tag {name!r} has an invalid time: {error}") from None


def manifest_size(store: Store, version: int) -> int:
    """Return the size in bytes of a version's manifest.

    Raises:
        NotFoundError: The version does not exist.
    """
    for scheme in (NamingScheme.V2, NamingScheme.V1):
        with suppress(NotFoundError):
            return store.size(manifest_path(version, scheme))
    raise NotFoundError(
        f"the table at {store.uri} has no version {version}; a tag requires an existing version"
    )


def _check_still_exists(store: Store, version: int, undo: Callable[[], None]) -> None:
    """Undo the change of a tag and raise, if a cleanup has removed its version in the meantime.

    Raises:
        NotFoundError: The version no longer exists.
    """
    try:
        manifest_size(store, version)
    except NotFoundError:
        undo()
        raise


def _encode(content: Mapping[str, Any]) -> bytes:
    return json.dumps(content, indent=2, ensure_ascii=False).encode()
