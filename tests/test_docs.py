"""The documents name files, pages and arguments that exist."""

import inspect
import re
from pathlib import Path

from lance_stream.spark import lance_sink

ROOT = Path(__file__).parent.parent
DOCUMENTS = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]
PATHS = re.compile(
    r"(?<![\w./])(?:tests|lance_stream|benchmarks|examples|scripts|docs)/[\w./-]+\.(?:py|md|svg)"
)
LINKS = re.compile(r"\]\((?!https?://|#)([^)#\s]+)")


def test_the_navigation_has_every_page() -> None:
    """A page outside of the navigation is found by its links only."""
    navigation = (ROOT / "mkdocs.yml").read_text().split("\nnav:\n")[1]
    pages = {path.relative_to(ROOT / "docs").as_posix() for path in ROOT.glob("docs/**/*.md")}
    listed_elsewhere = {page for page in pages if page.startswith("notes/")}
    missing = [page for page in pages - listed_elsewhere if page not in navigation]
    assert missing == []


def test_documents_name_files_that_exist() -> None:
    """The history in CHANGELOG.md may name files that have moved since."""
    named = {
        (document, path)
        for document in DOCUMENTS
        if document.name != "CHANGELOG.md"
        for path in PATHS.findall(document.read_text())
    }
    assert len(named) > 40
    missing = [(document.name, path) for document, path in named if not (ROOT / path).is_file()]
    assert missing == []


def test_arguments_of_the_sink_that_documents_name_exist() -> None:
    text = "\n".join(document.read_text() for document in DOCUMENTS)
    calls = [
        match[1] for match in re.finditer(r"lance_sink\(([^()`]*(?:\([^()]*\))?[^()`]*)\)", text)
    ]
    named = {name for call in calls for name in re.findall(r"(?<![\w\"'])(\w+)=(?![=>])", call)}
    assert {"app_id", "mode", "on_commit", "storage_options"} <= named
    assert named <= inspect.signature(lance_sink).parameters.keys()


def test_links_between_documents_lead_somewhere() -> None:
    links = {
        (document, link) for document in DOCUMENTS for link in LINKS.findall(document.read_text())
    }
    assert len(links) > 40
    broken = [
        (document.name, link) for document, link in links if not (document.parent / link).exists()
    ]
    assert broken == []
