"""The CRDs as YAML, generated from the models: `python -m gantry_operator.api.crd [--check] [--root DIR]`.

The result is a structural schema: references are resolved, and forms that Kubernetes does not accept are replaced. An
optional field is one that may be absent. The API server's own strict validation refuses unknown fields. There are no
defaults in it: the API server would store them into the objects, where they look as if people had written them. The
descriptions name them, and the operator fills them in.
"""

from __future__ import annotations

import argparse
import copy
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel

from gantry_operator.api import cluster, consumer_group, topic, user
from gantry_operator.api.annotations import GROUP
from gantry_operator.api.base import Model, Strict, form_rule
from gantry_operator.api.cluster import SERVED, VERSION, BrokerCluster
from gantry_operator.api.manifest import model_in

HEADER = """# Made by `python -m gantry_operator.api.crd` from the models in operator/gantry_operator/api: change those.
"""
CRDS = Path("crds")
CHART = Path("helm/gantry/files")

_DROPPED = ("title", "additionalProperties", "propertyNames", "discriminator", "const")

COLUMNS: list[dict[str, Any]] = [
    {"name": "Phase", "type": "string", "jsonPath": ".status.phase", "description": "The state in one word."},
    {"name": "Ready", "type": "string", "jsonPath": ".status.readyMembers", "description": "Ready members of all."},
    {"name": "Masters", "type": "string", "jsonPath": ".status.masters", "description": "The master of each group."},
    {"name": "Mode", "type": "string", "jsonPath": ".status.mode", "description": "How the master is chosen."},
    {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"},
    {
        "name": "Message",
        "type": "string",
        "priority": 1,
        "jsonPath": ".status.conditions[?(@.type=='Available')].message",
        "description": "The state in words.",
    },
]

USER_COLUMNS: list[dict[str, Any]] = [
    {"name": "Cluster", "type": "string", "jsonPath": ".spec.cluster", "description": "Its cluster."},
    {"name": "AccessKey", "type": "string", "jsonPath": ".status.accessKey", "description": "The name in clients."},
    {"name": "Super", "type": "boolean", "jsonPath": ".status.superUser", "description": "May do everything."},
    {
        "name": "Ready",
        "type": "string",
        "jsonPath": ".status.conditions[?(@.type=='Ready')].status",
        "description": "Whether the brokers know the user.",
    },
    {"name": "Keys", "type": "integer", "jsonPath": ".status.keys", "description": "Valid secret keys."},
    {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"},
    {"name": "Secret", "type": "string", "priority": 1, "jsonPath": ".status.secret", "description": "Its Secret."},
    {
        "name": "Message",
        "type": "string",
        "priority": 1,
        "jsonPath": ".status.conditions[?(@.type=='Ready')].message",
        "description": "The state in words.",
    },
]


READY = {
    "name": "Ready",
    "type": "string",
    "jsonPath": ".status.conditions[?(@.type=='Ready')].status",
    "description": "Whether clients can use it.",
}
SYNCED = {
    "name": "Synced",
    "type": "string",
    "priority": 1,
    "jsonPath": ".status.conditions[?(@.type=='Synced')].status",
    "description": "Whether the brokers have it exactly as the spec says.",
}
WHY_NOT_SYNCED = {
    "name": "Message",
    "type": "string",
    "priority": 1,
    "jsonPath": ".status.conditions[?(@.type=='Synced')].message",
    "description": "The state in words.",
}
AGE = {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"}

TOPIC_COLUMNS: list[dict[str, Any]] = [
    {"name": "Cluster", "type": "string", "jsonPath": ".spec.cluster", "description": "Its cluster."},
    {"name": "Queues", "type": "integer", "jsonPath": ".status.queues", "description": "Queues that take messages."},
    {"name": "Permission", "type": "string", "jsonPath": ".status.permission", "description": "What clients may do."},
    READY,
    AGE,
    {"name": "Topic", "type": "string", "priority": 1, "jsonPath": ".status.topicName", "description": "Its name."},
    SYNCED,
    WHY_NOT_SYNCED,
]

GROUP_COLUMNS: list[dict[str, Any]] = [
    {"name": "Cluster", "type": "string", "jsonPath": ".spec.cluster", "description": "Its cluster."},
    {"name": "Members", "type": "integer", "jsonPath": ".status.members", "description": "Connected clients."},
    {"name": "Lag", "type": "integer", "jsonPath": ".status.lag", "description": "Messages that are not committed."},
    READY,
    AGE,
    {"name": "Group", "type": "string", "priority": 1, "jsonPath": ".status.groupName", "description": "Its name."},
    SYNCED,
    WHY_NOT_SYNCED,
]


@dataclass(frozen=True, slots=True)
class Resource:
    """One custom resource and the names of its definition."""

    model: type[BaseModel]
    kind: str
    plural: str
    singular: str
    short_name: str
    columns: list[dict[str, Any]]
    scale: dict[str, str] | None = None
    """The paths of the subresource `scale`. It has no paths into lists, so broker groups cannot be in it."""

    @property
    def file_name(self) -> str:
        return f"{self.plural}.{GROUP}.yaml"


PROXIES = {
    "specReplicasPath": ".spec.proxy.replicas",
    "statusReplicasPath": ".status.proxy.replicas",
    "labelSelectorPath": ".status.proxy.selector",
}
CLUSTER = Resource(BrokerCluster, cluster.KIND, cluster.PLURAL, cluster.SINGULAR, cluster.SHORT_NAME, COLUMNS, PROXIES)
USER = Resource(user.BrokerUser, user.KIND, user.PLURAL, user.SINGULAR, user.SHORT_NAME, USER_COLUMNS)
TOPIC = Resource(topic.BrokerTopic, topic.KIND, topic.PLURAL, topic.SINGULAR, topic.SHORT_NAME, TOPIC_COLUMNS)
CONSUMER_GROUP = Resource(
    consumer_group.ConsumerGroup,
    consumer_group.KIND,
    consumer_group.PLURAL,
    consumer_group.SINGULAR,
    consumer_group.SHORT_NAME,
    GROUP_COLUMNS,
)
RESOURCES = (CLUSTER, USER, TOPIC, CONSUMER_GROUP)
FILES = tuple(folder / r.file_name for folder in (CRDS, CHART) for r in RESOURCES)


def crd(resource: Resource = CLUSTER) -> dict[str, Any]:
    """Return the CustomResourceDefinition object."""
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{resource.plural}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": resource.kind,
                "listKind": f"{resource.kind}List",
                "plural": resource.plural,
                "singular": resource.singular,
                "shortNames": [resource.short_name],
                "categories": ["all"],
            },
            "versions": [
                {
                    "name": version,
                    "served": True,
                    "storage": version == VERSION,
                    "subresources": {"status": {}} | ({} if resource.scale is None else {"scale": resource.scale}),
                    "additionalPrinterColumns": copy.deepcopy(resource.columns),
                    "schema": {
                        "openAPIV3Schema": schema(resource) if version == SERVED[-1] else bare(schema(resource))
                    },
                }
                for version in SERVED
            ],
            "conversion": {"strategy": "None"},
        },
    }


def bare(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a schema without the descriptions of its fields: `kubectl explain` shows the newest version, and `kubectl
    apply` keeps a whole CRD in an annotation, which has room for 256 KiB.
    """
    short: dict[str, Any] = _without_descriptions(schema)
    return short | {"description": schema["description"]}


def _without_descriptions(node: Any) -> Any:
    if isinstance(node, list):
        return [_without_descriptions(n) for n in node]
    if not isinstance(node, dict):
        return node
    # A field may itself be called "description".
    return {k: _without_descriptions(v) for k, v in node.items() if k != "description" or isinstance(v, dict)}


def schema(resource: Resource = CLUSTER) -> dict[str, Any]:
    """Return the structural schema of a resource."""
    structural: dict[str, Any] = _without_defaults(schema_with_defaults(resource))
    return structural


def _without_defaults(node: Any) -> Any:
    if isinstance(node, list):
        return [_without_defaults(n) for n in node]
    if not isinstance(node, dict):
        return node
    # A field may itself be called "default".
    return {
        k: {name: _without_defaults(n) for name, n in v.items()} if k == "properties" else _without_defaults(v)
        for k, v in node.items()
        if k != "default"
    }


def schema_with_defaults(resource: Resource = CLUSTER) -> dict[str, Any]:
    """Return the schema with the default of each field, for documents."""
    raw = resource.model.model_json_schema(by_alias=True, mode="validation")
    out = _structural(raw, raw.get("$defs", {}), resource.model)
    out["properties"]["apiVersion"] = {"type": "string"}
    out["properties"]["kind"] = {"type": "string"}
    out["properties"]["metadata"] = {"type": "object"}
    out["properties"]["status"].pop("default", None)
    out["required"] = ["spec"]
    return out


def _structural(node: dict[str, Any], defs: dict[str, Any], model: type[BaseModel] | None) -> dict[str, Any]:
    """`node` without references and without forms that a structural schema excludes. `model`: its model class, if
    any.
    """
    node = dict(node)
    reference = node.pop("$ref", None)
    if reference is not None:
        node = {**defs[reference.rsplit("/", 1)[1]], **node}
    options = node.get("anyOf")
    if options is not None and "x-kubernetes-int-or-string" not in node:
        # Optional: an absent field. The API server turns null into an absent field if there is no default.
        rest = [o for o in options if o.get("type") != "null"]
        node.pop("anyOf")
        node = _structural({**rest[0], **node}, defs, model)
    if node.get("default", ...) is None:
        node.pop("default")
    form = form_rule(node.get("pattern", ""))
    if form is not None and node.get("x-kubernetes-int-or-string"):
        node.pop("pattern")  # `Resources` has a rule about its values.
    elif form is not None:
        node.pop("pattern")
        node["x-kubernetes-validations"] = [form, *node.get("x-kubernetes-validations", [])]
    values = node.get("additionalProperties")
    for key in _DROPPED:
        node.pop(key, None)
    node.pop("$defs", None)
    if isinstance(values, dict):
        node["additionalProperties"] = _structural(values, defs, None)
    if "items" in node:
        node["items"] = _structural(node["items"], defs, model)
    if "properties" in node:
        fields = {} if model is None else {f.alias or n: f.annotation for n, f in model.model_fields.items()}
        node["properties"] = {
            name: _structural(child, defs, model_in(fields.get(name))) for name, child in node["properties"].items()
        }
        defaults = _part_default(model)
        for name, child in node["properties"].items():
            if name in defaults:
                child["default"] = defaults[name]
                if defaults[name] and "Default: " not in child["description"] and _is_own(model, name):
                    child["description"] += f" Default: {_in_words(defaults[name])}"
    if model is not None and issubclass(model, Model) and "properties" in node and model.schema_rules():
        node["x-kubernetes-validations"] = model.schema_rules()
    if isinstance(node.get("description"), str):
        text = " ".join(node["description"].split())
        default = node.get("default")
        if isinstance(default, str | int | bool) and text and default != "":
            shown = str(default).lower() if isinstance(default, bool) else default
            if not text.endswith(f"Default: {shown}"):  # A part with defaults is visited once more inside its owner.
                text += f" Default: {shown}" if text.endswith(".") else f". Default: {shown}"
        node["description"] = text
    return node


def _is_own(model: type[BaseModel] | None, name: str) -> bool:
    """Whether the default of a part differs from the part's own defaults."""
    if model is None:
        return False
    value = model.model_fields[name].get_default(call_default_factory=True, validated_data={})
    return bool(value != type(value)())


def _in_words(default: dict[str, Any]) -> str:
    return "; ".join(
        f"{key} {', '.join(f'{k} {v}' for k, v in part.items()) if isinstance(part, dict) else part}"
        for key, part in default.items()
    )


def _part_default(model: type[BaseModel] | None) -> dict[str, Any]:
    """Defaults from a factory, in full."""
    out: dict[str, Any] = {}
    if model is None or not issubclass(model, Strict):
        return out
    for name, field in model.model_fields.items():
        if field.default_factory is None or name == "status":
            continue
        value = field.get_default(call_default_factory=True, validated_data={})
        if isinstance(value, BaseModel):
            out[name] = value.model_dump(mode="json", exclude_none=True)
    return out


class _Plain(yaml.SafeDumper):
    """Writes shared parts out each time: anchors would confuse readers."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def render(file: Path = FILES[0]) -> str:
    """Return the YAML of one of the files. The chart's copy stays when the chart is uninstalled, so the clusters stay,
    too.
    """
    definition = crd(next(r for r in RESOURCES if r.file_name == file.name))
    if file.parent == CHART:
        definition["metadata"]["annotations"] = {"helm.sh/resource-policy": "keep"}
    return HEADER + yaml.dump(definition, Dumper=_Plain, sort_keys=False, width=120, allow_unicode=True)


def stale(root: Path) -> list[Path]:
    """Return the files under `root` that differ from the models."""
    return [f for f in FILES if not (root / f).is_file() or (root / f).read_text(encoding="utf-8") != render(f)]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m gantry_operator.api.crd", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if a file is stale")
    parser.add_argument("--root", type=Path, default=Path(), help="root of the repository (default: here)")
    options = parser.parse_args(arguments)
    old = stale(options.root)
    if options.check:
        for file in old:
            print(f"{file} is stale: run `python -m gantry_operator.api.crd`", file=sys.stderr)
        return 1 if old else 0
    for file in old:
        (options.root / file).parent.mkdir(parents=True, exist_ok=True)
        (options.root / file).write_text(render(file), encoding="utf-8")
        print(f"wrote {file}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
