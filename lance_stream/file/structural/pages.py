"""The pages of one leaf column, with what was parsed of them."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from lance_stream.file.columns import Page


class PagesOfColumn:
    """The pages of one leaf column of a file, and what earlier reads parsed of them.

    Keep one for each column as long as the file is read: chunk tables, dictionaries and
    repetition indexes are asked for once.

    Args:
        pages: In row order, as the column's metadata has them.

    Attributes:
        row_starts: (num_pages + 1,) i64, the first row of each page, and the number of rows.
    """

    def __init__(self, pages: Sequence[Page]) -> None:
        self.pages = tuple(pages)
        lengths = [each.length for each in self.pages]
        self.row_starts: npt.NDArray[np.int64] = np.cumsum([0, *lengths], dtype=np.int64)
