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


def schemas():
    """The package with Kubernetes' own schemas; skips a test where it is not installed."""
    reason = "needs kubernetes-validate: python -m uv pip install kubernetes-validate"
    return pytest.importorskip("kubernetes_validate", reason=reason)


def needs(tool):
    """Skips a test on a machine without the tool."""
    return pytest.mark.skipif(shutil.which(tool) is None, reason=f"needs {tool}: {_INSTALL[tool]}")
