"""mqadmin's requests about users and rules: seeded histories against a plain model, and what is refused."""

from __future__ import annotations

import random
from typing import Any

import orjson
import pytest
from gantry_broker.access.administration import (
    Wrong,
    acl_info,
    created,
    keeps_a_super_user,
    list_acls,
    list_users,
    parse_resource,
    plain_config,
    plain_configs,
    resource_text,
    subject_name,
    updated,
    with_rules,
    without_rules,
)
from gantry_broker.access.decide import Policy
from gantry_broker.access.table import AccessTable, User

KEY = "hidden-secret"


def entry(resource: str, *actions: str, decision: str = "Allow", **more: Any) -> dict[str, Any]:
    return {"resource": resource, "actions": list(actions), "decision": decision, **more}


def acl(*entries: dict[str, Any]) -> dict[str, Any]:
    return {"policies": [{"policyType": "Custom", "entries": list(entries)}]}


@pytest.mark.parametrize("text", ["Topic:orders", "Topic:orders*", "Topic:*", "Group:a", "Cluster:*", "*"])
def test_resources_are_written_as_they_are_read(text: str) -> None:
    user = with_rules({"a": User(name="a", keys=(KEY,))}, "a", acl(entry(text, "All")))
    assert [resource_text(rule) for rule in user.rules] == [text]


def test_histories_of_rules_end_as_the_model_says() -> None:
    resources = ["Topic:a", "Topic:a*", "Topic:*", "Group:g", "*"]
    for seed in range(300):
        rng = random.Random(seed)
        users = {"u": User(name="u", keys=(KEY,))}
        model: dict[str, tuple[str, ...]] = {}
        for _ in range(12):
            resource, actions = rng.choice(resources), tuple(rng.sample(["Pub", "Sub", "Get"], 2))
            if rng.random() < 0.7:
                users["u"] = with_rules(users, "u", acl(entry(resource, *(a.upper() for a in actions))))
                model[resource] = actions
            elif rng.random() < 0.9:
                users["u"] = without_rules(users, "u", resource)
                model.pop(resource, None)
            else:
                users["u"] = without_rules(users, "u", "")
                model.clear()
            assert {resource_text(rule): rule.actions for rule in users["u"].rules} == model, seed


def test_users_come_and_change() -> None:
    users: dict[str, User] = {}
    users["a"] = created(users, "a", {"password": KEY, "userType": "Super"})
    assert created(users, "a", {"password": KEY, "userType": "Super"}) is users["a"], "asked of each broker"
    with pytest.raises(Wrong, match="existed"):
        created(users, "a", {"password": "another-key"})
    off = updated(users, "a", {"userStatus": "disable"})
    assert (off.enabled, off.super, off.keys) == (False, True, (KEY,))
    assert updated(users, "a", {"password": "another-key"}).keys == ("another-key",)
    for after in (off, None, updated(users, "a", {"userType": "Normal"})):
        with pytest.raises(Wrong, match="last enabled super user"):
            keeps_a_super_user(users, "a", after)
    users["b"] = created(users, "b", {"password": KEY, "userType": "super"})
    keeps_a_super_user(users, "a", None)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda users: created(users, "x y", {"password": KEY}), "name"),
        (lambda users: created(users, "x", {"password": "hidden"}), "the password must have 8"),
        (lambda users: created(users, "x", {}), "password is absent"),
        (lambda users: created(users, "x", {"password": KEY, "userType": "King"}), "userType is 'King'"),
        (lambda users: updated(users, "x", {"password": KEY}), "not exist"),
        (lambda users: updated(users, "u", {}), "nothing to change"),
        (lambda users: updated(users, "u", {"userStatus": "off"}), "userStatus is 'off'"),
        (lambda users: with_rules(users, "x", acl(entry("*", "Pub"))), "not exist"),
        (lambda users: with_rules(users, "u", {}), "policies with entries"),
        (lambda users: with_rules(users, "u", {"policies": [{"entries": [1]}]}), "no JSON object"),
        (lambda users: with_rules(users, "u", acl(entry("Queue:a", "Pub"))), "the resource is 'Queue:a'"),
        (lambda users: with_rules(users, "u", acl(entry("Topic:a", "Write"))), "the action is 'Write'"),
        (lambda users: with_rules(users, "u", acl(entry("Topic:a"))), "actions"),
        (lambda users: with_rules(users, "u", acl(entry("Topic:a", "Pub", decision="No"))), "the decision is 'no'"),
        (lambda users: with_rules(users, "u", acl(entry("*", "Pub", sourceIps=["x"]))), "'x' is no network"),
        (lambda users: parse_resource("Topic:"), "the resource is"),
        (lambda users: subject_name("Role:x"), "User:name"),
        (lambda users: plain_config(users, {"accessKey": "new", "secretKey": "hidden"}), "8 to 256"),
        (lambda users: plain_config(users, {"accessKey": "u", "admin": "x"}), "admin is 'x'"),
        (lambda users: plain_config(users, {"accessKey": "u", "topicPerms": "x"}), "PUB|SUB"),
    ],
)
def test_errors_name_the_field_and_show_no_key(call: Any, words: str) -> None:
    with pytest.raises(Wrong) as caught:
        call({"u": User(name="u", keys=(KEY,))})
    assert words in str(caught.value)
    assert "hidden" not in str(caught.value)


def test_no_answer_has_a_key() -> None:
    users = {"u": plain_config({}, {"accessKey": "u", "secretKey": KEY, "topicPerms": "a=PUB,b=DENY", "admin": "true"})}
    answers = [list_users(users, ""), acl_info(users["u"]), list_acls(users.values(), "", ""), plain_configs(users)]
    assert KEY.encode() not in orjson.dumps(answers)
    assert plain_configs(users)["plainAccessConfigs"][0]["topicPerms"] == ["a=PUB", "b=DENY"]
    assert list_acls(users.values(), "User:u", "Topic:a")[0]["policies"][0]["entries"][0]["resource"] == "Topic:a"
    assert list_acls(users.values(), "User:x", "") == []


def test_an_account_of_4_9_changes_what_it_names() -> None:
    users = {"u": plain_config({}, {"accessKey": "u", "secretKey": KEY, "topicPerms": "a=PUB,b=SUB"})}
    changed = plain_config(users, {"accessKey": "u", "topicPerms": "b=DENY"})
    assert changed.keys == (KEY,)
    assert {rule.name: rule.decision for rule in changed.rules} == {"a": "Allow", "b": "Deny"}


def test_an_entry_of_4_9_keeps_defaults_from_its_name() -> None:
    users = {"u": plain_config({}, {"accessKey": "u", "secretKey": KEY, "topicPerms": "a=PUB,b=SUB"})}
    users["u"] = plain_config(users, {"accessKey": "u", "defaultTopicPerm": "PUB|SUB"})
    users["u"] = plain_config(users, {"accessKey": "u", "topicPerms": "c=SUB"})
    policy = Policy.of(AccessTable(version=1, mode="Enabled", users=(users["u"],)).model_dump()).users["u"]
    may = {name: [action for action in ("Pub", "Sub") if policy.may("Topic", name, [action], "")] for name in "abcd"}
    assert may == {"a": ["Pub"], "b": ["Sub"], "c": ["Sub"], "d": ["Pub", "Sub"]}
    [shown] = plain_configs(users)["plainAccessConfigs"]
    assert (shown["defaultTopicPerm"], shown["topicPerms"]) == ("PUB|SUB", ["a=PUB", "b=SUB", "c=SUB"])
    users["u"] = plain_config(users, {"accessKey": "u", "topicPerms": "a=PUB|SUB"})
    assert len([rule for rule in users["u"].rules if rule.name == "a"]) == 1
    users["u"] = plain_config(users, {"accessKey": "u", "defaultTopicPerm": "DENY"})
    assert plain_configs(users)["plainAccessConfigs"][0]["defaultTopicPerm"] == "DENY"
