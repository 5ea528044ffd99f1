"""Tags as users hold them: `ds.tags`."""

from lance_stream.dataset import tag_files
from lance_stream.dataset.opening import as_number
from lance_stream.dataset.table_versions import TableVersion
from lance_stream.dataset.tag_files import Tag
from lance_stream.errors import InvalidInputError


class Tags:
    """The tags of a table: names for versions, which cleanup keeps.

    A tag can be given wherever a version is asked for. Consumers of streams are kept as tags, too;
    their names begin with `lance_stream.consumer.`.

    Args:
        table: A version of the table.
    """

    def __init__(self, table: TableVersion) -> None:
        self._table = table

    def __repr__(self) -> str:
        return f"<Tags of {self._table.uri!r}>"

    def list(self) -> dict[str, Tag]:
        """Return all tags by name, in the order of their names.

        Raises:
            CorruptDataError: The file of one is damaged.
        """
        return tag_files.list_tags(self._table.store)

    def create(self, name: str, version: int | str | None = None) -> Tag:
        """Make a tag.

        Args:
            name: Letters and digits of ASCII, ".", "-" and "_".
            version: The version's number, or another tag; None for this dataset's version.

        Raises:
            InvalidInputError: There is such a tag already, or none can have this name.
            NotFoundError: There is no such version.
        """
        return tag_files.create_tag(self._table.store, name, self._number(version))

    def update(self, name: str, version: int | str | None = None) -> Tag:
        """Let a tag stand for another version; the arguments are those of `create`.

        Raises:
            NotFoundError: There is no such tag or version.
            CorruptDataError: The tag's file is damaged.
        """
        return tag_files.move_tag(self._table.store, name, self._number(version))

    def delete(self, name: str) -> None:
        """Delete a tag; the version that it stands for stays until a cleanup.

        Raises:
            NotFoundError: There is no such tag; the message lists those that are.
        """
        tag_files.delete_tag(self._table.store, name)

    def _number(self, version: int | str | None) -> int:
        if version is None:
            return self._table.version
        if isinstance(version, str):
            return tag_files.read_tag(self._table.store, version)
        number = as_number(version)
        if number is None or number < 1:
            raise InvalidInputError(
                f"a tag stands for a version, a whole number from 1, or what another tag stands "
                f"for; not for {version!r}"
            )
        return number
