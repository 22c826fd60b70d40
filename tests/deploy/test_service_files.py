"""The files in deploy/service agree with the service, its settings and each other: what no tool of operators knows."""

import json
import re
import tomllib
from pathlib import Path

import pytest
import yaml

from serving.metrics import Metrics
from serving.settings import Settings, load_settings
from tests.deploy.service_files import KUBERNETES, SERVICE, pod_of, read_yaml
from tests.make import ROOT, ran

DEFAULTS = Settings()
COMPOSE, CORRECTIONS, HTTPS = (read_yaml(SERVICE / f"compose{kind}.yaml") for kind in ("", ".corrections", ".https"))
MANIFESTS = {path.relative_to(KUBERNETES).as_posix(): read_yaml(path) for path in KUBERNETES.rglob("*.yaml")}
BASE = {document["kind"]: document for path, document in MANIFESTS.items() if path.startswith("base")}
POD, CONTAINER = pod_of(BASE["Deployment"])
RULES = [rule for group in read_yaml(SERVICE / "prometheus/alerts.yml")["groups"] for rule in group["rules"]]
ALERTS = [rule["expr"] for rule in RULES]
PANELS = json.loads((SERVICE / "grafana/dashboards/botanify.json").read_text(encoding="utf-8"))["panels"]
NGINX = (SERVICE / "nginx.conf").read_text()
READ_TIMEOUT_S = int(re.search(r"proxy_read_timeout (\d+)s;", NGINX)[1])
DOCKERFILE = (ROOT / "Dockerfile").read_text()
USER = re.search(r"useradd --uid (\d+)", DOCKERFILE)[1]


@pytest.fixture(scope="module")
def scrape():
    metrics = Metrics()
    metrics.model.info(dict.fromkeys(("name", "version", "label_hash", "precision", "provider", "scheduling"), "x"))
    return metrics.text().decode()


def exported(scrape):
    """The names that a query may use."""
    names = set()
    for name, kind in re.findall(r"^# TYPE (\S+) (\S+)$", scrape, re.MULTILINE):
        names |= {name + suffix for suffix in ("_bucket", "_sum", "_count")} if kind == "histogram" else {name}
    return names


@pytest.mark.parametrize("query", [*ALERTS, *(target["expr"] for panel in PANELS for target in panel["targets"])])
def test_queries_name_only_metrics_that_the_service_exports(query, scrape):
    named = set(re.findall(r"\b(?:botanify|process)_\w+", query))
    assert named <= exported(scrape), named - exported(scrape)
    assert named or "up{" in query or "ALERTS{" in query


def test_counters_of_alerts_start_at_zero(scrape):
    """`increase` does not see the first value of a counter, so a counter must be there before the first failure."""
    for name, label in re.findall(r"(botanify_\w+_total)\{(\w+=\"\w+\")\}", "\n".join(ALERTS)):
        assert f"{name}{{{label}}} 0.0" in scrape
    for name in re.findall(r"increase\((botanify_\w+)\[", "\n".join(ALERTS)):
        assert re.search(rf"^{name}{{.*}} 0\.0$", scrape, re.MULTILINE)


def test_every_alert_has_a_test():
    cases = [
        case for test in read_yaml(SERVICE / "prometheus/alerts_test.yml")["tests"] for case in test["alert_rule_test"]
    ]
    assert {case["alertname"] for case in cases if case.get("exp_alerts")} == {rule["alert"] for rule in RULES}


def test_only_this_machine_reaches_what_compose_starts_until_the_operator_says_otherwise():
    ports = [port for service in COMPOSE["services"].values() for port in service.get("ports", [])]
    assert all(port.replace("${PUBLISH:-127.0.0.1}", "127.0.0.1").startswith("127.0.0.1:") for port in ports)
    service = COMPOSE["services"]["service"]
    assert (service["cap_drop"], service["security_opt"]) == (["ALL"], ["no-new-privileges:true"])
    assert service["read_only"]
    environment = service["environment"]
    assert environment["BOTANIFY_API_KEYS"] == "${BOTANIFY_API_KEYS:-}"
    assert load_settings([], {"BOTANIFY_API_KEYS": ""}).api_keys == ""  # what Compose gives if the variable is not set
    (job,) = read_yaml(SERVICE / "prometheus/prometheus.yml")["scrape_configs"]
    assert job["static_configs"] == [{"targets": [f"service:{environment['BOTANIFY_METRICS']}"]}]
    assert not any(published.endswith(environment["BOTANIFY_METRICS"]) for published in ports)
    assert all(f'job="{job["job_name"]}"' in query for query in ALERTS if re.search(r"\b(up|process_\w+)", query))


def test_compose_keeps_corrections_in_a_volume_that_the_user_of_the_image_may_write_to():
    service = CORRECTIONS["services"]["service"]
    (mount,) = service["volumes"]
    volume, folder = mount.split(":")
    assert volume in CORRECTIONS["volumes"]
    assert str(load_settings([], service["environment"]).corrections) == folder
    assert f"install --directory --owner {USER} --group {USER} {folder}\n" in DOCKERFILE


def test_the_service_believes_caddy_alone_and_caddy_sends_to_the_port_of_the_service():
    service, caddy = HTTPS["services"].values()
    assert service["networks"] == ["default", *caddy["networks"]]
    assert load_settings([], service["environment"]).trusted_proxies == (caddy["networks"]["https"]["ipv4_address"],)
    assert caddy["command"].endswith(f" --to service:{DEFAULTS.port}")


def test_limits_of_nginx_and_the_ingress_fit_those_of_the_service():
    largest_mb = int(re.search(r"client_max_body_size (\d+)m;", NGINX)[1])
    assert largest_mb * 2**20 >= DEFAULTS.max_request_bytes
    assert DEFAULTS.deadline_s < READ_TIMEOUT_S
    assert DEFAULTS.keep_alive_s > 60  # nginx's own default for idle connections to a server
    notes = MANIFESTS["components/ingress/ingress.yaml"]["metadata"]["annotations"]
    limits = {name.partition("/")[2]: value for name, value in notes.items()}
    assert (limits["proxy-body-size"], int(limits["proxy-read-timeout"])) == (f"{largest_mb}m", READ_TIMEOUT_S)
    assert f"hash {limits['upstream-hash-by']} consistent;\n" in NGINX  # so that corrections arrive


def test_only_a_correction_is_sent_on_after_404():
    location = NGINX.partition("location ~ ")[2].partition("}")[0]
    assert re.match(location.split()[0], "/identify/5f2c/correction")
    assert NGINX.count("http_404") == location.count("http_404") == 1  # a 404 of /v2 is an answer that took its time
    assert MANIFESTS["components/corrections/service.yaml"]["spec"] == {"sessionAffinity": "ClientIP"}


def test_pods_have_time_to_stop_and_probes_ask_the_routes_for_health():
    assert POD["terminationGracePeriodSeconds"] >= DEFAULTS.shutdown_s + 2  # for the process to end
    assert COMPOSE["services"]["service"]["stop_grace_period"] == f"{POD['terminationGracePeriodSeconds']}s"
    assert BASE["Deployment"]["spec"]["strategy"]["rollingUpdate"] == {"maxUnavailable": 0, "maxSurge": 1}
    start = CONTAINER["startupProbe"]
    assert start["periodSeconds"] * start["failureThreshold"] > 300  # of which the service may need all for a first run
    probe = CONTAINER["readinessProbe"]
    assert probe["periodSeconds"] * probe["failureThreshold"] < DEFAULTS.drain_s
    paths = {name: CONTAINER[f"{name}Probe"]["httpGet"]["path"] for name in ("startup", "readiness", "liveness")}
    assert paths == {"startup": "/health/ready", "readiness": "/health/ready", "liveness": "/health/live"}


def test_all_of_the_base_selects_the_pods_of_the_deployment():
    labels = BASE["Deployment"]["spec"]["template"]["metadata"]["labels"]
    specs = {kind: document.get("spec", {}) for kind, document in BASE.items()}
    matched = [specs[kind]["selector"]["matchLabels"] for kind in ("Deployment", "PodDisruptionBudget")]
    matched += [specs["NetworkPolicy"]["podSelector"]["matchLabels"], specs["Service"]["selector"]]
    assert matched == [labels] * 4


@pytest.mark.parametrize("name", ["bundle-image", "bundle-volume", "corrections", "ingress"])
def test_a_component_mounts_what_it_claims_where_the_settings_look(name):
    pod, container = pod_of(MANIFESTS[f"components/{name}/deployment.yaml"])
    claim = MANIFESTS.get(f"components/{name}/claim.yaml", {"metadata": {}})["metadata"].get("name")
    (volume,) = pod["volumes"]
    (mount,) = container["volumeMounts"]
    assert volume["name"] == mount["name"]
    assert volume.get("persistentVolumeClaim", {}).get("claimName") == claim
    paths = [Path(each["value"]) for each in container["env"] if each.get("value", "").startswith("/")]
    assert [path.is_relative_to(mount["mountPath"]) for path in paths] == [True]


def test_the_dashboard_asks_the_source_that_grafana_has():
    (source,) = read_yaml(SERVICE / "grafana/provisioning/datasources/prometheus.yaml")["datasources"]
    assert {panel["datasource"]["uid"] for panel in PANELS} == {source["uid"]}


def test_no_image_runs_as_root():
    stages = re.split(r"^FROM ", DOCKERFILE, flags=re.MULTILINE)
    programs = [stage for stage in stages if re.search(r"^(CMD|ENTRYPOINT) ", stage, re.MULTILINE)]
    assert [f"\nUSER {USER}:{USER}\n" in stage for stage in programs] == [True] * 3


def test_ports_are_those_that_the_service_opens():
    ports = {port["name"]: port["containerPort"] for port in CONTAINER["ports"]}
    environment = {variable["name"]: variable["value"] for variable in CONTAINER["env"]}
    assert ports == {"http": DEFAULTS.port, "metrics": int(environment["BOTANIFY_METRICS"])}
    named = [port["port"] for rule in BASE["NetworkPolicy"]["spec"]["ingress"] for port in rule["ports"]]
    named += [port["targetPort"] for port in BASE["Service"]["spec"]["ports"]]
    assert set(named) == set(ports)


def test_environment_variables_are_settings_of_the_service():
    text = "\n".join([yaml.safe_dump([*MANIFESTS.values(), COMPOSE, CORRECTIONS, HTTPS]), DOCKERFILE])
    assert {name.lower() for name in re.findall(r"\bBOTANIFY_(\w+)", text)} <= set(Settings.__struct_fields__)


def test_pods_run_as_the_user_of_the_image_without_privileges():
    assert POD["securityContext"]["runAsUser"] == int(USER)
    pods = [document.get("spec", {}).get("template", {}).get("spec", {}) for document in MANIFESTS.values()]
    for container in (each for pod in pods for each in [*pod.get("initContainers", []), *pod.get("containers", [])]):
        security = container.get("securityContext", CONTAINER["securityContext"])
        assert security["readOnlyRootFilesystem"]
        assert not security["allowPrivilegeEscalation"]
        assert security["capabilities"] == {"drop": ["ALL"]}


def test_memory_is_what_was_measured():
    measured = json.loads((ROOT / "benchmarks/results/amd-epyc-2-cores/serving_memory.json").read_text())["flood"]
    resources = pod_of(MANIFESTS["overlays/cpu/resources.yaml"])[1]["resources"]
    requested, limit = (int(resources[which]["memory"].removesuffix("Gi")) * 2**30 for which in ("requests", "limits"))
    most = measured["high_water_mb"] * 1e6
    assert requested >= most
    # In addition: very large pictures, uploads, and the second network of a reload.
    assert limit >= most + DEFAULTS.decode_budget_bytes + DEFAULTS.max_held_bytes


@pytest.mark.parametrize("name", ["cpu", "gpu"])
def test_overlay_names_the_version_and_its_autoscaler_the_deployment(name, scrape):
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    (image,) = MANIFESTS[f"overlays/{name}/kustomization.yaml"]["images"]
    assert image["name"] == CONTAINER["image"]
    assert image["newTag"] == {"cpu": version, "gpu": f"{version}-gpu"}[name]
    autoscaler = MANIFESTS[f"overlays/{name}/autoscaler.yaml"]["spec"]
    assert autoscaler["scaleTargetRef"]["name"] == BASE["Deployment"]["metadata"]["name"]
    assert autoscaler["minReplicas"] >= 2
    assert "replicas" not in BASE["Deployment"]["spec"]
    named = [metric["pods"]["metric"]["name"] for metric in autoscaler["metrics"] if "pods" in metric]
    assert set(named) <= exported(scrape)


def test_images_copy_existing_paths_that_the_build_context_has():
    lines = [line.split() for line in DOCKERFILE.splitlines() if line.startswith("COPY") and "--from" not in line]
    copied = {path for words in lines for path in words[1:-1]}
    assert {"models/", "serving/", "training/", "deploy/torchrun.sh"} <= copied
    assert all((ROOT / path).exists() for path in copied)
    allowed = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    assert allowed == {path.removesuffix("/") for path in copied}
    stages = re.findall(r"^FROM \S+ AS (\S+)$", DOCKERFILE, re.MULTILINE)
    assert stages[-1] == "cpu" == COMPOSE["services"]["service"]["build"]["target"]
    assert {"gpu", "folders", "train"} <= set(stages)


@pytest.mark.slow
def test_the_tools_that_are_installed_accept_the_files():
    checked = ran("bash", ROOT / "deploy" / "check.sh")
    assert checked.returncode == 0, checked.stdout
