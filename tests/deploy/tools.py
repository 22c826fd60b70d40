"""Tools for operators, and how to install those that are missing."""

import shutil

import pytest

_INSTALL = {
    "promtool": "apt install prometheus",
    "prometheus": "apt install prometheus",
    "nginx": "apt install nginx-light",
    "kubectl": "https://kubernetes.io/docs/tasks/tools",
    "docker-compose": "apt install docker-compose",
}


def needs(tool):
    """Skips a test on a machine without the tool."""
    return pytest.mark.skipif(shutil.which(tool) is None, reason=f"needs {tool}: {_INSTALL[tool]}")
