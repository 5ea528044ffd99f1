"""About how much a work unit reads, as the manifest says: whoever plans opens no file for it."""

from typing import Final

from lance_stream.dataset.read_fragment import WorkUnit
from lance_stream.table.fragments import Fragment, decode_fragment

# Where a writer did not say how large its files are.
_BYTES_PER_ROW: Final = 100


def size_of(unit: WorkUnit) -> tuple[int, int]:
    """Return how many rows a unit reads at most, and about how many bytes of data files."""
    fragment = decode_fragment(unit.fragment)
    if unit.offsets is not None:
        num_rows = len(unit.offsets)
    else:
        stop = fragment.physical_rows if unit.stop is None else unit.stop
        num_rows = max(stop - unit.start, 0)
    return num_rows, stored_bytes(fragment) * num_rows // max(fragment.physical_rows, 1)


def stored_bytes(fragment: Fragment) -> int:
    """Return about how large a fragment's data files are."""
    return sum(each.size_bytes for each in fragment.files) or _BYTES_PER_ROW * max(
        fragment.physical_rows, 1
    )
