"""Tags: names for versions, one small file each.

    _refs/tags/{name}.json      {"branch": null, "version": 7, "createdAt": "...Z", ...}

Source:  files that the reference wrote.
Differs: Tags on branches are named by a branch that is not null; branches are not read yet.
"""

import json
from typing import Any

from lance_stream.errors import CorruptDataError, NotFoundError, UnsupportedFeatureError
from lance_stream.storage.store import Store
from lance_stream.table.paths import TAGS_DIRECTORY, tag_path

_SUFFIX = ".json"


def list_tags(store: Store) -> list[str]:
    """Return the names of all tags, sorted."""
    names = store.list_names(TAGS_DIRECTORY)
    return sorted(name.removesuffix(_SUFFIX) for name in names if name.endswith(_SUFFIX))


def read_tag(store: Store, name: str) -> int:
    """Return the version that a tag names.

    Raises:
        NotFoundError: There is no such tag; the message lists those that are.
        InvalidInputError: No tag can have this name.
        CorruptDataError: The tag's file is damaged.
        UnsupportedFeatureError: The tag names a version of a branch.
    """
    path = tag_path(name)
    try:
        data = store.read(path)
    except NotFoundError:
        tags = list_tags(store)
        there = f"there are: {', '.join(tags)}" if tags else "there are no tags"
        raise NotFoundError(f"there is no tag {name!r}; {there}") from None
    try:
        content: Any = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise CorruptDataError(f"the tag {name!r} is not JSON: {error}") from None
    if not isinstance(content, dict):
        raise CorruptDataError(f"the tag {name!r} names no version: {data[:200]!r}")
    if content.get("branch") is not None:
        raise UnsupportedFeatureError(
            f"the tag {name!r} names a version of the branch {content['branch']!r}; branches are "
            "not supported yet"
        )
    version = content.get("version")
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise CorruptDataError(f"the tag {name!r} names no version: {data[:200]!r}")
    return version
