"""BrokerUser and spec.security: what is refused, with the field and the value to write, and the definitions."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from gantry_broker.access.table import AccessTable
from gantry_operator.access.decide import Observed, decide
from gantry_operator.access.state import AccessState
from gantry_operator.access.wanted import wanted_admin, wanted_user
from gantry_operator.api.base import SOURCE
from gantry_operator.api.manifest import ManifestError, load_documents, load_manifest, load_users, parse_user
from gantry_operator.api.security import Security
from gantry_operator.api.user import BrokerUser

ROOT = Path(__file__).parents[2]
RULE = {"type": "Topic", "name": "a", "actions": ["Pub"]}


def user(name: str = "orders", **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "gantry.dev/v1alpha1",
        "kind": "BrokerUser",
        "metadata": {"name": name},
        "spec": {"cluster": "demo", **spec},
    }


BAD: list[tuple[dict[str, Any], str, str]] = [
    (user(superuser=True), "spec.superuser", "did you mean superUser?"),
    (user(rules=[RULE | {"type": "Queue"}]), "spec.rules[0].type", "'Topic', 'Group', 'Cluster' or 'Any'"),
    (user(rules=[RULE | {"actions": []}]), "spec.rules[0].actions", "at least 1"),
    (user(rules=[RULE | {"actions": ["pub"]}]), "spec.rules[0].actions[0]", "'Pub'"),
    (user(rules=[RULE | {"name": ""}]), "spec.rules[0].name", "pattern: Any for all of them"),
    (user(rules=[RULE | {"pattern": "Any"}]), "spec.rules[0].name", "leave it out"),
    (user(rules=[RULE | {"sources": ["10.0.0.0/33"]}]), "spec.rules[0].sources[0]", "address or a network"),
    (user(rules=[RULE | {"sources": ["everywhere"]}]), "spec.rules[0].sources[0]", "10.0.0.0/8"),
    (user(accessKey="a b"), "spec.accessKey", "letters, digits"),
    (user(secret={"name": "X"}), "spec.secret.name", "the name of an object"),
    (user(rotation={"overlap": "8d"}), "spec.rotation.overlap", "time span"),
    (user(rotation={"overlap": "169h"}), "spec.rotation.overlap", "168h or less"),
    (user(quotas={"messagesPerSecond": 0}), "spec.quotas.messagesPerSecond", "1 or more"),
    (user("Orders"), "(document)", "metadata.name is not usable"),
    (user("o" * 64), "(document)", "at most 63"),
    ({"kind": "BrokerUser", "apiVersion": "gantry.dev/v1alpha1", "metadata": {"name": "x"}}, "spec", "is missing"),
]


@pytest.mark.parametrize(("document", "path", "words"), BAD, ids=[f"{p}-{i}" for i, (_, p, _) in enumerate(BAD)])
def test_bad_users_are_explained(document: dict[str, Any], path: str, words: str) -> None:
    with pytest.raises(ManifestError) as caught:
        parse_user(document, "users.yaml")
    assert any(p.path == path and words in p.message for p in caught.value.problems), str(caught.value)


@pytest.mark.parametrize(
    ("text", "good"),
    [
        ("10.0.0.0/8", True), ("10.1.2.3", True), ("255.255.255.255/32", True), ("::/0", True), ("fd00::1", True),
        ("2001:db8::/32", True), ("256.0.0.1", False), ("10.0.0.0/33", False), ("10.0.0", False), ("", False),
        ("fd00::/129", False), ("x", False), ("10.0.0.0/8 ", False),
    ],
)  # fmt: skip
def test_sources(text: str, good: bool) -> None:
    assert (re.search(SOURCE, text) is not None) == good


def test_every_valid_user_fits_into_the_members_table() -> None:
    """The limits of the resource are within those of the table."""
    spec = {
        "accessKey": "a" * 128,
        "superUser": True,
        "rules": [
            {"type": "Topic", "name": "n" * 255, "actions": ["Any"], "sources": ["10.0.0.0/8", "fd00::1"] * 32},
            {"type": "Any", "pattern": "Any", "actions": ["Pub", "Sub"], "decision": "Deny"},
        ]
        * 128,
        "quotas": {"bytesPerSecond": 2**40, "messagesPerSecond": 1, "connections": 1_000_000},
    }
    security = Security(
        topicQuotas=[{"topic": f"{'t' * 120}{i}", "bytesPerSecond": 2**40} for i in range(256)]  # type: ignore[list-item]
    )
    wanted = [wanted_admin("demo"), wanted_user(parse_user(user(**spec)))]
    decision = decide(AccessState(), Observed("demo", "Enabled", security, wanted, {}), 0.0)
    assert decision.results["orders"].accepted
    assert len(AccessTable.model_validate(decision.table).users) == 2


def test_the_mode_has_a_default_by_place() -> None:
    assert (Security().mode(), Security().mode(loopback=True)) == ("Enabled", "Disabled")
    for mode in ("Enabled", "Permissive", "Disabled"):
        security = Security(authentication=mode)  # type: ignore[arg-type]
        assert security.mode() == security.mode(loopback=True) == mode


def test_a_topic_has_one_quota() -> None:
    quota = {"topic": "t", "messagesPerSecond": 1}
    with pytest.raises(ValueError, match="t has two entries"):
        Security(topicQuotas=[quota, quota])  # type: ignore[list-item]
    with pytest.raises(ValueError, match="limits nothing"):
        Security(topicQuotas=[{"topic": "t"}])  # type: ignore[list-item]


def test_users_are_in_the_file_of_their_cluster() -> None:
    found = load_documents(ROOT / "examples/users.yaml")
    cluster, users = found.cluster, found.users
    assert (cluster.name, [u.name for u in users]) == ("shop", ["orders", "billing"])
    assert load_manifest(ROOT / "examples/users.yaml") == cluster
    assert load_users(ROOT / "examples/users.yaml", "shop") == users
    assert all(isinstance(u, BrokerUser) for u in users)


def test_users_of_another_cluster_and_twins_are_refused(tmp_path: Path) -> None:
    text = (ROOT / "examples/users.yaml").read_text()
    file = tmp_path / "x.yaml"
    file.write_text(text.replace("cluster: shop", "cluster: other"))
    with pytest.raises(ManifestError, match="the file is about shop"):
        load_documents(file)
    file.write_text(text.replace("name: billing\nspec", "name: orders\nspec"))
    with pytest.raises(ManifestError, match="two documents of kind BrokerUser have it"):
        load_documents(file)
