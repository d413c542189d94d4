"""The comparison of runs with a definition of SparkApplication notices what does not belong together."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from gantry_operator.platforms.kubernetes.manifests.spark_application import ENDED, FAILURES

from tests.kubernetes.spark_definition import against, problems, runs
from tests.kubernetes.test_spark_applications import FIELDS


def schema_of(fields: Any) -> dict[str, Any]:
    """The schema of the fields in FIELDS."""
    if isinstance(fields, dict):
        others = {"additionalProperties": schema_of(fields["*"])} if "*" in fields else {}
        inner = {name: schema_of(field) for name, field in fields.items() if name != "*"}
        return {"type": "object", "properties": inner, **others}
    if isinstance(fields, list):
        return {"type": "array", "items": schema_of(fields[0])}
    if isinstance(fields, set):
        return {"type": "string", "enum": sorted(fields)}
    kinds = {str: {"type": "string"}, int: {"type": "integer"}}
    return kinds.get(fields, {"type": "object", "x-kubernetes-preserve-unknown-fields": True})


def definition() -> dict[str, Any]:
    states = {"enum": [*ENDED, *FAILURES, "Succeeded"]}
    current = {"properties": {"currentStateSummary": states}}
    whole = {"properties": {"spec": schema_of(FIELDS), "status": {"properties": {"currentState": current}}}}
    return {"spec": {"versions": [{"name": "v1", "schema": {"openAPIV3Schema": whole}}]}}


def test_runs_of_each_kind_have_what_version_1_0_0_has() -> None:
    assert list(problems(definition())) == []
    assert len(list(runs())) == 12


def test_what_a_definition_lacks_is_named() -> None:
    made = copy.deepcopy(definition())
    whole = made["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]
    del whole["spec"]["properties"]["driverArgs"]
    whole["status"]["properties"]["currentState"]["properties"]["currentStateSummary"]["enum"].remove("Failed")
    found = list(problems(made))
    assert found[0] == "report {}: spec.driverArgs is not in the definition"
    assert found[-1] == "there is no state Failed"


@pytest.mark.parametrize(
    ("schema", "value", "expected"),
    [
        ({"type": "integer"}, "1", " is str, not integer"),
        ({"type": "integer"}, True, " is bool, not integer"),
        ({"x-kubernetes-int-or-string": True}, 1.5, " is neither a number nor text"),
        ({"type": "string", "enum": ["a"]}, "b", " is 'b', not one of a"),
        ({"type": "string", "pattern": "^a$"}, "b", " is 'b', which is not like ^a$"),
        ({"type": "object", "required": ["a"]}, {}, " lacks a"),
        ({"type": "array", "items": {"type": "string"}}, ["a", 1], "[1] is int, not string"),
    ],
)
def test_each_rule_of_a_schema_counts(schema: dict[str, Any], value: Any, expected: str) -> None:
    assert list(against(schema, value)) == [expected]
