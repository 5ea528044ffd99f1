"""The page of a report: one HTML file without external resources.

All text from the table is escaped for its context: as HTML in the body, and as JSON without `<` in
the script's data. The content security policy allows only scripts with a listed digest, so even
text that became markup by mistake could not run. It also forbids requests.
"""

import base64
import hashlib
import json
from collections.abc import Sequence
from html import escape
from importlib.resources import files
from string import Template
from typing import Any, Final

from lance_stream.monitoring.figures import Figure, figures_of, plain
from lance_stream.monitoring.series import Series
from lance_stream.storage.extras import requires_extra

_WIDE: Final = frozenset({"rows", "changes", "operations"})


def page_of(series: Series) -> str:
    """Return the page.

    Raises:
        InvalidInputError: Plotly is missing: pip install 'lance-stream[report]'.
    """
    with requires_extra("report", "a report"):
        from plotly.offline import get_plotlyjs
    library, script = get_plotlyjs(), _text_of("page.js")
    figures = figures_of(series)
    return Template(_text_of("page.html")).substitute(
        title=plain(series.uri),
        heading=plain(series.uri),
        subtitle=_subtitle(series),
        tiles="".join(_tile(number, label) for number, label in _numbers(series)),
        cards="".join(map(_card, figures)),
        footer=f"Created by lance-stream at {series.read_at:%Y-%m-%d %H:%M:%S} UTC from the "
        "table's manifests. Drag to zoom, double-click to reset.",
        data=_as_json(series, figures),
        library=library,
        script=script,
        script_sources=" ".join(map(_source_of, (library, script))),
    )


def in_notebook(page: str) -> str:
    """Return a page as a frame, isolated from the scripts and styles of the notebook."""
    return (
        '<iframe sandbox="allow-scripts" style="width:100%;height:900px;border:0" '
        f'srcdoc="{escape(page, quote=True)}"></iframe>'
    )


def _text_of(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")


def _source_of(script: str) -> str:
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return f"'sha256-{digest}'"


def _as_json(series: Series, figures: Sequence[Figure]) -> str:
    """Return the script's data as JSON, escaped so that it cannot close its element."""
    times = [version.info.timestamp for version in series.versions]
    data: dict[str, Any] = {
        "versions": [version.info.version for version in series.versions],
        "times": [time and time.strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] for time in times],
        "figures": [figure.as_json() for figure in figures],
    }
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _card(figure: Figure) -> str:
    size = " wide" if figure.key in _WIDE else ""
    note = f"<p>{escape(figure.note)}</p>" if figure.note else ""
    return (
        f'<section class="card{size}"><h2>{escape(figure.title)}</h2>{note}'
        f'<div id="figure-{figure.key}" style="height:{figure.height}px"></div></section>'
    )


def _tile(number: str, label: str) -> str:
    return f'<div class="tile"><b>{escape(number)}</b><span>{escape(label)}</span></div>'


def _subtitle(series: Series) -> str:
    if not series.versions:
        return "no versions"
    first, last = series.versions[0].info, series.versions[-1].info
    subtitle = f"versions {first.version:,} to {last.version:,}"
    if first.version == last.version:
        subtitle = f"version {last.version:,}"
    if series.has_older:
        subtitle += " (older ones exist)"
    if last.timestamp is not None:
        subtitle += f" · newest commit {last.timestamp:%Y-%m-%d %H:%M:%S} UTC"
    if series.indices is None:
        subtitle += " · the list of indices is damaged"
    return escape(subtitle)


def _numbers(series: Series) -> list[tuple[str, str]]:
    """Return the numbers at the top of the page, and their labels."""
    if not series.versions:
        return []
    newest = series.versions[-1]
    numbers = [
        (_count(newest.info.num_rows), "rows"),
        (_size(newest.data_bytes), "in data files"),
        (_count(newest.fragments), "fragments"),
        (_count(newest.deleted_rows), "deleted rows in files"),
        (_count(len(series.versions)), "versions shown"),
    ]
    if series.consumers:
        max_versions = max(consumer.versions for consumer in series.consumers)
        numbers.append((_count(max_versions), "versions behind (slowest consumer)"))
    return numbers


def _count(number: int | None) -> str:
    return "unknown" if number is None else f"{number:,}"


def _size(size: int | None) -> str:
    if size is None:
        return "unknown"
    number, unit = float(size), "B"
    for larger in ("kB", "MB", "GB", "TB", "PB"):
        if number < 1000:
            break
        number, unit = number / 1000, larger
    return f"{number:,.0f} {unit}" if unit == "B" else f"{number:,.1f} {unit}"
