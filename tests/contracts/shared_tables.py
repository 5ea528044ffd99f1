"""One table on an object service that we and pylance write, in turn and at once.

The tests of a service inherit `SharedTables`, and define the fixture `new_table`.
"""

import threading
import uuid
from collections.abc import Callable
from dataclasses import dataclass

import lance
import pyarrow as pa
import pytest

import lance_stream
from tests.sampling import ALL_CASES

SCHEMA = pa.schema([pa.field("id", pa.int64()), pa.field("name", pa.string())])


@dataclass(frozen=True)
class SharedTable:
    """A table on a service, and how pylance and we open it.

    Attributes:
        uri: The table's.
        options: By pylance's names, which are ours, too.
    """

    uri: str
    options: dict[str, str]

    def ours(self) -> lance_stream.Dataset:
        return lance_stream.open_dataset(self.uri, storage_options=self.options)

    def theirs(self) -> lance.LanceDataset:
        return lance.dataset(self.uri, storage_options=self.options)

    def we_append(self, rows: pa.Table) -> None:
        self.ours().append(rows)

    def they_append(self, rows: pa.Table) -> None:
        lance.write_dataset(rows, self.uri, mode="append", storage_options=self.options)


def rows(*ids: int, name: str = "n") -> pa.Table:
    return pa.table(
        {"id": pa.array(ids, pa.int64()), "name": [f"{name}{id_}" for id_ in ids]}, SCHEMA
    )


def as_dict(table: pa.Table) -> dict[int, str]:
    ids = table.column("id").to_pylist()
    assert len(set(ids)) == len(ids)
    return dict(zip(ids, table.column("name").to_pylist(), strict=True))


def both_see(table: SharedTable) -> dict[int, str]:
    """Return what is in the table, which is the same for both."""
    ours, theirs = table.ours(), table.theirs()
    assert ours.version == theirs.version
    values = as_dict(ours.scan().read_all())
    assert values == as_dict(theirs.to_table())
    assert len(values) == ours.count_rows() == theirs.count_rows()
    return values


class SharedTables:
    num_rounds = 8 if ALL_CASES else 3

    @pytest.fixture
    def new_table(self) -> Callable[[str], SharedTable]:
        """Return a function from a path to the table there, which need not exist."""
        raise NotImplementedError

    @pytest.fixture
    def table(self, new_table: Callable[[str], SharedTable]) -> SharedTable:
        return new_table(f"{uuid.uuid4().hex}/a table")

    @pytest.mark.each_service
    def test_pylance_reads_our_compacted_tables(self, table: SharedTable) -> None:
        """The clients of both programs must agree about names and listings."""
        dataset = lance_stream.create_dataset(table.uri, SCHEMA, storage_options=table.options)
        for first in range(0, 100, 20):
            table.we_append(rows(*range(first, first + 20)))
        assert both_see(table) == as_dict(rows(*range(100)))
        table.ours().delete("id >= 90")
        table.ours().upsert(rows(80, 200, name="new"), on="id")
        expected = as_dict(rows(*range(90))) | {80: "new80", 200: "new200"}
        assert both_see(table) == expected
        table.ours().compact()
        assert both_see(table) == expected
        assert len(table.theirs().get_fragments()) == 1
        old = lance.dataset(table.uri, version=3, storage_options=table.options)
        assert old.count_rows() == dataset.checkout(3).count_rows() == 40

    @pytest.mark.each_service
    def test_indices_that_we_update_are_searched(self, table: SharedTable) -> None:
        """An update writes index files through pylance and commits them through us."""
        table.they_append(rows(*range(50)))
        table.theirs().create_scalar_index("id", "BTREE")
        table.theirs().create_scalar_index("name", "INVERTED")
        table.we_append(rows(*range(50, 80)))
        table.ours().delete("id < 5")
        ds = table.ours().optimize_indices()
        assert {coverage.rows_unindexed for coverage in ds.index_coverage()} == {0}
        theirs = table.theirs()
        assert theirs.to_table(filter="id = 77")["name"].to_pylist() == ["n77"]
        assert theirs.to_table(full_text_query="n77")["id"].to_pylist() == [77]
        assert theirs.to_table(full_text_query="n4").num_rows == 0
        assert ds.verify() == []

    def test_we_continue_what_pylance_wrote(self, table: SharedTable) -> None:
        """The clients of both programs must agree about names and listings."""
        lance.write_dataset(
            rows(*range(50)),
            table.uri,
            storage_options=table.options,
            enable_stable_row_ids=True,
            max_rows_per_file=20,
        )
        table.theirs().delete("id < 10")
        table.theirs().merge_insert(
            "id"
        ).when_matched_update_all().when_not_matched_insert_all().execute(rows(49, 50, name="new"))
        assert both_see(table) == as_dict(rows(*range(10, 49))) | {49: "new49", 50: "new50"}
        table.we_append(rows(60))
        table.they_append(rows(61))
        table.ours().delete("id = 61")
        assert set(both_see(table)) == {*range(10, 51), 60}
        changes = table.ours().changes(after=1, pre_images=False).read_all()
        kinds = list(
            zip(
                changes.column("id").to_pylist(),
                changes.column("_change_type").to_pylist(),
                strict=True,
            )
        )
        assert (5, "delete") in kinds
        assert (49, "update_postimage") in kinds
        assert (50, "insert") in kinds
        assert kinds[-1] == (61, "delete")

    @pytest.mark.each_service
    def test_concurrent_appends_of_both_all_commit(self, table: SharedTable) -> None:
        """Both must create manifests by the same precondition of the service."""
        lance_stream.create_dataset(table.uri, SCHEMA, storage_options=table.options)
        writers = [table.we_append, table.they_append] * 2
        start = threading.Barrier(len(writers))
        errors: list[BaseException] = []

        def write(me: int, append: Callable[[pa.Table], None]) -> None:
            start.wait()
            try:
                for number in range(self.num_rounds):
                    append(rows(1000 * me + number))
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=write, args=writer) for writer in enumerate(writers)]
        for thread in threads:
            thread.start()
        for worker in threads:
            worker.join()
        assert errors == []
        expected = {
            1000 * me + number for me in range(len(writers)) for number in range(self.num_rounds)
        }
        assert set(both_see(table)) == expected
        assert table.ours().version == 1 + len(expected)

    def test_pylances_branches_work_for_us(self, table: SharedTable) -> None:
        """We read, write, tag and clean up branches that pylance made."""
        lance_stream.create_dataset(table.uri, SCHEMA, storage_options=table.options)
        table.we_append(rows(1))
        their_branch = table.theirs().create_branch("dev/a", 2, storage_options=table.options)
        their_branch.insert(rows(2))
        dev = table.ours().checkout(("dev/a", None)).append(rows(3)).append(rows(4))
        assert (dev.branch, dev.version) == ("dev/a", 5)
        dev.tags.create("ours", 4)
        theirs = table.theirs().checkout_version("ours")
        assert as_dict(theirs.to_table()) == as_dict(table.ours().checkout("ours").to_table())
        assert set(as_dict(theirs.to_table())) == {1, 2, 3}
        reopened = lance_stream.open_dataset(dev.uri, storage_options=table.options)
        assert reopened.cleanup(retain_versions=1, delete_unverified=True).versions == (2, 3)
        main = table.ours().overwrite(rows(9))
        assert main.cleanup(retain_versions=1, delete_unverified=True).protected == {
            "branch dev/a": 1
        }
        assert reopened.checkout(("main", None)).uri == table.uri
        for version, ids in ((None, {1, 2, 3, 4}), (4, {1, 2, 3})):
            branch = table.theirs().checkout_version(("dev/a", version))
            assert set(as_dict(branch.to_table())) == ids

    def test_pylance_continues_our_branches_and_clones(
        self, table: SharedTable, new_table: Callable[[str], SharedTable]
    ) -> None:
        """Both programs write to, clean up and delete each other's branches and clones."""
        lance_stream.create_dataset(table.uri, SCHEMA, storage_options=table.options)
        table.we_append(rows(1, 2))
        table.ours().branches.create("dev/a", 2)
        table.theirs().checkout_version(("dev/a", None)).insert(rows(3))
        dev = table.ours().checkout(("dev/a", None)).delete("id = 1")
        assert dev.version == 4
        theirs = table.theirs().checkout_version(("dev/a", None))
        assert as_dict(theirs.to_table()) == as_dict(dev.to_table()) == as_dict(rows(2, 3))
        copy = new_table(f"{uuid.uuid4().hex}/a clone")
        clone = dev.shallow_clone(copy.uri)
        copy.they_append(rows(4))
        copy.we_append(rows(5))
        assert set(both_see(copy)) == {2, 3, 4, 5}
        report = clone.cleanup(retain_versions=1, delete_unverified=True)
        assert report.versions == (4, 5)
        (tag,) = table.theirs().tags.list()
        assert (tag, table.ours().tags.list()[tag].version) == (next(iter(dev.tags.list())), 4)
        dev.overwrite(rows(9)).cleanup(retain_versions=1, delete_unverified=True)
        assert set(both_see(copy)) == {2, 3, 4, 5}
        table.ours().tags.delete(tag)
        table.theirs().create_branch("b", 2, storage_options=table.options).insert(rows(6))
        table.ours().branches.delete("b")
        table.theirs().branches.delete("dev/a")
        assert table.ours().branches.list() == table.theirs().branches.list() == {}
        table.ours().branches.create("b", 1)
        assert table.ours().checkout(("b", None)).append(rows(7)).version == 2
        assert set(as_dict(table.theirs().checkout_version(("b", None)).to_table())) == {7}
        assert set(both_see(table)) == {1, 2}
