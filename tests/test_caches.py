import threading

from lance_stream.caches import Cache


def test_the_values_used_last_are_kept() -> None:
    cache: Cache[str, int] = Cache(2)
    cache.put("a", 1)
    cache.put("b", 2)
    assert cache.get("a") == 1
    cache.put("c", 3)
    assert dict(cache.items()) == {"a": 1, "c": 3}


def test_the_sum_of_sizes_is_bounded() -> None:
    cache: Cache[str, bytes] = Cache(10, len)
    cache.put("a", b"1234")
    cache.put("b", b"1234")
    cache.put("c", b"12345")
    assert [key for key, _ in cache.items()] == ["b", "c"]
    cache.put("d", bytes(11))  # larger than the cache: the others stay
    assert [key for key, _ in cache.items()] == ["b", "c"]


def test_values_that_grew_too_large_are_dropped() -> None:
    cache: Cache[str, bytes] = Cache(10, len)
    cache.put("a", b"old")
    cache.put("a", bytes(11))
    assert cache.get("a") is None


def test_concurrent_makers_get_the_same_value() -> None:
    cache: Cache[str, object] = Cache(2)
    all_ask = threading.Barrier(4)

    def make() -> object:
        all_ask.wait(10)
        return object()

    found: list[object] = []
    threads = [
        threading.Thread(target=lambda: found.append(cache.get_or_make("a", make)))
        for _ in range(4)
    ]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert len(found) == 4
    assert len(set(map(id, found))) == 1


def test_a_change_sees_the_value_before() -> None:
    cache: Cache[str, int] = Cache(2)
    for _ in range(3):
        cache.change("a", lambda old: (old or 0) + 1)
    assert cache.get("a") == 3
