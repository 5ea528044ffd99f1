"""Tags, branches and consumers, which protect versions from a cleanup, and which of them expired.

    a tag         its version
    a branch      the version from which it was created
    a consumer    the version that it has finished, and all later ones

A tag or branch that cannot be read, and an unknown kind of reference, stop the cleanup.
"""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from datetime import timedelta

from lance_stream.environment import Environment
from lance_stream.errors import CorruptDataError, UnsupportedFeatureError
from lance_stream.maintenance.cleanup.report import BRANCH
from lance_stream.maintenance.cleanup.rules import GRACE, CleanupRules
from lance_stream.maintenance.consumers import Consumer, abandoned_consumers, is_consumer_tag
from lance_stream.snapshot.references import Refs, read_branches
from lance_stream.snapshot.table_version import TableVersion
from lance_stream.snapshot.tag_files import HOLD_PREFIX, Tag, read_tags
from lance_stream.snapshot.timestamps import nanos_of
from lance_stream.table.paths import BRANCHES_DIRECTORY, REFS_DIRECTORY, TAGS_DIRECTORY


class Protections:
    """The tags and branches that protect a version, and consumers, which protect later ones, too.

    Args:
        refs: The references of the table or branch.
        ignored: Expired tags.
        branches_by_version: The branches that were created from this branch, by version.

    Raises:
        CorruptDataError: A tag is damaged.
    """

    def __init__(
        self, refs: Refs, ignored: Collection[str], branches_by_version: Mapping[int, Sequence[str]]
    ) -> None:
        self._names: dict[int, list[str]] = defaultdict(list)
        self._consumers: dict[str, int] = {}
        for tag in _tags_of(refs):
            if tag.name in ignored:
                continue
            if is_consumer_tag(tag.name):
                self._consumers[tag.name] = tag.version
            else:
                self._names[tag.version].append(tag.name)
        for version, names in branches_by_version.items():
            self._names[version] += names

    def of(self, version: int) -> list[str]:
        """Return the names of what protects a version."""
        consumers = [name for name, first in self._consumers.items() if version >= first]
        return self._names.get(version, []) + consumers


def branches_by_origin(refs: Refs) -> dict[int, list[str]]:
    """Return the names of the branches that were created from this branch, by version.

    Raises:
        CorruptDataError: A branch is damaged.
    """
    branches: dict[int, list[str]] = defaultdict(list)
    for path, branch in read_branches(refs).items():
        if isinstance(branch, Exception):
            raise _unreadable_error(f"{refs.root.uri}/{path}", "branch", branch)
        if branch.parent == refs.branch:
            branches[branch.parent_version].append(f"{BRANCH}{branch.name}")
    return branches


def expired_consumers(
    table: TableVersion, rules: CleanupRules, environment: Environment
) -> list[Consumer]:
    """Return the consumers that no longer protect versions."""
    if rules.expire_consumers is None:
        return []
    return abandoned_consumers(table, rules.expire_consumers, environment)


def expired_tags(refs: Refs, environment: Environment) -> list[str]:
    """Return the tags of operations that were killed."""
    latest = environment.now_nanos() - GRACE // timedelta(microseconds=1) * 1000
    return [
        tag.name
        for tag in _tags_of(refs)
        if tag.name.startswith(HOLD_PREFIX)
        and tag.updated_at is not None
        and nanos_of(tag.updated_at) <= latest
    ]


def check_references(refs: Refs) -> None:
    """Check that only tags and branches can protect versions.

    Raises:
        UnsupportedFeatureError: There is an unknown kind of reference.
    """
    directories = (f"{TAGS_DIRECTORY}/", f"{BRANCHES_DIRECTORY}/")
    for file in refs.root.list(REFS_DIRECTORY):
        if not file.path.startswith(directories) and not file.path.rpartition("/")[2].startswith(
            "."
        ):
            raise UnsupportedFeatureError(
                f"{refs.root.uri}/{file.path} is neither a tag nor a branch, and may protect "
                "versions. Nothing was removed. Clean up the table with the program that wrote it, "
                "or delete it if it is not needed"
            )


def _tags_of(refs: Refs) -> list[Tag]:
    """Return the tags on versions of a branch.

    Raises:
        CorruptDataError: A possible tag is damaged.
    """
    listing = read_tags(refs)
    for path, error in listing.unreadable.items():
        raise _unreadable_error(path, "tag", error)
    return [tag for tag in listing.tags if tag.branch == refs.branch]


def _unreadable_error(path: str, kind: str, error: Exception) -> CorruptDataError:
    return CorruptDataError(
        f"{path} looks like a {kind}, but cannot be read: {error}. It may protect a version, so "
        f"nothing more was removed. Repair it, or delete it if it is not a {kind}"
    )
