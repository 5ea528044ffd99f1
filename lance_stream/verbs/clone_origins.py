"""The other tables whose files a clone needs, in addition to the cloned table.

    table  <-- files --  clone  <-- files --  clone of the clone
      ^                                              |
      +------------------- files --------------------+

The first table keeps these files as long as a version with them has a tag there. The tag of the
first clone does that until someone deletes it, because the first clone is gone: so each later clone
has a tag of its own in every table that it needs.

Which version is needed there tells the tag of the clone in between; or, if it has none, the
transaction by which it was cloned.
"""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

from lance_stream.commit.manifest_stores.choice import location_of_files
from lance_stream.commit.opening import open_log
from lance_stream.errors import BadDataError, InvalidInputError, NotFoundError
from lance_stream.snapshot.history import read_transaction
from lance_stream.snapshot.references import Refs
from lance_stream.snapshot.table_version import TableVersion
from lance_stream.snapshot.tag_files import list_tags
from lance_stream.storage.trust import open_named
from lance_stream.table.indices import decode_index_section
from lance_stream.table.manifest import BasePath
from lance_stream.table.operations.transaction import decode_transaction
from lance_stream.table.operations.versions import Clone
from lance_stream.table.paths import CLONED_FROM, branch_directory


@dataclass(frozen=True)
class Origin:
    """A version of another table whose files are needed.

    Attributes:
        refs: The references of its branch.
        version: Its number.
    """

    refs: Refs
    version: int


def origins_of(table: TableVersion) -> list[Origin]:
    """Return the versions of other tables whose files a version needs.

    Raises:
        InvalidInputError: It is unknown which version of another table has them.
        UntrustedLocationError: The other table may not be opened.
    """
    root_of_table = _root_of(location_of_files(table.location), table.branch)
    origins: dict[tuple[str, str | None, int], Origin] = {}
    for base in _needed(table):
        root = _root_of(location_of_files(base.path), base.name)
        if root == root_of_table:  # a branch names the files of its table
            continue
        open_named(table.store, root, table.storage_options)  # refuses what is not trusted
        refs = Refs(open_log(root, table.storage_options))
        references = list(_tagged_versions(refs, root_of_table)) or list(_cloned(refs, table, root))
        if not references:
            raise InvalidInputError(
                f"{table.uri} is a clone with files in {root}, and it is unknown which version "
                "there has them, so no tag can protect them for another clone. Clone that table "
                "itself, or copy the rows into a new table; or clone without a tag "
                "(tag_source=False), and never clean up versions of that table"
            )
        for branch, version in references:
            origins[root, branch, version] = Origin(refs.of(branch), version)
    return list(origins.values())


def _needed(table: TableVersion) -> Iterator[BasePath]:
    """Yield the base paths below which a version has files, if they are tables."""
    used: set[int | None] = set()
    for fragment in table.manifest.fragments:
        used.update(file.base_id for file in fragment.files)
        if fragment.deletion_file is not None:
            used.add(fragment.deletion_file.base_id)
    if table.manifest.index_section is not None:
        used.update(index.base_id for index in decode_index_section(table.manifest.index_section))
    for base in table.files.base_paths:
        if base.id in used and base.is_dataset_root:
            yield base


def _tagged_versions(refs: Refs, clone: str) -> Iterator[tuple[str | None, int]]:
    """Yield the versions of a table that are tagged for a clone: their branches and numbers."""
    for tag in list_tags(refs).values():
        if location_of_files(tag.metadata.get("clone", "")).rstrip("/") == clone:
            yield tag.branch, tag.version


def _cloned(refs: Refs, clone: TableVersion, root: str) -> Iterator[tuple[str | None, int]]:
    """Yield the version of a table that a clone was made of, if its first transaction is there."""
    for operation in _clonings(clone):
        if _root_of(location_of_files(operation.ref_path), operation.ref_name) == root:
            version, branch = operation.ref_version, operation.ref_name
            if refs.of(branch).log.has(version):
                yield branch, version
                return


def _clonings(table: TableVersion) -> Iterator[Clone]:
    main = table.refs.of(None)
    with suppress(NotFoundError, BadDataError):
        operation = decode_transaction(main.store.read(CLONED_FROM)).operation
        if isinstance(operation, Clone):
            yield operation
    with suppress(NotFoundError, BadDataError):
        oldest = main.log.read(main.log.versions()[0])
        transaction = read_transaction(main.store, oldest)
        if transaction is not None and isinstance(transaction.operation, Clone):
            yield transaction.operation


def _root_of(location: str, branch: str | None) -> str:
    """Return the directory of the table that a table's or branch's directory belongs to."""
    ending = "" if branch is None else f"/{branch_directory(branch)}"
    return location.rstrip("/").removesuffix(ending)
