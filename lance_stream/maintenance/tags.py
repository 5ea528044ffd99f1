"""Creates, moves and deletes tags; implements `ds.tags`."""

from lance_stream.arguments import as_number
from lance_stream.errors import InvalidInputError
from lance_stream.maintenance.links import check_no_links
from lance_stream.snapshot import tag_files
from lance_stream.snapshot.references import Refs, as_branch
from lance_stream.snapshot.table_version import TableVersion
from lance_stream.snapshot.tag_files import RESERVED_PREFIX, Tag
from lance_stream.table.paths import TAGS_DIRECTORY, tag_path

TaggedVersion = int | str | tuple[str | None, int] | None
"""A number in this branch, another tag, or a branch and a number; None for the open version."""


class Tags:
    """The tags of a table and its branches: names for versions, which cleanup keeps.

    A tag is accepted wherever a version is. Names that begin with `lance_stream.` are reserved:
    consumers of streams are stored as tags, too.

    Args:
        table: A version of the table, or of a branch.
    """

    def __init__(self, table: TableVersion) -> None:
        self._table = table

    def __repr__(self) -> str:
        return f"<Tags of {self._table.uri!r}>"

    def list(self) -> dict[str, Tag]:
        """Return all tags by name, in the order of their names.

        Files that are not tags are skipped, with a warning that names them.
        """
        return tag_files.list_tags(self._table.refs)

    def create(self, name: str, version: TaggedVersion = None) -> Tag:
        """Create a tag.

        Args:
            name: ASCII letters and digits, ".", "-" and "_".
            version: The version's number, another tag, or a version of a branch, as in
                `("branch", 3)`; None for this dataset's version.

        Returns:
            The new tag.

        Raises:
            InvalidInputError: The tag already exists, or the name is invalid.
            NotFoundError: The version does not exist.
        """
        refs, number = self._resolve(version)
        return tag_files.create_tag(refs, _checked_name(name), number)

    def update(self, name: str, version: TaggedVersion = None) -> Tag:
        """Move a tag to another version; the arguments are those of `create`.

        Raises:
            InvalidInputError: The name is reserved for consumers.
            NotFoundError: The tag or version does not exist.
            CorruptDataError: The tag's file is damaged.
        """
        refs, number = self._resolve(version)
        return tag_files.move_tag(refs, _checked_name(name), number)

    def delete(self, name: str) -> None:
        """Delete a tag; its version stays until a cleanup.

        Raises:
            NotFoundError: The tag does not exist; the message lists those that do.
            UnsupportedFeatureError: The tags are reached through a link, and may belong to another
                table.
        """
        check_no_links(self._table.refs.root, (TAGS_DIRECTORY,))
        tag_files.delete_tag(self._table.refs, name)

    def _resolve(self, version: TaggedVersion) -> tuple[Refs, int]:
        """Return the references of a version's branch, and its number."""
        refs = self._table.refs
        if version is None:
            return refs, self._table.version
        if isinstance(version, str):
            tag = tag_files.get_tag(refs, version)
            return refs.of(tag.branch), tag.version
        if isinstance(version, tuple) and len(version) == 2:
            refs, version = refs.of(as_branch(version[0])), version[1]
        number = as_number(version)
        if number is None or number < 1:
            raise InvalidInputError(
                "a tag must name a version by a number of at least 1, another tag, or a branch "
                f"and a number, not {version!r}"
            )
        return refs, number


def _checked_name(name: str) -> str:
    """Return a name that users may give to a tag.

    Raises:
        InvalidInputError: The name is invalid, or reserved.
    """
    tag_path(name)
    if name.startswith(RESERVED_PREFIX):
        raise InvalidInputError(
            f"{name!r} cannot be the name of a tag: names that begin with {RESERVED_PREFIX!r} are "
            "reserved for consumers and operations in progress. For consumers, use the option "
            "'consumer' and `lance-stream consumers`"
        )
    return name
