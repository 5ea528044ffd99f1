"""One round that brings indices up to date, in which a process kills itself at a step.

    python index_round_process.py URI VICTIM STEP

The victim is "parent" or "child". The child writes the number of its process to a file beside the
table.
"""

import os
import signal
import sys
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import lance_stream
from lance_stream.maintenance.indices import background, child
from lance_stream.maintenance.indices.background import BackgroundIndexing
from lance_stream.maintenance.indices.refresh_policy import RefreshPolicy
from lance_stream.storage.local_store import LocalStore

CHILD = """
import os, signal, sys, time
from lance_stream.maintenance.indices import building, child

def die(*_):
    os.kill(os.getpid() if {victim!r} == "child" else os.getppid(), signal.SIGKILL)
    time.sleep(600)

if {step!r} == "before files":
    child.build = die
if {step!r} == "files written":
    building._newest = die
if {step!r} == "before the answer":
    child.encode_transaction = die
with open({uri!r} + ".pid", "w") as file:
    file.write(str(os.getpid()))
child.main()
"""


def die(*_: Any, **__: Any) -> Any:
    os.kill(os.getpid(), signal.SIGKILL)


def after(done: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that dies when it has done something."""
    return lambda *arguments, **named: die(done(*arguments, **named))


def main(uri: str, victim: str, step: str) -> None:
    """Run the round."""
    child._PROGRAM = CHILD.format(uri=uri, victim=victim, step=step)  # type: ignore[misc]  # a fault
    create = LocalStore.create_once

    def create_once(store: LocalStore, path: str, *arguments: Any, **named: Any) -> bool:
        if not path.startswith("_versions/"):
            return create(store, path, *arguments, **named)
        if step == "before the manifest":
            die()
        result = create(store, path, *arguments, **named)
        if step == "after the manifest":
            die()
        return result

    faults = {
        "before the child": {"build_in_child": die},
        "after the child": {"build_in_child": after(background.build_in_child)},
        "after the commit": {"commit_built": after(background.commit_built)},
    }
    named = faults.get(step, {}) if victim == "parent" else {}
    for name, fault in named.items():
        setattr(background, name, fault)
    with patch.object(LocalStore, "create_once", create_once):
        indexing = BackgroundIndexing(RefreshPolicy(rows=1))
        indexing.after_batch(lambda: lance_stream.open_dataset(uri).table)
        indexing.wait(120)
    print("end", flush=True)
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
