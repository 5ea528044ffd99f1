"""The report of a cleanup: what was removed, and what protected the other versions."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from lance_stream.maintenance.consumers import consumer_of, is_consumer_tag
from lance_stream.sizes import size_text

BRANCH: Final = "branch "
"""The prefix in reports for branches that protect versions; not valid for a tag."""

COMMIT_IN_PROGRESS: Final = "a commit in progress"
"""The name in reports for versions that a writer may be about to republish; not valid for a tag."""


@dataclass(frozen=True, slots=True)
class CleanupReport:
    """What was removed; for a dry run, what would be removed.

    Attributes:
        versions: The versions, ascending.
        num_files: The number of files by kind (the values of `FileKind`).
        size_bytes: The total size of the files.
        protected: The number of versions that were protected, by tag, branch (`BRANCH` and its
            name), or `COMMIT_IN_PROGRESS`.
        expired_consumers: The consumers that have expired.
        is_dry_run: Whether nothing was removed.
    """

    versions: tuple[int, ...]
    num_files: Mapping[str, int]
    size_bytes: int
    protected: Mapping[str, int]
    expired_consumers: tuple[str, ...]
    is_dry_run: bool

    def __str__(self) -> str:
        num_files = sum(self.num_files.values())
        lines = [
            f"{'would remove' if self.is_dry_run else 'removed'} "
            f"{len(self.versions)} version{'' if len(self.versions) == 1 else 's'}, "
            f"{num_files} file{'' if num_files == 1 else 's'}, {size_text(self.size_bytes)}",
            *(f"  {count} {kind}" for kind, count in self.num_files.items()),
            *(f"  kept {count} for {_described(name)}" for name, count in self.protected.items()),
            *(f"  expired consumer: {consumer}" for consumer in self.expired_consumers),
        ]
        return "\n".join(lines)


def _described(protector: str) -> str:
    if protector.startswith(BRANCH):
        return f"the {protector}"
    if is_consumer_tag(protector):
        return f"the consumer {consumer_of(protector)}"
    return protector if protector == COMMIT_IN_PROGRESS else f"the tag {protector}"
