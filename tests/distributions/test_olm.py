"""The OLM bundle from a rendered chart: rights, probes and settings are the chart's, and OLM takes all of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from gantry_operator.api.manifest import parse_group, parse_manifest, parse_topic, parse_user

from distributions import olm
from distributions.build import project

META = {"name": "gantry-operator", "namespace": "gantry-system"}
RIGHTS = [{"apiGroups": ["gantry.dev"], "resources": ["brokerclusters"], "verbs": ["get"]}]
LEADER = [{"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["get"]}]
ENV = [{"name": "GANTRY_WATCH_NAMESPACES", "value": ""}, {"name": "GANTRY_LOG_LEVEL", "value": "INFO"}]
POD = {"serviceAccountName": "gantry-operator", "containers": [{"name": "operator", "image": "r/o:1", "env": ENV}]}


def chart() -> list[dict[str, Any]]:
    """What `helm template` prints, in short."""
    plain = ("NetworkPolicy", "PodDisruptionBudget", "ServiceAccount", "ClusterRoleBinding", "RoleBinding", "Service")
    return [
        *({"apiVersion": "v1", "kind": kind, "metadata": dict(META)} for kind in plain),
        *({"kind": "CustomResourceDefinition", "metadata": d["metadata"]} for d in olm.definitions()),
        {"apiVersion": "v1", "kind": "ClusterRole", "metadata": dict(META), "rules": RIGHTS},
        {"apiVersion": "v1", "kind": "Role", "metadata": dict(META), "rules": LEADER},
        {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": dict(META),
         "spec": {"replicas": 2, "template": {"metadata": {}, "spec": POD}}},
        {"apiVersion": "batch/v1", "kind": "Job", "metadata": META | {"annotations": {"helm.sh/hook": "pre-delete"}}},
    ]  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("bundle") / "bundle"
    olm.build(yaml.safe_dump_all(chart()), made)
    return made


def test_the_version_has_the_chart_s_deployment_and_rights(folder: Path) -> None:
    found = olm.load_all((folder / "manifests/gantry.clusterserviceversion.yaml").read_text())[0]
    assert found["metadata"]["name"] == f"gantry.v{project()['version']}"
    assert found["metadata"]["annotations"]["capabilities"] == olm.LEVEL
    assert found["metadata"]["annotations"]["containerImage"] == "r/o:1"
    install = found["spec"]["install"]["spec"]
    assert install["clusterPermissions"] == [{"serviceAccountName": "gantry-operator", "rules": RIGHTS}]
    assert install["permissions"] == [{"serviceAccountName": "gantry-operator", "rules": LEADER}]
    (deployment,) = install["deployments"]
    assert deployment["spec"]["replicas"] == 2
    env = {e["name"]: e for e in deployment["spec"]["template"]["spec"]["containers"][0]["env"]}
    # The namespaces that a person chose in OLM, for each of the four modes.
    target = env["GANTRY_WATCH_NAMESPACES"]["valueFrom"]["fieldRef"]["fieldPath"]
    assert target == "metadata.annotations['olm.targetNamespaces']"
    assert env["GANTRY_LOG_LEVEL"] == ENV[1]
    assert len([m for m in found["spec"]["installModes"] if m["supported"]]) == 4


def test_every_definition_is_owned_with_an_example_that_is_valid(folder: Path) -> None:
    found = olm.load_all((folder / "manifests/gantry.clusterserviceversion.yaml").read_text())[0]
    owned = {o["kind"]: o for o in found["spec"]["customresourcedefinitions"]["owned"]}
    for definition in olm.definitions():
        name, kind = definition["metadata"]["name"], definition["spec"]["names"]["kind"]
        assert olm.load_all((folder / "manifests" / f"{name}.yaml").read_text())[0] == definition
        served = {v["name"]: v["storage"] for v in definition["spec"]["versions"]}
        assert owned[kind]["name"] == name
        assert served[owned[kind]["version"]], "the version that is stored"
    examples = json.loads(found["metadata"]["annotations"]["alm-examples"])
    assert sorted(e["kind"] for e in examples) == sorted(owned)
    parsers = {"BrokerTopic": parse_topic, "BrokerUser": parse_user, "ConsumerGroup": parse_group}
    for example in examples:
        parsers.get(example["kind"], parse_manifest)(example)


def test_a_bundle_has_only_what_olm_takes(folder: Path) -> None:
    kinds: dict[str, list[Any]] = {}
    for path in (folder / "manifests").iterdir():
        found = olm.load_all(path.read_text())[0]
        kinds.setdefault(found["kind"], []).append(found)
    assert set(kinds) == {
        "ClusterServiceVersion", "CustomResourceDefinition", "PodDisruptionBudget", "Service",
    }  # fmt: skip
    assert all("namespace" not in o["metadata"] for k in ("PodDisruptionBudget", "Service") for o in kinds[k])
    annotations = olm.load_all((folder / "metadata/annotations.yaml").read_text())[0]["annotations"]
    assert annotations["operators.operatorframework.io.bundle.package.v1"] == "gantry"
    labels = (folder / "bundle.Dockerfile").read_text()
    assert all(f"LABEL {name}={value}\n" in labels for name, value in annotations.items())
    with pytest.raises(olm.BundleError, match="Ingress gantry-operator has no place in a bundle"):
        olm.bundle([*chart(), {"kind": "Ingress", "metadata": dict(META)}])
    with pytest.raises(olm.BundleError, match="no Deployment"):
        olm.bundle([])
