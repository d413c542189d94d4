"""Manifests of every kind, changed at a few places that a seed draws: right ones and wrong ones.

The models and the API server must refuse the same of them: `test_drawn_manifests.py` asks the models alone,
`e2e/test_c_refused.py` asks both.
"""

from __future__ import annotations

import copy
import functools
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import yaml
from gantry_operator.api import crd
from gantry_operator.api.manifest import ManifestError, parse_group, parse_manifest, parse_topic, parse_user

ROOT = Path(__file__).parents[2]
PARSERS: Final = {
    "BrokerCluster": parse_manifest, "BrokerUser": parse_user, "BrokerTopic": parse_topic, "ConsumerGroup": parse_group
}  # fmt: skip
SCHEMAS: Final = {r.kind: crd.schema(r) for r in crd.RESOURCES}

TEXTS: Final = (
    "", "a", "A", "a-b", "a_b", "-a", "a.b", "a b", "a\n", "\na", "0", "1", "-1", "00", "x" * 40, "x" * 130, "x" * 600,
    "²", "\u0661", "é", "250m", "2", "2.5", ".5", "5.", "512Mi", "16Mi", "64Mi", "65Ti", "1025", "1 G", "1e3", "0Gi",
    "0.0Gi", "10Gi", "500ms", "2s", "1500ms", "1499ms", "5m", "301s", "1h", "1m30s", "30s1m", "\u0662s", "7d", "0d",
    "59s", "60s", "1m", "00s", "http://c:4318", "https://c", "ftp://c", "http:// c", "10.0.0.0/8", "10.0.0.1",
    "10.0.0.0/33", "256.0.0.1", "::/0", "::1/129", "fe80::/10", "host:9876", "host:0", "host:65536", "host:70000",
    "[::1]:9876", "0 3 * * *", "@daily", "@never", "60 * * * *", "*/5 * * * *", "0 0 31 2 *", "0 0 * * sun", "* * * *",
    "Europe/Berlin", "Mars/Olympus", "UTC", "s3://bucket/prefix", "s3://bucket", "gs://b/p", "az://c/p", "file:///x",
    "file://x", "s3://", "2026-01-31T12:00:00Z", "2026-13-31T12:00:00Z", "2026-01-31T12:00:00+25:00", "2026-01-31",
    "04", "4", "04;16", "24", "1s 5s", "1s  5s", "1s", "{cluster}", "{name}.x", "{pod}.x", "{", "master", "%RETRY%a",
    "%DLQ%a", "rmq_sys_X", "TBW102", "TOOLS_CONSUMER", "gantry.dev/x", "example.com/disk", "kubernetes.io/x", "Raft",
    "Required", "Disabled", "Enabled", "Delete", "Async", "None", "LoadBalancer", "NodePort", "ClusterIP", "true",
)  # fmt: skip
NUMBERS: Final = (-1, 0, 1, 2, 3, 5, 64, 1_000, 1_024, 65_535, 65_536, 2**31 - 1, 2**31, 2**62)
OTHERS: Final[tuple[Any, ...]] = (True, False, [], {}, 1.5)

ONLY_MODELS: Final = re.compile(r"is no field of a pod|may not be set in a pod|time ?zone|schedule", re.IGNORECASE)
"""Refusals that the API server cannot state, for e2e: fields within a free part, names of time zones, schedules that
are never due. The operator shows them as a condition.
"""


def verdict(document: dict[str, Any]) -> str:
    """The models' refusal; empty: they accept the document."""
    try:
        PARSERS[document["kind"]](document)
    except ManifestError as error:
        return str(error)
    return ""


@functools.cache
def bases() -> list[dict[str, Any]]:
    """The documents of all examples."""
    found = [d for path in sorted((ROOT / "examples").glob("*.yaml")) for d in yaml.safe_load_all(path.read_text())]
    return [d for d in found if d.get("kind") in PARSERS]


def drawn(seed: int) -> dict[str, Any]:
    """One document. Most have one change, some several, so that rules over two fields are met."""
    rng = random.Random(seed)
    kind = rng.choice(list(PARSERS))
    document: dict[str, Any] = copy.deepcopy(rng.choice([d for d in bases() if d["kind"] == kind]))
    name = document["metadata"]["name"]
    document["metadata"] = {
        "name": rng.choice(("my.name", "a-", "x" * 33, "x" * 125, name)) if rng.random() < 0.05 else name
    }
    schema = SCHEMAS[document["kind"]]["properties"]["spec"]
    for _ in range(rng.choice((1, 1, 2, 3))):
        _change(document["spec"], schema, rng)
    return document


def _change(node: dict[str, Any], schema: dict[str, Any], rng: random.Random) -> None:
    """Give one field another value, or take it away. Goes down with a probability, and makes what is missing there."""
    name = rng.choice(list(schema["properties"]))
    child = schema["properties"][name]
    roll = rng.random()
    if roll < 0.06:
        node.pop(name, None)
    elif "properties" in child and roll < 0.9:
        if not isinstance(node.get(name), dict):
            node[name] = _made(child, rng)
        _change(node[name], child, rng)
    elif "properties" in child.get("items", {}) and roll < 0.9:
        if not isinstance(node.get(name), list) or not node[name] or not isinstance(node[name][-1], dict):
            node[name] = [_made(child["items"], rng)]
        _change(node[name][-1], child["items"], rng)
    else:
        node[name] = _value(child, rng)


def _made(schema: dict[str, Any], rng: random.Random) -> dict[str, Any]:
    """A part with the fields that it must have."""
    return {name: _value(schema["properties"][name], rng) for name in schema.get("required", ())}


def _value(schema: dict[str, Any], rng: random.Random) -> Any:
    """Mostly of the field's type, at the borders of its range."""
    if rng.random() < 0.04:
        return rng.choice((*OTHERS, rng.choice(TEXTS), rng.choice(NUMBERS)))
    kind = schema.get("type")
    if schema.get("x-kubernetes-int-or-string"):
        return rng.choice((rng.choice(TEXTS), rng.choice(NUMBERS)))
    if "enum" in schema:
        return rng.choice((*schema["enum"] * 3, *TEXTS[:3]))
    if kind == "integer":
        low, high = schema.get("minimum", 0), schema.get("maximum", 2**31)
        return rng.choice((low, high, low - 1, high + 1, low + 1, rng.choice(NUMBERS)))
    if kind == "boolean":
        return rng.random() < 0.5
    if kind == "array":
        return [_value(schema["items"], rng) for _ in range(rng.choice((0, 1, 1, 2, 3)))]
    if kind == "object" and "properties" in schema:
        return _made(schema, rng)
    if kind == "object":
        inner = schema.get("additionalProperties")
        inner = inner if isinstance(inner, dict) else {"type": "string"}
        names = ("cpu", "memory", "memroy", "ephemeral-storage", "hugepages-2Mi", *TEXTS)
        return {rng.choice(names): _value(inner, rng) for _ in range(rng.choice((0, 1, 1, 2)))}
    return rng.choice(TEXTS)


_ARCHIVE: Final = {"url": "s3://b/p"}
_MATCH: Final = {"matchExpressions": [{"key": "a", "operator": "Exists", "values": ["b"]}]}
RULES: Final[tuple[dict[str, Any], ...]] = (
    {"brokerGroups": [{"name": "a", "preferredMaster": 3}]},
    {"brokerGroups": [{"name": "a"}, {"name": "b", "brokerName": "a"}]},
    {"resources": {"limits": {"memory": "65Ti"}}},
    {"resources": {"requests": {"memory": "65Ti"}}},
    {"resources": {"requests": {"cpu": "-1"}}},
    {"resources": {"requests": {"cpu": "1e3"}}},
    {"resources": {"limits": {"cpu": "1025"}}},
    {"archive": _ARCHIVE, "bootstrap": {"fromArchive": {**_ARCHIVE, "cluster": "c"}}},
    {"archive": {"url": "s3://b/q"}, "bootstrap": {"follow": _ARCHIVE}},
    {"archive": {**_ARCHIVE, "interval": "25h"}},
    {"otlp": {"endpoint": "http://c:4318", "interval": "2h"}},
    {"bootstrap": {"fromArchive": _ARCHIVE, "fromRocketMQ": {"nameServers": ["h:9876"], "cluster": "c"}}},
    {"bootstrap": {"fromArchive": _ARCHIVE, "follow": _ARCHIVE}},
    {"bootstrap": {"fromArchive": {**_ARCHIVE, "time": "2026-01-31T12:00:00Z", "offset": 0}}},
    {"bootstrap": {"fromArchive": {**_ARCHIVE, "offset": 0}}, "brokerGroups": [{"name": "a"}, {"name": "b"}]},
    {"bootstrap": {"fromRocketMQ": {"nameServers": ["h:9876"], "cluster": "c"}}, "mode": "Raft"},
    {"broker": {"deleteWhen": "4"}},
    {"tables": {"catalog": {"a b": "x"}}},
    {"tables": {"catalog": {"token": "x"}}},
    {"archive": {**_ARCHIVE, "readRate": "0Mi"}},
    {"archive": {**_ARCHIVE, "verify": {"rate": "0Mi"}}},
    {"broker": {"messageDelayLevel": "1s  5s"}},
    {"storage": {"size": "0Gi"}},
    {"storage": {"labels": {"gantry.dev/x": "a"}}},
    {"storage": {"annotations": {"gantry.dev/x": "a"}}},
    {"analytics": {"source": "Archive"}},
    {"analytics": {"engine": "SparkApplication", "executors": 0}},
    {"tables": {"engine": "SparkApplication"}},
    {"bootstrap": {"fromArchive": {**_ARCHIVE, "time": "yesterday"}}},
    {"maintenanceWindow": {"schedule": "@daily", "duration": "1m"}},
    {"security": {"topicQuotas": [{"topic": "a"}]}},
    {"security": {"topicQuotas": [{"topic": "a", "messagesPerSecond": 1}] * 2}},
    {"security": {"allowedClients": [{"podSelector": _MATCH}]}},
)
"""Changes of a BrokerCluster that break one rule each, which a draw seldom meets."""


def written() -> list[dict[str, Any]]:
    """A document for each of `RULES`, and of other kinds for theirs."""
    meta = {"apiVersion": "gantry.dev/v1beta1", "kind": "BrokerCluster", "metadata": {"name": "demo"}}
    user = meta | {"kind": "BrokerUser"}
    rule = {"type": "Topic", "name": "a b", "actions": ["Pub"]}
    clusters = [meta | {"spec": {"brokerGroups": [{"name": "a"}], **changes}} for changes in RULES]
    topic = meta | {"kind": "BrokerTopic"}
    tables: tuple[dict[str, Any], ...] = (
        {"every": "1m", "schedule": "@daily"},
        {"schema": "JsonSchema"},
        {"schema": "Avro"},
        {"format": "Parquet", "mode": "Upsert"},
        {"freeze": True},
    )
    return [
        *clusters,
        user | {"spec": {"cluster": "demo", "rules": [rule]}},
        *(
            topic | {"spec": {"cluster": "demo", "config": config}}
            for config in ({"cleanup.policy": "COMPACTION"}, {"delete.retention.ms": "1"})
        ),
        *(topic | {"spec": {"cluster": "demo", "table": table}} for table in tables),
    ]


def documents(count: int) -> list[dict[str, Any]]:
    """Those of `RULES`, and `count` drawn ones."""
    return [*written(), *map(drawn, range(count))]


def messages() -> set[str]:
    """The messages of all rules that the models check, too."""
    return {
        rule["message"].removeprefix("it is not usable: ")
        for schema in SCHEMAS.values()
        for node in _nodes(schema)
        for rule in node.get("x-kubernetes-validations", ())
        if "oldSelf" not in rule["rule"]
    }


def _nodes(schema: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield schema
    inner = schema.get("additionalProperties")
    for child in (*schema.get("properties", {}).values(), schema.get("items"), inner):
        if isinstance(child, dict):
            yield from _nodes(child)
