"""The figures of a report, as Plotly traces.

A figure over versions has one value per version; on the page, the reader chooses whether its
horizontal axis shows version numbers or time. Colors are names (`--inserted`), which the page's
style sheet defines for the light and the dark theme.

Plotly interprets tags in hover texts, so every text from the table is escaped (`plain`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any, Final

from lance_stream.monitoring.series import Series, VersionSize

MAX_BARS: Final = 400
"""The maximum number of fragments with a separate bar."""

_CHANGES: Final = (
    ("inserted", "rows_inserted", 1),
    ("updated", "rows_updated", 1),
    ("deleted", "rows_deleted", -1),
)
_PHASES: Final = ("plan", "collect", "scan", "replay", "write", "commit")


@dataclass(frozen=True)
class Figure:
    """One figure.

    Attributes:
        key: Its id in the page.
        title: Its heading.
        note: A sentence below the heading.
        traces: Plotly traces. In a figure over versions they have no `x`: the page adds it. If a
            trace has values for some versions only, `at` has their indices among the versions.
        layout: Additions to the page's Plotly layout.
        is_over_versions: Whether the horizontal axis shows the versions.
        height: The height in pixels.
    """

    key: str
    title: str
    note: str
    traces: Sequence[Mapping[str, Any]]
    layout: Mapping[str, Any] = field(default_factory=dict)
    is_over_versions: bool = True
    height: int = 260

    def as_json(self) -> dict[str, Any]:
        """Return the figure as input of the page's script."""
        return {
            "key": self.key,
            "traces": list(self.traces),
            "layout": dict(self.layout),
            "isOverVersions": self.is_over_versions,
            "height": self.height,
        }


def figures_of(series: Series) -> list[Figure]:
    """Return the figures that have data."""
    figures = [
        _rows(series),
        _changes(series),
        _operations(series),
        _bytes(series),
        _fragment_counts(series),
        _fragment_sizes(series),
        _latency(series),
        _consumers(series),
        _indices(series),
    ]
    return [figure for figure in figures if figure is not None]


def plain(text: str) -> str:
    """Return a text without tags for Plotly and without invisible characters."""
    printable = "".join(
        character if character.isprintable() else "\N{MIDDLE DOT}" for character in text
    )
    return escape(printable[:200])


def _line(name: str, color: str, values: Sequence[Any], hover: str, **more: Any) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "lines+markers" if len(values) < 60 else "lines",
        "name": name,
        "color": color,
        "y": values,
        "hovertemplate": f"{hover}<extra></extra>",
        **more,
    }


def _rows(series: Series) -> Figure:
    rows = [version.info.num_rows for version in series.versions]
    deleted = [version.deleted_rows for version in series.versions]
    traces = [_line("live rows", "rows", rows, "%{y:,} live rows", step=True)]
    if any(deleted):
        hover = "%{y:,} deleted rows in files"
        traces.append(
            _line("deleted rows still in files", "deleted-rows", deleted, hover, step=True)
        )
    return Figure("rows", "Rows", "", traces, {"yaxis": {"rangemode": "tozero"}})


def _changes(series: Series) -> Figure:
    traces: list[dict[str, Any]] = []
    unknown = [
        index for index, version in enumerate(series.versions) if version.info.row_counts is None
    ]
    for name, attribute, sign in _CHANGES:
        counts = [getattr(version.info, attribute) for version in series.versions]
        traces.append(
            {
                "type": "bar",
                "name": name,
                "color": name,
                "y": [None if count is None else sign * count for count in counts],
                "customdata": counts,
                "hovertemplate": f"%{{customdata:,}} {name}<extra></extra>",
            }
        )
    if unknown:
        traces.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": "unknown",
                "color": "unknown",
                "marker": {"symbol": "x-thin-open", "size": 7},
                "at": unknown,
                "y": [0] * len(unknown),
                "hovertemplate": "rows unknown<extra></extra>",
            }
        )
    note = "Deleted rows are shown below the axis."
    if unknown:
        note += " A cross marks a version whose changes the manifests do not state."
    layout = {"barmode": "relative", "bargap": 0.15 if len(series.versions) < 150 else 0}
    return Figure("changes", "Rows inserted, updated and deleted", note, traces, layout)


def _operations(series: Series) -> Figure:
    by_name: dict[str, list[int]] = {}
    for index, version in enumerate(series.versions):
        by_name.setdefault(version.info.operation or "unknown", []).append(index)
    order = sorted(by_name, key=lambda name: len(by_name[name]))
    traces = [
        {
            "type": "scatter",
            "mode": "markers",
            "name": plain(name),
            "color": "compaction" if name == "Rewrite" else "operation",
            "marker": {"size": 9, "symbol": "diamond" if name == "Rewrite" else "circle"},
            "at": by_name[name],
            "y": [plain(name)] * len(by_name[name]),
            "text": [_hover_text(series.versions[index]) for index in by_name[name]],
            "hovertemplate": "%{text}<extra></extra>",
        }
        for name in order
    ]
    layout = {"hovermode": "closest", "showlegend": False, "yaxis": {"type": "category"}}
    note = "Versions by operation. A diamond is a compaction (Rewrite)."
    height = 130 + 28 * len(order)
    return Figure("operations", "Operations", note, traces, layout, height=height)


def _hover_text(size: VersionSize) -> str:
    info = size.info
    lines = [f"<b>version {info.version}</b>: {plain(info.operation or 'unknown')}"]
    if info.timestamp is not None:
        lines.append(f"{info.timestamp:%Y-%m-%d %H:%M:%S} UTC")
    counts = info.row_counts
    if counts is None:
        lines.append("changed rows unknown")
    elif counts.total:
        lines.append(f"+{counts.inserted:,} ~{counts.updated:,} -{counts.deleted:,} rows")
    lines.append(f"{size.fragments:,} fragments")
    lines += [f"{plain(key)}: {plain(value)}" for key, value in [*info.properties.items()][:4]]
    return "<br>".join(lines)


def _bytes(series: Series) -> Figure | None:
    sizes = [version.data_bytes for version in series.versions]
    if all(size is None for size in sizes):
        return None
    traces = [_line("data files", "bytes", sizes, "%{y:.4s}B", step=True, fill="tozeroy")]
    layout = {"yaxis": {"rangemode": "tozero", "tickformat": "~s", "ticksuffix": "B"}}
    note = "The data files of each version."
    return Figure("bytes", "Size of the data files", note, traces, layout)


def _fragment_counts(series: Series) -> Figure:
    counts = [version.fragments for version in series.versions]
    traces = [_line("fragments", "fragments", counts, "%{y:,} fragments", step=True)]
    compactions = [
        index
        for index, version in enumerate(series.versions)
        if version.info.operation == "Rewrite"
    ]
    if compactions:
        before = [counts[max(index - 1, 0)] for index in compactions]
        traces.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": "compaction",
                "color": "compaction",
                "marker": {"size": 10, "symbol": "diamond"},
                "at": compactions,
                "y": [counts[index] for index in compactions],
                "customdata": before,
                "hovertemplate": "compacted from %{customdata:,} to %{y:,}<extra></extra>",
            }
        )
    note = "Many small fragments slow scans and commits: compact them."
    layout = {"yaxis": {"rangemode": "tozero"}}
    return Figure("fragments", "Fragments and compactions", note, traces, layout)


def _fragment_sizes(series: Series) -> Figure | None:
    fragments = [fragment for fragment in series.fragments if fragment.live_rows is not None]
    if not fragments:
        return None
    visible = fragments[-MAX_BARS:]
    labels = [f"{fragment.id}" for fragment in visible]
    traces = [
        {
            "type": "bar",
            "name": name,
            "color": color,
            "x": labels,
            "y": [getattr(fragment, attribute) for fragment in visible],
            "hovertemplate": f"%{{y:,}} {name}<extra></extra>",
            **({"width": 0.4} if len(visible) < 4 else {}),
        }
        for name, color, attribute in (
            ("live rows", "rows", "live_rows"),
            ("deleted rows", "deleted-rows", "deleted_rows"),
        )
    ]
    note = "Rows per fragment of the newest version, by fragment id."
    if len(visible) < len(series.fragments):
        note += f" {len(visible):,} of {len(series.fragments):,} are shown."
    layout = {
        "barmode": "stack",
        "bargap": 0.15 if len(visible) < 100 else 0,
        "xaxis": {"type": "category", "title": {"text": "fragment"}, "nticks": 20},
    }
    return Figure("sizes", "Fragment sizes", note, traces, layout, is_over_versions=False)


def _latency(series: Series) -> Figure | None:
    if not series.commits:
        return None
    index_of = {version.info.version: index for index, version in enumerate(series.versions)}
    names = [
        *_PHASES,
        *sorted({name for commit in series.commits for name in commit.seconds}.difference(_PHASES)),
    ]
    traces = []
    for number, name in enumerate(names):
        seconds = [commit.seconds.get(name) for commit in series.commits]
        if any(seconds):
            traces.append(
                {
                    "type": "bar",
                    "name": plain(name),
                    "color": f"phase{number % len(_PHASES)}",
                    "at": [index_of[commit.version] for commit in series.commits],
                    "y": seconds,
                    "hovertemplate": f"{plain(name)} %{{y:.3f}} s<extra></extra>",
                }
            )
    layout = {
        "barmode": "stack",
        "bargap": 0.15 if len(series.commits) < 150 else 0,
        "yaxis": {"ticksuffix": " s"},
    }
    note = "Seconds per phase of a micro-batch, as reported by its sink."
    return Figure("latency", "Commit latency by phase", note, traces, layout)


def _consumers(series: Series) -> Figure | None:
    if not series.consumers:
        return None
    visible = sorted(series.consumers, key=lambda consumer: consumer.versions)[-40:]
    trace = {
        "type": "bar",
        "orientation": "h",
        "name": "versions behind",
        "color": "lag",
        "x": [consumer.versions for consumer in visible],
        "y": [plain(consumer.name) for consumer in visible],
        "text": [_age_text(consumer.rows, consumer.seconds) for consumer in visible],
        "textposition": "auto",
        "hovertemplate": "%{y}: %{x:,} versions behind, %{text}<extra></extra>",
    }
    layout = {
        "showlegend": False,
        "hovermode": "closest",
        "yaxis": {"type": "category"},
        "xaxis": {"rangemode": "tozero", "title": {"text": "versions behind"}},
    }
    note = "Consumers of the change feed: versions, rows and time that they have yet to read."
    height = 110 + 34 * len(visible)
    return Figure("consumers", "Lag of consumers", note, [trace], layout, False, height)


def _age_text(rows: int | None, seconds: float | None) -> str:
    text = "rows unknown" if rows is None else f"{rows:,} rows"
    return text if seconds is None else f"{text}, {_age(seconds)}"


def _age(seconds: float) -> str:
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


def _indices(series: Series) -> Figure | None:
    if not series.indices:
        return None
    visible = series.indices[:40][::-1]
    trace = {
        "type": "bar",
        "orientation": "h",
        "name": "covered",
        "color": "index",
        "x": [index.covered for index in visible],
        "y": [plain(index.name) for index in visible],
        "text": [plain(index.columns) for index in visible],
        "textposition": "auto",
        "customdata": [
            "?" if index.unindexed is None else f"{index.unindexed:,}" for index in visible
        ],
        "hovertemplate": (
            "%{y} on %{text}: %{x:.1%} of the rows, %{customdata} not covered<extra></extra>"
        ),
    }
    layout = {
        "showlegend": False,
        "hovermode": "closest",
        "yaxis": {"type": "category"},
        "xaxis": {"range": [0, 1], "tickformat": ".0%"},
    }
    note = "The fraction of the rows that each index covers; queries scan the others."
    height = 100 + 34 * len(visible)
    return Figure("indices", "Index coverage", note, [trace], layout, False, height)
