from pathlib import Path

import pytest

from tests.maintenance.indices.tables import Gate, indexed_table


@pytest.fixture
def uri(tmp_path: Path) -> str:
    uri = str(tmp_path / "t")
    indexed_table(uri)
    return uri


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Gate:
    return Gate(monkeypatch)
