"""The chart limited to some namespaces, upgraded, uninstalled and installed again: nothing is lost by any of it."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from kube import SYSTEM, Cluster, Load, apply, example, get, helm_install, kubectl, run, until

LABEL = "app.kubernetes.io/name=gantry-operator"


@pytest.fixture
def limited(namespace: str) -> Iterator[str]:
    """The operator looks after the test's namespace only, with rights in no other."""
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
        assert "status" not in get("default", "bc", "elsewhere"), "nobody looks after it"
        assert not get("default", "statefulset")
    finally:
        kubectl("-n", "default", "delete", "bc", "elsewhere")
    demo.wait_running()
    assert demo.uids() == before


def test_an_upgrade_of_the_chart_restarts_no_broker(demo: Cluster) -> None:
    before, operators_before = demo.uids(), operators()
    load = Load(demo, "upgrade", 40)
    helm_install("--set", "logLevel=DEBUG")
    until("the operators are new", lambda: not set(operators_before) & set(operators()), 60)
    demo.wait_running()
    helm_install()
    load.stop()
    result = load.result()
    assert result["errors"] == 0, result
    assert demo.uids() == before


def test_uninstalled_and_installed_again(demo: Cluster) -> None:
    before = demo.uids()
    load = Load(demo, "uninstall", 60)
    run("helm", "uninstall", "gantry", "-n", SYSTEM, "--wait", timeout=120)
    until("the operators are gone", lambda: not operators(), 60)
    assert kubectl("get", "crd", "brokerclusters.gantry.dev", "-o", "name"), "the definition stays"
    assert demo.object()["metadata"]["name"] == "demo"
    helm_install()
    # What happened to it without an operator is caught up with.
    kubectl("-n", demo.namespace, "delete", "pdb", "demo-a")
    until("put right", lambda: get(demo.namespace, "pdb", "demo-a"), 30)
    demo.wait_running()
    load.stop()
    result = load.result()
    assert result["errors"] == 0, result
    assert demo.uids() == before
