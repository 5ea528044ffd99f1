"""Tables on Azure that pylance and we write."""

from collections.abc import Callable

import pytest

from tests.contracts.shared_tables import SharedTable, SharedTables, both_see, rows
from tests.servers.azurite_blobs import ACCOUNT
from tests.servers.buckets import Bucket

pytestmark = [pytest.mark.oracle, pytest.mark.nightly]


def in_full(container: Bucket, path: str) -> SharedTable:
    """A table by the URI that names the account, as Spark users write it."""
    uri = f"abfss://{container.name}@{ACCOUNT}.dfs.core.windows.net/{path}"
    return SharedTable(uri, container.storage_options)


class TestTablesOnAzure(SharedTables):
    @pytest.fixture
    def new_table(self, azure_container: Bucket) -> Callable[[str], SharedTable]:
        options = azure_container.storage_options
        return lambda path: SharedTable(f"{azure_container.uri}/{path}", options)


class TestTablesOnAzureByTheirFullNames(SharedTables):
    num_rounds = 3

    @pytest.fixture
    def new_table(self, azure_container: Bucket) -> Callable[[str], SharedTable]:
        return lambda path: in_full(azure_container, path)


def test_azure_uri_forms_open_one_table(azure_container: Bucket) -> None:
    """Two spellings that lead to two tables would split the data."""
    short = SharedTable(f"{azure_container.uri}/a/t", azure_container.storage_options)
    short.they_append(rows(1))
    in_full(azure_container, "a/t").we_append(rows(2))
    assert both_see(short) == both_see(in_full(azure_container, "a/t")) == {1: "n1", 2: "n2"}
