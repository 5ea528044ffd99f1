"""The files for Docker name what is there: there is no engine to start them in the tests."""

import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from examples.pipeline.settings import PREFIX, Settings
from examples.pipeline.spark_jars import JARS

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "examples" / "pipeline"
COMPOSE = yaml.safe_load((FOLDER / "compose.yaml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
OURS = {name: service for name, service in SERVICES.items() if "build" in service}
DOCKERFILE = (FOLDER / "Dockerfile").read_text()


def test_all_parts_are_services() -> None:
    """A part of the supervisor that is missing here would not run in Docker."""
    assert OURS.keys() == {"connector", "sink", "derive", "watch", "page", "load"}
    assert SERVICES.keys() - OURS.keys() == {"postgresql", "kafka", "connect"}
    assert all(service["restart"] == "always" for service in SERVICES.values())


@pytest.mark.parametrize("name", sorted(OURS))
def test_services_run_modules_with_known_settings(name: str) -> None:
    """A renamed module or setting would show only when somebody starts the containers."""
    flag, module = OURS[name]["command"]
    assert flag == "-m"
    assert importlib.util.find_spec(module) is not None
    settings = {PREFIX + text.upper() for text in Settings.__dataclass_fields__}
    assert OURS[name]["environment"].keys() <= settings
    assert all(isinstance(value, str) for value in OURS[name]["environment"].values())


def test_services_are_reached_by_their_names() -> None:
    """Within Docker's network host names are those of services, and the page must listen on this
    machine only.
    """
    settings = OURS["sink"]["environment"]
    hosts = re.findall(r"(?:@|//|^)(\w+):(\d+)", "\n".join(settings.values()), re.MULTILINE)
    assert {("postgresql", "5432"), ("kafka", "9092"), ("connect", "8083")} == set(hosts)
    assert {host for host, _ in hosts} <= SERVICES.keys()
    page = OURS["page"]
    assert page["ports"] == [f"127.0.0.1:8050:{page['environment']['PIPELINE_PAGE_PORT']}"]


def test_dependencies_and_volumes_exist() -> None:
    """Compose refuses unknown names, and waits for ever on a health check that nobody defines."""
    for service in SERVICES.values():
        assert service.get("depends_on", {}).keys() <= SERVICES.keys()
        for volume in service.get("volumes", []):
            assert volume.partition(":")[0] in COMPOSE["volumes"]
        for other, how in service.get("depends_on", {}).items():
            assert how["condition"] != "service_healthy" or "healthcheck" in SERVICES[other]


def test_copied_files_are_not_ignored() -> None:
    """The ignore file lists what is allowed, so a new COPY needs a line there."""
    ignored = (FOLDER / "Dockerfile.dockerignore").read_text().splitlines()
    allowed = [line[1:] for line in ignored if line.startswith("!")]
    copied = [
        source.rstrip("/")
        for line in re.findall(r"^COPY (?!--from)(.*)$", DOCKERFILE, re.MULTILINE)
        for source in line.split()[:-1]
    ]
    assert len(copied) >= 7
    for source in copied:
        assert (ROOT / source).exists(), source
        assert any(source == number or source.startswith(f"{number}/") for number in allowed), (
            source
        )


def test_images_use_the_tested_versions() -> None:
    """Docker must run the versions that the tests run."""
    makefile = (ROOT / "Makefile").read_text()
    (spark,) = re.findall(r"\[pipeline\]' '(pyspark==[\d.]+)'", makefile)
    assert f"'.[pipeline]' '{spark}'" in DOCKERFILE
    for pom, image in {"kafka": "apache/kafka", "debezium": "quay.io/debezium/connect"}.items():
        text = (ROOT / "tests/servers/kafka/pom.xml").read_text()
        version = SERVICES["kafka" if pom == "kafka" else "connect"]["image"].split(":")[1]
        assert SERVICES["kafka" if pom == "kafka" else "connect"]["image"].startswith(image)
        assert f"<version>{version}</version>" in text
    assert f"{JARS}=/jars" in DOCKERFILE
