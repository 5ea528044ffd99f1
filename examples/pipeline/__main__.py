"""Runs the pipeline: `python -m examples.pipeline`, or `make pipeline`.

It starts all parts, changes the database at a steady rate, and shows everything on a page. At the
end it proves that the table has what the database has, and that searches find what brute force
finds.
"""

import argparse
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from examples.pipeline import figures, verify
from examples.pipeline.parts import (
    DATABASE,
    HOST,
    PASSWORD,
    ROOT,
    USER,
    MissingError,
    all_parts,
    free_port,
    is_open_to,
)
from examples.pipeline.settings import Settings
from examples.pipeline.supervisor import PartError, Supervisor
from examples.pipeline.watch import Watch, kafka_lag, stages_of

KILLED = ("postgresql", "kafka", "connect", "sink", "derive", "page", "load")
MARK = "made-by-the-pipeline"
_START_SECONDS, _CATCH_UP_SECONDS = 300.0, 300.0


def main(arguments: list[str] | None = None) -> int:
    """Run; return 0 if all is right at the end."""
    options = _parse(arguments)
    folder = _state_folder(Path(options.state), keeps=options.keep)
    settings = _settings(folder, options)
    try:
        parts = all_parts(settings, Path(options.servers))
    except MissingError as error:
        print(f"The pipeline cannot start: {error}", file=sys.stderr)
        return 2
    stopped: list[int] = []
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda signum, _: stopped.append(signum))
    supervisor = Supervisor(parts, folder / "logs", _say)
    watch = Watch(settings, supervisor.describe)
    try:
        report = _run(supervisor, watch, settings, options, stopped)
    except PartError as error:
        print(f"The pipeline has failed: {error}", file=sys.stderr)
        return 1
    finally:
        watch.close()
        supervisor.stop()
    print(_text_of(report))
    (folder / "report.json").write_text(json.dumps(report, indent=2))
    return 1 if report["findings"] else 0


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m examples.pipeline", description=__doc__)
    add = parser.add_argument
    add("--seconds", type=float, default=120, help="how long changes run; 0: until Ctrl-C")
    add("--load", type=float, default=50, help="row changes a second")
    add("--kill-each", action="store_true", help="kill each part in turn while changes run")
    add("--kill", action="append", choices=KILLED, help="kill this part; may be repeated")
    add("--state", default="data/pipeline", help="the folder of everything that is written")
    add("--keep", action="store_true", help="go on with what an earlier run has left there")
    add("--port", type=int, default=0, help="of the page; by default a free one")
    add("--servers", default=str(ROOT / ".servers"), help="where `make servers` has put Kafka")
    return parser.parse_args(arguments)


def _state_folder(folder: Path, *, keeps: bool) -> Path:
    """Return the folder, empty unless what is there is kept.

    Raises:
        SystemExit: There is something else in it.
    """
    folder = folder.resolve()
    mark = folder / MARK
    if folder.exists() and any(folder.iterdir()) and not mark.exists():
        sys.exit(f"{folder} has something else in it: give an empty folder, --state")
    if mark.exists() and not keeps:
        elsewhere = json.loads(mark.read_text() or "{}").get("postgresql")
        if elsewhere:
            shutil.rmtree(elsewhere, ignore_errors=True)
        shutil.rmtree(folder)
    folder.mkdir(parents=True, exist_ok=True)
    mark.touch()
    return folder


def _settings(folder: Path, options: argparse.Namespace) -> Settings:
    """Return where everything is, or will be: the same ports for all starts of a part."""
    ports: set[int] = set()
    while len(ports) < 4:
        ports.add(free_port())
    database, broker, worker, page = ports
    return replace(
        Settings(),
        database=f"postgresql://{USER}:{PASSWORD}@{HOST}:{database}/{DATABASE}",
        kafka=f"{HOST}:{broker}",
        connect=f"http://{HOST}:{worker}",
        state=str(folder),
        page_host=HOST,
        page_port=str(options.port or page),
        load=str(options.load),
        postgresql=_postgresql_folder(folder),
    )


def _postgresql_folder(folder: Path) -> str:
    """Return a folder that PostgreSQL may enter: as root, it runs as another user."""
    if os.geteuid() != 0 or is_open_to(folder):
        return str(folder / "postgresql")
    mark = folder / MARK
    path: str | None = json.loads(mark.read_text() or "{}").get("postgresql")
    if path is None or not Path(path).exists():
        path = tempfile.mkdtemp(prefix="lance-stream-pipeline-")
        mark.write_text(json.dumps({"postgresql": path}))
    return path


def _run(
    supervisor: Supervisor,
    watch: Watch,
    settings: Settings,
    options: argparse.Namespace,
    stopped: list[int],
) -> dict[str, Any]:
    began = time.time()
    before = changes_in(figures.read(settings.figures("load")))
    supervisor.run_until(
        lambda: supervisor.works_all() or bool(stopped), _START_SECONDS, "the start of all parts"
    )
    if stopped:
        raise PartError("it was stopped before all parts worked")
    watch.start()
    started = time.time()
    _say(f"all parts work; the page is http://{HOST}:{settings.page_port}/")
    kills = list(KILLED) if options.kill_each else options.kill or []
    recoveries = []
    end = time.monotonic() + (options.seconds or float("inf"))
    pause = 10.0
    supervisor.run_until(lambda: bool(stopped), min(pause, options.seconds or pause))
    for name in kills:
        if stopped:
            break
        recoveries.append(_kill(supervisor, watch, name))
        supervisor.run_until(lambda: bool(stopped), 5)
    _say("changes run until Ctrl-C" if not options.seconds else "changes run")
    last_report = [time.monotonic()]

    def is_over() -> bool:
        if time.monotonic() - last_report[0] > 10:
            last_report[0] = time.monotonic()
            _say(_line_of(figures.read(settings.figures("watch"))))
        return bool(stopped) or time.monotonic() > end

    supervisor.run_until(is_over, float("inf"))
    seconds = time.time() - started
    restarts = {name: row["restarts"] for name, row in supervisor.describe().items()}
    supervisor.retire("load")
    _say("no more changes; waiting until all have arrived")
    stopping = time.time()
    caught_up = supervisor.run_until(lambda: _has_all(settings), _CATCH_UP_SECONDS)
    findings = verify.findings(settings)
    if not caught_up:
        findings.insert(0, f"the table did not catch up in {_CATCH_UP_SECONDS:.0f} s")
    load = figures.read(settings.figures("load"))
    changes = changes_in(load) - before
    if not changes:
        findings.append("nothing was changed")
    if watch.missed:
        findings.append(f"{watch.missed} rows were not found by search in a minute")
    return {
        "findings": findings,
        "seconds": round(seconds, 1),
        "start_seconds": round(started - began, 1),
        "catch_up_seconds": round(time.time() - stopping, 1),
        "load": load,
        "changes": changes,
        "changes_per_second": round(changes / seconds, 1),
        "rows": len(verify.database.rows_of(settings.database)),
        "fresh": {
            "in table": watch.in_table.summary(),
            "with its embedding": watch.embedded.summary(),
            **{f"found by {name}": value.summary() for name, value in watch.searches.items()},
        },
        "stages": stages_of(figures.read(settings.figures("sink"))),
        "derive": figures.read(settings.figures("derive")),
        "kills": recoveries,
        "restarts": restarts,
    }


def changes_in(load: dict[str, Any]) -> int:
    """Return how many row changes were committed, of all runs with this state."""
    return sum(load.get(name, 0) for name in ("inserts", "updates", "deletes"))


def _kill(supervisor: Supervisor, watch: Watch, name: str) -> dict[str, Any]:
    """Kill a part; return how long it took until it worked, and until changes arrived again."""
    _say(f"{name} is killed")
    killed = time.time()
    supervisor.kill(name)
    supervisor.run_until(lambda: supervisor.works(name), 180, f"a new start of {name}")
    works = time.time()
    done = {"part": name, "works_after": round(works - killed, 1)}
    supervisor.run_until(
        lambda: watch.newest_commit > works, 180, f"a change that arrives after the end of {name}"
    )
    return {**done, "fresh_after": round(time.time() - killed, 1)}


def _has_all(settings: Settings) -> bool:
    """Return whether the table has all rows of the database, with their embeddings."""
    try:
        if kafka_lag(settings):
            return False
    except Exception:  # the broker is on its way back
        return False
    return not verify.rows_differ(settings) and not verify.embeddings_differ(settings)


def _line_of(seen: dict[str, Any]) -> str:
    now, fresh = seen.get("now", {}), seen.get("fresh", {}).get("recent", {})
    return (
        f"rows {now.get('rows_database')} / {now.get('rows_table')}, changes/s "
        f"{_short(now.get('changes_per_second'))}, lag {now.get('kafka_lag')}, fresh p50 "
        f"{_short(fresh.get('p50'))} s, p95 {_short(fresh.get('p95'))} s"
    )


def _text_of(report: dict[str, Any]) -> str:
    lines = [
        f"changes     {report['changes_per_second']} a second for {report['seconds']} s",
        *(
            f"fresh       {name}: p50 {_short(row['p50'])} s, p95 {_short(row['p95'])} s, "
            f"of {row['count']}"
            for name, row in report["fresh"].items()
        ),
        *(f"stage       {name}: {number} s" for name, number in report["stages"].items()),
        *(
            f"killed      {row['part']}: works after {row['works_after']} s, changes arrive "
            f"after {row['fresh_after']} s"
            for row in report["kills"]
        ),
        f"restarts    {report['restarts']}",
        f"rows        {report['rows']}, caught up in {report['catch_up_seconds']} s",
    ]
    wrong = [f"WRONG       {number}" for number in report["findings"]]
    right = "the table has the rows of the database, each embedding is of its text, and searches "
    return "\n".join([*lines, *(wrong or [f"right       {right}equal brute force"])])


def _short(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
