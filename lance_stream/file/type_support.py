"""The types that files of each version support.

    2.2 on      map, fixed-size lists of structs
    all         all other types of the format

Source:  files that the reference wrote, and what it refused.
Differs: The reference writes fixed-size lists of structs to 2.0 files and cannot read them back.
"""

from collections.abc import Iterable

from lance_stream.errors import InvalidInputError
from lance_stream.file.versions import FileVersion
from lance_stream.schema.fields import Field
from lance_stream.schema.types.logical_types import MAP, STRUCT, is_fixed_size_list_of_structs

_WITHOUT_MAPS = frozenset({FileVersion.V0_1, FileVersion.V2_0, FileVersion.V2_1})


def foreign_type(field: Field, version: FileVersion) -> str | None:
    """Return the part of a column's type that a file version does not support, or None."""
    if version in _WITHOUT_MAPS:
        for descendant in field.walk():
            if descendant.logical_type == MAP:
                return "maps"
            if is_fixed_size_list_of_structs(descendant.logical_type):
                return "fixed-size lists of structs"
    return None


def check_types(fields: Iterable[Field], version: FileVersion) -> None:
    """Check that columns can be written to files of a version.

    Raises:
        InvalidInputError: They cannot be written; the message names the column and the remedy.
    """
    for field in fields:
        foreign = foreign_type(field, version)
        if foreign is not None:
            raise InvalidInputError(
                f"column {field.name!r}: files of version {version} do not support {foreign}; "
                "write the table in version 2.2, or use lists of structs"
            )


def holds_only_nulls(field: Field, version: FileVersion) -> bool:
    """Return whether files of a version can hold a column that is null in all rows.

    If they cannot, a file omits the column, which reads as null. This does not apply to 0.1, where
    the reference cannot read files without a column, and hardly any column can be null.
    """
    return version is not FileVersion.V2_0 or field.logical_type != STRUCT
