"""The chart's rights are exactly the verbs that the operator's code uses."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path

import yaml
from gantry_operator.api import BrokerCluster
from gantry_operator.plan import plan
from gantry_operator.platforms.kubernetes.client import KINDS
from gantry_operator.platforms.kubernetes.desired_objects import OperatorSettings, render
from gantry_operator.platforms.kubernetes.object_reconciler import REMOVABLE
from gantry_operator.platforms.kubernetes.operator import CACHED, FOR_REPORTS

ROOT = Path(__file__).parents[2]


def rights(text: str) -> dict[str, set[str]]:
    """Verbs by resource of the first role in the template."""
    rules = yaml.safe_load(re.sub(r"\{\{.*?\}\}", "", text))["rules"]
    found: dict[str, set[str]] = defaultdict(set)
    for rule in rules:
        for resource in rule["resources"]:
            found[resource] |= set(rule["verbs"])
    return dict(found)


def chart_rights() -> dict[str, set[str]]:
    text = (ROOT / "helm/gantry/templates/rbac.yaml").read_text().split("\n---\n")[0]
    text = text[: text.index("{{- if .Values.analytics.enabled }}")]
    return rights("\n".join(line for line in text.splitlines() if not line.strip().startswith("{{")))


def needed() -> dict[str, set[str]]:
    cluster = BrokerCluster.make("demo", brokerGroups=[{"name": "a"}])
    applied = {o["kind"] for o in render(cluster, plan(cluster), OperatorSettings("image"))} | {"Secret"}
    out: dict[str, set[str]] = defaultdict(set)
    for kind in CACHED:
        if kind not in FOR_REPORTS:
            out[KINDS[kind].plural] |= {"list", "watch"}
    for kind in applied:
        out[KINDS[kind].plural] |= {"get", "create", "patch"}
    for kind in REMOVABLE:
        out[KINDS[kind].plural].add("delete")
    out["statefulsets"].add("delete")  # A set whose volumes grew is created again around its pods.
    out["pods"] |= {"patch", "delete"}  # The role label; replacing a member.
    out["persistentvolumeclaims"].add("patch")  # Growing; owner under `reclaim: Delete`.
    out["leases"] |= {"get", "create", "update", "patch"}
    out["events"] |= {"create", "patch"}
    out["brokerclusters"] |= {"get", "list", "watch", "patch"}
    out["brokerclusters/status"] |= {"patch"}
    out["brokerusers/status"] |= {"patch"}
    out["brokerclusters/finalizers"] |= {"update"}
    return dict(out)


def test_the_operator_has_the_rights_that_it_uses_and_no_more() -> None:
    assert chart_rights() == needed()


def test_no_right_is_a_wildcard() -> None:
    assert "*" not in "".join(f"{r}{v}" for r, v in chart_rights().items())
    assert "escalate" not in (ROOT / "helm/gantry/templates/rbac.yaml").read_text()


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
