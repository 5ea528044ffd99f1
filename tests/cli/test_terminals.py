"""What a person sees in a terminal, and a program in a pipe."""

import json
import os
import shlex
import shutil
import subprocess
import sys
import uuid
from dataclasses import replace
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

import lance_stream
from lance_stream import Dataset
from lance_stream.cli import main as program
from lance_stream.cli import output
from lance_stream.cli.inspect import maintenance_advice
from lance_stream.environment import MACHINE
from lance_stream.ledger.replay_check import PendingBatch
from lance_stream.ledger.row_digests import digest_of
from lance_stream.maintenance.consumers import record_progress
from lance_stream.table.config import lineage_limits
from lance_stream.verbs.append import append
from tests.cli.terminals import ESCAPE, TerminalOutput, interrupted, on_terminal, typing_in

WIDE = pa.table(
    {
        "id": range(40),
        "city": ["Zürich", "東京", "New York 🗽", "K\u0308oln"] * 10,
        "note": ["a long text " * (number % 9) for number in range(40)],
        **{f"extra_{number}": ["x" * 12] * 40 for number in range(8)},
    }
)

HOSTILE = "\x1b]0;owned\x07 \u202egnp.exe\u2066 \x9b31m \u200b\r\nrm -rf \x1b[2J"


@pytest.fixture
def ds() -> Dataset:
    """A table wider than any terminal, with names that would steer one."""
    uri = f"memory://{uuid.uuid4()}/t"
    dataset = lance_stream.create_dataset(uri, WIDE, config={f"key {HOSTILE}": HOSTILE})
    dataset.tags.create("gold", 1)
    record_progress(dataset.table.refs, "totals", 1)
    return dataset.append(WIDE.slice(0, 3)).delete("id = 1")


def columns_of(line: str) -> int:
    from rich.cells import cell_len

    return cell_len(line)


READING = [
    ["show", "URI"],
    ["log", "URI"],
    ["watch", "URI", "--once"],
    ["head", "URI"],
    ["query", "URI", "--where", "id < 3", "--order-by", "id desc"],
    ["query", "URI", "--count"],
    ["changes", "URI", "--after", "1"],
    ["verify", "URI"],
    ["verify", "URI", "--deep"],
    ["verify", "URI", "--against", "URI"],
    ["tags", "list", "URI"],
    ["branches", "list", "URI"],
    ["consumers", "list", "URI"],
    ["streams", "list", "URI"],
    ["quarantine", "list", "URI"],
    ["quarantine", "replay", "URI"],
    ["cleanup", "URI", "--dry-run"],
    ["restore", "URI", "1", "--dry-run"],
    ["compact", "URI"],
]


def with_uri(ds: Dataset, words: list[str]) -> list[str]:
    return [ds.uri if word == "URI" else word for word in words]


@pytest.mark.floors
@pytest.mark.parametrize("words", READING, ids=" ".join)
def test_a_pipe_gets_plain_text(
    words: list[str], ds: Dataset, capsys: pytest.CaptureFixture[str]
) -> None:
    """A pipe gets neither styles nor progress or warnings on stderr."""
    assert program.main(with_uri(ds, words)) == 0
    printed = capsys.readouterr()
    assert printed.out
    assert printed.err == ""
    assert all(value.isprintable() or value == "\n" for value in printed.out)


@pytest.mark.parametrize("variables", [{"NO_COLOR": "1"}, {"TERM": "dumb"}], ids=str)
@pytest.mark.parametrize("words", [["show", "URI"], ["log", "URI"], ["head", "URI"]], ids=" ".join)
def test_styles_can_be_switched_off(
    words: list[str], variables: dict[str, str], ds: Dataset
) -> None:
    """`NO_COLOR` and dumb terminals are conventions, and the text must be the
    same without styles.
    """
    screen = on_terminal(*with_uri(ds, words), variables=variables)
    assert (screen.code, ESCAPE in screen.raw) == (0, False)
    styled = on_terminal(*with_uri(ds, words))
    assert f"{ESCAPE}[1m" in styled.raw
    assert [line.rstrip() for line in styled.lines] == [line.rstrip() for line in screen.lines]


@pytest.mark.floors
@pytest.mark.parametrize("words", READING, ids=" ".join)
def test_hostile_text_never_reaches_terminals(words: list[str], ds: Dataset) -> None:
    """Escape sequences in data could rename the window or type commands for the user."""
    hostile = ds.append(WIDE.slice(0, 2).set_column(1, "city", pa.array([HOSTILE, HOSTILE])))
    screen = on_terminal(*with_uri(hostile, words), width=200)
    assert screen.code == 0
    assert all(value.isprintable() or value == "\n" for value in screen.text)
    if words[0] == "show":
        assert "\\u001b]0;owned\\u0007" in screen.text


@pytest.mark.floors
@pytest.mark.parametrize("width", [30, 80, 200])
@pytest.mark.parametrize("words", [["head", "URI"], ["changes", "URI"]], ids=" ".join)
def test_rows_fit_the_terminal(width: int, words: list[str], ds: Dataset) -> None:
    """Wrapped lines destroy a table, so columns that do not fit are omitted with a note."""
    screen = on_terminal(*with_uri(ds, words), width=width)
    note, *lines = screen.lines
    assert all(columns_of(line) <= width for line in lines)
    assert ("omitted" in note) == (width < 200 or words[0] == "changes")
    header = next(line for line in screen.lines if line.startswith(("id", "_change", "city")))
    assert width < 80 or header.split()[:2] == ["id", "city"]


@pytest.mark.parametrize("app_id", ["orders", "c2f70c4d-9822-4d13-aa3a-cb83f7f4e26b"])
def test_logs_of_streams_fit_the_terminal(app_id: str, ds: Dataset) -> None:
    """Without an app id, Spark's long query id names the stream."""
    more = WIDE.slice(0, 2)
    batch = PendingBatch.of(app_id, 7, "query", digest=digest_of(more))
    append(ds.table, more, micro_batch=batch)
    header, newest, *lines = on_terminal("log", ds.uri, width=80).lines
    assert all(columns_of(line) <= 80 for line in (header, newest, *lines))
    assert (header.split()[-2:], newest.split()[-1]) == (["STREAM", "BATCH"], "7")
    start = header.index("STREAM")
    assert "".join(
        line[start:].split()[0] for line in (newest, *lines) if line[start:].strip()
    ) == (app_id)


def test_change_columns_are_omitted_last(ds: Dataset) -> None:
    """Changes are meaningless without their type and version."""
    screen = on_terminal("changes", ds.uri, width=60)
    assert {"_change_type", "_commit_version"} <= set(screen.lines[1].split())


def test_wide_letters_keep_columns_aligned(ds: Dataset) -> None:
    """East Asian letters take two columns each."""
    lines = on_terminal("query", ds.uri, "--columns", "city,id", "-n", "4").lines
    assert {columns_of(line) for line in lines[1:]} == {columns_of(lines[0])}


def test_long_values_fill_the_available_width(ds: Dataset) -> None:
    """With room to spare the value should be complete, and otherwise show that it was cut."""
    words = ("query", ds.uri, "--columns", "note", "--where", "id = 8")
    assert on_terminal(*words, width=120).lines[1] == ("a long text " * 8).rstrip()
    assert on_terminal(*words, width=60).lines[1].endswith("…")


@pytest.mark.parametrize("longest", [5, 40, 41, 80])
def test_long_values_are_cut_like_text(longest: int) -> None:
    """Formatting a long vector completely takes seconds, so the shortcut must
    give the same text.
    """
    for value in (list(range(longest)), b"x" * longest, "w" * longest, (0.5,) * longest):
        text = value if isinstance(value, str) else output.to_json(value)
        expected = text if len(text) <= 40 else f"{text[:39]}…"
        assert output.cell(value) == expected


def test_tables_fold_long_cells(ds: Dataset) -> None:
    """Configuration values must remain complete, so they are folded instead of cut."""
    ds.update_config({"long": "word " * 60})
    screen = on_terminal("show", ds.uri, width=70)
    assert all(columns_of(line) <= 70 for line in screen.lines[3:] if "lance-stream" not in line)
    assert sum(line.count("word") for line in screen.lines) == 60


def test_terminals_refuse_arrow_streams(ds: Dataset) -> None:
    """Binary output can leave a terminal unusable."""
    screen = on_terminal("head", ds.uri, "--format", "arrow")
    assert (screen.code, "redirect it" in screen.text) == (2, True)


def test_only_people_see_empty_results(ds: Dataset, capsys: pytest.CaptureFixture[str]) -> None:
    """A person should see that the command worked, while a script expects no output."""
    assert on_terminal("query", ds.uri, "--where", "id < 0").text == "(no rows)\n"
    assert program.main(["query", ds.uri, "--where", "id < 0"]) == 0
    assert capsys.readouterr().out == ""


LONG = [
    ["verify", "URI", "--deep"],
    ["verify", "URI", "--against", "URI"],
    ["compact", "URI"],
    ["cleanup", "URI"],
    ["migrate", "URI", "stable-row-ids"],
    ["quarantine", "replay", "URI"],
]
"""Commands during which a person waits."""


@pytest.mark.floors
@pytest.mark.parametrize("words", LONG, ids=" ".join)
def test_progress_is_erased_from_the_terminal(words: list[str], ds: Dataset) -> None:
    """Progress goes to the terminal even if the result goes to a pipe, and is erased at the end."""
    screen = on_terminal(*with_uri(ds, words), has_piped_output=True)
    assert screen.code == 0
    assert screen.raw.count("\r") > 1
    assert screen.raw.rstrip().endswith("\x1b[2K")
    assert ESCAPE not in screen.piped
    assert screen.piped
    quiet = on_terminal(*with_uri(ds, words), has_piped_output=True, variables={"TERM": "dumb"})
    assert quiet.raw == ""


def test_updates_of_indices_show_progress(tmp_path: Path) -> None:
    """pylance, which builds indices, does not report how far it is."""
    table = lance_stream.create_dataset(tmp_path / "t", WIDE)
    screen = on_terminal("indices", "optimize", table.uri, has_piped_output=True)
    assert (screen.code, screen.piped) == (0, "all indices are up to date with version 1\n")
    assert "updating the indices" in screen.raw
    assert "%" not in screen.raw


@pytest.mark.parametrize("words", LONG, ids=" ".join)
def test_programs_get_no_progress(words: list[str], ds: Dataset) -> None:
    """Users who request JSON on a terminal record it, as `script` does, or paste it."""
    screen = on_terminal(*with_uri(ds, words), "--json", has_piped_output=True)
    assert (screen.code, screen.raw) == (0, "")


@pytest.mark.parametrize(("answer", "code"), [("y\n", 0), ("n\n", 1), ("\n", 1)])
def test_people_confirm_deletion_of_unverified_files(answer: str, code: int, ds: Dataset) -> None:
    """The files may belong to a writer that is still running, and an empty answer must mean no."""
    ds.table.store.write("data/new.lance", b"being written")
    words = ("cleanup", ds.uri, "--delete-unverified")
    screen = on_terminal(*words, answer=answer)
    assert (screen.code, "[y/N]" in screen.text) == (code, True)
    assert ds.table.store.exists("data/new.lance") == bool(code)
    for name in ("--yes", "--dry-run"):
        assert "[y/N]" not in on_terminal(*words, name).text


def test_scripts_need_no_confirmation(ds: Dataset, capsys: pytest.CaptureFixture[str]) -> None:
    """A scheduled cleanup would wait forever for an answer."""
    assert program.main(["cleanup", ds.uri, "--delete-unverified"]) == 0
    assert "[y/N]" not in capsys.readouterr().err


def test_watch_updates_its_view_in_place(ds: Dataset) -> None:
    """A new version replaces the previous view, which would otherwise scroll away."""
    naps = [lambda: ds.append(WIDE.slice(0, 5))]

    def sleep(_seconds: float) -> None:
        if not naps:
            raise KeyboardInterrupt
        naps.pop()()

    screen = on_terminal("watch", ds.uri, environment=replace(MACHINE, sleep=sleep))
    assert screen.code == 130
    first, second = (screen.raw.index(f"version {number}") for number in (3, 4))
    assert f"{ESCAPE}[1A" in screen.raw[first:second]


def test_ctrl_c_ends_quietly(tmp_path: Path) -> None:
    """Interrupting a command that follows a table is its normal end."""
    ds = lance_stream.create_dataset(tmp_path / "t", WIDE)
    screen = interrupted("changes", ds.uri, "--after", "0", "--follow", "--columns", "id", at="39")
    assert screen.code == 130
    assert "Traceback" not in screen.text


def test_errors_are_one_paragraph(ds: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    """A traceback hides the message, and `--debug` shows it before or after the command."""

    def fail(*_: object, **__: object) -> TerminalOutput:
        raise RuntimeError("broken \x1b[31m")

    monkeypatch.setattr(Dataset, "cleanup", fail)
    screen = on_terminal("cleanup", ds.uri, "--dry-run")
    assert (screen.code, "Traceback" in screen.text) == (1, False)
    assert "RuntimeError: broken \\u001b[31m" in screen.text
    assert "--debug" in screen.lines[-1]
    for words in (["cleanup", ds.uri, "--debug"], ["--debug", "cleanup", ds.uri]):
        assert "Traceback" in on_terminal(*words).text
    screen = on_terminal("show", "memory://nobody/nothing", "--debug")
    assert (screen.code, "Traceback" in screen.text) == (3, True)


@pytest.mark.parametrize("name", ["stdout", "stderr"])
def test_closed_streams_are_no_errors(
    name: str, ds: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Daemons start programs without stdout or stderr."""
    monkeypatch.setattr(sys, name, None)
    assert program.main(["verify", ds.uri]) == 0
    assert program.main(["show", f"{ds.uri}-missing"]) == 3


# --- JSON


def documents(capsys: pytest.CaptureFixture[str], *words: str) -> list[Any]:
    assert program.main(list(words)) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


@pytest.mark.floors
@pytest.mark.parametrize("words", READING, ids=" ".join)
def test_every_command_prints_json(
    words: list[str], ds: Dataset, capsys: pytest.CaptureFixture[str]
) -> None:
    """Scripts parse the output of any command."""
    printed = documents(capsys, *with_uri(ds, words), "--json")
    is_silent = words[:1] == ["verify"] and "--against" not in words  # nothing is wrong
    is_empty = words[0] in ("branches", "streams") or words[:2] == ["quarantine", "list"]
    assert bool(printed) != (is_silent or is_empty)
    assert all(isinstance(value, dict) for value in printed)


def test_changing_commands_print_json(ds: Dataset, capsys: pytest.CaptureFixture[str]) -> None:
    """Field names are an interface for scripts and must not change by accident."""
    (tag,) = documents(capsys, "tags", "create", ds.uri, "silver", "gold", "--json")
    assert (tag["name"], tag["version"], tag["branch"]) == ("silver", 1, None)
    assert tag["created_at"].endswith("+00:00")
    (tag,) = documents(capsys, "tags", "update", ds.uri, "silver", "--json")
    assert tag["version"] == 3
    assert documents(capsys, "tags", "delete", ds.uri, "silver", "--json") == [
        {"deleted": "silver"}
    ]
    (result,) = documents(capsys, "restore", ds.uri, "gold", "--json")
    assert result == {
        "version": 4,
        "restored_version": 1,
        "num_rows_before": 41,
        "num_rows": 40,
        "is_dry_run": False,
    }
    (result,) = documents(capsys, "migrate", ds.uri, "stable-row-ids", "--json")
    assert result == {"feature": "stable-row-ids", "version": 4, "is_changed": False}
    (result,) = documents(capsys, "consumers", "drop", ds.uri, "totals", "--json")
    assert result == {"dropped": "totals"}


def test_branches_are_created_written_and_deleted(
    ds: Dataset, capsys: pytest.CaptureFixture[str]
) -> None:
    """Deleting a branch deletes its rows, so tags block it and a person has to confirm."""
    (branch,) = documents(capsys, "branches", "create", ds.uri, "dev", "gold", "--json")
    assert (branch["name"], branch["parent"], branch["parent_version"]) == ("dev", None, 1)
    assert documents(capsys, "branches", "list", ds.uri, "--json") == [branch]
    lance_stream.open_dataset(ds.uri, ("dev", None)).delete("id > 4")
    at_branch = (ds.uri, "--branch", "dev")
    assert documents(capsys, "query", *at_branch, "--count", "--json") == [{"num_rows": 5}]
    assert documents(capsys, "query", ds.uri, "--count", "--json") == [{"num_rows": 41}]
    (tag,) = documents(capsys, "tags", "create", *at_branch, "silver", "--json")
    assert (tag["branch"], tag["version"]) == ("dev", 2)
    assert program.main(["branches", "delete", ds.uri, "dev"]) == 2  # the tag needs it
    assert "silver" in capsys.readouterr().err
    documents(capsys, "tags", "delete", ds.uri, "silver", "--json")
    screen = on_terminal("branches", "delete", ds.uri, "dev", answer="n\n")
    assert (screen.code, "with all rows" in screen.text) == (1, True)
    assert on_terminal("branches", "delete", ds.uri, "dev", answer="y\n").code == 0
    screen = on_terminal("branches", "delete", ds.uri, "dev")
    assert (screen.code, "[y/N]" in screen.text) == (3, False)
    assert documents(capsys, "branches", "list", ds.uri, "--json") == []


def test_clones_hold_their_version_by_tag(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A shallow clone reads files of the source, which cleanup must not delete."""
    ds = lance_stream.create_dataset(tmp_path / "t", WIDE).delete("id = 0")
    words = ("clone", ds.uri, str(tmp_path / "copy"), "--version", "1", "--json")
    (clone,) = documents(capsys, *words)
    assert (clone["source_version"], clone["version"]) == (1, 1)
    assert lance_stream.open_dataset(tmp_path / "copy").count_rows() == 40
    assert documents(capsys, "tags", "list", ds.uri, "--json") == []
    (tag,) = documents(capsys, "tags", "list", ds.uri, "--all", "--json")
    assert tag["version"] == 1
    assert program.main(list(words)) == 2  # there is a table already


@pytest.mark.oracle
def test_manifests_of_old_tables_are_renamed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Old names make opening slow, and the command that `show` recommends has to work."""
    lance = pytest.importorskip("lance")
    uri = str(tmp_path / "t")
    for number in range(120):
        rows = pa.table({"id": [number]})
        lance.write_dataset(rows, uri, mode="append", enable_v2_manifest_paths=False)
    (need,) = [
        row
        for row in documents(capsys, "show", uri, "--json")[0]["recommendations"]
        if row["name"] == "manifest names"
    ]
    words = need["command"].split()[1:]
    assert on_terminal(*words, answer="n\n").code == 1
    (result,) = documents(capsys, *words, "--json")
    assert result == {"feature": "manifest-names", "num_renamed": 120, "is_changed": True}
    assert "nothing to migrate" in on_terminal(*words, "--yes").text
    assert lance.dataset(uri).count_rows() == 120


# --- shells


@pytest.mark.floors
@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("lance-stream ver", ["verify"]),
        ("lance-stream cleanup --d", ["--dry-run", "--delete-unverified", "--debug"]),
        ("lance-stream tags ", ["list", "create", "update", "delete"]),
    ],
)
def test_bash_completes_commands_and_options(
    typed: str, offered: list[str], script: dict[str, str]
) -> None:
    """The script runs inside the user's shell, whose variables and quoting differ from a test of
    the function.
    """
    words = typed.split(" ")
    text = f"""
        eval "$(lance-stream completion bash)"
        complete -p lance-stream >/dev/null || exit 9
        COMP_WORDS=({" ".join(f"'{word}'" for word in words)}); COMP_CWORD={len(words) - 1}
        _lance_stream_completion lance-stream
        printf '%s\\n' "${{COMPREPLY[@]}}"
    """
    process = subprocess.run(
        ["bash", "--norc", "-c", text], capture_output=True, text=True, timeout=60, env=script
    )
    assert (process.returncode, process.stderr) == (0, "")
    assert sorted(process.stdout.split()) == sorted(offered)


TYPED = [
    ("lance-stream cleanu", "cleanup"),
    ("lance-stream cleanup --dry", "--dry-run"),
    ("lance-stream quarantine re", "replay"),
    ("lance-stream completion f", "fish"),
    ("lance-stream show ./some-f", "./some-folder/"),
]
"""What is typed, and the word that it becomes."""


@pytest.fixture
def script(tmp_path: Path) -> dict[str, str]:
    """An environment with the script in its path."""
    command = tmp_path / "lance-stream"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m lance_stream.cli "$@"\n')
    command.chmod(0o755)
    (tmp_path / "some-folder").mkdir()
    return {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "TERM": "dumb"}


@pytest.mark.skipif(shutil.which("fish") is None, reason="there is no fish")
def test_fish_completes_commands_and_options(script: dict[str, str], tmp_path: Path) -> None:
    """Each shell has its own protocol, so only the real one shows whether the script works."""
    commands = "; ".join(f"complete -C '{typed}'" for typed, _ in TYPED)
    process = subprocess.run(
        ["fish", "--no-config", "-c", f"lance-stream completion fish | source; {commands}"],
        capture_output=True,
        text=True,
        timeout=60,
        env=script,
        cwd=tmp_path,
    )
    assert (process.returncode, process.stderr) == (0, "")
    assert [line.split("\t")[0] for line in process.stdout.splitlines()] == [
        word for _, word in TYPED
    ]


@pytest.mark.skipif(shutil.which("zsh") is None, reason="there is no zsh")
def test_zsh_completes_in_a_terminal(script: dict[str, str], tmp_path: Path) -> None:
    """Keys are typed in a terminal, the only place where zsh completes."""
    settings = """
        autoload -Uz compinit; compinit -u -D
        eval "$(lance-stream completion zsh)"
        bindkey '^I' complete-word
        PROMPT='READY> '
    """
    (tmp_path / ".zshrc").write_text(settings)
    env = {**script, "ZDOTDIR": str(tmp_path)}
    with typing_in("zsh", "--no-globalrcs", "-i", env=env, cwd=tmp_path) as (type_in, wait_for):
        wait_for("READY> ")
        for typed, word in TYPED:
            type_in(f"{typed}\t")
            wait_for(f"{typed[: typed.rindex(' ')]} {word}")
            type_in("\x15")  # deletes the line


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_have_scripts(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Where zsh or fish is not installed, the script must at least be printed for it."""
    assert program.main(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert "_LANCE_STREAM_COMPLETE" in script
    assert f"{shell}_complete" in script


# --- what show advises


def recommended(ds: Dataset, days: float = 0) -> dict[str, str]:
    later = replace(MACHINE, now_nanos=lambda: MACHINE.now_nanos() + int(days * 86400e9))
    screen = on_terminal("show", ds.uri, "--json", environment=later)
    return {row["name"]: row["command"] for row in json.loads(screen.raw)["recommendations"]}


def grown(num_versions: int, **settings: Any) -> Dataset:
    table = lance_stream.create_dataset(
        f"memory://{uuid.uuid4()}/t", pa.schema([("id", pa.int64())]), **settings
    )
    for number in range(num_versions):
        table = table.append(pa.table({"id": [number, -number]}))
    return table


def test_fresh_tables_have_no_recommendations() -> None:
    """Advice for every table would soon be ignored."""
    table = grown(3)
    assert recommended(table) == {}
    assert "recommended" not in on_terminal("show", table.uri).text


def test_show_recommends_compaction_until_done() -> None:
    """The recommended command has to remove the recommendation, or the user would run it again and
    again.
    """
    table = grown(12)
    assert recommended(table) == {"compact": f"lance-stream compact {table.uri}"}
    assert "12 fragments could be 1" in on_terminal("show", table.uri).text
    assert program.main(["compact", table.uri]) == 0
    assert recommended(table) == {}
    large = grown(1).append(pa.table({"id": range(3000)}))
    assert recommended(large.delete("id > 2500")) == {}
    assert list(recommended(large.delete("id > 1500"))) == ["compact"]


def test_show_recommends_cleanup_until_done() -> None:
    """Versions that a tag or consumer holds do not count, since no cleanup would remove them."""
    table = grown(12).compact()
    assert recommended(table, days=13) == {}
    assert recommended(table, days=15) == {"cleanup": f"lance-stream cleanup {table.uri}"}
    record_progress(table.table.refs, "totals", 13)
    table.tags.create("gold", 12)
    assert "11 unreferenced versions are older" in _message(table, "cleanup", days=15)
    assert program.main(["cleanup", table.uri, "--retain-versions", "1"]) == 0
    assert "cleanup" not in recommended(table, days=15)


def _message(ds: Dataset, name: str, days: float) -> str:
    later = replace(MACHINE, now_nanos=lambda: MACHINE.now_nanos() + int(days * 86400e9))
    screen = on_terminal("show", ds.uri, "--json", environment=later)
    return str(
        next(
            row["message"]
            for row in json.loads(screen.raw)["recommendations"]
            if row["name"] == name
        )
    )


def test_show_mentions_stalled_consumers() -> None:
    """A forgotten consumer holds back cleanup for good."""
    table = grown(3)
    record_progress(table.table.refs, "totals", 4)
    record_progress(table.table.refs, "late", 2)
    assert recommended(table) == {}
    assert recommended(table, days=8) == {
        "consumers": f"lance-stream consumers drop {table.uri} late"
    }
    assert "2 versions behind, and has made no progress for 8 days" in _message(
        table, "consumers", 8
    )


def test_show_recommends_updating_indices(tmp_path: Path) -> None:
    """Rows without an index are scanned by every search, unnoticed until searches are slow."""
    uri = str(tmp_path / "t")
    lance_stream.create_dataset(uri, pa.table({"id": range(9000), "n": range(9000)}))
    for column in ("id", "n"):
        lance.dataset(uri).create_scalar_index(column, "BTREE")
    table = lance_stream.open_dataset(uri).append(pa.table({"id": range(999), "n": range(999)}))
    assert recommended(table) == {}
    table = table.append(pa.table({"id": [1], "n": [1]}))
    assert recommended(table) == {"indices": f"lance-stream indices optimize {uri}"}
    message = (
        "the index id_idx lacks 1000 rows, which every search scans (2 indices are out of date)"
    )
    assert _message(table, "indices", 0) == message
    assert program.main(recommended(table)["indices"].split()[1:]) == 0
    assert recommended(table) == {}


def test_show_recommends_migrations() -> None:
    """Tables of other writers lack stable row ids, without which there is no change feed."""
    table = grown(1, stable_row_ids=False, file_version="2.0")
    commands = recommended(table)
    assert commands["stable row ids"] == f"lance-stream migrate {table.uri} stable-row-ids"
    assert commands["file version"] is None
    words = commands["stable row ids"].split()
    assert program.main(words[1:]) == 0
    assert list(recommended(table)) == ["file version"]


def test_show_recommends_lineage_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Row ids in the manifest are written again by each commit, and two commands in turn move them
    out.
    """
    monkeypatch.setattr(maintenance_advice, "LARGE_LINEAGE", 1000)
    monkeypatch.setattr(lineage_limits, "DEFAULT_INLINE_BYTES", 500)
    table = grown(1)
    assert recommended(table) == {}
    table = table.append(pa.table({"id": range(1000, 3000)}))
    table = table.update({"id": "id"}, where="id % 7 = 0 OR id % 11 = 3")
    table = table.update({"id": "id"}, where="id % 5 = 0 OR id % 13 = 3").compact()
    assert "1.1 kB of row ids" in _message(table, "lineage", 0)
    migration = recommended(table)["lineage"].split()
    assert migration == ["lance-stream", "migrate", table.uri, "lineage-files"]
    assert program.main(migration[1:]) == 0
    assert "nothing to migrate" in on_terminal(*migration[1:]).text
    compaction = recommended(table)["lineage"].split()
    assert compaction == ["lance-stream", "compact", table.uri]
    assert program.main(compaction[1:]) == 0
    assert recommended(table) == {}
    assert lance_stream.open_dataset(table.uri).table.manifest.fragments.has_hidden_lineage


def test_old_files_refuse_lineage_migration(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Data files of this version have no place for a lineage column, and the table must stay as it
    was.
    """
    old = lance_stream.create_dataset(tmp_path / "old", pa.table({"id": [1]}), file_version="0.1")
    assert program.main(["migrate", old.uri, "lineage-files"]) != 0
    assert "data files of version" in capsys.readouterr().err
    assert lance_stream.open_dataset(old.uri).version == 1


def test_show_mentions_large_ledgers() -> None:
    """Entries of streams that no longer run are copied into every manifest."""
    table = grown(1)
    entry = json.dumps({"batch": 1, "query": "q" * 1000, "version": 1})
    table = table.update_config(
        {f"lance_stream.ledger.app{number}": entry for number in range(300)}
    )
    message = _message(table, "ledger", 0)
    assert "300 streams" in message
    command = shlex.split(message.partition(": lance-stream ")[2].replace("APP_ID", "app7"))
    assert program.main(command) == 0
    assert "299 streams" in _message(table, "ledger", 0)
