"""The chart limited to some namespaces, upgraded, uninstalled and installed again: nothing is lost."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import yaml
from kube import ROOT, SYSTEM, Cluster, Load, apply, example, get, helm_install, kubectl, run, until

pytestmark = pytest.mark.alone

LABEL = "app.kubernetes.io/name=gantry-operator"


@pytest.fixture
def limited(namespace: str) -> Iterator[str]:
    """An operator for the test's namespace only, without rights in others."""
    helm_install("--set", f"watchNamespaces={{{namespace}}}")
    yield namespace
    helm_install()


def operators() -> list[str]:
    return [p["metadata"]["name"] for p in get(SYSTEM, "pods", selector=LABEL)]


def test_an_operator_limited_to_a_namespace(demo: Cluster, limited: str) -> None:
    before = demo.uids()
    account = f"system:serviceaccount:{SYSTEM}:gantry-operator"
    for namespace, allowed in ((limited, "yes"), ("default", "no")):
        said = kubectl("auth", "can-i", "delete", "pods", "-n", namespace, "--as", account, check=False)
        assert said.strip() == allowed, namespace
    apply("default", example("quickstart.yaml").replace("name: demo", "name: elsewhere"))
    try:
        kubectl("-n", limited, "delete", "service", "demo-a-master")
        until("put right", lambda: get(limited, "service", "demo-a-master"), 30)
        time.sleep(3)
        assert "status" not in get("default", "bc", "elsewhere"), "no operator manages it"
        assert not get("default", "statefulset")
    finally:
        kubectl("-n", "default", "delete", "bc", "elsewhere")
    demo.wait_running()
    assert demo.uids() == before


def test_an_upgrade_of_the_chart_restarts_no_broker(demo: Cluster) -> None:
    before, operators_before = demo.uids(), operators()
    load = Load(demo, "upgrade")
    helm_install("--set", "logLevel=DEBUG")
    until("the operators are new", lambda: not set(operators_before) & set(operators()), 60)
    demo.wait_running()
    helm_install()
    result = load.stop()
    assert result["errors"] == 0, result
    assert demo.uids() == before


@contextmanager
def defined(kind: str) -> Iterator[None]:
    """The parts of the Prometheus operator's definition that this chart uses, if the cluster lacks it."""
    plural = f"{kind.lower()}s"
    names = {"kind": kind, "plural": plural, "singular": kind.lower()}
    anything = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": anything}}
    made = {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.monitoring.coreos.com"},
        "spec": {"group": "monitoring.coreos.com", "names": names, "scope": "Namespaced", "versions": [version]},
    }
    kubectl("apply", "-f", "-", stdin=json.dumps(made))
    kubectl("wait", "--for=condition=Established", f"crd/{plural}.monitoring.coreos.com")
    yield
    kubectl("delete", "crd", f"{plural}.monitoring.coreos.com")


@pytest.fixture
def pod_monitors() -> Iterator[None]:
    with defined("PodMonitor"):
        yield


@pytest.fixture
def prometheus_rules() -> Iterator[None]:
    with defined("PrometheusRule"):
        yield


def test_dashboards_and_alerts_are_objects_of_the_chart(prometheus_rules: None) -> None:
    chart = str(ROOT / "helm" / "gantry")
    wanted = ("--set", "dashboards.enabled=true,alerts.enabled=true,alerts.labels.release=prometheus")
    more = ("--set", "alerts.runbooks=https://wiki/runbooks,alerts.disabled={GantrySendsSlow}")
    run("helm", "lint", chart, *wanted, *more)
    helm_install(*wanted, *more)
    try:
        maps = get(SYSTEM, "configmaps", selector="grafana_dashboard=1")
        shown = [json.loads(text) for made in maps for text in made["data"].values()]
        files = [json.loads(path.read_text()) for path in (ROOT / "helm/gantry/dashboards").glob("*.json")]
        assert sorted(shown, key=lambda d: d["uid"]) == sorted(files, key=lambda d: d["uid"])
        (made,) = get(SYSTEM, "prometheusrules")
        assert made["metadata"]["labels"]["release"] == "prometheus"
        rules = [rule for group in made["spec"]["groups"] for rule in group["rules"]]
        file = yaml.safe_load((ROOT / "helm/gantry/files/alerts.yaml").read_text())
        expected = [rule for group in file["groups"] for rule in group["rules"] if rule["alert"] != "GantrySendsSlow"]
        for rule in expected:
            address = rule["annotations"]["runbook_url"].replace("docs/runbooks.md", "https://wiki/runbooks")
            rule["annotations"]["runbook_url"] = address
        assert rules == expected
    finally:
        helm_install()
    assert get(SYSTEM, "configmaps", selector="grafana_dashboard=1") == []


def test_pod_monitors_find_every_process(demo: Cluster, pod_monitors: None) -> None:
    """By the labels and port names of the pods: the operators, the NameServers, the brokers."""
    helm_install("--set", "podMonitor.enabled=true")
    try:
        found = set()
        for monitor in get(SYSTEM, "podmonitors"):
            spec = monitor["spec"]
            labels = [f"{k}={v}" for k, v in spec["selector"].get("matchLabels", {}).items()]
            exist = [t["key"] for t in spec["selector"].get("matchExpressions", []) if t["operator"] == "Exists"]
            selector = ",".join(labels + exist)
            namespace = demo.namespace if "namespaceSelector" in spec else SYSTEM
            for pod in get(namespace, "pods", selector=selector):
                ports = {p.get("name") for c in pod["spec"]["containers"] for p in c.get("ports", [])}
                if all(e["port"] in ports for e in spec["podMetricsEndpoints"]):
                    found.add(pod["metadata"]["name"])
        servers = demo.pods("app.kubernetes.io/component=namesrv")
        assert {p["metadata"]["name"] for p in [*demo.pods(), *servers]} | set(operators()) <= found
    finally:
        helm_install()


def test_uninstalled_and_installed_again(demo: Cluster) -> None:
    before = demo.uids()
    load = Load(demo, "uninstall")
    run("helm", "uninstall", "gantry", "-n", SYSTEM, "--wait", timeout=120)
    until("the operators are gone", lambda: not operators(), 60)
    assert kubectl("get", "crd", "brokerclusters.gantry.dev", "-o", "name"), "the definition stays"
    assert demo.object()["metadata"]["name"] == "demo"
    helm_install()
    # The new operator applies the change that was made without an operator.
    kubectl("-n", demo.namespace, "delete", "pdb", "demo-a")
    until("put right", lambda: get(demo.namespace, "pdb", "demo-a"), 30)
    demo.wait_running()
    result = load.stop()
    assert result["errors"] == 0, result
    assert demo.uids() == before
