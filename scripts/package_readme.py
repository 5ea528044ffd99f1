"""A hook of hatchling: the README as a package index shows it.

An index shows the README by itself, where links to files of the repository would lead nowhere.
If `[project.urls]` names the `Source`, they lead to the files of the release there; otherwise they
become plain text.
"""

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

LINK = re.compile(r"(!?)\[([^\]]*)\]\((?!https?://|#|mailto:)([^)\s]+)\)")
"""A picture or link, its text, and a path in the repository."""


class PackageReadme(MetadataHookInterface):
    """Sets the readme in a package's metadata."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Set the readme of the project."""
        text = Path(self.root, "README.md").read_text(encoding="utf-8")
        source = metadata.get("urls", {}).get("Source")
        metadata["readme"] = {
            "content-type": "text/markdown",
            "text": for_index(text, source, metadata["version"]),
        }


def for_index(text: str, source: str | None, version: str) -> str:
    """Return Markdown whose links do not depend on the repository around it.

    Args:
        text: The README.
        source: The repository's address on its host; None if it has none.
        version: The release, whose tag is `v` and this.
    """

    def replaced(match: re.Match[str]) -> str:
        mark, words, path = match.groups()
        if source is None:
            return words
        kind = "raw" if mark else "blob"
        return f"{mark}[{words}]({source.rstrip('/')}/{kind}/v{version}/{path})"

    return LINK.sub(replaced, text)
