"""Decides when a process loads the compiled loops of `kernels`: if it has enough to do for them.

The extra "fast" installs numba. Importing it and loading the loops takes half a second of CPU time,
their first compilation on a machine some more. A worker that reads a few pages must not pay that.
So callers report what the loops would have saved; once that is what loading costs, they are loaded,
and at worst a process takes twice the time of the better choice.

numba keeps compiled loops beside the module, or in the user's cache directory if that is read-only
(`NUMBA_CACHE_DIR` names another). Where it can keep none, is not installed, compiles nothing
(`NUMBA_DISABLE_JIT`) or fails, numpy does the work as it would without the extra.
"""

import importlib
import logging
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Final

LOADING_NANOSECONDS: Final = 500_000_000
"""The CPU time of importing numba and loading the compiled loops."""

_log = logging.getLogger(__name__)
_MODULE: Final = "lance_stream.file.compression.kernels"


class CompiledLoops:
    """The loops of a process, which it loads once it has lost enough time without them."""

    def __init__(self) -> None:
        self._module: ModuleType | None = None
        self._lost_nanoseconds = 0
        self._is_decided = False
        self._lock = threading.Lock()

    def get(self, saved_nanoseconds: int) -> ModuleType | None:
        """Return `kernels`, if it is loaded or now worth loading.

        Args:
            saved_nanoseconds: What it saves the caller, about.
        """
        if self._is_decided:
            return self._module
        self._lost_nanoseconds += saved_nanoseconds
        if self._lost_nanoseconds < LOADING_NANOSECONDS:
            return None
        return self.load()

    def load(self) -> ModuleType | None:
        """Load `kernels` now; return None if that is impossible."""
        with self._lock:
            if not self._is_decided:
                self._module = _imported()
                self._is_decided = True
        return self._module

    @contextmanager
    def replaced(self, module: ModuleType | None) -> Iterator[None]:
        """Use these loops in the body, or none: for tests and benchmarks of both."""
        before = (self._is_decided, self._module)
        self._is_decided, self._module = True, module
        try:
            yield
        finally:
            self._is_decided, self._module = before


def _imported() -> ModuleType | None:
    if sys.byteorder != "little":
        return None  # numba takes words of the machine's own order only
    try:
        if importlib.import_module("numba").config.DISABLE_JIT:
            return None  # the loops would be interpreted, a thousand times slower than numpy
        return importlib.import_module(_MODULE)
    except ModuleNotFoundError:
        return None
    except Exception as error:  # numba's own errors have no common base
        _log.warning("compiled loops are not used, numpy does their work: %s", error)
        return None


loops: Final = CompiledLoops()
"""Those of this process."""
