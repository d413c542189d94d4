"""The chart's rights are the verbs that the operator's code uses, and docs/security.md has a reason for each."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
import yaml
from gantry_operator.api.cluster import BrokerCluster
from gantry_operator.plan.plan import plan
from gantry_operator.platforms.kubernetes import names
from gantry_operator.platforms.kubernetes.analytics import manifests
from gantry_operator.platforms.kubernetes.api.client import KINDS
from gantry_operator.platforms.kubernetes.manifests.desired_objects import OperatorSettings, render
from gantry_operator.platforms.kubernetes.objects.object_reconciler import REMOVABLE
from gantry_operator.platforms.kubernetes.operator import CACHED, FOR_REPORTS, OF_USERS, settings_from
from gantry_operator.platforms.kubernetes.resources.topics import KINDS as TOPIC_KINDS

ROOT = Path(__file__).parents[2]


RULES = re.compile(r'\{\{- define "gantry.rules" -}}\n(.*?)\n\{\{- end -}}', re.DOTALL)
REPORTS = re.compile(r"\{\{- if \.Values\.analytics\.enabled }}\n(.*?)\n\{\{- end }}", re.DOTALL)
GROUPS = {kind.plural: kind.group for kind in KINDS.values()}


def chart_rules(*, reports: bool) -> list[dict[str, list[str]]]:
    """The rules of the operator's role as the chart renders them."""
    found = RULES.search((ROOT / "helm/gantry/templates/_helpers.tpl").read_text())
    assert found is not None
    text = REPORTS.sub(r"\1" if reports else "", found[1])
    assert "{{" not in text, "the rules depend on analytics.enabled alone"
    rules: list[dict[str, list[str]]] = yaml.safe_load(text)
    return rules


def chart_policy(template: str) -> dict[str, Any]:
    """The NetworkPolicy of a template, with NAME for each value that it includes."""
    text = (ROOT / "helm/gantry/templates" / template).read_text()
    (found,) = re.findall(
        r"^apiVersion: networking.k8s.io/v1\n.*?(?=^---|^\{\{- end \}\})", text, re.DOTALL | re.MULTILINE
    )
    lines = [
        re.sub(r"\{\{-? .* \}\}", "NAME", line) for line in found.splitlines() if not line.strip().startswith("{{")
    ]
    policy: dict[str, Any] = yaml.safe_load("\n".join(lines))
    return policy


def by_resource(rules: list[dict[str, list[str]]]) -> dict[tuple[str, str], set[str]]:
    """Verbs by API group and resource."""
    found: dict[tuple[str, str], set[str]] = defaultdict(set)
    for rule in rules:
        for group in rule["apiGroups"]:
            for resource in rule["resources"]:
                found[group, resource] |= set(rule["verbs"])
    return dict(found)


def chart_rights() -> dict[str, set[str]]:
    """Verbs by resource, without reports."""
    return {resource: verbs for (_, resource), verbs in by_resource(chart_rules(reports=False)).items()}


def needed() -> dict[str, set[str]]:
    scaled = {"autoscaling": {"maxReplicas": 3}}
    cluster = BrokerCluster.make("demo", brokerGroups=[{"name": "a"}], proxy=scaled)
    applied = {o["kind"] for o in render(cluster, plan(cluster), OperatorSettings("image"))} | {"Secret"}
    out: dict[str, set[str]] = defaultdict(set)
    for kind in CACHED:
        if kind not in FOR_REPORTS:
            out[KINDS[kind].plural] |= {"list", "watch"}
    for kind in OF_USERS:
        out[KINDS[kind].plural] |= {"list", "watch"}
        out[f"{KINDS[kind].plural}/status"] |= {"patch"}
    for kind in TOPIC_KINDS:
        out[KINDS[kind].plural].add("patch")  # Finalizers; the annotation of an offset reset.
    for kind in applied:
        out[KINDS[kind].plural] |= {"get", "create", "patch"}
    for kind in set(REMOVABLE) - set(FOR_REPORTS):  # Without the right to list CronJobs none is known.
        out[KINDS[kind].plural].add("delete")
    out["statefulsets"].add("delete")  # A set whose volumes grew is created again around its pods.
    out["pods"] |= {"patch", "delete"}  # The role label; replacing a member.
    out["events"].add("list")  # Why Kubernetes makes no pod.
    out["persistentvolumeclaims"].add("delete")  # One without a volume; those of a removed group.
    out["persistentvolumeclaims"].add("patch")  # Growing; owner under `reclaim: Delete`.
    out["leases"] |= {"get", "create", "update", "patch"}
    out["leases"].add("delete")  # The record of a broker group that is removed.
    out["events"] |= {"create", "patch"}
    out["brokerclusters"] |= {"get", "list", "watch", "patch"}
    out["brokerclusters/status"] |= {"patch"}
    out["brokerclusters/finalizers"] |= {"update"}
    return dict(out)


def test_the_operator_has_the_rights_that_it_uses_and_no_more() -> None:
    assert chart_rights() == needed()


def test_no_right_is_a_wildcard() -> None:
    rules = chart_rules(reports=True)
    assert "*" not in str(rules)
    assert not {"escalate", "bind", "impersonate"} & {verb for rule in rules for verb in rule["verbs"]}
    for (group, resource), _ in by_resource(rules).items():
        assert GROUPS.get(resource.split("/")[0], group) == group, f"{resource} is not of {group}"


def documented() -> dict[tuple[str, str], set[str]]:
    """The table of rights in docs/security.md."""
    page = (ROOT / "docs/security.md").read_text().split("### What the operator may do")[1]
    found: dict[tuple[str, str], set[str]] = defaultdict(set)
    for line in page.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("|") and len(cells) == 4 and cells[0] not in ("API group", "---"):
            group, resources, verbs, reason = cells
            assert len(reason) > 10, line
            for resource in resources.split(","):
                name = "" if group == "core" else group.strip("`")
                found[name, resource.strip(" `")] |= {verb.strip() for verb in verbs.split(",")}
    return dict(found)


def test_the_table_of_rights_is_what_the_chart_grants() -> None:
    assert documented() == by_resource(chart_rules(reports=True))


def test_spark_has_only_the_rights_of_the_rule_that_names_them() -> None:
    """An account can only grant rights that it has. The driver gets no right to objects of brokers but pods, and writes
    one Secret, that of its page.
    """
    cluster = BrokerCluster.make("demo", brokerGroups=[{"name": "a"}], analytics={})
    rule, page = manifests.role(cluster)["rules"]
    assert page == {
        "apiGroups": [""], "resources": ["secrets"], "resourceNames": ["demo-analytics"], "verbs": ["patch"],
    }  # fmt: skip
    assert "patch" in by_resource(chart_rules(reports=True))["", "secrets"]
    assert rule == chart_rules(reports=True)[-1]
    assert rule["resources"] == ["pods"]
    conf = manifests.spark_conf(cluster, cluster.spec.analytics, "spark:1", token=True)  # type: ignore[arg-type]
    kubernetes = "spark.kubernetes."
    assert conf[f"{kubernetes}executor.disableConfigMap"] == "true"
    assert conf[f"{kubernetes}driver.service.deleteOnTermination"] == "false"
    assert conf[f"{kubernetes}driver.ownPersistentVolumeClaim"] == "false"


def test_rights_are_in_the_watched_namespaces_only() -> None:
    """The two branches of the template: a Role in each namespace, or a ClusterRole."""
    text = (ROOT / "helm/gantry/templates/rbac.yaml").read_text()
    branch, rest = text.split("{{- range .Values.watchNamespaces }}")[1].split("{{- else }}")
    everywhere, own = rest.split("{{- end }}")
    assert re.findall(r"^kind: (\w+)", branch, re.MULTILINE) == ["Role", "RoleBinding"]
    assert re.findall(r"^kind: (\w+)", everywhere, re.MULTILINE) == ["ClusterRole", "ClusterRoleBinding"]
    assert re.findall(r"^kind: (\w+)", own, re.MULTILINE) == ["Role", "RoleBinding"]
    assert branch.count('include "gantry.rules"') == everywhere.count('include "gantry.rules"') == 1
    assert "resourceNames: [gantry-operator]" in own


def test_policies_find_the_operator_by_the_label_of_the_chart() -> None:
    selector = (ROOT / "helm/gantry/templates/_helpers.tpl").read_text().split('define "gantry.selector"')[1]
    assert f"{names.NAME_LABEL}: {names.OPERATOR_NAME}" in selector.split("{{- end -}}")[0]


def test_values_of_otlp_reach_the_operator_and_the_brokers() -> None:
    """The chart sets each variable, schema and operator take the same values, and a cluster's own count first."""
    values = yaml.safe_load((ROOT / "helm/gantry/values.yaml").read_text())["otlp"]
    schema = yaml.safe_load((ROOT / "helm/gantry/values.schema.json").read_text())["properties"]["otlp"]["properties"]
    template = (ROOT / "helm/gantry/templates/deployment.yaml").read_text()
    found = dict(re.findall(r"- name: (GANTRY_OTLP_\w+)\n +value: {{ \.Values\.otlp\.(\w+) \| quote }}", template))
    assert found == {f"GANTRY_OTLP_{value.upper()}": value for value in values}

    def settings(**changed: object) -> OperatorSettings:
        chosen = values | changed
        for name in ("endpoint", "interval"):
            assert re.search(schema[name]["pattern"], str(chosen[name]))
        texts = {name: str(chosen[value]).lower() for name, value in found.items()}
        return settings_from({"GANTRY_BROKER_IMAGE": "b", **texts})

    def pushed(to: OperatorSettings, **spec: object) -> set[tuple[str, float] | None]:
        cluster = BrokerCluster.make("demo", brokerGroups=[{"name": "a"}], **spec)
        texts = [
            json.loads(text)
            for obj in render(cluster, plan(cluster), to)
            if obj["kind"] == "ConfigMap"
            for name, text in obj["data"].items()
            if name.startswith("demo-a-")
        ]
        assert texts
        return {None if (o := t.get("otlp")) is None else (o["endpoint"], o["interval_s"]) for t in texts}

    assert (settings().otlp, settings().brokers_otlp) == (None, None)
    operator = settings(endpoint="http://c:4318", interval="30s")
    assert operator.otlp is not None
    assert (operator.otlp.endpoint, operator.otlp.interval_s) == ("http://c:4318", 30)
    assert pushed(operator) == {None}
    both = settings(endpoint="http://c:4318", interval="30s", brokers=True)
    assert pushed(both) == {("http://c:4318", 30)}
    assert pushed(both, otlp={"endpoint": "http://own:4318"}) == {("http://own:4318", 60)}
    with pytest.raises(SystemExit, match=r"otlp\.endpoint"):
        settings(brokers=True)


def test_every_value_has_a_schema() -> None:
    values = yaml.safe_load((ROOT / "helm/gantry/values.yaml").read_text())
    schema = yaml.safe_load((ROOT / "helm/gantry/values.schema.json").read_text())

    def missing(value: object, node: dict[str, object], path: str) -> list[str]:
        properties = node.get("properties")
        if not isinstance(value, dict) or not isinstance(properties, dict):
            return []
        out = [f"{path}.{k}" for k in value if k not in properties]
        return out + [m for k, v in value.items() if k in properties for m in missing(v, properties[k], f"{path}.{k}")]

    assert missing(values, schema, "") == []


def fits(schema: dict[str, Any], value: Any) -> bool:
    """Whether a value keeps what a JSON schema says by the keywords of the chart's condition."""
    if not isinstance(value, dict):
        return (
            len(value) >= max(schema.get("minItems", 0), schema.get("minLength", 0))
            if hasattr(value, "__len__")
            else True
        )
    named = schema.get("properties", {})
    condition = fits(schema["if"], value) and not fits(schema["then"], value) if "if" in schema else False
    return (
        not condition
        and all(name in value for name in schema.get("required", []))
        and all(fits(part, value[name]) for name, part in named.items() if name in value)
    )


def test_the_console_has_a_policy_for_its_port_alone() -> None:
    text = (ROOT / "helm/gantry/templates/console.yaml").read_text()
    policy = chart_policy("console.yaml")
    assert f"containerPort: {policy['spec']['ingress'][0]['ports'][0]['port']}\n" in text
    assert policy["spec"]["policyTypes"] == ["Ingress"]
    assert policy["spec"]["ingress"] == [{"ports": [{"protocol": "TCP", "port": 8080}], "from": "NAME"}]
    helpers = text[text.index('define "gantry.console.selector"') :]
    assert f"{names.NAME_LABEL}: {names.CONSOLE_NAME}\n" in helpers, "clusters let pods with this label in"


@pytest.mark.parametrize(
    ("console", "valid"),
    [
        ({"enabled": True, "from": [], "proxy": {"userHeader": ""}}, True),
        ({"from": [], "proxy": {"userHeader": "X-User"}}, False),
        ({"proxy": {"userHeader": "X-User"}}, False),
        ({"from": [{"podSelector": {}}], "proxy": {"userHeader": "X-User"}}, True),
    ],
)
def test_a_trusted_header_needs_the_pods_that_set_it(console: dict[str, Any], valid: bool) -> None:
    schema = json.loads((ROOT / "helm/gantry/values.schema.json").read_text())["properties"]["console"]
    assert fits(schema, console) == valid
