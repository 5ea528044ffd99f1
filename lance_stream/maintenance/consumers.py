"""Consumers: readers of the change feed whose progress is stored with the table.

A consumer is stored as a tag on the last version that it has finished:

    _refs/tags/lance_stream.consumer.{name}.json
    _refs/tags/lance_stream.snapshot.{name}.json      until it has finished its
                                                      first version: its start version

A consumer that follows the table without Spark also stores its position in the tag's metadata,
because it may stop in the middle of a version or snapshot.

Every program that supports tags sees consumers. The reference's cleanup keeps only the tagged
version; ours also keeps all later versions, which the consumer has yet to read.

The progress of a consumer may decrease: a reader restarted from an older checkpoint resumes there,
and needs the versions after it.

A consumer belongs to the main branch or to one other branch. These tag names are reserved (`tags`),
so neither users' tags nor other kinds of tags collide with them. Early releases protected a
consumer's start with a second consumer, `{name}.snapshot`; one that is left over is listed, and can
be dropped.
"""

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from lance_stream.environment import MACHINE, Environment
from lance_stream.errors import InvalidInputError, NotFoundError
from lance_stream.maintenance.links import check_no_links
from lance_stream.snapshot import tag_files
from lance_stream.snapshot.references import Refs
from lance_stream.snapshot.table_version import TableVersion
from lance_stream.snapshot.tag_files import RESERVED_PREFIX, Tag, check_new_tag
from lance_stream.snapshot.timestamps import nanos_of, timestamp_of
from lance_stream.table.paths import TAGS_DIRECTORY

CONSUMER_PREFIX: Final = f"{RESERVED_PREFIX}consumer."
"""The prefix of consumers' tag names."""

SNAPSHOT_PREFIX: Final = f"{RESERVED_PREFIX}snapshot."
"""The prefix of tags that protect the version that a consumer starts with."""

_POSITION: Final = "position"
"""The key of a consumer's position in the metadata of its tag."""

_SKIPPED_FROM: Final = "skipped_from"
"""The key of an earlier position: between the two, the consumer had no rows."""


@dataclass(frozen=True, slots=True)
class Consumer:
    """A reader of the change feed.

    Attributes:
        name: The name.
        version: The last version that it has finished; its start version if it has not finished
            any.
        created_at: When it was created, in UTC; None if its tag does not state it.
        updated_at: When it last made progress, in UTC; None if its tag does not state it.
        is_beginning: Whether it has not finished any version yet.
    """

    name: str
    version: int
    created_at: datetime | None
    updated_at: datetime | None
    is_beginning: bool = False

    @property
    def tag(self) -> str:
        """The tag that stores it."""
        return (SNAPSHOT_PREFIX if self.is_beginning else CONSUMER_PREFIX) + self.name


def is_consumer_tag(tag: str) -> bool:
    """Return whether a tag stores a consumer, which protects its version and all later ones."""
    return tag.startswith((CONSUMER_PREFIX, SNAPSHOT_PREFIX))


def consumer_of(tag: str) -> str:
    """Return the name of the consumer that a tag belongs to."""
    return tag.removeprefix(CONSUMER_PREFIX).removeprefix(SNAPSHOT_PREFIX)


def consumer_tag(name: str, prefix: str) -> str:
    """Return the name of the tag that stores a consumer's progress, or its start.

    Raises:
        InvalidInputError: The name is invalid for a consumer.
    """
    tag = prefix + name
    try:
        check_new_tag(tag)
    except InvalidInputError:
        raise InvalidInputError(
            f"{name!r} cannot be the name of a consumer: use a-z, A-Z, 0-9, '.', '-' and '_', "
            "without a dot at either end, '..', or '.lock' at the end"
        ) from None
    return tag


def read_progress(refs: Refs, name: str) -> int | None:
    """Return the last version that a consumer has finished.

    Args:
        refs: The references of the table or branch.
        name: The consumer's name.

    Returns:
        A version, which may no longer exist; None if the consumer does not exist or has not
        finished any version.

    Raises:
        InvalidInputError: The name is invalid, or belongs to a consumer of another branch.
        CorruptDataError: The consumer's tag is damaged.
    """
    tag = _find(refs, name, CONSUMER_PREFIX)
    return None if tag is None else tag.version


def read_position(refs: Refs, name: str) -> str | None:
    """Return the position that a consumer has stored; None if it has stored none.

    The arguments and errors are those of `read_progress`.
    """
    tag = _find(refs, name, CONSUMER_PREFIX) or _find(refs, name, SNAPSHOT_PREFIX)
    return None if tag is None else tag.metadata.get(_POSITION)


def read_skipped_from(refs: Refs, name: str) -> str | None:
    """Return the position up to which a consumer had its last rows; None if it is its position.

    The arguments and errors are those of `read_progress`.
    """
    tag = _find(refs, name, CONSUMER_PREFIX)
    return None if tag is None else tag.metadata.get(_SKIPPED_FROM)


def record_progress(
    refs: Refs,
    name: str,
    version: int,
    environment: Environment = MACHINE,
    *,
    position: str | None = None,
    skipped_from: str | None = None,
) -> None:
    """Record the last version that a consumer has finished; the first call creates the consumer.

    From then on cleanup keeps that version and all later ones.

    Args:
        refs: The references of the table or branch.
        name: The consumer's name.
        version: The version, from 1.
        environment: The clock.
        position: The exact position, in the format of its reader; None if the version is exact.
        skipped_from: An earlier position, if the consumer had no rows between the two.

    Raises:
        InvalidInputError: The name is invalid, or belongs to a consumer of another branch, or the
            version is less than 1.
        NotFoundError: The version does not exist, or no longer exists; the consumer is unchanged.
        CorruptDataError: The consumer's tag is damaged.
    """
    metadata = _metadata({_POSITION: position, _SKIPPED_FROM: skipped_from})
    _record(refs, name, version, CONSUMER_PREFIX, environment, metadata)


def protect_start(
    refs: Refs,
    name: str,
    version: int,
    environment: Environment = MACHINE,
    *,
    position: str | None = None,
) -> None:
    """Protect a consumer's start version until it has finished a version.

    The arguments and errors are those of `record_progress`.
    """
    metadata = _metadata({_POSITION: position})
    _record(refs, name, version, SNAPSHOT_PREFIX, environment, metadata)


def release_start(refs: Refs, name: str) -> None:
    """Undo `protect_start`; does nothing if the start is not protected."""
    with suppress(NotFoundError, InvalidInputError):  # missing, or of another branch
        if _find(refs, name, SNAPSHOT_PREFIX):
            tag_files.delete_tag(refs, consumer_tag(name, SNAPSHOT_PREFIX))


def _record(
    refs: Refs,
    name: str,
    version: int,
    prefix: str,
    environment: Environment,
    metadata: Mapping[str, str],
) -> None:
    if version < 1:
        raise InvalidInputError(
            f"the progress of a consumer must be a version number of at least 1, not {version}"
        )
    tag = consumer_tag(name, prefix)
    refs = _refs_with_tag(refs, tag)
    existing = _find(refs, name, prefix)
    if existing is None:
        tag_files.create_tag(refs, tag, version, environment, metadata=metadata)
    elif existing.version != version or existing.metadata != metadata:
        tag_files.move_tag(refs, tag, version, environment, metadata=metadata)


def _metadata(values: Mapping[str, str | None]) -> dict[str, str]:
    return {key: value for key, value in values.items() if value is not None}


def _find(refs: Refs, name: str, prefix: str) -> Tag | None:
    """Return the tag of a consumer; None if it does not exist.

    Raises:
        InvalidInputError: It is a consumer of another branch.
    """
    refs = _refs_with_tag(refs, consumer_tag(name, prefix))
    tag = tag_files.find_tag(refs, consumer_tag(name, prefix))
    if tag is not None and tag.branch != refs.branch:
        raise InvalidInputError(
            f"the consumer {name!r} follows {_describe_history(tag.branch)}, not "
            f"{_describe_history(refs.branch)}: "
            "a consumer belongs to one history. Use another name, or drop that consumer"
        )
    return tag


def _refs_with_tag(refs: Refs, tag: str) -> Refs:
    """Return the references that contain a consumer's tag.

    Early releases treated a branch as an independent table: their tags are in its folder.
    """
    early = Refs(refs.log)
    is_early = refs.branch is not None and tag_files.find_tag(early, tag) is not None
    return early if is_early else refs


def _describe_history(branch: str | None) -> str:
    return "the table itself" if branch is None else f"its branch {branch!r}"


def list_consumers(refs: Refs) -> list[Consumer]:
    """Return all consumers of a table, or of its branch, in the order of their names.

    Files that are not tags are skipped and logged as warnings.
    """
    return consumers_among(tag_files.read_valid_tags(refs), refs.branch)


def consumers_among(tags: Iterable[Tag], branch: str | None) -> list[Consumer]:
    """Return the consumers of a branch that tags store, in the order of their names."""
    consumers = [
        Consumer(
            tag.name.removeprefix(prefix), tag.version, tag.created_at, tag.updated_at, is_beginning
        )
        for tag in tags
        for prefix, is_beginning in ((CONSUMER_PREFIX, False), (SNAPSHOT_PREFIX, True))
        if tag.name.startswith(prefix) and tag.branch == branch
    ]
    return sorted(consumers, key=lambda consumer: (consumer.name, consumer.is_beginning))


def drop_consumer(refs: Refs, name: str) -> None:
    """Drop a consumer: cleanup no longer keeps anything for it.

    Raises:
        NotFoundError: The consumer does not exist; the message lists those that do.
        InvalidInputError: The name is invalid, or belongs to a consumer of another branch.
        UnsupportedFeatureError: The tags are reached through a link, and may belong to another
            table.
    """
    check_no_links(refs.root, (TAGS_DIRECTORY,))
    prefixes = [
        prefix for prefix in (CONSUMER_PREFIX, SNAPSHOT_PREFIX) if _find(refs, name, prefix)
    ]
    if not prefixes:
        names = ", ".join(sorted({consumer.name for consumer in list_consumers(refs)}))
        hint = f"there are: {names}" if names else "there are no consumers"
        raise NotFoundError(f"there is no consumer {name!r}; {hint}")
    for prefix in prefixes:
        tag = consumer_tag(name, prefix)
        tag_files.delete_tag(_refs_with_tag(refs, tag), tag)


def delete_consumer_tag(refs: Refs, consumer: Consumer) -> None:
    """Delete the tag of a consumer, if it still exists."""
    with suppress(NotFoundError):
        tag_files.delete_tag(_refs_with_tag(refs, consumer.tag), consumer.tag)


def abandoned_consumers(
    table: TableVersion, older_than: timedelta, environment: Environment = MACHINE
) -> list[Consumer]:
    """Return the consumers that have not read available versions for a long time.

    A consumer that has read all versions is not abandoned, however long ago that was.

    Args:
        table: Any version.
        older_than: For how long a consumer has made no progress although there was a next version.
        environment: The clock.
    """
    now = environment.now_nanos()
    latest = now - older_than // timedelta(microseconds=1) * 1000
    versions = table.log.versions()
    abandoned = []
    for consumer in list_consumers(table.refs):
        next_version = next((v for v in versions if v > consumer.version), None)
        if next_version is None:
            continue
        moments = [
            moment for moment in (consumer.updated_at, consumer.created_at) if moment is not None
        ]
        with suppress(NotFoundError):  # cleaned up since it was listed: the tag's times suffice
            moments += filter(None, [timestamp_of(table.log.read(next_version))])
        if moments and max(map(nanos_of, moments)) <= latest:
            abandoned.append(consumer)
    return abandoned
