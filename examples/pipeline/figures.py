"""Files in which the parts write down what they measure; each is replaced as a whole."""

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def write(path: Path, figures: dict[str, Any]) -> None:
    """Replace a file of figures; readers see the old or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    hidden = path.with_name(f".{path.name}")
    hidden.write_text(json.dumps({**figures, "written_at": time.time()}))
    hidden.replace(path)


def read(path: Path) -> dict[str, Any]:
    """Return the figures of a file; none if there are none yet."""
    try:
        values: dict[str, Any] = json.loads(path.read_text())
    except (FileNotFoundError, ValueError):
        return {}
    return values


def quantile(values: Sequence[float], fraction: float) -> float | None:
    """Return the value that this fraction of all values does not exceed; None without values."""
    ordered = sorted(values)
    if not ordered:
        return None
    return ordered[min(int(fraction * len(ordered)), len(ordered) - 1)]
