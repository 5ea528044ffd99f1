"""What every manifest store must keep to. A store's tests inherit `ManifestStoreContract`."""

import os
import pickle
import threading
from collections import Counter
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context

import pytest

from lance_stream.commit.manifest_stores.protocol import ManifestItem, ManifestStore

URI = "s3://bucket/a b/tüte 100%.lance"
NUM_RACERS = 16
NUM_PROCESSES = {"fork": 4, "spawn": 2}  # each spawned process imports everything again


def item(version: int, name: str = "final", size_bytes: int | None = 7) -> ManifestItem:
    return ManifestItem(version, f"{URI}/_versions/{version}.manifest-{name}", size_bytes)


def put(manifests: ManifestStore, version: int, name: str) -> bool:
    return manifests.put_if_not_exists(URI, item(version, name))


class ManifestStoreContract:
    num_rounds = 20

    @pytest.fixture
    def manifests(self) -> ManifestStore:
        raise NotImplementedError

    def test_an_unknown_table_has_no_items(self, manifests: ManifestStore) -> None:
        """A new table has to be distinguished from one whose items cannot be read."""
        assert manifests.get(URI, 1) is None
        assert manifests.latest(URI) is None
        assert manifests.items(URI) == []

    @pytest.mark.floors
    def test_an_item_is_put_once(self, manifests: ManifestStore) -> None:
        """This is the only protection against two writers of one version."""
        assert manifests.put_if_not_exists(URI, item(1, "ours"))
        assert not manifests.put_if_not_exists(URI, item(1, "theirs", 9))
        assert manifests.get(URI, 1) == item(1, "ours")

    @pytest.mark.floors
    def test_an_existing_item_is_replaced(self, manifests: ManifestStore) -> None:
        """A commit is finished by naming the final manifest in place of the staged one."""
        assert manifests.put_if_not_exists(URI, item(1, "staged"))
        assert manifests.put_if_exists(URI, item(1, "final", 8))
        assert manifests.get(URI, 1) == item(1, "final", 8)

    def test_a_missing_item_is_not_replaced(self, manifests: ManifestStore) -> None:
        """A version that was cleaned up must not come back."""
        assert not manifests.put_if_exists(URI, item(1))
        assert manifests.get(URI, 1) is None

    @pytest.mark.floors
    def test_newest_items_have_the_greatest_version(self, manifests: ManifestStore) -> None:
        """Numbers that are compared as text would make 9 newer than 10."""
        for version in (9, 10, 2, (1 << 63) - 1, 100):
            assert manifests.put_if_not_exists(URI, item(version))
        assert manifests.latest(URI) == item((1 << 63) - 1)
        assert [manifest.version for manifest in manifests.items(URI)] == [
            2,
            9,
            10,
            100,
            (1 << 63) - 1,
        ]

    def test_tables_do_not_see_each_other(self, manifests: ManifestStore) -> None:
        """A prefix or another case would mix the versions of two tables."""
        for uri in (URI, f"{URI}/", f"{URI}2", URI[:-1], URI.upper()):
            assert manifests.put_if_not_exists(uri, item(1, uri))
        for uri in (URI, f"{URI}/", f"{URI}2", URI[:-1], URI.upper()):
            assert manifests.items(uri) == [item(1, uri)]

    def test_sizes_are_optional(self, manifests: ManifestStore) -> None:
        """pylance writes items without the size of the manifest."""
        assert manifests.put_if_not_exists(URI, item(1, size_bytes=None))
        assert manifests.get(URI, 1) == item(1, size_bytes=None)

    @pytest.mark.floors
    def test_items_are_deleted_by_version(self, manifests: ManifestStore) -> None:
        """A cleanup deletes many versions, more than a service accepts in one request."""
        for version in range(1, 61):
            assert manifests.put_if_not_exists(URI, item(version))
        manifests.delete(URI, [*range(1, 58), 99])
        assert [manifest.version for manifest in manifests.items(URI)] == [58, 59, 60]
        assert manifests.put_if_not_exists(URI, item(3))
        manifests.delete(URI, [])

    def test_values_are_never_read_as_sql(self, manifests: ManifestStore) -> None:
        """URIs come from users."""
        uri = "'; DROP TABLE lance_manifests; --"
        assert manifests.put_if_not_exists(uri, ManifestItem(1, f"{uri}\\'\"%s{{}}", 0))
        assert manifests.items(uri) == [ManifestItem(1, f"{uri}\\'\"%s{{}}", 0)]

    def test_one_racing_thread_puts_a_version(self, manifests: ManifestStore) -> None:
        """A check before the write, instead of a condition, would let two of them win."""
        assert manifests.latest(URI) is None
        with ThreadPoolExecutor(NUM_RACERS) as threads:
            for version in range(1, self.num_rounds + 1):
                line = threading.Barrier(NUM_RACERS)

                def race(name: int, version: int = version, line: threading.Barrier = line) -> bool:
                    line.wait()
                    return put(manifests, version, str(name))

                won = list(threads.map(race, range(NUM_RACERS)))
                assert sum(won) == 1
                assert manifests.get(URI, version) == item(version, str(won.index(True)))

    @pytest.mark.quick_cases(one_in=2)
    @pytest.mark.parametrize("method", NUM_PROCESSES)
    def test_one_racing_process_puts_a_version(self, manifests: ManifestStore, method: str) -> None:
        """Connections that children inherit from their parent would mix up answers."""
        assert manifests.latest(URI) is None  # the parent has a connection, which children inherit
        num = NUM_PROCESSES[method]
        with ProcessPoolExecutor(num, mp_context=get_context(method)) as processes:
            results = [processes.submit(_put_all, manifests, self.num_rounds) for _ in range(num)]
            won = Counter(version for result in results for version in result.result())
        assert won == Counter(range(1, self.num_rounds + 1))
        assert len(manifests.items(URI)) == self.num_rounds
        assert manifests.put_if_not_exists(URI, item(self.num_rounds + 1))

    @pytest.mark.floors
    def test_items_of_several_tables_are_stored(self, manifests: ManifestStore) -> None:
        """A group of tables commits in one transaction."""
        both = {"a": item(3, "of a", None), "b": item(7, "of b")}
        assert manifests.put_all_if_not_exist(both) == frozenset()
        assert manifests.items("a") == [both["a"]]
        assert manifests.items("b") == [both["b"]]

    @pytest.mark.floors
    def test_one_taken_version_stops_all_tables(self, manifests: ManifestStore) -> None:
        """A group that commits in part would show a state that no writer made."""
        assert manifests.put_if_not_exists("b", item(7, "theirs"))
        ours = {"a": item(3), "b": item(7, "ours"), "c": item(1)}
        assert manifests.put_all_if_not_exist(ours) == {"b"}
        assert manifests.items("a") == manifests.items("c") == []
        assert manifests.items("b") == [item(7, "theirs")]
        assert manifests.put_all_if_not_exist(ours | {"b": item(8)}) == frozenset()
        assert manifests.put_all_if_not_exist(ours | {"b": item(9)}) == {"a", "c"}
        assert manifests.latest("b") == item(8)

    def test_one_thread_wins_all_tables(self, manifests: ManifestStore) -> None:
        """Each thread names the tables in another order; a database must not wait for itself."""
        tables = [f"{URI}/{number}" for number in "abc"]
        assert manifests.latest(URI) is None
        num_racers = 6
        with ThreadPoolExecutor(num_racers) as threads:
            for version in range(1, self.num_rounds // 2 + 1):
                line = threading.Barrier(num_racers)

                def race(name: int, version: int = version, line: threading.Barrier = line) -> bool:
                    turned = tables[name % 3 :] + tables[: name % 3]
                    line.wait()
                    items = {table: item(version, str(name)) for table in turned}
                    return not manifests.put_all_if_not_exist(items)

                won = list(threads.map(race, range(num_racers)))
                assert sum(won) == 1
                expected = item(version, str(won.index(True)))
                assert [manifests.latest(table) for table in tables] == [expected] * 3

    @pytest.mark.floors
    def test_the_newest_items_of_several_tables(self, manifests: ManifestStore) -> None:
        """A group of tables is read in one request, at one point in time."""
        for version in (1, 2, 10):
            assert manifests.put_if_not_exists("a", item(version))
        assert manifests.put_if_not_exists("b", item(4))
        assert manifests.put_if_not_exists("c", item(5))
        assert manifests.latest_of_all(["b", "a", "nowhere"]) == {"a": item(10), "b": item(4)}
        assert manifests.latest_of_all(["nowhere"]) == {}

    def test_readers_see_all_versions_or_none(self, manifests: ManifestStore) -> None:
        """A reader between two tables' commits would see a state that no writer made."""
        tables = ["a", "b", "c"]
        first = {table: item(1) for table in tables}
        assert not manifests.put_all_if_not_exist(first)
        ended, seen = threading.Event(), []

        def read() -> None:
            while not ended.is_set():
                latest = manifests.latest_of_all(tables)
                seen.append([latest[table].version for table in tables])

        with ThreadPoolExecutor(2) as threads:
            reading = [threads.submit(read) for _ in range(2)]
            try:
                for version in range(2, self.num_rounds + 2):
                    items = {table: item(version) for table in tables}
                    assert not manifests.put_all_if_not_exist(items)
            finally:
                ended.set()
            for future in reading:
                future.result()
        assert seen
        assert [request for request in seen if len(set(request)) > 1] == []

    def test_pickled_stores_are_the_same(self, manifests: ManifestStore) -> None:
        """Spark sends stores from the driver to its executors."""
        assert manifests.put_if_not_exists(URI, item(1))
        again = pickle.loads(pickle.dumps(manifests))
        assert again == manifests
        assert hash(again) == hash(manifests)
        assert again.get(URI, 1) == item(1)

    def test_secrets_stay_hidden(self, manifests: ManifestStore) -> None:
        """Logs and error messages contain these texts."""
        for text in (repr(manifests), str(manifests), manifests.where, manifests.kind):
            assert "test-secret" not in text


def _put_all(manifests: ManifestStore, num_versions: int) -> list[int]:
    return [
        version
        for version in range(1, num_versions + 1)
        if put(manifests, version, str(os.getpid()))
    ]
