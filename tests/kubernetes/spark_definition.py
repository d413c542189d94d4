"""Compares our runs with the definition of SparkApplication: `python -m tests.kubernetes.spark_definition FILE`.

FILE is `build-tools/helm/spark-kubernetes-operator/crds/sparkapplications.spark.apache.org-v1.yaml` of
apache/spark-kubernetes-operator, at the tag of a release. It is in no package of a registry.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from gantry_broker.contracts.table_runs import TableOrder
from gantry_operator.api.table import Tables
from gantry_operator.plan.plan import plan
from gantry_operator.platforms.kubernetes.analytics import manifests as reports
from gantry_operator.platforms.kubernetes.manifests.spark_application import API_VERSION, ENDED, FAILURES, KIND
from gantry_operator.platforms.kubernetes.tables import manifests as tables

from tests.kubernetes.test_spark_applications import URLS
from tests.kubernetes.test_spark_applications import cluster as with_report
from tests.kubernetes.test_table_runs import RUN
from tests.kubernetes.test_table_runs import cluster as with_tables
from tests.support.present import present

TYPES: dict[str, type | tuple[type, ...]] = {
    "string": str, "integer": int, "number": (int, float), "boolean": bool, "object": dict, "array": list,
}  # fmt: skip
SIZES = {"requests": {"cpu": "500m", "memory": "1Gi"}, "limits": {"cpu": "1", "memory": "2Gi"}}
ARCHIVE = {"url": "s3://logs/demo", "credentialsSecret": "lake"}
REPORTS: tuple[dict[str, Any], ...] = (
    {}, {"queue": "nightly"}, {"output": {"path": "s3a://reports/demo"}},
    {"resources": {"driver": SIZES, "executor": SIZES}, "sparkConf": {"spark.sql.shuffle.partitions": "8"}},
)  # fmt: skip
TABLES: tuple[dict[str, Any], ...] = (
    {}, {"queue": "lake", "resources": {"driver": SIZES, "executor": SIZES}},
    {"catalog": {"type": "rest", "uri": "https://c", "warehouse": "s3://b/t"}, "catalogSecret": "lake", "user": "lake"},
    {"source": "Archive"},
)  # fmt: skip


def against(schema: dict[str, Any], value: Any, where: str = "") -> Iterator[str]:
    """Yields what a value has against a schema of a definition. Unknown fields count: the API server drops them."""
    if schema.get("x-kubernetes-int-or-string"):
        if not isinstance(value, int | str):
            yield f"{where} is neither a number nor text"
        return
    kind = schema.get("type")
    if kind is not None and (not isinstance(value, TYPES[kind]) or (isinstance(value, bool) and kind != "boolean")):
        yield f"{where} is {type(value).__name__}, not {kind}"
        return
    if "enum" in schema and value not in schema["enum"]:
        yield f"{where} is {value!r}, not one of {', '.join(map(str, schema['enum']))}"
    if "pattern" in schema and isinstance(value, str) and not re.search(schema["pattern"], value):
        yield f"{where} is {value!r}, which is not like {schema['pattern']}"
    if isinstance(value, dict):
        fields, others = schema.get("properties", {}), schema.get("additionalProperties")
        yield from (f"{where} lacks {name}" for name in schema.get("required", ()) if name not in value)
        for name, inner in value.items():
            if name in fields:
                yield from against(fields[name], inner, f"{where}.{name}")
            elif isinstance(others, dict):
                yield from against(others, inner, f"{where}.{name}")
            elif not schema.get("x-kubernetes-preserve-unknown-fields"):
                yield f"{where}.{name} is not in the definition"
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            yield from against(schema.get("items", {}), inner, f"{where}[{number}]")


def runs() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields a run of each kind, with its name."""
    for given in REPORTS:
        yield f"report {given}", present(reports.application(with_report(**given), URLS, "spark:1", token=True))
    for given in TABLES:
        for mode in ("Disabled", "Required"):
            spec = Tables(**({"engine": KIND, "executors": 2} | given))
            cluster = with_tables(
                archive=ARCHIVE if spec.source == "Archive" else None,
                security={"authentication": "Disabled", "tls": {"mode": mode}},
            )
            pods = tables.pods_of(cluster, spec, "spark:1")
            ordered = tables.order(cluster, plan(cluster), pods, spec, RUN, [TableOrder(topic="Orders")], 0.0)
            yield f"tables {given}, TLS {mode}", tables.application(pods, ordered)


def problems(definition: dict[str, Any]) -> Iterator[str]:
    """Yields what our runs have against a definition, and words for states that it does not have."""
    version = API_VERSION.rpartition("/")[2]
    schema = next(v["schema"]["openAPIV3Schema"] for v in definition["spec"]["versions"] if v["name"] == version)
    for name, run in runs():
        yield from (f"{name}: {problem}" for problem in against(schema["properties"]["spec"], run["spec"], "spec"))
    states = schema["properties"]["status"]["properties"]["currentState"]["properties"]["currentStateSummary"]["enum"]
    yield from (f"there is no state {state}" for state in sorted({*ENDED, *FAILURES, "Succeeded"} - {*states}))


def main(path: str) -> int:
    """Print the problems."""
    definition = yaml.safe_load(Path(path).read_text())
    found = list(problems(definition))
    print("\n".join(found) or f"{sum(1 for _ in runs())} runs have only what {definition['metadata']['name']} has")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
