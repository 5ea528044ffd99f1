"""Sizes as human-readable text."""

from typing import Final

_UNITS: Final = ("bytes", "kB", "MB", "GB", "TB", "PB")


def size_text(num_bytes: int) -> str:
    """Return a size with three or four digits and a unit."""
    value, unit = float(num_bytes), 0
    while value >= 1000 and unit + 1 < len(_UNITS):
        value, unit = value / 1000, unit + 1
    return f"{value:.0f} {_UNITS[unit]}" if unit == 0 else f"{value:.3g} {_UNITS[unit]}"
