"""Consumers: readers of the change feed whose progress is kept at the table.

A consumer is a tag on the last version that it has finished with:

    _refs/tags/lance_stream.consumer.{name}.json

So it is seen by every program that knows tags. The reference's cleanup keeps the tagged version
itself; ours keeps all versions after it, too, for those are what the consumer has yet to read.

A consumer may go back: a reader that was started again from an older checkpoint is where it says it
is, and needs the versions after that.
"""

from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from lance_stream.commit.world import REAL_WORLD, World
from lance_stream.dataset import tag_files
from lance_stream.dataset.table_versions import TableVersion
from lance_stream.dataset.tag_files import check_new_tag
from lance_stream.dataset.timestamps import nanos_of, timestamp_of
from lance_stream.errors import InvalidInputError, NotFoundError
from lance_stream.storage.store import Store

CONSUMER_PREFIX: Final = "lance_stream.consumer."
"""What the names of consumers' tags begin with."""


@dataclass(frozen=True, slots=True)
class Consumer:
    """A reader of the change feed.

    Attributes:
        name: Its name.
        version: The last version that it has finished with.
        created_at: When it began, in UTC.
        updated_at: When it made progress last, in UTC.
    """

    name: str
    version: int
    created_at: datetime | None
    updated_at: datetime | None


def consumer_tag(name: str) -> str:
    """Return the tag that holds the progress of a consumer.

    Raises:
        InvalidInputError: No consumer can have this name.
    """
    tag = CONSUMER_PREFIX + name
    try:
        check_new_tag(tag)
    except InvalidInputError:
        raise InvalidInputError(
            f"{name!r} cannot be the name of a consumer: a-z, A-Z, 0-9, '.', '-' and '_' are "
            "allowed, no dot at either end, no '..', no '.lock' at the end"
        ) from None
    return tag


def read_progress(store: Store, name: str) -> int | None:
    """Return the last version that a consumer has finished with; None where none is known.

    Args:
        store: Where the table lies.
        name: The consumer's.

    Returns:
        A version, of which nobody knows that it is still there.

    Raises:
        InvalidInputError: No consumer can have this name.
        CorruptDataError: The consumer's tag is damaged.
    """
    tag = tag_files.find_tag(store, consumer_tag(name))
    return None if tag is None else tag.version


def record_progress(store: Store, name: str, version: int, world: World = REAL_WORLD) -> None:
    """Note the last version that a consumer has finished with; the first time makes the consumer.

    From then on cleanup keeps that version and all after it.

    Args:
        store: Where the table lies.
        name: The consumer's.
        version: The version, from 1.
        world: The clock.

    Raises:
        InvalidInputError: No consumer can have this name, or it is no version.
        NotFoundError: There is no such version (any more); the consumer stays where it was.
        CorruptDataError: The consumer's tag is damaged.
    """
    if version < 1:
        raise InvalidInputError(f"a consumer finishes with versions from 1 on, not with {version}")
    tag = consumer_tag(name)
    there = tag_files.find_tag(store, tag)
    if there is None:
        tag_files.create_tag(store, tag, version, world)
    elif there.version != version:
        tag_files.move_tag(store, tag, version, world)


def list_consumers(store: Store) -> list[Consumer]:
    """Return all consumers of a table, in the order of their names.

    Raises:
        CorruptDataError: A tag is damaged.
    """
    return [
        Consumer(name.removeprefix(CONSUMER_PREFIX), tag.version, tag.created_at, tag.updated_at)
        for name, tag in tag_files.list_tags(store).items()
        if name.startswith(CONSUMER_PREFIX) and tag.branch is None
    ]


def drop_consumer(store: Store, name: str) -> None:
    """Forget a consumer: cleanup need not keep anything for it any more.

    Raises:
        NotFoundError: There is no such consumer; the message lists those that are.
        InvalidInputError: No consumer can have this name.
    """
    try:
        tag_files.delete_tag(store, consumer_tag(name))
    except NotFoundError:
        names = ", ".join(each.name for each in list_consumers(store))
        there = f"there are: {names}" if names else "there are no consumers"
        raise NotFoundError(f"there is no consumer {name!r}; {there}") from None


def abandoned_consumers(
    table: TableVersion, older_than: timedelta, world: World = REAL_WORLD
) -> list[Consumer]:
    """Return the consumers that have had something to read for a long time, and did not.

    One that has read everything is not abandoned, however long ago that was.

    Args:
        table: Any version.
        older_than: For how long it has made no progress, while there was a version to go on to.
        world: The clock.
    """
    now = world.now_nanos()
    latest = now - older_than // timedelta(microseconds=1) * 1000
    versions = table.log.versions()
    found = []
    for each in list_consumers(table.store):
        next_version = next((v for v in versions if v > each.version), None)
        if next_version is None:
            continue
        moments = [moment for moment in (each.updated_at, each.created_at) if moment is not None]
        with suppress(NotFoundError):  # cleaned up since it was listed: the next one will do
            moments += filter(None, [timestamp_of(table.log.read(next_version))])
        if moments and max(map(nanos_of, moments)) <= latest:
            found.append(each)
    return found
