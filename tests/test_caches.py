import gc
import threading

import pyarrow as pa

from lance_stream.caches import Cache, IdentityCache
from lance_stream.schema import arrow_schemas


def test_recently_used_values_stay_cached() -> None:
    """Reading must count as use, or a hot value would be evicted by newer cold ones."""
    cache: Cache[str, int] = Cache(2)
    cache.put("a", 1)
    cache.put("b", 2)
    assert cache.get("a") == 1
    cache.put("c", 3)
    assert dict(cache.items()) == {"a": 1, "c": 3}


def test_the_sum_of_sizes_is_bounded() -> None:
    """One value above the limit must not evict all the others."""
    cache: Cache[str, bytes] = Cache(10, len)
    cache.put("a", b"1234")
    cache.put("b", b"1234")
    cache.put("c", b"12345")
    assert [key for key, _ in cache.items()] == ["b", "c"]
    cache.put("d", bytes(11))  # larger than the cache: the others stay
    assert [key for key, _ in cache.items()] == ["b", "c"]


def test_oversized_values_evict_the_old() -> None:
    """Keeping the old value under its key would return stale data."""
    cache: Cache[str, bytes] = Cache(10, len)
    cache.put("a", b"old")
    cache.put("a", bytes(11))
    assert cache.get("a") is None


def test_concurrent_makers_get_the_same_value() -> None:
    """Callers compare cached objects by identity, so a race must have one winner."""
    cache: Cache[str, object] = Cache(2)
    all_ask = threading.Barrier(4)

    def make() -> object:
        all_ask.wait(10)
        return object()

    actual: list[object] = []
    threads = [
        threading.Thread(target=lambda: actual.append(cache.get_or_make("a", make)))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for worker in threads:
        worker.join()
    assert len(actual) == 4
    assert len(set(map(id, actual))) == 1


def test_changes_see_the_previous_value() -> None:
    """A read and a write in two steps would lose updates between threads."""
    cache: Cache[str, int] = Cache(2)
    for _ in range(3):
        cache.change("a", lambda old: (old or 0) + 1)
    assert cache.get("a") == 3


class Thing:
    def __eq__(self, other: object) -> bool:
        return isinstance(other, Thing)

    __hash__ = None  # type: ignore[assignment]  # as a schema


def test_values_belong_to_one_object() -> None:
    """Equal objects are cheap to confuse and expensive to compare, so identity is the key."""
    result: list[int] = []
    cache: IdentityCache[int] = IdentityCache(lambda _: result.append(1) or len(result))
    one, other = Thing(), Thing()
    assert one == other
    assert [cache.of(one), cache.of(other), cache.of(one)] == [1, 2, 1]


def test_values_are_forgotten_with_their_objects() -> None:
    """Readers that follow a table decode a schema per version."""
    cache: IdentityCache[str] = IdentityCache(lambda _: "made")
    survivor = Thing()
    for value in [survivor, *(Thing() for _ in range(100))]:
        cache.of(value)
    del value
    gc.collect()
    assert len(cache) == 1
    assert cache.of(survivor) == "made"


def test_schemas_are_freed_with_derived_objects() -> None:
    """A process that opens many tables must not collect their schemas."""
    gc.collect()
    before = len(arrow_schemas._ARROW_SCHEMAS)
    schema = arrow_schemas.from_arrow(pa.schema([("a", pa.int64()), ("s", pa.list_(pa.int8()))]))
    arrow_schemas.to_arrow(schema)
    assert len(arrow_schemas._ARROW_SCHEMAS) == before + 1
    del schema
    gc.collect()
    assert len(arrow_schemas._ARROW_SCHEMAS) <= before
