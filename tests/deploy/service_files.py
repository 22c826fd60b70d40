"""The files in deploy/service, as tests read them."""

import json
import re

import yaml

from tests.make import ROOT

SERVICE = ROOT / "deploy" / "service"
KUBERNETES = SERVICE / "kubernetes"
PROMETHEUS = SERVICE / "prometheus"
DASHBOARD = SERVICE / "grafana" / "dashboards" / "botanify.json"
NGINX = SERVICE / "nginx.conf"


def read_yaml(path):
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def manifests():
    """Every document of the Kubernetes folder, by its path in it."""
    return {path.relative_to(KUBERNETES): read_yaml(path) for path in sorted(KUBERNETES.rglob("*.yaml"))}


def pod_of(document):
    """The pod of a Deployment or a Job, and its only container."""
    pod = document["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    return pod, container


def alert_rules():
    return [rule for group in read_yaml(PROMETHEUS / "alerts.yml")["groups"] for rule in group["rules"]]


def panels():
    return json.loads(DASHBOARD.read_text(encoding="utf-8"))["panels"]


def alert_queries():
    return [rule["expr"] for rule in alert_rules()]


def panel_queries():
    return [target["expr"] for panel in panels() for target in panel["targets"]]


def seconds(pattern):
    """A time that nginx's file gives, such as 15s."""
    return int(re.search(rf"{pattern} (\d+)s;", NGINX.read_text(encoding="utf-8"))[1])
