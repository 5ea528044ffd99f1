"""Dictionary: indices into distinct values.

In file versions 2.1 and 2.2 the layout itself keeps both parts: the indices are the page's values
and the items one more buffer, a block. So nothing is to be decoded here but to be checked.

A null value has an index too: 0, or that of a spare item.

Source:  encodings21.MiniBlockLayout.dictionary in the proto. encodings21.Dictionary, both parts
         in one block, is an experiment of later versions: see `codecs.REFUSED`.
"""

from lance_stream.errors import CorruptDataError
from lance_stream.file.data_blocks import DataBlock, DictionaryBlock, FixedWidthBlock


def dictionary_block(indices: DataBlock, items: DataBlock) -> DictionaryBlock:
    """Put decoded indices and items together.

    Raises:
        CorruptDataError: The indices are not words, or one of them has no item.
    """
    if not isinstance(indices, FixedWidthBlock) or indices.bits_per_value not in (8, 16, 32, 64):
        raise CorruptDataError("the indices of a dictionary are not 8, 16, 32 or 64-bit words")
    if indices.num_values and indices.words().max() >= items.num_values:
        raise CorruptDataError(
            f"index {indices.words().max()} into a dictionary of {items.num_values} items"
        )
    return DictionaryBlock(indices, items, indices.num_values)
