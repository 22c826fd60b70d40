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


def directives_of(job):
    """What a job of Slurm asks for."""
    return {line.removeprefix("#SBATCH ") for line in job.read_text().splitlines() if line.startswith("#SBATCH ")}


def failure_rules(job):
    """What a Job does after which exit codes of its container, or conditions of its pod."""
    _, container = pod_of(job)
    found = []
    for rule in job["spec"]["podFailurePolicy"]["rules"]:
        codes = rule.get("onExitCodes", {"containerName": container["name"], "operator": "In"})
        assert (codes["containerName"], codes["operator"]) == (container["name"], "In")
        conditions = [each["type"] for each in rule.get("onPodConditions", [])]
        found.append((rule["action"], codes.get("values", conditions)))
    return found
