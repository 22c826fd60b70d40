"""Debian's docker-compose accepts the compose file."""

import pytest
import yaml

from tests.deploy.service_files import SERVICE, read_yaml
from tests.deploy.tools import needs
from tests.make import ran

pytestmark = [pytest.mark.deploy, pytest.mark.slow, needs("docker-compose")]


def check(document, folder):
    (folder / "compose.yaml").write_text(yaml.safe_dump(document))
    command = ["docker-compose", "--file", folder / "compose.yaml", "config", "--quiet"]
    return ran(*command, cwd=folder)


def test_compose_adds_the_volume_of_corrections(tmp_path):
    folder = tmp_path / "service"
    folder.mkdir()
    files = ("compose.yaml", "compose.corrections.yaml")
    for name in files:
        document = read_yaml(SERVICE / name)
        document.pop("name", None)  # newer than Debian's version
        (folder / name).write_text(yaml.safe_dump(document))
    command = ["docker-compose", *(f"--file={folder / name}" for name in files), "config"]
    shown = ran(*command, cwd=folder, check=True).stdout
    service = yaml.safe_load(shown)["services"]["service"]
    assert {"BOTANIFY_METRICS", "BOTANIFY_CORRECTIONS"} <= {*service["environment"]}
    assert "/corrections" in str(service["volumes"])


def test_compose_accepts_the_file_and_refuses_a_misspelled_field(tmp_path):
    document = read_yaml(SERVICE / "compose.yaml")
    del document["name"]  # newer than Debian's version
    checked = check(document, tmp_path)
    assert checked.returncode == 0, checked.stderr
    document["services"]["service"]["stop_grace_periode"] = "30s"
    assert "stop_grace_periode" in check(document, tmp_path).stderr
