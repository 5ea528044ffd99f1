"""Links in a table's directory: what is behind one may be another table's.

New files with random names may be written behind a link: `data` is often on another disk. But a
version or a tag there would become one of the other table.
"""

from lance_stream.errors import UnsupportedFeatureError
from lance_stream.storage.local_store import LocalStore
from lance_stream.storage.store import Store


def is_behind_link(store: Store, folder: str) -> bool:
    """Return whether a folder of a table is a link, or is reached through one."""
    return isinstance(store, LocalStore) and store.is_behind_link(folder)


def check_stays_at_home(store: Store, folder: str, what: str) -> None:
    """Check that what is written to a folder of a table is not written to another table.

    Args:
        store: The table's directory.
        folder: The folder.
        what: What is to be written, for the message.

    Raises:
        UnsupportedFeatureError: It is behind a link.
    """
    if is_behind_link(store, folder):
        raise UnsupportedFeatureError(
            f"{store.uri}/{folder} is a link, or is reached through one, so {what} there could "
            "become another table's. Nothing was committed. Put the folder itself in its place; "
            "or make the table's whole directory a link. Data files may be behind a link"
        )
