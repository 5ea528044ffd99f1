"""What runs beside a stream's batches, and what does not."""

import pickle
from typing import Any

from lance_stream.maintenance.indices.refresh_policy import DEFAULT
from lance_stream.maintenance.upkeep import Upkeep


def never() -> Any:
    """Open no table."""
    raise AssertionError("nothing is due")


def test_disabled_upkeep_does_nothing() -> None:
    """Neither thread starts, and there is no outcome to report."""
    upkeep = Upkeep(None, None)
    assert (upkeep.compaction, upkeep.indexing) == (None, None)
    for batch_id in range(100):
        with upkeep.batch():
            pass
        upkeep.after_batch(batch_id, never)
    assert upkeep.take_outcomes() == {}


def test_enabled_upkeep_survives_pickling() -> None:
    """A writer is sent to Spark's driver with its settings, and starts without state."""
    compacting, indexing = Upkeep(7, None), Upkeep(None, DEFAULT)
    for upkeep in (compacting, pickle.loads(pickle.dumps(compacting))):
        assert upkeep.compaction is not None
        assert upkeep.compaction.every == 7
        assert upkeep.indexing is None
    for upkeep in (indexing, pickle.loads(pickle.dumps(indexing))):
        assert upkeep.compaction is None
        assert upkeep.indexing is not None
        assert upkeep.take_outcomes() == {}
