"""Rules against a plain model: seeded policies, thousands of questions."""

from __future__ import annotations

import random
from ipaddress import ip_address, ip_network
from typing import Any

import pytest
from gantry_broker.access.decide import Policy, Rule, User
from gantry_broker.access.table import AccessTable
from gantry_broker.protocol.codes import CONTROL_TOPIC, TRACE_TOPIC, TRANS_HALF_TOPIC
from gantry_broker.protocol.rights import ACTIONS

NAMES = ["a", "ab", "abc", "orders", "orders-eu", "%RETRY%ab", "%DLQ%orders", TRANS_HALF_TOPIC, CONTROL_TOPIC, ""]
SOURCES = ["10.0.0.0/8", "10.1.2.3", "192.168.0.0/16", "fd00::/8"]
ADDRESSES = ["10.1.2.3", "10.9.9.9", "192.168.1.1", "127.0.0.1", "fd00::1"]
SEEDS = range(0, 2_000, 100)


def rule(rng: random.Random) -> dict[str, Any]:
    pattern = rng.choice(["Literal", "Literal", "Prefix", "Any"])
    return {
        "type": rng.choice(["Topic", "Group", "Cluster", "Any"]),
        "name": rng.choice([name for name in NAMES if name]) if pattern != "Any" else rng.choice(["*", ""]),
        "pattern": pattern,
        "actions": rng.sample([*ACTIONS, "Any"], rng.randint(1, 3)),
        "decision": rng.choice(["Allow", "Allow", "Deny"]),
        "sources": rng.sample(SOURCES, rng.choice([0, 0, 1, 2])),
    }


def model(rules: list[dict[str, Any]], kind: str, name: str, action: str, address: str) -> bool:
    """The same question, step by step as docs/security.md says it."""
    if kind == "Topic":
        for prefix in ("%RETRY%", "%DLQ%"):
            if name.startswith(prefix):
                kind, name = "Group", name[len(prefix) :]
                action = {"Pub": "Sub"}.get(action, action)
                break
    found = []
    for item in rules:
        if item["type"] not in (kind, "Any") or not {action, "Any"} & set(item["actions"]):
            continue
        if item["sources"] and not any(
            ip_address(address) in ip_network(source)
            for source in item["sources"]
            if ip_network(source).version == ip_address(address).version
        ):
            continue
        internal = kind == "Topic" and (name == TRANS_HALF_TOPIC or name.startswith("rmq_sys_"))
        fits = item["pattern"] == "Any" or (item["pattern"] == "Prefix" and name.startswith(item["name"]))
        if (fits and not internal) or (item["pattern"] == "Literal" and item["name"] == name):
            found.append(item)
    for kinds in ([kind], ["Any"]):
        for wanted, longest in [("Literal", 0), *(("Prefix", size) for size in range(30, -1, -1)), ("Any", 0)]:
            level = [
                item
                for item in found
                if item["type"] in kinds
                and item["pattern"] == wanted
                and (wanted != "Prefix" or len(item["name"]) == longest)
            ]
            if level:
                return all(item["decision"] == "Allow" for item in level)
    return False


@pytest.mark.parametrize("seed", SEEDS)
def test_rules_decide_as_the_model_does(seed: int) -> None:
    for number in range(seed, seed + 100):
        rng = random.Random(number)
        rules = [rule(rng) for _ in range(rng.randint(0, 6))]
        table = AccessTable.model_validate(
            {"version": 1, "mode": "Enabled", "users": [{"name": "u", "keys": ["12345678"], "rules": rules}]}
        )
        user = Policy.of(table.model_dump()).users["u"]
        for _ in range(15):
            kind, name = rng.choice(["Topic", "Group", "Cluster"]), rng.choice(NAMES)
            actions = rng.sample(ACTIONS, rng.randint(1, 3))
            address = rng.choice(ADDRESSES)
            wanted = any(model(rules, kind, name, action, address) for action in actions)
            assert user.may(kind, name, actions, address) == wanted, (number, rules, kind, name, actions, address)


def user_with(*rules: dict[str, Any], **values: Any) -> User:
    whole = {"version": 1, "mode": "Enabled", "users": [{"name": "u", "keys": ["12345678"], "rules": rules, **values}]}
    return Policy.of(AccessTable.model_validate(whole).model_dump()).users["u"]


def test_a_topic_of_a_group_belongs_to_it() -> None:
    user = user_with({"type": "Group", "name": "billing", "actions": ["Sub"]})
    for topic in ("%RETRY%billing", "%DLQ%billing"):
        assert user.may("Topic", topic, ["Sub"], "1.1.1.1")
        assert user.may("Topic", topic, ["Pub"], "1.1.1.1"), "a consumer sends its failed messages there"
    assert not user.may("Topic", "%RETRY%other", ["Sub"], "1.1.1.1")
    everything = user_with({"type": "Topic", "pattern": "Any", "actions": ["Any"]})
    assert not everything.may("Topic", "%RETRY%billing", ["Sub"], "1.1.1.1")


def test_no_pattern_opens_a_topic_of_the_broker_itself() -> None:
    user = user_with({"type": "Any", "pattern": "Any", "actions": ["Any"]})
    assert not user.may("Topic", TRANS_HALF_TOPIC, ["Sub"], "1.1.1.1")
    assert not user.may("Topic", CONTROL_TOPIC, ["Sub"], "1.1.1.1")
    assert user.may("Topic", TRACE_TOPIC, ["Pub"], "1.1.1.1"), "clients write their traces themselves"
    assert user_with(super=True).may("Topic", CONTROL_TOPIC, ["Sub"], "1.1.1.1")
    literal = user_with({"type": "Topic", "name": TRANS_HALF_TOPIC, "actions": ["Sub"]})
    assert literal.may("Topic", TRANS_HALF_TOPIC, ["Sub"], "1.1.1.1")


def test_deny_counts_for_each_action_alone() -> None:
    """A consumer that may not publish still asks for the route, which needs Pub, Sub or Get."""
    user = user_with(
        {"type": "Topic", "name": "orders", "actions": ["Sub"]},
        {"type": "Topic", "name": "orders", "actions": ["Pub"], "decision": "Deny"},
    )
    assert user.may("Topic", "orders", ["Pub", "Sub", "Get"], "1.1.1.1")
    assert not user.may("Topic", "orders", ["Pub"], "1.1.1.1")


@pytest.mark.parametrize(
    "value", [{}, {"version": 1}, {"version": "1", "mode": "Enabled"}, {"version": 1, "mode": "x"}]
)
def test_a_malformed_table_is_a_value_error(value: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="access table"):
        Policy.of(value)


def test_a_decision_looks_at_few_of_many_rules() -> None:
    """One heartbeat may name 2,000 topics, and a user may have 500 rules."""
    sub, every = frozenset({"Sub"}), Rule("Any", "", "Any", frozenset({"Any"}))
    rules = [Rule("Topic", f"team-{i}-", pattern, sub) for i in range(250) for pattern in ("Prefix", "Literal")]
    index = User("u", rules=(*rules, every)).index
    assert index.near("Topic", "orders") == [every]
    assert len(index.near("Topic", "team-7-")) == 3
