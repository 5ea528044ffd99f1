"""The documentation is built strictly, and its pages load nothing from elsewhere."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.recipes import need

ROOT = Path(__file__).parent.parent.parent
LOADED = re.compile(
    r"<(?:script|img|iframe|source|video|audio|embed|object)\b[^>]*?"
    r"(?:src|data)=[\"']?((?:https?:)?//[^\"' >]+)"
    r"|<link\b[^>]*?href=[\"']?((?:https?:)?//[^\"' >]+)"
    r"|(?:url\(|@import\s+)[\"']?((?:https?:)?//[^\"')]+)",
    re.IGNORECASE,
)

pytestmark = [pytest.mark.slow, pytest.mark.nightly, pytest.mark.recipes]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    need("mkdocs")
    need("mkdocstrings_handlers.python")
    folder = tmp_path_factory.mktemp("site")
    process = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "-d", str(folder)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert process.returncode == 0, process.stderr[-4000:]
    return folder


def test_pages_load_nothing_from_elsewhere(site: Path) -> None:
    """The documentation must work offline, and tell no other host who reads it."""
    pages = [*site.rglob("*.html"), *site.rglob("*.css")]
    assert len(pages) > 60
    actual = {
        (page.name, "".join(match)) for page in pages for match in LOADED.findall(page.read_text())
    }
    assert actual == set()


def test_the_pattern_finds_foreign_loads() -> None:
    """A pattern that matches nothing would make the other test pass."""
    for loads in (
        '<script src="https://unpkg.com/mermaid"></script>',
        '<link rel="stylesheet" href="//fonts.example/x.css">',
        "@import 'https://fonts.example/x.css'",
        "src: url(https://fonts.example/x.woff2)",
    ):
        assert LOADED.search(loads), loads
    assert not LOADED.search('<a href="https://lance.org">Lance</a>')


def test_tables_and_docstrings_reach_their_pages(site: Path) -> None:
    """Generated parts fail silently, leaving their marker or an empty page."""

    def text_of(page: str) -> str:
        return re.sub(r"<[^>]+>", "", (site / page).read_text())

    assert "startingVersion" in text_of("reference/options.html")
    assert "TableReplacedError" in text_of("reference/errors.html")
    assert "rows_inserted" in text_of("reference/sink.html")
    assert "migrate_to_stable_row_ids" in text_of("reference/python.html")
    assert "Usage: lance-stream cleanup" in text_of("reference/commands.html")
    assert "CREATE_TABLE" not in text_of("index.html")
    remaining = [page for page in site.rglob("*.html") if "<!-- table:" in page.read_text()]
    assert remaining == []


def test_links_lead_to_existing_anchors(site: Path) -> None:
    """Anchors change with headings."""
    broken = [(page.name, link) for page, link in _links(site) if not _exists(page, link)]
    assert broken == []


def _links(site: Path) -> Iterator[tuple[Path, str]]:
    count = 0
    for page in site.rglob("*.html"):
        if page.name == "404.html":
            continue
        for link in re.findall(r"<a\b[^>]*?href=\"([^\"]+)\"", page.read_text()):
            if not re.match(r"[a-z]+:|//", link):
                count += 1
                yield page, link
    assert count > 1000


def _exists(page: Path, link: str) -> bool:
    path, _, anchor = link.partition("#")
    target = (page.parent / path).resolve() if path else page
    if target.is_dir():
        target /= "index.html"
    if not target.is_file():
        return False
    text = target.read_text() if anchor and target.suffix == ".html" else ""
    return not text or re.search(rf"id=\"?{re.escape(anchor)}[\"\s>]", text) is not None
