"""One operator for the whole run, a namespace for each module."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kube import ROOT, SYSTEM, Cluster, Figure, Host, apply, example, helm_install, kubectl, until

collect_ignore = [] if os.environ.get("E2E_ROUNDS") else ["test_n_rounds.py"]
"""Figures over many rounds are made on demand."""

FIGURES = Path(os.environ.get("E2E_FIGURES", ROOT / "build" / "e2e-figures.json"))


@pytest.fixture(scope="session")
def operator() -> Iterator[None]:
    """The chart, installed as a user would."""
    helm_install()
    until("the definition is served", lambda: kubectl("get", "bc", "-A") is not None)
    yield
    print(kubectl("-n", SYSTEM, "get", "pods", "-o", "wide", check=False))


@pytest.fixture(scope="session")
def any_host() -> Host:
    """Whether or not the nodes themselves can be reached."""
    return Host()


@pytest.fixture(scope="session")
def host(any_host: Host) -> Host:
    """The nodes, for what Kubernetes offers no means to: to kill or freeze one process, to cut a pod or a node off."""
    if not any_host.available:
        pytest.skip(
            "kills, freezes or cuts off processes and nodes behind Kubernetes' back: e2e/run does so to a cluster "
            "that it made itself (with kind: install it, and Docker), never to one that KUBECONFIG names"
        )
    return any_host


@pytest.fixture(scope="module")
def namespace(request: pytest.FixtureRequest, operator: None) -> Iterator[str]:
    """Gone with all that is in it afterwards."""
    name = "e2e-" + request.path.stem.removeprefix("test_").replace("_", "-")
    kubectl("delete", "namespace", name, "--ignore-not-found", timeout=180)
    kubectl("create", "namespace", name)
    yield name
    kubectl("delete", "namespace", name, "--wait=false")


@pytest.fixture(scope="module")
def demo(namespace: str) -> Cluster:
    """examples/quickstart.yaml, ready."""
    apply(namespace, example("quickstart.yaml"))
    cluster = Cluster(namespace)
    cluster.wait_running()
    return cluster


@pytest.fixture(scope="session")
def figure() -> Iterator[Figure]:
    """Records a figure of this run: printed at the end and written to a file."""
    found: dict[str, Any] = {"begun": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}

    def record(name: str, value: Any) -> None:
        found[name] = value
        print(f"FIGURE {name}: {value}")

    yield record
    FIGURES.parent.mkdir(parents=True, exist_ok=True)
    FIGURES.write_text(json.dumps(found, indent=1))
