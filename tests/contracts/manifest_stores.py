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
        assert manifests.get(URI, 1) is None
        assert manifests.latest(URI) is None
        assert manifests.items(URI) == []

    @pytest.mark.floors
    def test_an_item_is_put_once(self, manifests: ManifestStore) -> None:
        assert manifests.put_if_not_exists(URI, item(1, "ours"))
        assert not manifests.put_if_not_exists(URI, item(1, "theirs", 9))
        assert manifests.get(URI, 1) == item(1, "ours")

    @pytest.mark.floors
    def test_an_existing_item_is_replaced(self, manifests: ManifestStore) -> None:
        assert manifests.put_if_not_exists(URI, item(1, "staged"))
        assert manifests.put_if_exists(URI, item(1, "final", 8))
        assert manifests.get(URI, 1) == item(1, "final", 8)

    def test_a_missing_item_is_not_replaced(self, manifests: ManifestStore) -> None:
        assert not manifests.put_if_exists(URI, item(1))
        assert manifests.get(URI, 1) is None

    @pytest.mark.floors
    def test_the_newest_item_has_the_greatest_version(self, manifests: ManifestStore) -> None:
        for version in (9, 10, 2, (1 << 63) - 1, 100):
            assert manifests.put_if_not_exists(URI, item(version))
        assert manifests.latest(URI) == item((1 << 63) - 1)
        assert [each.version for each in manifests.items(URI)] == [2, 9, 10, 100, (1 << 63) - 1]

    def test_tables_do_not_see_each_other(self, manifests: ManifestStore) -> None:
        for uri in (URI, f"{URI}/", f"{URI}2", URI[:-1], URI.upper()):
            assert manifests.put_if_not_exists(uri, item(1, uri))
        for uri in (URI, f"{URI}/", f"{URI}2", URI[:-1], URI.upper()):
            assert manifests.items(uri) == [item(1, uri)]

    def test_a_size_need_not_be_known(self, manifests: ManifestStore) -> None:
        assert manifests.put_if_not_exists(URI, item(1, size_bytes=None))
        assert manifests.get(URI, 1) == item(1, size_bytes=None)

    @pytest.mark.floors
    def test_items_are_deleted_by_version(self, manifests: ManifestStore) -> None:
        for version in range(1, 61):
            assert manifests.put_if_not_exists(URI, item(version))
        manifests.delete(URI, [*range(1, 58), 99])
        assert [each.version for each in manifests.items(URI)] == [58, 59, 60]
        assert manifests.put_if_not_exists(URI, item(3))
        manifests.delete(URI, [])

    def test_values_are_never_read_as_sql(self, manifests: ManifestStore) -> None:
        uri = "'; DROP TABLE lance_manifests; --"
        assert manifests.put_if_not_exists(uri, ManifestItem(1, f"{uri}\\'\"%s{{}}", 0))
        assert manifests.items(uri) == [ManifestItem(1, f"{uri}\\'\"%s{{}}", 0)]

    def test_one_of_16_threads_puts_a_version(self, manifests: ManifestStore) -> None:
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
    def test_one_of_many_processes_puts_a_version(
        self, manifests: ManifestStore, method: str
    ) -> None:
        assert manifests.latest(URI) is None  # the parent has a connection, which children inherit
        num = NUM_PROCESSES[method]
        with ProcessPoolExecutor(num, mp_context=get_context(method)) as processes:
            results = [processes.submit(_put_all, manifests, self.num_rounds) for _ in range(num)]
            won = Counter(version for each in results for version in each.result())
        assert won == Counter(range(1, self.num_rounds + 1))
        assert len(manifests.items(URI)) == self.num_rounds
        assert manifests.put_if_not_exists(URI, item(self.num_rounds + 1))

    def test_a_pickled_store_is_the_same_store(self, manifests: ManifestStore) -> None:
        assert manifests.put_if_not_exists(URI, item(1))
        again = pickle.loads(pickle.dumps(manifests))
        assert again == manifests
        assert hash(again) == hash(manifests)
        assert again.get(URI, 1) == item(1)

    def test_nothing_secret_is_shown(self, manifests: ManifestStore) -> None:
        for text in (repr(manifests), str(manifests), manifests.where, manifests.kind):
            assert "test-secret" not in text


def _put_all(manifests: ManifestStore, num_versions: int) -> list[int]:
    return [
        version
        for version in range(1, num_versions + 1)
        if put(manifests, version, str(os.getpid()))
    ]
