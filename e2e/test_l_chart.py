"""The chart limited to some namespaces, upgraded, uninstalled and installed again: nothing is lost."""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
import yaml
from kube import (
    ROOT,
    SYSTEM,
    Cluster,
    Load,
    apply,
    example,
    forwarded,
    get,
    helm_install,
    kubectl,
    run,
    unharmed,
    until,
)

from distributions import chart

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
    unharmed(result)
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


WANTED = ("--set", "dashboards.enabled=true,alerts.enabled=true,alerts.labels.release=prometheus")
MORE = ("--set", "alerts.runbooks=https://wiki/runbooks,alerts.disabled={GantrySendsSlow}")


@pytest.fixture(scope="module")
def everything_enabled(operator: None) -> Iterator[None]:
    """The chart with its optional parts: dashboards, alerts, PodMonitors, the console. They go with their settings."""
    with defined("PodMonitor"), defined("PrometheusRule"):
        helm_install(*WANTED, *MORE, "--set", "podMonitor.enabled=true,console.enabled=true")
        yield
        helm_install()
        assert get(SYSTEM, "configmaps", selector="grafana_dashboard=1") == []
        assert get(SYSTEM, "podmonitors") == get(SYSTEM, "prometheusrules") == []
        assert "gantry-console" not in kubectl("-n", SYSTEM, "get", "services", "-o", "name")


def test_a_packaged_chart_runs_the_images_that_a_release_pushed(tmp_path: Path) -> None:
    """The images by digest, from the file of values beside the package."""
    name = "registry.example.com/team/gantry-{}:0.1.0"
    digests = {part: f"sha256:{number:064x}" for number, part in enumerate(chart.PARTS)}
    images = tmp_path / "images.json"
    images.write_text(
        json.dumps({p: {"image.name": name.format(p), "containerimage.digest": d} for p, d in digests.items()})
    )
    package, values = chart.build(tmp_path / "dist", images)
    rendered = run("helm", "template", "gantry", str(package), "--kube-version", "1.31.0", "--values", str(values))
    for part, digest in digests.items():
        assert f"{name.format(part)}@{digest}" in rendered, part


def test_dashboards_and_alerts_are_objects_of_the_chart(everything_enabled: None) -> None:
    run("helm", "lint", str(ROOT / "helm" / "gantry"), *WANTED, *MORE)
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


def test_pod_monitors_find_every_process(demo: Cluster, everything_enabled: None) -> None:
    """By the labels and port names of the pods: the operators, the NameServers, the brokers."""
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


def bearer(namespace: str, name: str, verbs: str) -> str:
    """The token of a new account with these rights on BrokerClusters."""
    kubectl("-n", namespace, "create", "serviceaccount", name)
    if verbs:
        kubectl("-n", namespace, "create", "role", name, f"--verb={verbs}", "--resource=brokerclusters.gantry.dev")
        kubectl(
            "-n", namespace, "create", "rolebinding", name, f"--role={name}", f"--serviceaccount={namespace}:{name}"
        )
    return kubectl("-n", namespace, "create", "token", name).strip()


class Browser:
    """A person's browser. It keeps the cookie itself: httpx sends none of this kind without TLS, browsers do here."""

    def __init__(self, url: str, token: str) -> None:
        self.url = url
        self.signed_in = httpx.post(f"{url}/login", data={"bearer": token}, timeout=60)
        self._cookie = self.signed_in.headers.get("set-cookie", "").split(";")[0]

    def get(self, path: str) -> httpx.Response:
        return httpx.get(f"{self.url}{path}", headers={"cookie": self._cookie}, timeout=60)

    def post(self, path: str, **form: str) -> httpx.Response:
        return httpx.post(f"{self.url}{path}", data=form, headers={"cookie": self._cookie}, timeout=60)


def test_the_console_shows_what_a_persons_own_rights_allow(demo: Cluster, everything_enabled: None) -> None:
    namespace, page = demo.namespace, f"/c/{demo.namespace}/{demo.name}"
    tokens = {name: bearer(namespace, name, verbs) for name, verbs in
              (("nobody", ""), ("reader", "get,list"), ("owner", "get,list,update,patch"))}  # fmt: skip
    with forwarded(SYSTEM, "gantry-console", 80) as url:
        assert httpx.get(f"{url}{page}", timeout=60).status_code == 401
        assert Browser(url, "no-token-of-anybody").signed_in.status_code == 401
        nobody, reader, owner = (Browser(url, tokens[name]) for name in ("nobody", "reader", "owner"))
        assert nobody.signed_in.status_code == 303, "who it is, is known"

        def shown() -> bool:
            answer = reader.get(page)
            return answer.status_code == 200 and all(m["name"] in answer.text for m in demo.status()["members"])

        until("a reader sees the members", shown, 60)
        refused = nobody.get(page)
        assert refused.status_code == 404, "who may not read a cluster does not learn that it exists"
        assert "demo-a-0" not in refused.text
        assert demo.name not in nobody.get("/").text.replace("demonstration", "")

        def form(browser: Browser) -> str:
            found = re.search(r'name="csrf" value="([^"]+)"', browser.get(page).text)
            assert found is not None
            return found[1]

        change = {"topic": "ByConsole", "queues": "4"}
        assert nobody.post(f"{page}/actions/topic", csrf="x", **change).status_code == 404
        assert reader.post(f"{page}/actions/topic", csrf=form(reader), **change).status_code == 403
        until("the topic is made", lambda: owner.post(
            f"{page}/actions/topic", csrf=form(owner), **change).status_code in (200, 303))  # fmt: skip
        until("the topic is shown", lambda: "ByConsole" in reader.get(f"{page}/topics?q=ByConsole").text, 60)
        kubectl("-n", namespace, "delete", "rolebinding", "reader")
        until("a right that was taken away ends", lambda: reader.get(page).status_code == 404, 60)

    def points() -> list[list[float]]:
        kept = get(SYSTEM, "configmap", "gantry-console-history")
        found: list[list[float]] = json.loads(kept["data"][f"{namespace}.{demo.name}"])
        return found

    kubectl("-n", SYSTEM, "delete", "pod", "-l", "app.kubernetes.io/name=gantry-console")
    # It is written every few minutes, and when the console ends.
    kept = until("the chart outlives the console", points, 240)
    assert kept[0][0] > time.time() - 3600


def test_gantry_top_shows_one_frame(demo: Cluster) -> None:
    command = (sys.executable, "-m", "gantry_operator.cli", "top", "--once", "-n", demo.namespace)
    words = (demo.name, *(m["name"] for m in demo.status()["members"]), "Master")

    def lacks() -> list[str]:
        frame = run(*command, timeout=300)
        return [word for word in words if word not in frame]

    until("the frame has the cluster and its members", lambda: not lacks())


def topic(name: str, cluster: str) -> str:
    """A BrokerTopic that takes its topic along, so an operator holds it with a finalizer."""
    meta = {"apiVersion": "gantry.dev/v1alpha1", "kind": "BrokerTopic", "metadata": {"name": name}}
    return json.dumps(meta | {"spec": {"cluster": cluster, "deletionPolicy": "Delete"}})


def held(namespace: str, name: str) -> bool:
    return bool(get(namespace, "bt", name)["metadata"].get("finalizers"))


def test_uninstalled_and_installed_again(demo: Cluster) -> None:
    """Without an operator a topic with `deletionPolicy: Delete` goes when it is deleted, so a namespace does, too."""
    before = demo.uids()
    apply(demo.namespace, topic("kept", "demo"))
    apply(demo.namespace, topic("going", "demo"))
    until("the operator holds them", lambda: held(demo.namespace, "kept") and held(demo.namespace, "going"), 60)
    load = Load(demo, "uninstall")
    run("helm", "uninstall", "gantry", "-n", SYSTEM, "--wait", timeout=360)  # the hook may take 280 s
    until("the operators are gone", lambda: not operators(), 60)
    assert kubectl("get", "crd", "brokerclusters.gantry.dev", "-o", "name"), "the definition stays"
    assert demo.object()["metadata"]["name"] == "demo"
    assert not held(demo.namespace, "kept")
    kubectl("-n", demo.namespace, "delete", "bt", "going", timeout=120)
    helm_install()
    # The new operator applies the change that was made without an operator.
    kubectl("-n", demo.namespace, "delete", "pdb", "demo-a")
    until("put right", lambda: get(demo.namespace, "pdb", "demo-a"), 30)
    demo.wait_running()
    until("the new operator holds what is left", lambda: held(demo.namespace, "kept"), 60)
    result = load.stop()
    unharmed(result)
    assert demo.uids() == before
