"""`podTemplate`: additions are merged by name; what is the operator's, or needs a permission, is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from gantry_operator.api.cluster import BrokerCluster
from gantry_operator.api.manifest import ManifestError, parse_manifest
from gantry_operator.api.pod_template import (
    CONTAINERS,
    OWN_CONTAINER,
    OWN_MOUNTS,
    OWN_POD,
    OWN_VOLUMES,
    POD,
    PROXY_MOUNTS,
    PROXY_VOLUMES,
)
from gantry_operator.plan.plan import plan
from gantry_operator.platforms.kubernetes import allowed
from gantry_operator.platforms.kubernetes.manifests.desired_objects import OperatorSettings, render
from gantry_operator.platforms.kubernetes.manifests.pod_parts import scheme_of
from gantry_operator.platforms.kubernetes.manifests.pod_template_merge import NEED_PERMISSION
from gantry_operator.platforms.kubernetes.objects import drift
from hypothesis import given, settings
from hypothesis import strategies as st

SETTINGS = OperatorSettings("broker:1")
EVERYTHING: dict[str, Any] = {
    "metadata": {"labels": {"team": "orders"}, "annotations": {"sidecar.istio.io/inject": "false"}},
    "spec": {
        "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": []}}},
        "tolerations": [{"key": "mq", "operator": "Exists"}],
        "topologySpreadConstraints": [
            {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"},
        ],
        "priorityClassName": "high",
        "terminationGracePeriodSeconds": 120,
        "imagePullSecrets": [{"name": "registry"}],
        "securityContext": {"fsGroup": 4711},
        "volumes": [{"name": "agent", "emptyDir": {}}],
        "initContainers": [{"name": "prepare", "image": "tools:1"}],
        "containers": [
            {
                "name": "broker",
                "env": [{"name": "TZ", "value": "Europe/Berlin"}],
                "volumeMounts": [{"name": "agent", "mountPath": "/agent"}],
            },
            {"name": "agent", "image": "tools:1", "resources": {"limits": {"cpu": "0.5"}}},
        ],
    },
}  # fmt: skip


def cluster(template: dict[str, Any] | None, **spec: Any) -> BrokerCluster:
    document = {
        "apiVersion": "gantry.dev/v1alpha1", "kind": "BrokerCluster", "metadata": {"name": "demo", "uid": "u"},
        "spec": {"brokerGroups": [{"name": "a"}], "podTemplate": template, **spec},
    }  # fmt: skip
    return parse_manifest(document)


def template_of(made: BrokerCluster, name: str = "demo-a") -> dict[str, Any]:
    objects = render(made, plan(made), SETTINGS)
    found = next(o for o in objects if o["kind"] == "StatefulSet" and o["metadata"]["name"] == name)
    template: dict[str, Any] = found["spec"]["template"]
    return template


def test_additions_are_merged_by_name_and_ours_stay() -> None:
    before, after = template_of(cluster(None)), template_of(cluster(EVERYTHING))
    spec = after["spec"]
    assert after["metadata"]["labels"] == before["metadata"]["labels"] | {"team": "orders"}
    assert after["metadata"]["annotations"].items() >= before["metadata"]["annotations"].items()
    assert [c["name"] for c in spec["containers"]] == ["broker", "agent"]
    broker, plain = spec["containers"][0], before["spec"]["containers"][0]
    assert {k: v for k, v in broker.items() if k not in ("env", "volumeMounts")} == {
        k: v for k, v in plain.items() if k not in ("env", "volumeMounts")
    }
    assert broker["env"] == [*plain["env"], {"name": "TZ", "value": "Europe/Berlin"}]
    assert broker["volumeMounts"] == [*plain["volumeMounts"], {"name": "agent", "mountPath": "/agent"}]
    assert spec["volumes"] == [*before["spec"]["volumes"], {"name": "agent", "emptyDir": {}}]
    assert spec["securityContext"] == before["spec"]["securityContext"] | {"fsGroup": 4711}
    assert set(spec["affinity"]) == {"nodeAffinity", "podAntiAffinity"}
    assert spec["topologySpreadConstraints"][-1]["labelSelector"]["matchLabels"]
    assert spec["terminationGracePeriodSeconds"] == 120
    assert template_of(cluster(EVERYTHING), "demo-namesrv") == template_of(cluster(None), "demo-namesrv")
    servers = cluster(None, nameServers={"podTemplate": {"metadata": {"labels": {"team": "names"}}}})
    assert template_of(servers, "demo-namesrv")["metadata"]["labels"]["team"] == "names"
    assert template_of(servers) == before


def test_annotations_of_the_account() -> None:
    made = cluster(None, serviceAccountAnnotations={"eks.amazonaws.com/role-arn": "arn:x"})
    account = next(o for o in render(made, plan(made), SETTINGS) if o["kind"] == "ServiceAccount")
    assert account["metadata"]["annotations"]["eks.amazonaws.com/role-arn"] == "arn:x"


def test_an_amount_in_another_form_is_no_difference() -> None:
    wanted = {"spec": {"containers": [{"name": "agent", "resources": {"limits": {"cpu": "0.5", "memory": "1024Mi"}}}]}}
    found = {"spec": {"containers": [{"name": "agent", "resources": {"limits": {"cpu": "500m", "memory": "1Gi"}}}]}}
    assert drift.differences(wanted, found) == []
    found["spec"]["containers"][0]["resources"]["limits"]["cpu"] = "600m"  # type: ignore[index]
    assert drift.differences(wanted, found) == [".spec.containers[0].resources.limits.cpu"]


def test_the_scheme_of_a_pod_is_that_of_our_container() -> None:
    https = {"name": "broker", "livenessProbe": {"httpGet": {"scheme": "HTTPS"}}}
    assert scheme_of({"spec": {"containers": [{"name": "istio-proxy"}, https]}}) == "https"


BAD: list[tuple[dict[str, Any], str]] = [
    *(({"spec": {field: "x"}}, f"{field} is the operator's: {instead}") for field, instead in OWN_POD.items()),
    *(
        ({"spec": {"containers": [{"name": "broker", field: "x"}]}}, f"containers[broker].{field} is the operator's")
        for field in OWN_CONTAINER
    ),
    ({"spec": {"tolerationz": []}}, "did you mean tolerations?"),
    ({"spec": {"zzz": []}}, "zzz is no field of a pod: write one of affinity"),
    ({"spec": {"containers": {"name": "x"}}}, "containers is no list"),
    ({"spec": {"containers": [{"image": "x"}]}}, "entry without a name"),
    ({"spec": {"containers": [{"name": "agent"}]}}, "containers[agent] has no image"),
    ({"spec": {"initContainers": [{"name": "broker", "image": "x"}]}}, "broker is the operator's name"),
    ({"spec": {"containers": [{"name": "broker", "env": [{"name": "POD_NAME"}]}]}}, "POD_NAME is the operator's"),
    *(
        (
            {"spec": {"containers": [{"name": "broker", "volumeMounts": [{"name": "tmp", "mountPath": path}]}]}},
            f"{path.rstrip('/')} is the operator's",
        )
        for path in (
            "/var/lib/gantry/",
            "/var/lib/gantry/store/commitlog",
            "//var/lib/./gantry/store",
            "/x/../etc/gantry/a",
            "/etc/gantry-ca",
            "/etc",
            "/.",
            "/var/lib",
        )
    ),
    *(
        (
            {"spec": {"containers": [{"name": "broker", "volumeMounts": [{"name": "tmp", "mountPath": path}]}]}},
            f"{path.rstrip('/')} would hide code of the image",
        )
        for path in (
            "/usr/local/lib/python3.11",
            "/usr",
            "/opt/gantry/gantry_broker/",
            "//opt/./gantry",
            "/x/../lib64",
            "/etc/ld.so.preload",
            "/proc/1",
            "/bin",
        )
    ),
    (
        {"spec": {"containers": [{"name": "broker", "volumeDevices": [{"name": "x", "devicePath": "/dev/sda"}]}]}},
        "volumeDevices: /dev/sda would hide code",
    ),
    ({"spec": {"volumes": [{"name": "data", "emptyDir": {}}]}}, "'data' is the operator's"),
    ({"spec": {"terminationGracePeriodSeconds": 5}}, "write 40 or more"),
    ({"metadata": {"labels": {"gantry.dev/role": "master"}}}, "gantry.dev/role is the operator's"),
    ({"metadata": {"annotations": {"gantry.dev/config-hash": "x"}}}, "gantry.dev/config-hash is the operator's"),
]


@pytest.mark.parametrize(("template", "words"), BAD, ids=[words[:40] for _, words in BAD])
def test_what_the_operator_owns_is_refused_with_its_name(template: dict[str, Any], words: str) -> None:
    with pytest.raises(ManifestError) as refused:
        cluster(template)
    assert words in str(refused.value)
    assert "spec.podTemplate" in str(refused.value)


@pytest.mark.parametrize("prefix", ["container.apparmor.security.beta", "seccomp.security.alpha",
                                    "container.seccomp.security.alpha"])  # fmt: skip
def test_annotations_that_relax_apparmor_or_seccomp_need_the_permission_of_the_security_context(prefix: str) -> None:
    key = f"{prefix}.kubernetes.io/broker"
    annotations = {key: "unconfined", "sidecar.istio.io/inject": "false"}
    for made in (
        cluster({"metadata": {"annotations": annotations}}),
        cluster(None, nameServers={"podTemplate": {"metadata": {"annotations": annotations}}}),
        proxied({"metadata": {"annotations": annotations}}),
    ):
        with pytest.raises(ManifestError) as refused:
            allowed.check(made, SETTINGS)
        (problem,) = refused.value.problems
        assert (problem.path.endswith("podTemplate.metadata.annotations"), problem.value) == (True, key)
        assert "podTemplate.allowed: [securityContext]" in problem.message
        allowed.check(made, replace(SETTINGS, allowed_pod_template=("securityContext",)))


CLOUD = (
    ("iam.amazonaws.com/role", "admin"),
    ("sidecar.istio.io/inject", "true"),
    ("sidecar.istio.io/proxyImage", "evil:1"),
    ("linkerd.io/inject", "enabled"),
    ("vault.hashicorp.com/agent-inject", "true"),
    ("k8s.v1.cni.cncf.io/networks", "other"),
    ("instrumentation.opentelemetry.io/inject-python", "evil/agent"),
)


def templates(addition: dict[str, Any]) -> list[tuple[str, BrokerCluster]]:
    return [
        ("spec.podTemplate", cluster(addition)),
        ("spec.nameServers.podTemplate", cluster(None, nameServers={"podTemplate": addition})),
        ("spec.proxy.podTemplate", proxied(addition)),
    ]


@pytest.mark.parametrize(("key", "value"), CLOUD)
def test_annotations_that_other_programs_act_on_need_a_permission(key: str, value: str) -> None:
    for where, made in templates({"metadata": {"annotations": {key: value, "note": "x", "prometheus.io/scrape": "1"}}}):
        with pytest.raises(ManifestError) as refused:
            allowed.check(made, SETTINGS)
        (problem,) = refused.value.problems
        assert (problem.path, problem.value) == (f"{where}.metadata.annotations", key)
        assert f"podTemplate.allowedAnnotations: [{key}]" in problem.message
        for entry in (key, f"{key}={value}", key.split("/")[0] + "/*"):
            allowed.check(made, replace(SETTINGS, allowed_annotations=(entry,)))
        with pytest.raises(ManifestError):
            allowed.check(made, replace(SETTINGS, allowed_annotations=(f"{key}=another", "x", "iam*=x")))


@pytest.mark.parametrize("key", ["app", "name", "k8s-app", "azure.workload.identity/use", "example.com/team",
                                 "sidecar.istio.io/inject"])  # fmt: skip
def test_labels_by_which_others_select_pods_need_a_permission(key: str) -> None:
    for where, made in templates({"metadata": {"labels": {key: "payments", "team": "orders"}}}):
        with pytest.raises(ManifestError) as refused:
            allowed.check(made, SETTINGS)
        (problem,) = refused.value.problems
        assert (problem.path, problem.value) == (f"{where}.metadata.labels", f"{key}=payments")
        assert f"podTemplate.allowedLabels: [{key}=payments]" in problem.message
        allowed.check(made, replace(SETTINGS, allowed_labels=(f"{key}=payments",)))
        with pytest.raises(ManifestError):
            allowed.check(made, replace(SETTINGS, allowed_labels=(f"{key}=orders", "team")))


def test_a_mount_in_our_container_needs_the_permission_of_volumes() -> None:
    for part, mount in (("volumeMounts", {"mountPath": "/mnt/x"}), ("volumeDevices", {"devicePath": "/mnt/x"})):
        made = cluster({"spec": {"containers": [{"name": "broker", part: [{"name": "tmp", **mount}]}]}})
        with pytest.raises(ManifestError, match=r"podTemplate\.allowed: \[volumes\]"):
            allowed.check(made, SETTINGS)
        allowed.check(made, replace(SETTINGS, allowed_pod_template=("volumes",)))


def outside(**annotations: str) -> list[tuple[str, BrokerCluster]]:
    wanted = {"type": "LoadBalancer", "unprotected": True, "annotations": annotations}
    return [("spec.external", cluster(None, external=wanted)), ("spec.proxy.external", proxied(None, external=wanted))]


@pytest.mark.parametrize("prefix", ["external-dns.alpha.kubernetes.io/", "external-dns.kubernetes.io/"])
@pytest.mark.parametrize("kind", ["hostname", "internal-hostname"])
def test_names_for_external_dns_need_a_permission(prefix: str, kind: str) -> None:
    for where, made in outside(**{prefix + kind: "a.mq.example.com, WWW.example.com."}):
        with pytest.raises(ManifestError) as refused:
            allowed.check(made, replace(SETTINGS, allowed_hosts=("*.mq.example.com",)))
        (problem,) = refused.value.problems
        assert (problem.path, problem.value) == (f"{where}.annotations.{prefix}{kind}", "WWW.example.com.")
        assert "external.allowedHosts: [www.example.com]" in problem.message
        allowed.check(made, replace(SETTINGS, allowed_hosts=("*.mq.example.com", "www.example.com")))


@pytest.mark.parametrize("key", ["external-dns.alpha.kubernetes.io/target", "tailscale.com/hostname",
                                 "metallb.io/loadBalancerIPs", "getambassador.io/config",
                                 "service.beta.kubernetes.io/aws-load-balancer-eip-allocations",
                                 "service.beta.kubernetes.io/azure-dns-label-name"])  # fmt: skip
def test_annotations_of_services_that_take_an_address_need_a_permission(key: str) -> None:
    harmless = {"service.beta.kubernetes.io/aws-load-balancer-type": "nlb", "note": "x"}
    for where, made in outside(**{key: "x", **harmless}):
        with pytest.raises(ManifestError) as refused:
            allowed.check(made, SETTINGS)
        (problem,) = refused.value.problems
        assert (problem.path, problem.value) == (f"{where}.annotations", key)
        assert f"external.allowedAnnotations: [{key}]" in problem.message
        allowed.check(made, replace(SETTINGS, allowed_external_annotations=(key,)))
    for _, made in outside(**harmless):
        allowed.check(made, SETTINGS)


def proxied(template: dict[str, Any] | None, **spec: Any) -> BrokerCluster:
    return cluster(None, proxy={"podTemplate": template, **spec})


def template_of_proxies(made: BrokerCluster) -> dict[str, Any]:
    found = next(o for o in render(made, plan(made), SETTINGS) if o["kind"] == "Deployment")
    template: dict[str, Any] = found["spec"]["template"]
    return template


def test_additions_to_the_proxies() -> None:
    wanted = EVERYTHING["spec"]
    containers = [{**wanted["containers"][0], "name": "proxy"}, wanted["containers"][1]]
    addition = {**EVERYTHING, "spec": {**wanted, "containers": containers}}
    before, after = template_of_proxies(proxied(None)), template_of_proxies(proxied(addition))
    own, sidecar = after["spec"]["containers"]
    [plain] = before["spec"]["containers"]
    assert (own["name"], sidecar["name"]) == ("proxy", "agent")
    assert {"name": "TZ", "value": "Europe/Berlin"} in own["env"]
    assert own["volumeMounts"] == [*plain["volumeMounts"], {"name": "agent", "mountPath": "/agent"}]
    assert after["spec"]["volumes"] == [*before["spec"]["volumes"], {"name": "agent", "emptyDir": {}}]
    assert after["spec"]["terminationGracePeriodSeconds"] == 120
    spread = after["spec"]["topologySpreadConstraints"][-1]
    assert spread["labelSelector"]["matchLabels"].items() <= after["metadata"]["labels"].items()
    with pytest.raises(ManifestError, match=r"spec\.proxy\.podTemplate\.spec"):
        allowed.check(proxied(addition), SETTINGS)
    allowed.check(
        proxied(addition), replace(SETTINGS, allowed_pod_template=NEED_PERMISSION, allowed_images=("tools:*",))
    )


BAD_FOR_PROXIES: list[tuple[dict[str, Any], str]] = [
    ({"containers": [{"name": "broker"}]}, "broker is no container of a proxy"),
    ({"containers": [{"name": "proxy", "resources": {}}]}, "spec.proxy.resources"),
    (
        {"containers": [{"name": "proxy", "volumeMounts": [{"mountPath": "/etc/gantry-user/"}]}]},
        "/etc/gantry-user is the operator's",
    ),
    ({"volumes": [{"name": "access"}]}, "'access' is the operator's"),
    ({"hostNetwork": True}, "hostNetwork is the operator's"),
]  # fmt: skip


@pytest.mark.parametrize(("spec", "words"), BAD_FOR_PROXIES, ids=[words for _, words in BAD_FOR_PROXIES])
def test_what_the_operator_owns_of_the_proxies_is_refused(spec: dict[str, Any], words: str) -> None:
    with pytest.raises(ManifestError) as refused:
        proxied({"spec": spec})
    assert words in str(refused.value)
    assert "spec.proxy.podTemplate" in str(refused.value)


def test_the_refusals_name_every_volume_and_folder_of_the_proxies() -> None:
    made = proxied(None, tls={"mode": "Required", "secretName": "own"})
    secure = {"security": {"tls": {"mode": "Required", "secretName": "theirs", "issuer": "Secret"}}}
    for spec in (made, cluster(None, proxy={}, **secure)):
        pod = template_of_proxies(spec)["spec"]
        assert {v["name"] for v in pod["volumes"]} <= {*OWN_VOLUMES, *PROXY_VOLUMES}
        assert {m["mountPath"] for m in pod["containers"][0]["volumeMounts"]} <= {*OWN_MOUNTS, *PROXY_MOUNTS}


def test_parts_that_bring_code_or_rights_need_the_charts_permission() -> None:
    made = cluster(EVERYTHING)
    with pytest.raises(ManifestError) as refused:
        allowed.check(made, SETTINGS)
    said = str(refused.value)
    assert all(f"podTemplate.allowed: [{part}]" in said for part in NEED_PERMISSION)
    assert "image.allowed" in said
    allowed.check(made, replace(SETTINGS, allowed_pod_template=NEED_PERMISSION, allowed_images=("tools:*",)))
    harmless = {"metadata": EVERYTHING["metadata"], "spec": {"tolerations": [{"operator": "Exists"}]}}
    allowed.check(cluster(harmless), SETTINGS)
    with pytest.raises(ManifestError, match="Kubernetes' own pods"):
        allowed.check(cluster({"spec": {"priorityClassName": "system-node-critical"}}), SETTINGS)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["name", "image", "env", "x"]), inner),
    max_leaves=6,
)


@settings(max_examples=200, deadline=None)
@given(st.dictionaries(st.sampled_from([*POD, *OWN_POD]), json_values, max_size=4))
def test_no_addition_takes_away_what_is_ours(spec: dict[str, Any]) -> None:
    """Whatever is accepted, the operator's container, volumes and labels are in the result as before."""
    try:
        made = cluster({"spec": spec})
    except ManifestError:
        return
    before, after = template_of(cluster(None)), template_of(made)
    own = {c["name"]: c for c in after["spec"]["containers"] if c.get("name") in CONTAINERS}
    plain = before["spec"]["containers"][0]
    assert all(own["broker"][k] == plain[k] for k in OWN_CONTAINER if k in plain)
    assert all(v in after["spec"]["volumes"] for v in before["spec"]["volumes"])
    assert after["metadata"]["labels"].items() >= before["metadata"]["labels"].items()
    assert not set(OWN_POD) & (set(after["spec"]) - set(before["spec"]))
