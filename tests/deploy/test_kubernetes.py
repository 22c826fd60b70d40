"""Kustomize builds the overlays, and Kubernetes' own schemas accept what it builds."""

import shutil
import subprocess

import pytest
import yaml

from tests.deploy.service_files import KUBERNETES, pod_of, read_yaml
from tests.deploy.tools import needs, schemas
from tests.make import ran

pytestmark = pytest.mark.deploy
VERSIONS = ("1.27", "1.34")  # the oldest that deploy/service/README.md names, and a recent one
COMPONENTS = sorted(path.name for path in (KUBERNETES / "components").iterdir())
BASE_KINDS = {"Deployment", "Service", "PodDisruptionBudget", "NetworkPolicy", "HorizontalPodAutoscaler"}
ADDED_KINDS = {
    "bundle-volume": {"PersistentVolumeClaim"},
    "corrections": {"PersistentVolumeClaim"},
    "ingress": {"Ingress", "Secret"},
}


def build(overlay, components, scratch, keys="app 00\n"):
    """Returns the documents of an overlay with these components and, if there are some, API keys."""
    tree = scratch / "kubernetes"
    shutil.copytree(KUBERNETES, tree, ignore=shutil.ignore_patterns("keys.txt"))
    if keys:
        (tree / "components" / "ingress" / "keys.txt").write_text(keys)
    kustomization = tree / "overlays" / overlay / "kustomization.yaml"
    document = read_yaml(kustomization)
    document["components"] = [f"../../components/{name}" for name in components]
    kustomization.write_text(yaml.safe_dump(document))
    command = ["kubectl", "kustomize", kustomization.parent]
    return list(yaml.safe_load_all(ran(*command, check=True).stdout))


def by_kind(documents):
    return {document["kind"]: document for document in documents}


@pytest.mark.slow
@needs("kubectl")
@pytest.mark.parametrize("components", [(), *((name,) for name in COMPONENTS)], ids="-".join)
@pytest.mark.parametrize("overlay", ["cpu", "gpu"])
def test_schemas_of_kubernetes_accept_the_overlay(overlay, components, tmp_path):
    kubernetes_validate = schemas()
    documents = build(overlay, components, tmp_path)
    added = [ADDED_KINDS.get(name, set()) for name in components]
    assert {document["kind"] for document in documents} == BASE_KINDS.union(*added)
    for document in documents:
        for version in VERSIONS:
            kubernetes_validate.validate(document, version, strict=True)


def test_a_misspelled_field_is_refused():
    kubernetes_validate = schemas()
    document = read_yaml(KUBERNETES / "base" / "disruption.yaml")
    document["spec"]["maxUnavailible"] = document["spec"].pop("maxUnavailable")
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(document, VERSIONS[-1], strict=True)


@needs("kubectl")
def test_corrections_go_with_a_bundle_of_ones_own_and_let_the_service_out(tmp_path):
    documents = by_kind(build("cpu", ["bundle-volume", "corrections"], tmp_path))
    pod, container = pod_of(documents["Deployment"])
    assert {"BOTANIFY_BUNDLE", "BOTANIFY_CORRECTIONS"} < {variable["name"] for variable in container["env"]}
    assert [volume["name"] for volume in pod["volumes"]] == ["corrections", "registry"]
    network = documents["NetworkPolicy"]["spec"]
    assert (len(network["ingress"]), len(network["egress"])) == (2, 2)


@needs("kubectl")
def test_clients_from_outside_come_over_tls_with_a_key_or_not_at_all(tmp_path):
    with pytest.raises(subprocess.CalledProcessError) as refused:
        build("cpu", ["ingress"], tmp_path / "without", keys="")
    assert "keys.txt" in refused.value.stderr
    documents = by_kind(build("cpu", ["ingress"], tmp_path / "with"))
    pod, container = pod_of(documents["Deployment"])
    (volume,) = pod["volumes"]
    (mount,) = container["volumeMounts"]
    path = next(each["value"] for each in container["env"] if each["name"] == "BOTANIFY_API_KEYS_FILE")
    secret = documents["Secret"]
    assert [f"{mount['mountPath']}/{name}" for name in secret["data"]] == [path]
    assert volume["secret"]["secretName"] == secret["metadata"]["name"] != "botanify-keys"  # another after each change
    ingress = documents["Ingress"]["spec"]
    assert [tls["hosts"] for tls in ingress["tls"]] == [[rule["host"]] for rule in ingress["rules"]]
    (route,) = ingress["rules"][0]["http"]["paths"]
    service = documents["Service"]
    assert route["backend"]["service"]["name"] == service["metadata"]["name"]
    assert route["backend"]["service"]["port"]["name"] in {port["name"] for port in service["spec"]["ports"]}


@needs("kubectl")
@pytest.mark.parametrize("component", [name for name in COMPONENTS if name.startswith("bundle-")])
def test_component_mounts_the_bundle_that_the_service_opens(component, tmp_path):
    pod, container = pod_of(by_kind(build("cpu", [component], tmp_path))["Deployment"])
    bundle = next(variable["value"] for variable in container["env"] if variable["name"] == "BOTANIFY_BUNDLE")
    (mount,) = container["volumeMounts"]
    assert bundle.startswith(mount["mountPath"])
    assert mount["readOnly"]
    assert [volume["name"] for volume in pod["volumes"]] == [mount["name"]]
