"""The documents name files, pages and arguments that exist."""

import inspect
import itertools
import re
from collections import defaultdict
from pathlib import Path

import pytest

from lance_stream.spark import lance_sink

ROOT = Path(__file__).parent.parent
DOCUMENTS = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]
PATHS = re.compile(
    r"(?<![\w./])(?:tests|lance_stream|benchmarks|examples|scripts|docs)/[\w./-]+\.(?:py|md|svg)"
)
CODE_FOLDERS = ("lance_stream", "tests", "benchmarks", "examples", "scripts")
IDENTIFIERS = re.compile(r"_?[a-z0-9]+(?:_[a-z0-9]+)+|(?:[A-Z][a-z0-9]+){2,}|[A-Z]+(?:_[A-Z]+)+")
FOREIGN_NAMES = {
    "RuleBasedStateMachine",  # Hypothesis
    "apply_as_truncates",  # Databricks
    "auto_da_alloc",  # ext4
    "create_index_uncommitted",  # pylance
    "embedding_functions",  # LanceDB
    "ignore_null_updates",  # Databricks
    "json_get_string",  # pylance
    "utf8_upper",  # Arrow
}
LINKS = re.compile(r"\]\((?!https?://|#)([^)#\s]+)")


def test_the_navigation_has_every_page() -> None:
    """Readers find a page outside of the navigation only through links."""
    navigation = (ROOT / "mkdocs.yml").read_text().split("\nnav:\n")[1]
    pages = {path.relative_to(ROOT / "docs").as_posix() for path in ROOT.glob("docs/**/*.md")}
    listed = {page for page in pages if page.startswith(("decisions/", "measurements/"))}
    assert [page for page in pages - listed if page not in navigation] == []


def test_spark_programs_set_worker_python() -> None:
    """Without the variable a copied program fails unless its environment is activated."""
    with_session = [path for path in DOCUMENTS if "SparkSession.builder" in path.read_text()]
    assert len(with_session) > 5
    assert [path for path in with_session if "PYSPARK_PYTHON" not in path.read_text()] == []


def test_pictures_do_not_follow_the_scheme() -> None:
    """The site gives pictures a light ground in both schemes, and light ink would vanish on it."""
    pictures = [*ROOT.glob("docs/assets/*.svg")]
    assert len(pictures) > 3
    assert [path.name for path in pictures if "prefers-color-scheme" in path.read_text()] == []


@pytest.mark.parametrize("path", sorted(ROOT.glob("docs/decisions/*")), ids=lambda path: path.stem)
def test_a_decision_is_short_and_complete(path: Path) -> None:
    """A record that grows into a journal is not read; measurements have their own folder."""
    lines = path.read_text().splitlines()
    assert len(lines) <= 60
    assert re.fullmatch(rf"# {path.name[:3]} [A-Z`].+", lines[0])
    assert [line for line in lines if line.startswith("## ")] == [
        "## Problem",
        "## Decision",
        "## Alternatives",
    ]


def test_decisions_have_different_numbers() -> None:
    """Code and documents refer to decisions by number."""
    numbers = [path.name[:3] for path in ROOT.glob("docs/decisions/*")]
    assert all(number.isdigit() for number in numbers)
    assert len(set(numbers)) == len(numbers)


def test_measurements_state_their_date() -> None:
    """Figures without a date cannot be judged."""
    for path in ROOT.glob("docs/measurements/*"):
        date = path.name[:10]
        assert re.fullmatch(r"\d{4}-\d\d-\d\d", date)
        assert date in path.read_text(), path.name


def test_every_decision_that_code_mentions_exists() -> None:
    """A docstring has room for a number only, which must lead to a record."""
    numbers = {path.name[:3] for path in ROOT.glob("docs/decisions/*")}
    files = [
        path
        for folder in ("lance_stream", "tests", "benchmarks", "scripts", "docs")
        for path in [*ROOT.glob(f"{folder}/**/*.py"), *ROOT.glob(f"{folder}/**/*.md")]
    ]
    mentioned = {
        (path.name, number)
        for path in files
        for groups in re.findall(r"\b[Dd]ecision (\d{3})\b|decisions/(\d{3})", path.read_text())
        for number in groups
        if number
    }
    assert len(mentioned) > 40
    assert [pair for pair in mentioned if pair[1] not in numbers] == []


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


def test_documents_name_modules_that_exist() -> None:
    """Pages leave out the first folders of a path, and modules move."""
    modules = [
        f"/{path.relative_to(ROOT).as_posix()}"
        for folder in ("lance_stream", "tests", "benchmarks", "examples", "scripts")
        for path in (ROOT / folder).rglob("*.py")
    ]
    named = {
        (document.name, name)
        for document in DOCUMENTS
        for name in re.findall(r"`([a-z_][\w/]*/\w+\.py)`", document.read_text())
    }
    assert len(named) > 40
    assert [
        (document, name)
        for document, name in named
        if not any(module.endswith(f"/{name}") for module in modules)
    ] == []


def test_decisions_name_code_that_exists() -> None:
    """A reader searches the code for a name in backticks, which may have been renamed since."""
    words = {
        word
        for folder in (*CODE_FOLDERS, "protos")
        for suffix in ("py", "proto", "txt")
        for path in (ROOT / folder).rglob(f"*.{suffix}")
        if path != Path(__file__)
        for word in re.findall(r"\w+", f"{path.relative_to(ROOT)} {path.read_text()}")
    }
    named = {
        (document.name, name)
        for document in [
            *ROOT.glob("docs/decisions/*.md"),
            *ROOT.glob("docs/concepts/*.md"),
            ROOT / "docs/architecture.md",
            ROOT / "docs/testing.md",
        ]
        for quoted in re.findall(r"`([^`\n]+)`", without_blocks(document.read_text()))
        for name in re.findall(r"\w+", quoted)
        if IDENTIFIERS.fullmatch(name)
    }
    assert len(named) > 300
    unknown = {(document, name) for document, name in named if name not in words}
    assert {name for _, name in unknown} == FOREIGN_NAMES, sorted(unknown)


def test_decisions_name_folders_with_their_modules() -> None:
    """A dotted path leads to a module only if each part is in the one before."""
    children: defaultdict[str, set[str]] = defaultdict(set)
    for path in (ROOT / "lance_stream").rglob("*.py"):
        module = path.parent if path.stem == "__init__" else path
        children[module.stem].update(re.findall(r"\w+", path.read_text()))
        children[module.parent.name].add(module.stem)
    named = {
        (document.name, dotted)
        for document in ROOT.glob("docs/decisions/*.md")
        for dotted in re.findall(r"`(\w+(?:\.\w+)+)`", without_blocks(document.read_text()))
        if not dotted.startswith(("lance_stream.", "pyarrow.", "query.", "spark."))  # not modules
    }
    pairs = [
        (document, dotted, parent, child)
        for document, dotted in named
        for parent, child in itertools.pairwise(dotted.split("."))
        if parent in children and child != "py"
    ]
    assert len(pairs) > 20
    assert [pair for pair in pairs if pair[3] not in children[pair[2]]] == []


def without_blocks(text: str) -> str:
    """Return the text of a document without its fenced blocks, which have other backticks."""
    return re.sub(r"```.*?```", "", text, flags=re.DOTALL)


def test_changelog_topics_appear_once() -> None:
    """Two branches that change one entry leave both versions of it behind."""
    topics = re.findall(r"^- \*\*(.+?)\*\*", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert len(topics) > 10
    assert len(set(topics)) == len(topics)


def test_documented_sink_arguments_exist() -> None:
    """An example with an old argument fails at the reader's first attempt."""
    text = "\n".join(document.read_text() for document in DOCUMENTS)
    calls = [
        match[1] for match in re.finditer(r"lance_sink\(([^()`]*(?:\([^()]*\))?[^()`]*)\)", text)
    ]
    named = {name for call in calls for name in re.findall(r"(?<![\w\"'])(\w+)=(?![=>])", call)}
    assert {"app_id", "mode", "on_commit", "storage_options"} <= named
    assert named <= inspect.signature(lance_sink).parameters.keys()


def test_links_between_documents_resolve() -> None:
    """Pages move, and a broken link is found by readers otherwise."""
    links = {
        (document, link) for document in DOCUMENTS for link in LINKS.findall(document.read_text())
    }
    assert len(links) > 40
    broken = [
        (document.name, link) for document, link in links if not (document.parent / link).exists()
    ]
    assert broken == []
