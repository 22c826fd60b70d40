"""The files in deploy/service agree with the service, its settings and each other; checked without any tool."""

import json
import re
import tomllib
from pathlib import Path

import pytest
import yaml

from serving.metrics import Metrics
from serving.settings import Settings, load_settings
from tests.deploy.service_files import (
    KUBERNETES,
    NGINX,
    PROMETHEUS,
    ROOT,
    SERVICE,
    alert_queries,
    alert_rules,
    manifests,
    panel_queries,
    pod_of,
    read_yaml,
    seconds,
)

DEFAULTS = Settings()
COMPOSE, CORRECTIONS = (read_yaml(SERVICE / name) for name in ("compose.yaml", "compose.corrections.yaml"))
BASE = {document["kind"]: document for path, document in manifests().items() if path.parts[0] == "base"}
LABELS = BASE["Deployment"]["spec"]["template"]["metadata"]["labels"]
POD, CONTAINER = pod_of(BASE["Deployment"])
MEASURED = json.loads((ROOT / "benchmarks/results/amd-epyc-2-cores/serving_memory.json").read_text())["flood"]
DOCKERFILE = (ROOT / "Dockerfile").read_text()
USER = re.search(r"useradd --uid (\d+)", DOCKERFILE)[1]
STOP_MARGIN_S = 2  # for the process to end


# ---- metrics


@pytest.fixture(scope="module")
def scrape():
    metrics = Metrics()
    facts = ("name", "version", "label_hash", "precision", "provider", "scheduling")
    metrics.model.info(dict.fromkeys(facts, "x"))
    return metrics.text().decode()


def exported(scrape):
    """The names that a query may use."""
    names = set()
    for name, kind in re.findall(r"^# TYPE (\S+) (\S+)$", scrape, re.MULTILINE):
        names |= {name + suffix for suffix in ("_bucket", "_sum", "_count")} if kind == "histogram" else {name}
    return names


@pytest.mark.parametrize("query", [*alert_queries(), *panel_queries()])
def test_queries_name_only_metrics_that_the_service_exports(query, scrape):
    named = set(re.findall(r"\b(?:botanify|process)_\w+", query))
    assert named <= exported(scrape), named - exported(scrape)
    assert named or "up{" in query or "ALERTS{" in query


@pytest.mark.parametrize("query", alert_queries())
def test_counters_of_alerts_start_at_zero(query, scrape):
    """`increase` does not see the first value of a counter, so a counter must be there before the first failure."""
    for name, label in re.findall(r"(botanify_\w+_total)\{(\w+=\"\w+\")\}", query):
        assert f"{name}{{{label}}} 0.0" in scrape
    for name in re.findall(r"increase\((botanify_\w+)\[", query):
        assert re.search(rf"^{name}{{.*}} 0\.0$", scrape, re.MULTILINE)


def test_every_alert_has_a_test():
    tested = {
        case["alertname"]
        for test in read_yaml(PROMETHEUS / "alerts_test.yml")["tests"]
        for case in test["alert_rule_test"]
        if case.get("exp_alerts")
    }
    assert tested == {rule["alert"] for rule in alert_rules()}


# ---- compose


def test_only_this_machine_reaches_what_compose_starts_until_the_operator_says_otherwise():
    ports = [port for service in COMPOSE["services"].values() for port in service.get("ports", [])]
    assert all(port.replace("${PUBLISH:-127.0.0.1}", "127.0.0.1").startswith("127.0.0.1:") for port in ports)
    keys = COMPOSE["services"]["service"]["environment"]["BOTANIFY_API_KEYS"]
    assert keys == "${BOTANIFY_API_KEYS:-}"
    assert load_settings([], {"BOTANIFY_API_KEYS": ""}).api_keys == ""  # what Compose gives if the variable is not set


def test_prometheus_scrapes_the_metrics_port_of_the_service():
    config = read_yaml(PROMETHEUS / "prometheus.yml")
    (job,) = config["scrape_configs"]
    port = COMPOSE["services"]["service"]["environment"]["BOTANIFY_METRICS"]
    assert job["static_configs"] == [{"targets": [f"service:{port}"]}]
    assert not any(published.endswith(port) for published in COMPOSE["services"]["service"]["ports"])
    assert all((PROMETHEUS / name).is_file() for name in config["rule_files"])
    assert all(
        f'job="{job["job_name"]}"' in query for query in alert_queries() if re.search(r"\b(up|process_\w+)", query)
    )


def test_compose_keeps_corrections_in_a_volume_that_the_user_of_the_image_may_write_to():
    service = CORRECTIONS["services"]["service"]
    (mount,) = service["volumes"]
    volume, folder = mount.split(":")
    assert volume in CORRECTIONS["volumes"]
    assert load_settings([], service["environment"]).corrections == Path(folder)
    assert f"install --directory --owner {USER} --group {USER} {folder}\n" in DOCKERFILE


# ---- nginx


def test_limits_of_nginx_fit_those_of_the_service():
    text = NGINX.read_text()
    assert int(re.search(r"client_max_body_size (\d+)m;", text)[1]) * 2**20 >= DEFAULTS.max_request_bytes
    assert seconds("proxy_read_timeout") > DEFAULTS.deadline_s
    assert DEFAULTS.keep_alive_s > 60  # nginx's own default for idle connections to a server


def test_a_client_stays_with_a_replica_and_only_a_correction_is_sent_on_after_404():
    text = NGINX.read_text()
    assert "hash $binary_remote_addr consistent;\n" in text
    location = text.partition("location ~ ")[2].partition("}")[0]
    assert re.match(location.split()[0], "/identify/5f2c/correction")
    assert text.count("http_404") == location.count("http_404") == 1  # a 404 of /v2 is an answer that took its time
    assert read_yaml(KUBERNETES / "components/corrections/service.yaml")["spec"] == {"sessionAffinity": "ClientIP"}


# ---- Kubernetes


def test_pods_have_time_to_stop():
    assert POD["terminationGracePeriodSeconds"] >= DEFAULTS.shutdown_s + STOP_MARGIN_S
    probe = CONTAINER["readinessProbe"]
    assert probe["periodSeconds"] * probe["failureThreshold"] < DEFAULTS.drain_s


def test_probes_ask_the_routes_for_health():
    paths = {name: CONTAINER[f"{name}Probe"]["httpGet"]["path"] for name in ("startup", "readiness", "liveness")}
    assert paths == {"startup": "/health/ready", "readiness": "/health/ready", "liveness": "/health/live"}


def test_ports_are_those_that_the_service_opens():
    ports = {port["name"]: port["containerPort"] for port in CONTAINER["ports"]}
    environment = {variable["name"]: variable["value"] for variable in CONTAINER["env"]}
    assert ports["metrics"] == int(environment["BOTANIFY_METRICS"])
    assert ports["http"] == DEFAULTS.port
    named = [port["port"] for rule in BASE["NetworkPolicy"]["spec"]["ingress"] for port in rule["ports"]]
    named += [port["targetPort"] for port in BASE["Service"]["spec"]["ports"]]
    assert set(named) == set(ports)


def test_environment_variables_are_settings_of_the_service():
    documents = [yaml.safe_dump(document) for document in [*manifests().values(), COMPOSE, CORRECTIONS]]
    variables = re.findall(r"\bBOTANIFY_(\w+)", "\n".join([*documents, DOCKERFILE]))
    assert {name.lower() for name in variables} <= set(Settings.__struct_fields__)


def test_pods_run_as_the_user_of_the_image_without_privileges():
    assert POD["securityContext"]["runAsUser"] == int(USER)
    for document in manifests().values():
        pod = document.get("spec", {}).get("template", {}).get("spec", {})
        for container in [*pod.get("initContainers", []), *pod.get("containers", [])]:
            security = container.get("securityContext", CONTAINER["securityContext"])
            assert security["readOnlyRootFilesystem"]
            assert not security["allowPrivilegeEscalation"]
            assert security["capabilities"] == {"drop": ["ALL"]}


def test_limits_of_the_ingress_are_those_of_nginx():
    notes = read_yaml(KUBERNETES / "components/ingress/ingress.yaml")["metadata"]["annotations"]
    limits = {name.partition("/")[2]: value for name, value in notes.items()}
    text = NGINX.read_text()
    assert f"client_max_body_size {limits['proxy-body-size']};" in text
    assert int(limits["proxy-read-timeout"]) == seconds("proxy_read_timeout")
    assert f"hash {limits['upstream-hash-by']} consistent;" in text  # so that corrections arrive


def overlay(name, file):
    return read_yaml(KUBERNETES / "overlays" / name / file)


def test_memory_is_what_was_measured():
    _, container = pod_of(overlay("cpu", "resources.yaml"))
    requested, limit = (container["resources"][which]["memory"] for which in ("requests", "limits"))
    most_mb = MEASURED["high_water_mb"]
    assert num_bytes(requested) >= most_mb * 1e6
    # In addition: very large pictures, uploads, and the second network of a reload.
    assert num_bytes(limit) >= most_mb * 1e6 + DEFAULTS.decode_budget_bytes + DEFAULTS.max_held_bytes


def num_bytes(text):
    return int(text.removesuffix("Gi")) * 2**30


@pytest.mark.parametrize("name", ["cpu", "gpu"])
def test_overlay_names_the_version_and_its_autoscaler_the_deployment(name):
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    (image,) = overlay(name, "kustomization.yaml")["images"]
    assert image["name"] == CONTAINER["image"]
    assert image["newTag"] == {"cpu": version, "gpu": f"{version}-gpu"}[name]
    autoscaler = overlay(name, "autoscaler.yaml")["spec"]
    assert autoscaler["scaleTargetRef"]["name"] == BASE["Deployment"]["metadata"]["name"]
    assert autoscaler["minReplicas"] >= 2
    assert "replicas" not in BASE["Deployment"]["spec"]


def test_autoscaler_of_the_gpu_follows_a_metric_of_the_service(scrape):
    (metric,) = overlay("gpu", "autoscaler.yaml")["spec"]["metrics"]
    assert metric["pods"]["metric"]["name"] in exported(scrape)


# ---- images


def test_images_copy_existing_paths_that_the_build_context_has():
    lines = DOCKERFILE.splitlines()
    copied = {path for line in lines if line.startswith("COPY") and "--from" not in line for path in line.split()[1:-1]}
    assert {"models/", "serving/", "training/", "deploy/torchrun.sh"} <= copied
    assert all((ROOT / path).exists() for path in copied)
    allowed = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    assert allowed == {path.removesuffix("/") for path in copied}


def test_default_image_is_that_for_a_cpu_and_every_target_exists():
    stages = re.findall(r"^FROM \S+ AS (\S+)$", DOCKERFILE, re.MULTILINE)
    assert stages[-1] == "cpu" == COMPOSE["services"]["service"]["build"]["target"]
    assert {"gpu", "folders", "train"} <= set(stages)
