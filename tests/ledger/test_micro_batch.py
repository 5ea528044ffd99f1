"""The identity of a micro-batch, and the uuid that is derived from it."""

import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lance_stream.errors import InvalidInputError
from lance_stream.ledger.micro_batch import _NAMESPACE, MicroBatch, derive_uuid, fingerprint

texts = st.text(st.characters(exclude_categories=("Cs",)), min_size=1)


@pytest.mark.parametrize("batch_id", [-1, 1 << 63])
def test_invalid_batch_ids_are_refused(batch_id: int) -> None:
    """An entry of the ledger could not store them."""
    with pytest.raises(InvalidInputError, match="batch ids start at 0"):
        MicroBatch("app", batch_id)


@given(texts, texts)
def test_streams_share_no_uuid(one: str, other: str) -> None:
    """With a shared uuid a batch would be taken for another stream's."""
    assert (derive_uuid(one, 1) == derive_uuid(other, 1)) == (one == other)
    assert derive_uuid("1:app", 1) != derive_uuid("app", 11)


def test_uuids_are_version_5_and_stable() -> None:
    """The transactions of tables in use have uuids derived like this one."""
    derived = uuid.UUID(MicroBatch("app", 7).uuid)
    assert derived == uuid.uuid5(uuid.UUID(bytes=_NAMESPACE), "7:app")
    assert derived.version == 5
    assert derive_uuid("app", 7) == "c59f3a3d-55a2-5123-a560-0f53e808ec06"


@pytest.mark.parametrize("app_id", ["", "\ud800"])
def test_app_ids_must_be_text(app_id: str) -> None:
    """They become part of a config key."""
    with pytest.raises(InvalidInputError, match="app id"):
        derive_uuid(app_id, 1)


def test_empty_rules_do_not_change_fingerprints() -> None:
    """An argument that is added later, and not set, must not look like other rules."""
    assert fingerprint({"mode": "append", "on": [], "x": None}) == fingerprint({"mode": "append"})
    assert fingerprint({"mode": "append"}) != fingerprint({"mode": "overwrite"})
    assert fingerprint({"mode": "append"}) == "0fa944cfd3db0b25"
