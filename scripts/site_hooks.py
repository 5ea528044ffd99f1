"""Hooks of mkdocs: what the site has besides the files of docs/.

- SECURITY.md, CONTRIBUTING.md and CHANGELOG.md, which lie above docs/, become pages of it.
- Each notebook of examples/notebooks is a page, from which it can be downloaded.
- `examples.md` shows the programs of examples/; `decisions.md` and `measurements.md` list the
  records in these folders.
- `<!-- program of the README -->` becomes the first program of README.md and its output.
- A line `<!-- table: errors -->` becomes a table made from the code (scripts/reference_tables.py).
- Links that are right in the repository lead to the right page of the site.
"""

import ast
import importlib.util
import json
import posixpath
import re
import sys
import textwrap
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel

ROOT = Path(__file__).resolve().parent.parent
ABOVE = ("SECURITY.md", "CONTRIBUTING.md", "CHANGELOG.md")
RECORDS = {
    "decisions": "Each record states a problem, the decision, and the alternatives.",
    "measurements": "Each record states its date and its command. Compare only figures of one run.",
}
TABLE = re.compile(r"^<!-- table: ([\w ]+) -->$", re.MULTILINE)
PROGRAM = "<!-- program of the README -->"
LINK = re.compile(r"(\]\()(?!https?://|#)([^)#\s]+)(#[^)\s]*)?\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are not files of docs/."""
    for name in ABOVE:
        files.append(_page(config, name, (ROOT / name).read_text(encoding="utf-8")))
    files.append(_page(config, "examples.md", examples()))
    for notebook in sorted((ROOT / "examples" / "notebooks").glob("*.ipynb")):
        text = notebook.read_text(encoding="utf-8")
        files.append(_page(config, f"notebooks/{notebook.name}", text))
        files.append(_page(config, f"notebooks/{notebook.stem}.md", page_of(notebook)))
    for folder, introduction in RECORDS.items():
        records = sorted(Path(config.docs_dir, folder).glob("*.md"))
        files.append(_page(config, f"{folder}.md", list_of(records, folder, introduction)))
        for record in records:  # reached from the list and by links, not in the navigation
            file = files.get_file_from_path(f"{folder}/{record.name}")
            if file is not None:
                file.inclusion = InclusionLevel.NOT_IN_NAV
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Insert tables made from the code, and make links of the repository links of the site."""
    markdown = TABLE.sub(lambda match: _tables().TABLES[match[1]](), markdown)
    if PROGRAM in markdown:
        markdown = markdown.replace(PROGRAM, first_program())
    is_above = page.file.src_uri in ABOVE
    here = posixpath.dirname(page.file.src_uri)

    def replaced(match: re.Match[str]) -> str:
        link = _on_site(match[2], here, is_above)
        return f"{match[1]}{link}{'' if '#' in link else match[3] or ''})"

    return LINK.sub(replaced, markdown)


def _on_site(link: str, here: str, is_above: bool) -> str:
    """Return a link as it is on the site.

    Args:
        link: As in the repository, relative to its page.
        here: The folder of the page on the site.
        is_above: Whether the page's file is not in docs/, but above it.
    """
    path = posixpath.normpath(posixpath.join("" if is_above else f"docs/{here}", link))
    if path.endswith(".ipynb"):
        target = f"notebooks/{posixpath.basename(path).removesuffix('.ipynb')}.md"
    elif path.startswith("examples"):
        name = posixpath.basename(path)
        target = f"examples.md#{name}" if name.endswith((".py", ".sql")) else "examples.md"
    elif path.removeprefix("docs/") in RECORDS:
        target = f"{path.removeprefix('docs/')}.md"
    elif path.startswith("docs/"):
        target = path.removeprefix("docs/")
    else:
        target = "index.md" if path == "README.md" else path
    return posixpath.relpath(target, here or ".")


@cache
def _tables() -> ModuleType:
    """Return the module that makes tables from the code of this checkout."""
    sys.path.insert(0, str(ROOT))
    path = ROOT / "scripts" / "reference_tables.py"
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def first_program() -> str:
    """Return the first program of the README and its output, in two tabs."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    tabs = []
    for title, block in (
        ("first.py", r"^```python\n.*?^```$"),
        ("its output", r"^```\n\+-.*?^```$"),
    ):
        match = re.search(block, readme, re.MULTILINE | re.DOTALL)
        assert match is not None, f"README.md has no {title}"
        tabs.append(f'=== "{title}"\n\n{textwrap.indent(match[0], " " * 4)}\n')
    return "\n".join(tabs)


def examples() -> str:
    """Return a page with the programs of examples/."""
    parts = [
        "# Examples\n",
        "Whole programs, which the tests run. Each runs by itself: "
        "`python examples/replicate_table.py`.\n",
    ]
    for program in sorted((ROOT / "examples").glob("**/*.py")):
        if program.parent.name == "pipeline":  # database-to-search.md is about it
            continue
        text = program.read_text(encoding="utf-8")
        title = (ast.get_docstring(ast.parse(text)) or program.stem).split("\n")[0].rstrip(".")
        parts.append(f"## {title} {{: #{program.name} }}\n")
        path = program.relative_to(ROOT).as_posix()
        parts.append(f'```python title="{path}"\n{text}```\n')
    macros = ROOT / "examples" / "dbt" / "macros" / "lance.sql"
    parts.append(f"## Macros for dbt {{: #{macros.name} }}\n")
    text = macros.read_text(encoding="utf-8")
    parts.append(f'```jinja title="examples/dbt/macros/{macros.name}"\n{text}```\n')
    return "\n".join(parts)


def page_of(notebook: Path) -> str:
    """Return the texts and the code of a notebook, with a link to the notebook below its title."""
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    title, *parts = (
        f"```python\n{text}\n```" if cell["cell_type"] == "code" else text
        for cell in cells
        for text in ["".join(cell["source"])]
    )
    heading, _, introduction = title.partition("\n")
    link = f"[Download this notebook]({notebook.name}){{: download }}"
    return "\n\n".join([heading, link, introduction.strip(), *parts]) + "\n"


def list_of(records: list[Path], folder: str, introduction: str) -> str:
    """Return a page that lists decisions or measurements by their titles.

    Args:
        records: The files.
        folder: Their folder in docs/.
        introduction: The first sentence of the page.
    """
    parts = [f"# {folder.capitalize()}\n", f"{introduction}\n"]
    for record in records:
        title = record.read_text(encoding="utf-8").split("\n", 1)[0].lstrip("# ")
        parts.append(f"- [{title}]({folder}/{record.name})")
    return "\n".join(parts) + "\n"


def _page(config: MkDocsConfig, name: str, text: str) -> File:
    return File.generated(config, name, content=text)
