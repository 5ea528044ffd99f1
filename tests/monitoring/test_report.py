"""The report of a table: what it shows, and that it can be opened safely and without a network."""

import base64
import hashlib
import json
import re
import uuid
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lance_stream
from lance_stream import Dataset, InvalidInputError
from lance_stream.cli.main import main
from lance_stream.environment import MACHINE
from lance_stream.maintenance.consumers import record_progress
from lance_stream.monitoring.report import Report, make_report
from lance_stream.monitoring.series import CommitTimes, IndexState, commits_in_log
from lance_stream.spark.sink.reports import SinkCommit

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>&\"'\u202e\u2028{{x}}$data"
SCHEMA = pa.schema([("id", pa.int64()), ("x", pa.string())])


def rows(*ids: int, x: str = "a") -> pa.Table:
    return pa.table({"id": list(ids), "x": [x] * len(ids)}, schema=SCHEMA)


@pytest.fixture(scope="module")
def ds(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """A table with inserts, updates, deletes, a compaction, a consumer and a hostile name."""
    uri = tmp_path_factory.mktemp("t") / HOSTILE.replace("/", "\N{DIVISION SLASH}")
    ds = lance_stream.create_dataset(uri, SCHEMA).append(rows(*range(20)))
    ds = ds.upsert(rows(18, 19, 20, x="b"), on="id").delete("id < 5").compact().append(rows(30))
    record_progress(ds.table.refs, "warehouse", 3)
    return ds


@pytest.fixture(scope="module")
def page(ds: Dataset) -> str:
    return ds.report().html


class Parts(HTMLParser):
    """The tags of a page, and the texts of its scripts."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self._is_script = False
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.append((tag, dict(attrs)))
        self._is_script = tag == "script"
        if self._is_script:
            self.scripts.append("")

    def handle_endtag(self, tag: str) -> None:  # noqa: ARG002  # HTMLParser's signature
        self._is_script = False

    def handle_data(self, data: str) -> None:
        if self._is_script:
            self.scripts[-1] += data


def data_of(page: str) -> Any:
    return json.loads(Parts(page).scripts[0])


def figure(page: str, key: str) -> Any:
    return next(row for row in data_of(page)["figures"] if row["key"] == key)


def trace(page: str, key: str, name: str) -> Any:
    return next(row for row in figure(page, key)["traces"] if row["name"] == name)


def test_figures_show_the_versions_numbers(ds: Dataset, page: str) -> None:
    """The page must agree with `versions()`, deletions drawn downwards."""
    versions = ds.versions()
    assert data_of(page)["versions"] == [version.version for version in versions]
    assert trace(page, "rows", "live rows")["y"] == [version.num_rows for version in versions]
    for kind in ("inserted", "updated", "deleted"):
        counts = [getattr(version, f"rows_{kind}") for version in versions]
        assert trace(page, "changes", kind)["customdata"] == counts
    assert sum(trace(page, "changes", "deleted")["y"]) == -5
    assert trace(page, "fragments", "compaction")["customdata"] == [2]
    (lag,) = figure(page, "consumers")["traces"]
    assert (lag["x"], lag["y"]) == ([ds.version - 3], ["warehouse"])
    assert lag["text"][0].startswith("6 rows")  # five deleted, and one inserted


def test_unknown_numbers_are_not_zero() -> None:
    """A restore's counts are unknown, and a bar of zero would claim that nothing changed."""
    uri = f"memory://{uuid.uuid4()}/t"
    ds = lance_stream.create_dataset(uri, SCHEMA).append(rows(1, 2)).upsert(rows(2, 3), on="id")
    page = ds.delete("id = 3").restore(2).report().html
    deleted = trace(page, "changes", "deleted")["customdata"]
    assert deleted[-1] is None
    assert trace(page, "changes", "unknown")["at"] == [len(deleted) - 1]


def test_batch_durations_are_shown_by_phase(ds: Dataset) -> None:
    """Commits of other tables and skipped batches must not appear in this table's figure."""
    commits = [
        SinkCommit(1, "a", version=2, seconds={"write": 0.5, "commit": 0.25}),
        SinkCommit(2, "a", version=3, seconds={"write": 0.75, "commit": 0.5}),
        SinkCommit(3, "a", version=99, seconds={"write": 9.0}),  # not a version of this table
        SinkCommit(4, "a", skipped=True, version=3, seconds={"write": 9.0}),
    ]
    page = ds.report(commits=commits).html
    assert trace(page, "latency", "write")["y"] == [0.5, 0.75]
    assert trace(page, "latency", "commit")["at"] == [1, 2]
    with pytest.raises(InvalidInputError, match="commits must be reports"):
        ds.report(commits=[3])


def test_sink_log_lines_are_read(tmp_path: Path) -> None:
    """Real logs have prefixes, other lines, other tables and truncated entries."""
    entry = {"table": str(tmp_path / "t"), "version": 3, "seconds": {"write": 0.5}}
    lines = [
        "26/11/23 INFO Something: else\n",
        f"2026-11-23 INFO lance_sink {json.dumps(entry)}\n",
        f"lance_sink {json.dumps(entry | {'table': 'other'})}\n",
        f"lance_sink {json.dumps(entry | {'skipped': True, 'version': 4})}\n",
        'lance_sink {"table": 1\n',
        "lance_sink [1]\n",
    ]
    assert commits_in_log(lines, f"{tmp_path}/t/") == [CommitTimes(3, {"write": 0.5})]


@pytest.mark.parametrize("seconds", ["NaN", "-Infinity", "1e999", "9" * 400, "-1", '"1"', "null"])
def test_impossible_durations_are_omitted(ds: Dataset, seconds: str) -> None:
    """JSON of Python permits NaN and huge numbers, which would break the page's script."""
    line = f'lance_sink {{"table": {json.dumps(ds.uri)}, "version": 2, "seconds": {{"write": '
    commits = commits_in_log([f'{line}{seconds}, "commit": 0.5}}}}'], ds.uri)
    assert commits == [CommitTimes(2, {"commit": 0.5})]
    assert ds.report(commits=commits).html


def test_table_texts_cannot_become_markup(ds: Dataset) -> None:
    """Names of tables and columns are untrusted, and a report is opened from disk."""
    parts = Parts(hostile(ds).html)
    assert [tag for tag, _ in parts.tags].count("script") == 3
    assert not [attributes for _, attributes in parts.tags if "onerror" in attributes]
    assert not [tag for tag, _ in parts.tags if tag in ("img", "iframe", "link", "object", "base")]
    assert not set("<>&") & set(parts.scripts[0])
    output = strings_in(json.loads(parts.scripts[0])["figures"])
    assert sum("alert(1)" in text for text in output) > 5
    for text in output:
        # what Plotly would take for a tag is one of ours
        assert not re.search(r"<(?!/?b>|br>|/?extra>)", text), text


def hostile(ds: Dataset) -> Report:
    """Return a report in which every text that a table can choose is hostile."""
    series = ds.report(commits=[SinkCommit(1, "a", version=2, seconds={HOSTILE: 1.0})]).series
    size = series.versions[-1]
    info = replace(size.info, operation=HOSTILE, properties={HOSTILE: HOSTILE})
    consumer = series.consumers[0]._replace(name=HOSTILE)
    return Report(
        replace(
            series,
            uri=HOSTILE,
            versions=[*series.versions[:-1], size._replace(info=info)],
            consumers=[consumer],
            indices=[IndexState(HOSTILE, HOSTILE, 0.5)],
        )
    )


def strings_in(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [text for item in value.values() for text in strings_in(item)]
    if isinstance(value, list):
        return [text for item in value for text in strings_in(item)]
    return [value] if isinstance(value, str) else []


def test_reports_run_only_their_scripts(page: str) -> None:
    """The content security policy is the second line of defence, and reports must work offline."""
    parts = Parts(page)
    policy = next(
        attributes["content"]
        for tag, attributes in parts.tags
        if tag == "meta" and attributes.get("http-equiv") == "Content-Security-Policy"
    )
    assert policy is not None
    allowed = re.findall(r"'sha256-([^']+)'", policy)
    scripts = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    assert allowed == [
        base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts
    ]
    assert "default-src 'none'" in policy
    assert "unsafe-inline" not in policy.split("script-src")[1].split(";")[0]
    assert not [tag for _, tag in parts.tags if tag.keys() & {"src", "href", "action"}]


def test_notebooks_show_reports_in_sandboxes(ds: Dataset) -> None:
    """The page's scripts must not reach the notebook's session."""
    report = ds.report()
    ((tag, attributes),) = Parts(report._repr_html_()).tags
    assert (tag, attributes["sandbox"]) == ("iframe", "allow-scripts")
    assert attributes["srcdoc"] == report.html


def test_reports_grow_slowly_with_versions() -> None:
    """Reports are sent by mail, so each version may add a few hundred bytes only."""
    ds = lance_stream.create_dataset(f"memory://{uuid.uuid4()}/t", SCHEMA)
    for number in range(60):
        ds = ds.append(rows(number))
    sixty = ds.report()
    longer = sixty.series.versions * 20
    many = Report(replace(sixty.series, versions=longer))
    grown = (len(many.html) - len(sixty.html)) / (len(longer) - 61)
    assert len(sixty.html) + 1000 * grown < 6e6
    assert grown < 600  # bytes for each version


def test_limited_reports_show_newest_versions(ds: Dataset) -> None:
    """Long histories are slow to read, and the page must say that it leaves some out."""
    report = ds.report(2)
    assert [version.info.version for version in report.series.versions] == [
        ds.version - 1,
        ds.version,
    ]
    assert report.series.has_older
    assert "older ones exist" in report.html
    assert report.series.consumers[0].versions == ds.version - 3
    assert report.series.consumers[0].rows is None
    with pytest.raises(InvalidInputError, match="versions must be an integer of at least 1, not 0"):
        ds.report(0)
    with pytest.raises(InvalidInputError, match="commits must be a list"):
        ds.report(commits=5)  # type: ignore[arg-type]  # what is refused
    with pytest.raises(InvalidInputError, match="takes a path"):
        report.save(5)  # type: ignore[arg-type]  # what is refused


def test_empty_and_idless_tables_have_reports() -> None:
    """Missing numbers must not break the page."""
    for stable in (True, False):
        uri = f"memory://{uuid.uuid4()}/t"
        ds = lance_stream.create_dataset(uri, SCHEMA, stable_row_ids=stable)
        assert "figure-rows" in ds.report().html
        ds = ds.append(rows(1, 2)).upsert(rows(2, 3), on="id")
        assert "figure-changes" in ds.report().html


def test_the_command_writes_the_page(ds: Dataset, tmp_path: Path, capsys: Any) -> None:
    """File names resemble options here, so mistakes must be named and nothing else be written."""
    log = tmp_path / "log"
    entry = {"table": ds.uri, "version": 2, "seconds": {"write": 0.5}}
    log.write_text(f"INFO lance_sink {json.dumps(entry)}\n", encoding="utf-8")
    file = tmp_path / "report.html"
    assert main(["report", ds.uri, "-o", str(file), "--sink-log", str(log)]) == 0
    assert capsys.readouterr().out.strip() == str(file)
    assert trace(file.read_text(encoding="utf-8"), "latency", "write")["y"] == [0.5]
    assert main(["report", ds.uri, "--output", str(tmp_path / "no" / "x.html")]) == 2
    assert "there is no folder" in capsys.readouterr().err
    assert main(["report", ds.uri, "--output", str(tmp_path / ("x" * 300))]) == 1
    assert "File name too long. Choose a file" in capsys.readouterr().err
    assert main(["report", ds.uri, "-o", "REGION=eu-west-1"]) == 2
    message = " ".join(capsys.readouterr().err.split())
    assert "-o is the file to write" in message
    assert "--storage-option REGION=VALUE" in message
    assert not Path("REGION=eu-west-1").exists()
    named = tmp_path / "region=eu-west-1"
    assert main(["report", ds.uri, "-o", str(named)]) == 0
    assert named.exists()


def test_missing_plotly_names_the_extra(ds: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    """plotly is optional, and an ImportError would not tell which extra to install."""
    monkeypatch.setitem(__import__("sys").modules, "plotly.offline", None)
    with pytest.raises(InvalidInputError, match=r"pip install 'lance-stream\[report\]'"):
        make_report(ds.table, environment=MACHINE).save("never.html")
