"""The other tables whose files a clone needs, in addition to the cloned table.

    table  <-- files --  clone  <-- files --  clone of the clone
      ^                                              |
      +------------------- files --------------------+

The first table keeps these files while one of its versions that names them is tagged. The first
clone's tag does that, but someone may delete it once that clone has been removed. So every later
clone creates its own tag in each table whose files it needs.

Which version to tag is read from the tag of the clone in between or, without one, from the
transaction that created that clone.
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
class CloneOrigin:
    """A version of another table whose files a clone needs.

    Attributes:
        refs: The tags and branches of the table, as seen from the version's branch.
        version: The number of the version.
    """

    refs: Refs
    version: int


def origins_of(table: TableVersion) -> list[CloneOrigin]:
    """Return the versions of other tables whose files a version needs.

    Raises:
        InvalidInputError: It is unknown which version of another table has them.
        UntrustedLocationError: The other table may not be opened.
    """
    root_of_table = _root_of(location_of_files(table.location), table.branch)
    origins: dict[tuple[str, str | None, int], CloneOrigin] = {}
    for base in _needed_base_paths(table):
        root = _root_of(location_of_files(base.path), base.name)
        if root == root_of_table:  # a branch names the files of its table
            continue
        open_named(table.store, root, table.storage_options)  # raises for an untrusted location
        refs = Refs(open_log(root, table.storage_options))
        references = list(_tagged_versions(refs, root_of_table)) or list(
            _cloned_version(refs, table, root)
        )
        if not references:
            raise InvalidInputError(
                f"{table.uri} is a clone with files in {root}, and it is unknown which version of "
                "that table names them, so no tag can protect them for another clone. Clone that "
                "table itself, or copy the rows into a new table; or clone without a tag "
                "(tag_source=False), and never clean up versions of that table"
            )
        for branch, version in references:
            origins[root, branch, version] = CloneOrigin(refs.of(branch), version)
    return list(origins.values())


def _needed_base_paths(table: TableVersion) -> Iterator[BasePath]:
    """Yield the base paths of other tables that a version's files use."""
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
    """Yield the branch and number of each version of a table that is tagged for a clone."""
    for tag in list_tags(refs).values():
        if location_of_files(tag.metadata.get("clone", "")).rstrip("/") == clone:
            yield tag.branch, tag.version


def _cloned_version(refs: Refs, clone: TableVersion, root: str) -> Iterator[tuple[str | None, int]]:
    """Yield the version that a table was cloned from, if its first transaction still exists."""
    for operation in _clone_operations(clone):
        if _root_of(location_of_files(operation.ref_path), operation.ref_name) == root:
            version, branch = operation.ref_version, operation.ref_name
            if refs.of(branch).log.has(version):
                yield branch, version
                return


def _clone_operations(table: TableVersion) -> Iterator[Clone]:
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
    """Return the directory of a table, given its own directory or that of one of its branches."""
    ending = "" if branch is None else f"/{branch_directory(branch)}"
    return location.rstrip("/").removesuffix(ending)
