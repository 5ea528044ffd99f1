"""What pylance's answers mean, without pylance."""

import pickle
import sys
import threading
import uuid
from typing import Any

import pytest

from lance_stream.errors import IndexBuildError, RetryableConflictError
from lance_stream.maintenance.indices import building, child
from lance_stream.maintenance.indices.building import BuildRequest, Built
from lance_stream.storage.memory_store import MemoryStore
from lance_stream.table.operations.config import MapUpdate, UpdateConfig
from lance_stream.table.operations.transaction import Transaction, encode_transaction
from lance_stream.table.operations.versions import CreateIndex
from lance_stream.table.paths import transaction_path

REQUEST = BuildRequest("memory://t", {}, 5, ("id_idx",))


class PanicException(BaseException):  # as in pylance
    """A panic in Rust."""


@pytest.mark.parametrize("error", [ValueError("too few rows"), PanicException("too few rows")])
def test_failures_of_pylance_are_causes(error: BaseException) -> None:
    """A panic is not an Exception in Python."""
    assert building._cause_of(error, 5) == "too few rows"


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(1)])
def test_interrupts_are_no_causes(error: BaseException) -> None:
    """The user wants to end the program."""
    with pytest.raises(type(error)):
        building._cause_of(error, 5)


@pytest.mark.parametrize("message", ["a commit conflict of two", "Incompatible transaction"])
def test_conflicts_start_the_update_again(message: str) -> None:
    """Other writers moved the rows of the version."""
    with pytest.raises(RetryableConflictError, match="rows of version 5") as raised:
        building._cause_of(OSError(message), 5)
    assert raised.value.version == 5


INDEX = CreateIndex(())
CONFIG = UpdateConfig(config=MapUpdate((("key", "value"),)))


@pytest.mark.parametrize(
    ("files", "num_programs"),
    [
        ({"5-a.txn": INDEX}, 1),
        ({"5-a.txn": INDEX, "5-b.txn": CONFIG}, 1),
        ({"5-a.txn": INDEX, "6-b.txn": INDEX, "55-c.txn": INDEX}, 1),
        ({"5-a.txn": INDEX, "5-b.txn": None, "of nobody.txn": INDEX}, 1),
        ({"5-a.txn": INDEX, "5-old.txn": INDEX}, 1),
        ({"5-a.txn": INDEX, "5-b.txn": INDEX}, 2),
        ({"5-b.txn": CONFIG}, 0),
        ({}, 0),
    ],
)
def test_one_new_transaction_is_pylances(files: dict[str, Any], num_programs: int) -> None:
    """Others write transactions of the same version at the same time."""
    store = MemoryStore(f"/{uuid.uuid4()}")
    for name, operation in files.items():
        transaction = Transaction(5, name, operation)
        data = b"\xff" if operation is None else encode_transaction(transaction)
        store.write(transaction_path(name), data)
    if num_programs == 1:
        assert building._read_transaction(store, 5, {"5-old.txn"}).uuid == "5-a.txn"
    else:
        with pytest.raises(RetryableConflictError, match=f"{num_programs} programs update"):
            building._read_transaction(store, 5, {"5-old.txn"})


TRANSACTION = Transaction(5, "a", INDEX)


@pytest.mark.parametrize(
    "built", [Built(TRANSACTION), Built(TRANSACTION, {"g": "damaged"}), Built(None, {"g": "bad"})]
)
def test_children_answer_with_what_they_built(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, built: Built
) -> None:
    """The answer crosses the border of two processes."""
    monkeypatch.setattr(child, "build", lambda *_: built)
    answer = pickle.dumps(child._answer(REQUEST, "memory://t", {}))
    monkeypatch.setattr(child, "_communicate", lambda *_: (answer, b"its output"))
    monkeypatch.setattr(child, "_PROGRAM", "pass")
    monkeypatch.setattr(sys, "executable", "/bin/true")
    assert child.build_in_child(REQUEST, "memory://t", {}, threading.Event()) == built
    assert ("its output" in caplog.text) == bool(built.problems)


def test_children_answer_with_their_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is raised where the child was started."""

    def fail(*_: Any) -> Built:
        raise IndexBuildError("pylance could not open version 5")

    monkeypatch.setattr(child, "build", fail)
    answer = pickle.dumps(child._answer(REQUEST, "memory://t", {}))
    monkeypatch.setattr(child, "_communicate", lambda *_: (answer, b""))
    monkeypatch.setattr(sys, "executable", "/bin/true")
    with pytest.raises(IndexBuildError, match="could not open version 5"):
        child.build_in_child(REQUEST, "memory://t", {}, threading.Event())
