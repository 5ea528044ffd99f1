"""What the listing of a quarantine shows of the rows with one reason in one batch."""

import json
from pathlib import Path

import lance_stream
from lance_stream.quarantine.table import quarantine_uri
from tests.quarantine.test_replay import COLUMNS, take_in


def test_groups_show_their_first_row(tmp_path: Path) -> None:
    """The row that came first explains the others, wherever the quarantine stores it."""
    uri = str(tmp_path / "t.lance")
    lance_stream.create_dataset(uri, COLUMNS)
    take_in(uri, 0, [{"id": 1, "x": 301}, {"id": 2, "x": 302}, {"id": 3, "x": 303}])
    bad = lance_stream.open_dataset(quarantine_uri(uri))
    (group,) = lance_stream.list_quarantine(uri)
    assert (json.loads(group.row)["x"], group.num_rows) == (301, 3)
    earlier = {"time": "TIMESTAMP '2020-01-01 00:00:00Z'", "message": "'the first'"}
    bad.update(earlier, where="row LIKE '%302%'")
    (group,) = lance_stream.list_quarantine(uri)
    assert (json.loads(group.row)["x"], group.message, group.num_rows) == (302, "the first", 3)
    assert group.time.year == 2020
