"""Debian's docker-compose accepts the compose file."""

import subprocess

import pytest
import yaml

from tests.deploy.service_files import SERVICE, read_yaml
from tests.deploy.tools import needs

pytestmark = [pytest.mark.deploy, pytest.mark.slow, needs("docker-compose")]


def check(document, folder):
    (folder / "compose.yaml").write_text(yaml.safe_dump(document))
    command = ["docker-compose", "--file", folder / "compose.yaml", "config", "--quiet"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def test_compose_accepts_the_file_and_refuses_a_misspelled_field(tmp_path):
    document = read_yaml(SERVICE / "compose.yaml")
    del document["name"]  # newer than Debian's version
    checked = check(document, tmp_path)
    assert checked.returncode == 0, checked.stderr
    document["services"]["service"]["stop_grace_periode"] = "30s"
    assert "stop_grace_periode" in check(document, tmp_path).stderr
