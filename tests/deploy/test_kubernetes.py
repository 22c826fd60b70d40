"""Kustomize builds the overlays, and Kubernetes' own schemas accept what it builds."""

import importlib.util
import shutil

import pytest
import yaml

from tests.deploy.service_files import KUBERNETES
from tests.deploy.tools import needs
from tests.make import ran

pytestmark = pytest.mark.deploy
VERSIONS = ("1.27", "1.34")  # the oldest that deploy/service/README.md names, and a recent one
COMPONENTS = sorted(path.name for path in (KUBERNETES / "components").iterdir())
needs_schemas = pytest.mark.skipif(
    importlib.util.find_spec("kubernetes_validate") is None,
    reason="needs kubernetes-validate: python -m uv pip install kubernetes-validate",
)


def build(overlay, components, scratch):
    """Returns the documents of an overlay with these components."""
    tree = scratch / "kubernetes"
    shutil.copytree(KUBERNETES, tree)
    kustomization = tree / "overlays" / overlay / "kustomization.yaml"
    document = yaml.safe_load(kustomization.read_text())
    document["components"] = [f"../../components/{name}" for name in components]
    kustomization.write_text(yaml.safe_dump(document))
    command = ["kubectl", "kustomize", kustomization.parent]
    return list(yaml.safe_load_all(ran(*command, check=True).stdout))


@pytest.mark.slow
@needs("kubectl")
@needs_schemas
@pytest.mark.parametrize("components", [(), *((name,) for name in COMPONENTS)], ids="-".join)
@pytest.mark.parametrize("overlay", ["cpu", "gpu"])
def test_schemas_of_kubernetes_accept_the_overlay(overlay, components, tmp_path):
    import kubernetes_validate

    documents = build(overlay, components, tmp_path)
    assert len({document["kind"] for document in documents}) == 5
    for document in documents:
        for version in VERSIONS:
            kubernetes_validate.validate(document, version, strict=True)


@needs_schemas
def test_a_misspelled_field_is_refused():
    import kubernetes_validate

    document = yaml.safe_load((KUBERNETES / "base" / "disruption.yaml").read_text())
    document["spec"]["maxUnavailible"] = document["spec"].pop("maxUnavailable")
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(document, VERSIONS[-1], strict=True)


@needs("kubectl")
def test_corrections_go_with_a_bundle_of_ones_own_and_let_the_service_out(tmp_path):
    documents = {document["kind"]: document for document in build("cpu", ["bundle-volume", "corrections"], tmp_path)}
    pod = documents["Deployment"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert {"BOTANIFY_BUNDLE", "BOTANIFY_CORRECTIONS"} < {variable["name"] for variable in container["env"]}
    assert [volume["name"] for volume in pod["volumes"]] == ["corrections", "registry"]
    network = documents["NetworkPolicy"]["spec"]
    assert (len(network["ingress"]), len(network["egress"])) == (2, 2)


@needs("kubectl")
@pytest.mark.parametrize("component", [name for name in COMPONENTS if name.startswith("bundle-")])
def test_component_mounts_the_bundle_that_the_service_opens(component, tmp_path):
    (deployment,) = (one for one in build("cpu", [component], tmp_path) if one["kind"] == "Deployment")
    pod = deployment["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    bundle = next(variable["value"] for variable in container["env"] if variable["name"] == "BOTANIFY_BUNDLE")
    (mount,) = container["volumeMounts"]
    assert bundle.startswith(mount["mountPath"])
    assert mount["readOnly"]
    assert [volume["name"] for volume in pod["volumes"]] == [mount["name"]]
