"""The keys of inserted rows, to detect that two writers inserted the same key.

Source:  transaction.proto, message KeyExistenceFilter.
"""

from dataclasses import dataclass
from typing import TypeAlias

from lance_stream._proto import transaction_pb2
from lance_stream.errors import CorruptDataError

_Pb: TypeAlias = transaction_pb2.Transaction


@dataclass(frozen=True, slots=True)
class BloomFilter:
    """A set of key hashes that may give false positives."""

    bitmap: bytes
    num_bits: int
    number_of_items: int
    probability: float

    @property
    def contains_everything(self) -> bool:
        """Whether the filter contains every hash."""
        return self.bitmap.count(0xFF) == len(self.bitmap)


@dataclass(frozen=True, slots=True)
class KeyExistenceFilter:
    """The keys of inserted rows, to detect that two writers inserted the same key.

    Attributes:
        field_ids: The key columns.
        key_hashes: The hashes of all keys; None if `bloom` is set.
        bloom: The hashes as a Bloom filter; None if `key_hashes` is set.
    """

    field_ids: tuple[int, ...]
    key_hashes: tuple[int, ...] | None = None
    bloom: BloomFilter | None = None


def key_filter_to_proto(keys: KeyExistenceFilter) -> _Pb.KeyExistenceFilter:
    """Return the message of a key filter."""
    message = _Pb.KeyExistenceFilter(field_ids=keys.field_ids)
    if keys.key_hashes is not None:
        message.exact.key_hashes.extend(keys.key_hashes)
        message.exact.SetInParent()
    elif keys.bloom is not None:
        message.bloom.CopyFrom(
            _Pb.BloomFilter(
                bitmap=keys.bloom.bitmap,
                num_bits=keys.bloom.num_bits,
                number_of_items=keys.bloom.number_of_items,
                probability=keys.bloom.probability,
            )
        )
    return message


def key_filter_from_proto(message: _Pb.KeyExistenceFilter) -> KeyExistenceFilter:
    """Return the key filter that a message describes.

    Raises:
        CorruptDataError: It has neither hashes nor a Bloom filter.
    """
    if message.HasField("exact"):
        return KeyExistenceFilter(
            tuple(message.field_ids), key_hashes=tuple(message.exact.key_hashes)
        )
    if message.HasField("bloom"):
        bloom = message.bloom
        return KeyExistenceFilter(
            tuple(message.field_ids),
            bloom=BloomFilter(
                bloom.bitmap, bloom.num_bits, bloom.number_of_items, bloom.probability
            ),
        )
    raise CorruptDataError("the key filter of an Update has neither hashes nor a Bloom filter")
