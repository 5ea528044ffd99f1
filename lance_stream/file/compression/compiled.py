"""Loads the compiled loops of `kernels` at their first use, if numba is installed.

The extra "fast" installs numba. A process loads the loops in half a second of CPU time; the first
process on a machine compiles them. numba caches compiled loops next to the module, or in the user's
cache directory if that is read-only (`NUMBA_CACHE_DIR` names another). Without numba, with
`NUMBA_DISABLE_JIT`, or if numba fails, numpy does the work.
"""

import importlib
import logging
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Final

_log = logging.getLogger(__name__)
_MODULE: Final = "lance_stream.file.compression.kernels"


class CompiledLoops:
    """The loops of a process, loaded at their first use."""

    def __init__(self) -> None:
        self._module: ModuleType | None = None
        self._is_loaded = False
        self._lock = threading.Lock()

    def get(self) -> ModuleType | None:
        """Return `kernels`, or None if numba cannot compile it."""
        if not self._is_loaded:
            with self._lock:
                if not self._is_loaded:
                    self._module = _imported()
                    self._is_loaded = True
        return self._module

    def load_in_background(self) -> None:
        """Start to load the loops in another thread; `get` waits for it."""
        if not self._is_loaded:
            threading.Thread(target=self.get, name="lance-stream-loops", daemon=True).start()

    @contextmanager
    def replaced(self, module: ModuleType | None) -> Iterator[None]:
        """Use these loops in the body, or none: for tests and benchmarks of both."""
        before = (self._is_loaded, self._module)
        self._is_loaded, self._module = True, module
        try:
            yield
        finally:
            self._is_loaded, self._module = before


def _imported() -> ModuleType | None:
    if sys.byteorder != "little":
        return None  # numba supports only the machine's byte order
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
"""The loops of this process."""
