"""The CRD matches the models and has Kubernetes' required form."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from gantry_operator.api import crd, reference, versions
from gantry_operator.api.base import parse_duration, parse_quantity

ROOT = Path(__file__).parents[2]


def nodes(schema: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    yield path, schema
    for name, child in schema.get("properties", {}).items():
        yield from nodes(child, f"{path}.{name}")
    if "items" in schema:
        yield from nodes(schema["items"], f"{path}[]")
    if isinstance(schema.get("additionalProperties"), dict):
        yield from nodes(schema["additionalProperties"], f"{path}{{}}")


def test_the_files_are_not_stale() -> None:
    assert crd.stale(ROOT) == []


def test_stale_files_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert crd.main(["--check", "--root", str(tmp_path)]) == 1
    assert "is stale" in capsys.readouterr().err
    assert crd.main(["--root", str(tmp_path)]) == 0
    assert crd.main(["--check", "--root", str(tmp_path)]) == 0


def test_both_versions_are_served_equal_and_the_first_is_stored() -> None:
    """Without a webhook the API server changes the name alone, and would drop fields that only one of them has."""
    for resource in crd.RESOURCES:
        made = crd.crd(resource)
        assert made["spec"]["conversion"] == {"strategy": "None"}
        alpha, beta = made["spec"]["versions"]
        assert (alpha["name"], alpha["served"], alpha["storage"]) == ("v1alpha1", True, True)
        assert (beta["name"], beta["served"], beta["storage"]) == ("v1beta1", True, False)
        described, fields = (version["schema"].pop("openAPIV3Schema") for version in (beta, alpha))
        assert alpha | {"name": "", "storage": False} == beta | {"name": ""}
        assert fields == crd.bare(described), "only the newest version has descriptions, for kubectl explain"
        made = crd.crd(resource)
        kept_by_kubectl_apply = 262_144
        assert len(json.dumps(made, separators=(",", ":")).encode()) < kept_by_kubectl_apply


@pytest.mark.parametrize("resource", crd.RESOURCES, ids=lambda r: str(r.kind))
def test_the_schema_is_structural_and_every_field_is_described(resource: crd.Resource) -> None:
    for path, node in nodes(crd.schema(resource)):
        assert "type" in node or node.get("x-kubernetes-int-or-string"), path
        assert not {"$ref", "$defs", "title", "const", "propertyNames", "exclusiveMinimum"} & set(node), path
        assert node.get("additionalProperties") is not False, path
        if path.startswith((".spec", ".status")) and not path.endswith(("[]", "{}")):
            assert node.get("description"), f"{path} has no description for kubectl explain"


def test_every_path_of_a_column_and_of_scale_is_in_the_schema() -> None:
    for resource in crd.RESOURCES:
        known = {path for path, _ in nodes(crd.schema(resource))}
        scale = crd.crd(resource)["spec"]["versions"][0]["subresources"].get("scale", {})
        for path in [*scale.values(), *(c["jsonPath"] for c in resource.columns)]:
            assert path.split("[?")[0] in known or path.startswith(".metadata."), path
    paths = crd.crd()["spec"]["versions"][0]["subresources"]["scale"]
    assert paths["specReplicasPath"] == ".spec.proxy.replicas"


def test_every_rule_names_its_field_and_what_to_write() -> None:
    for resource in crd.RESOURCES:
        rules = [(p, r) for p, n in nodes(crd.schema(resource)) for r in n.get("x-kubernetes-validations", [])]
        assert len(rules) >= (15 if resource is crd.CLUSTER else 1)
        words = ("write", "give", "lower") if resource is crd.CLUSTER else ("write",)
        for path, rule in rules:
            assert len(rule["message"]) > 30, path
            assert any(word in rule["message"] for word in words), rule


def test_the_api_server_stores_no_default() -> None:
    """Otherwise a spec has fields that nobody wrote, and they refuse what somebody writes later."""
    for resource in crd.RESOURCES:
        assert not [path for path, node in nodes(crd.schema(resource)) if "default" in node]
    found = dict(nodes(crd.schema()))
    assert found[".spec.replication"]["description"].endswith("Default: Sync")
    assert found[".spec.resources"]["description"].endswith(
        "Default: requests cpu 100m, memory 256Mi; limits memory 1Gi"
    )


def test_no_rule_reads_a_field_that_may_be_absent() -> None:
    """A rule that reads an absent field fails, and the API server refuses the object with the name of the key."""
    wrong = []
    for resource in crd.RESOURCES:
        root = crd.schema(resource)
        for path, node in nodes(root):
            for rule in node.get("x-kubernetes-validations", []):
                groups = root["properties"]["spec"]["properties"].get("brokerGroups", {}).get("items", {})
                starts = {"self": node, "oldSelf": node, "g": groups, "h": groups, "o": groups}
                for word in re.findall(r"\b(?:self|oldSelf|[gho])(?:\.[A-Za-z]+\b(?!\())+", rule["rule"]):
                    parts = word.split(".")
                    for prefix in (".".join(parts[:n]) for n in range(2, len(parts) + 1)):
                        asked = re.findall(r"has\(([^)]*)\)", rule["rule"])
                        if prefix not in (*asked, "self.metadata") and _optional(prefix, starts):
                            wrong.append(f"{path}: {prefix} in {rule['rule']}")
    assert not wrong, "\n".join(wrong)


def _optional(word: str, starts: dict[str, Any]) -> bool:
    """Whether the last part of a path in a rule may be absent."""
    first, *rest = word.split(".")
    node = starts[first]
    optional = False
    for name in rest:
        if name not in node.get("properties", {}):
            return False
        optional = name not in node.get("required", ())
        node = node["properties"][name]
    return optional


def test_no_refusal_shows_a_bare_regular_expression() -> None:
    for resource in crd.RESOURCES:
        bare = [path for path, node in nodes(crd.schema(resource)) if "pattern" in node]
        assert all(path == ".spec.rules[].sources[]" for path in bare), bare


def test_yaml_has_no_anchors_and_reads_back() -> None:
    text = crd.render()
    assert "&id" not in text
    assert yaml.safe_load(text) == crd.crd()


@pytest.mark.parametrize(("text", "seconds"), [("2s", 2.0), ("500ms", 0.5), ("1m30s", 90.0), ("7d", 604_800.0)])
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "2", "s", "2 s", "1s1x", "-1s"])
def test_bad_durations(text: str) -> None:
    with pytest.raises(ValueError, match="write for example"):
        parse_duration(text)


@pytest.mark.parametrize(("text", "number"), [("512Mi", 2**29), ("250m", 0.25), ("2", 2), ("1.5G", 1.5e9)])
def test_quantities(text: str, number: float) -> None:
    assert parse_quantity(text) == number


@pytest.mark.parametrize("text", ["", "Mi", "1 G", "1GB", "-1", "1e3x"])
def test_bad_quantities(text: str) -> None:
    with pytest.raises(ValueError, match="write for example"):
        parse_quantity(text)


def test_the_reference_page_is_not_stale(tmp_path: Path) -> None:
    assert reference.main(["--check", "--root", str(ROOT)]) == 0
    assert reference.main(["--check", "--root", str(tmp_path)]) == 1


def test_the_version_is_that_of_the_package() -> None:
    assert tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"] == versions.VERSION
