"""How the fields of a manifest are handled: they are read, harmless, or refused.

By the format's rule, a feature that changes the meaning of a table's rows has a feature flag (see
`feature_flags`). This module lists the fields by number, including those of later releases. A
number that is not listed is from an unknown release. By the rule, readers can ignore it. Writers
omit it from the next version, as the reference does, because it may be a position in that
manifest's file.

Source:  table.proto and file.proto of the reference, from its first releases to 14.0.2.
"""

from collections.abc import Mapping
from enum import Enum
from typing import Final, NamedTuple

from lance_stream.errors import UnsupportedFeatureError
from lance_stream.table.messages import wire


class Treatment(Enum):
    """How a field is treated."""

    READ = "its value is used"
    HARMLESS = "it changes neither rows nor columns"
    REFUSED_BY_READERS = "without it, rows would be missing or wrong"
    REFUSED_BY_WRITERS = "the next version would have to contain it"


class FieldRule(NamedTuple):
    """How a field is handled, and the reason if it is not obvious."""

    treatment: Treatment
    reason: str = ""


_READ: Final = FieldRule(Treatment.READ)


def _harmless(reason: str) -> FieldRule:
    return FieldRule(Treatment.HARMLESS, reason)


FIELDS: Final[Mapping[str, Mapping[int, FieldRule]]] = {
    "Manifest": {
        1: _READ,
        2: _READ,
        3: _READ,
        4: _harmless("a position in this file that readers do not use"),
        5: _READ,
        6: _READ,
        7: _READ,
        8: _harmless("a name that is not used"),
        9: _READ,
        10: _READ,
        11: _READ,
        12: _READ,
        13: _READ,
        14: _READ,
        15: _READ,
        16: _READ,
        17: FieldRule(
            Treatment.REFUSED_BY_READERS,
            "a blob dataset: the values of blob columns are in a second dataset, whose columns "
            "would be nulls here. Read the table with the release of pylance that wrote it (0.20 "
            "to 0.2x), and rewrite it",
        ),
        18: _READ,
        19: _READ,
        20: _READ,
        21: _READ,
        22: FieldRule(
            Treatment.REFUSED_BY_READERS, "a fragment tree: fragments listed in other files"
        ),
        23: _READ,
        24: FieldRule(
            Treatment.REFUSED_BY_WRITERS, "a count of field ids, so that ids are not reused"
        ),
        25: FieldRule(Treatment.REFUSED_BY_WRITERS, "a clustering of the table's rows"),
        26: FieldRule(
            Treatment.REFUSED_BY_WRITERS, "a count of the clusterings of the table's rows"
        ),
    },
    "Manifest.WriterVersion": {
        1: _READ,
        2: _READ,
        3: _harmless("part of the writer's name"),
        4: _harmless("part of the writer's name"),
    },
    "Manifest.DataStorageFormat": {
        1: _harmless("`verify` reports a wrong one; every file has its own format"),
        2: _READ,
    },
    "BasePath": {1: _READ, 2: _READ, 3: _READ, 4: _READ},
    "DataFragment": {
        **dict.fromkeys(range(1, 11), _READ),
        11: FieldRule(
            Treatment.REFUSED_BY_READERS, "data overlay files: newer values of some cells"
        ),
        12: _READ,
        13: _READ,
        14: _READ,
        15: _harmless("a clustering that readers do not use"),
        16: _harmless("metadata that readers do not use"),
    },
    "RowLineageColumn": {},
    "DataFile": dict.fromkeys(range(1, 8), _READ),
    "DeletionFile": {1: _READ, 2: _READ, 3: _READ, 4: _READ, 7: _READ},
    "ExternalFile": {1: _READ, 2: _READ, 3: _READ},
    "Field": {
        1: _harmless("no writer sets it; the logical type has the same information"),
        2: _READ,
        3: _READ,
        4: _READ,
        5: _READ,
        6: _READ,
        7: _harmless("a hint; pages describe their encoding"),
        8: _READ,
        9: _READ,
        10: _READ,
        12: _READ,
        13: _READ,
        14: _READ,
        15: _READ,
    },
    "Dictionary": {1: _READ, 2: _READ},
}
"""How the fields of a manifest's messages are handled, by field number."""


def check_manifest_fields(unknown: bytes, *, for_writing: bool) -> None:
    """Raise if a manifest has fields that a reader or a writer must not ignore.

    Args:
        unknown: The manifest's fields that are not in the definition of the message.
        for_writing: Whether the next version will be created from the manifest.

    Raises:
        UnsupportedFeatureError: There is such a field; the message names the feature.
    """
    refused = {Treatment.REFUSED_BY_READERS}
    if for_writing:
        refused.add(Treatment.REFUSED_BY_WRITERS)
    for field in wire.split_message(unknown):
        rule = FIELDS["Manifest"].get(field.number)
        is_zero = field.wire_type == wire.VARINT and not any(
            unknown[field.value_start : field.stop]
        )
        if rule is None or rule.treatment not in refused or is_zero:
            continue
        verb = "written" if rule.treatment is Treatment.REFUSED_BY_WRITERS else "read"
        raise UnsupportedFeatureError(
            f"the table cannot be {verb}: field {field.number} of its manifest has {rule.reason}"
        )
