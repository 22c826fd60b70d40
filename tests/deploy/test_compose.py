"""Debian's docker-compose accepts the compose file."""

import pytest
import yaml

from tests.deploy.service_files import SERVICE, read_yaml
from tests.deploy.tools import needs
from tests.make import ran

pytestmark = [pytest.mark.deploy, pytest.mark.slow, needs("docker-compose")]


def config_of(folder, **documents):
    """What docker-compose says to these files."""
    command = ["docker-compose"]
    for name, document in documents.items():
        document.pop("name", None)  # newer than Debian's version
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(document))
        command.append(f"--file={folder / name}.yaml")
    return ran(*command, "config", cwd=folder)


@pytest.fixture
def compose():
    return read_yaml(SERVICE / "compose.yaml")


def test_compose_adds_the_volume_of_corrections(compose, tmp_path):
    shown = config_of(tmp_path, compose=compose, corrections=read_yaml(SERVICE / "compose.corrections.yaml"))
    service = yaml.safe_load(shown.stdout)["services"]["service"]
    assert {"BOTANIFY_METRICS", "BOTANIFY_CORRECTIONS"} <= {*service["environment"]}
    assert "/corrections" in str(service["volumes"])


def test_compose_accepts_the_file_and_refuses_a_misspelled_field(compose, tmp_path):
    accepted = config_of(tmp_path, compose=compose)
    assert accepted.returncode == 0, accepted.stderr
    compose["services"]["service"]["stop_grace_periode"] = "30s"
    assert "stop_grace_periode" in config_of(tmp_path, compose=compose).stderr
