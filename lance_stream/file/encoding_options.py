"""The options for encoding a column in its metadata: the keys `lance-encoding:*`.

    compression                     none lz4 zstd fsst    general compression, or none at all
    compression-level               a whole number        the level; zstd: up to 22, 0: its default
    structural-encoding             miniblock fullzip     one layout for all pages (2.1, 2.2)
    rle-threshold                   0 to 1                run-length encoding only if there are
                                                          fewer runs per value than this
    bss                             off on auto           floats split into bytes before they are
                                                          compressed
    minichunk-size                  bytes                 the size of chunks of byte strings
    dict-divisor                    at least 1            a dictionary only if it has at most one
                                                          item for this number of values
    dict-size-ratio                 over 0, up to 1       ... and at most this part of their bytes
    dict-max-size                   bytes                 ... and at most this size
    dict-values-compression         none lz4 zstd         compression of a dictionary's items
    dict-values-compression-level   a whole number        the level
    packed                          true false            a struct as one column
    blob                            true                  bytes apart from the other columns

`packed` is also accepted without its prefix. A key applies to one column: items of lists and fields
of structs have separate keys. Only `structural-encoding` is set on a top-level column and applies
to everything in it.

Source:  file format document, "Field Encoding Specification"; lance-encoding's constants.
Differs: The reference ignores some invalid values, and fails on others. We refuse an invalid value
         when a table is created, and ignore it in tables of other programs.
         The reference also reads some of them from environment variables.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from lance_stream.errors import InvalidInputError
from lance_stream.schema.fields import BLOB_KEY, FALSE_SPELLINGS, TRUE_SPELLINGS, Field

PREFIX = "lance-encoding:"

NONE, LZ4, ZSTD, FSST = "none", "lz4", "zstd", "fsst"
MINIBLOCK, FULLZIP = "miniblock", "fullzip"
OFF, ON, AUTO = "off", "on", "auto"

MAX_ZSTD_LEVEL = 22
MIN_ZSTD_LEVEL = -(1 << 17)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class EncodingOptions:
    """The options for encoding a column.

    Attributes:
        compression: `"none"`, `"lz4"`, `"zstd"` or `"fsst"`; None: automatic.
        compression_level: The level; None: the algorithm's default.
        structural_encoding: `"miniblock"` or `"fullzip"`; None: automatic.
        rle_threshold: Runs per value from which on run-length encoding is not used; None:
            automatic.
        byte_stream_split: `"off"`, `"on"` or `"auto"`.
        minichunk_bytes: Bytes of byte strings in a mini-block chunk; None: the default.
        dict_divisor: A dictionary has at most one item for this number of values.
        dict_size_ratio: Indices and items have at most this fraction of the values' bytes.
        dict_max_bytes: The maximum size of a dictionary of byte strings.
        dict_values_compression: `"none"`, `"lz4"` or `"zstd"`, for a dictionary's items.
        dict_values_compression_level: The level; None: the algorithm's default.
        packed: Whether a struct is stored as one column.
        blob: Whether bytes are stored apart.
    """

    compression: str | None = None
    compression_level: int | None = None
    structural_encoding: str | None = None
    rle_threshold: float | None = None
    byte_stream_split: str = AUTO
    minichunk_bytes: int | None = None
    dict_divisor: int = 2
    dict_size_ratio: float = 0.8
    dict_max_bytes: int = 8 << 20
    dict_values_compression: str = LZ4
    dict_values_compression_level: int | None = None
    packed: bool = False
    blob: bool = False


DEFAULT_OPTIONS = EncodingOptions()


def parse_encoding_options(field: Field, root: Field | None = None) -> EncodingOptions:
    """Return the options in a field's metadata.

    Args:
        field: The field; the metadata of its children are ignored.
        root: The top-level field that contains it; None if it is a top-level field.

    Raises:
        InvalidInputError: A value is not one of those above; the message names key and value.
    """
    if not field.metadata and not (root or field).metadata:
        return DEFAULT_OPTIONS
    parsed: dict[str, Any] = {}
    for key, (attribute, parse) in _OPTIONS.items():
        metadata = field.metadata
        if attribute == "structural_encoding":
            metadata = (root or field).metadata
        parsed |= _parsed(metadata, PREFIX + key, attribute, parse, field.name)
    if not parsed.get("packed"):
        parsed |= _parsed(field.metadata, "packed", "packed", _flag, field.name)
    options = EncodingOptions(**parsed)
    for scheme, level, key in (
        (options.compression, options.compression_level, "compression-level"),
        (
            options.dict_values_compression,
            options.dict_values_compression_level,
            "dict-values-compression-level",
        ),
    ):
        if scheme == ZSTD and level is not None and not MIN_ZSTD_LEVEL <= level <= MAX_ZSTD_LEVEL:
            raise InvalidInputError(
                f"column {field.name!r}: the metadata {PREFIX + key!r} is {level}, but zstd has "
                f"levels up to {MAX_ZSTD_LEVEL}"
            )
    return options


def check_encoding_options(root: Field) -> None:
    """Check the options in the metadata of a top-level field and of all fields below it.

    Raises:
        InvalidInputError: A value is not one of those above; the message names key and value.
    """
    for field in root.walk():
        parse_encoding_options(field, root)


def with_supported_options(field: Field) -> Field:
    """Return a top-level field without the metadata of unknown encodings.

    A table of another program may contain options that only that program knows. They are hints: the
    written files record their encoding. Metadata that change what a column is (blobs, packed
    structs) stay in effect.
    """
    if not field.metadata and not field.children:
        return field
    children = tuple(with_supported_options(child) for child in field.children)
    metadata = dict(field.metadata)
    if BLOB_KEY in metadata:
        metadata[BLOB_KEY] = b"true"
    for key in (*(PREFIX + name for name in _OPTIONS), "packed"):
        if key not in metadata:
            continue
        try:
            parse_encoding_options(replace(field, metadata={key: metadata[key]}))
        except InvalidInputError:
            del metadata[key]
    try:
        parse_encoding_options(replace(field, metadata=metadata))
    except InvalidInputError:  # a level that the algorithm does not support
        for key in (PREFIX + "compression-level", PREFIX + "dict-values-compression-level"):
            metadata.pop(key, None)
    same = all(one is other for one, other in zip(children, field.children, strict=True))
    if same and metadata == field.metadata:
        return field
    return replace(field, metadata=metadata, children=children)


def _parsed(
    metadata: Mapping[str, bytes],
    key: str,
    attribute: str,
    parse: Callable[[str], Any],
    name: str,
) -> dict[str, Any]:
    if key not in metadata:
        return {}
    value = metadata[key].decode(errors="replace").strip()
    try:
        return {attribute: parse(value)}
    except ValueError as error:
        raise InvalidInputError(
            f"column {name!r}: the metadata {key!r} is {value!r}; {error}"
        ) from None


def _one_of(*values: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text.lower() not in values:
            raise ValueError(f"it must be one of {', '.join(values)}")
        return text.lower()

    return parse


def _number(
    convert: Callable[[str], T], fits: Callable[[T], bool], expectation: str
) -> Callable[[str], T]:
    def parse(text: str) -> T:
        try:
            number = convert(text)
        except ValueError:
            raise ValueError(f"it must be {expectation}") from None
        if not fits(number):
            raise ValueError(f"it must be {expectation}")
        return number

    return parse


def _flag(text: str) -> bool:
    if text.lower() in TRUE_SPELLINGS:
        return True
    if text.lower() in FALSE_SPELLINGS:
        return False
    raise ValueError("it must be true or false")


def _blob(text: str) -> bool:
    if text.lower() not in TRUE_SPELLINGS:
        raise ValueError("the only valid value is true: set true, or remove the key")
    return True


_LEVEL = _number(int, lambda level: abs(level) < 1 << 31, "a whole number")
_BYTES = _number(int, lambda size: 0 < size < 1 << 31, "a number of bytes below 2 GiB")

_OPTIONS: dict[str, tuple[str, Callable[[str], Any]]] = {
    "compression": ("compression", _one_of(NONE, LZ4, ZSTD, FSST)),
    "compression-level": ("compression_level", _LEVEL),
    "structural-encoding": ("structural_encoding", _one_of(MINIBLOCK, FULLZIP)),
    "rle-threshold": (
        "rle_threshold",
        _number(float, lambda ratio: 0 <= ratio <= 1, "a number from 0 to 1"),
    ),
    "bss": ("byte_stream_split", _one_of(OFF, ON, AUTO)),
    "minichunk-size": ("minichunk_bytes", _BYTES),
    "dict-divisor": (
        "dict_divisor",
        _number(int, lambda divisor: divisor >= 1, "a whole number of at least 1"),
    ),
    "dict-size-ratio": (
        "dict_size_ratio",
        _number(float, lambda ratio: 0 < ratio <= 1, "a number over 0, up to 1"),
    ),
    "dict-max-size": ("dict_max_bytes", _BYTES),
    "dict-values-compression": ("dict_values_compression", _one_of(NONE, LZ4, ZSTD)),
    "dict-values-compression-level": ("dict_values_compression_level", _LEVEL),
    "packed": ("packed", _flag),
    "blob": ("blob", _blob),
}
"""The attribute that each key sets, and the parser of its value; without the prefix."""
