"""The files for operators, as tests read them."""

import yaml

from tests.make import ROOT

SERVICE = ROOT / "deploy" / "service"
KUBERNETES = SERVICE / "kubernetes"


def read_yaml(path):
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def pod_of(document):
    """The pod of a Deployment or a Job, and its only container."""
    pod = document["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    return pod, container
