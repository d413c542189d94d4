"""The users of a source become users of the new cluster, and what has no counterpart is named. Pure."""

from __future__ import annotations

import json
from typing import Any

import pytest
from gantry_broker.broker.migration.errors import MigrationError
from gantry_operator.actions.plain_acl import Account, accounts_of
from gantry_operator.actions.users import importable
from gantry_operator.migration.users import Found, lines, managed, merged, plain

KEY = "a-secret-key-of-the-source"


def account(name: str, **more: Any) -> dict[str, Any]:
    """As 4.9.7 gives it: what is not set is null."""
    usual = dict.fromkeys(("whiteRemoteAddress", "defaultTopicPerm", "defaultGroupPerm", "topicPerms", "groupPerms"))
    return {"accessKey": name, "secretKey": KEY, "admin": False, **usual, **more}


def made_of(found: Found, **known: str) -> list[Account]:
    accounts, left_out = accounts_of(found.users, known, known.values())
    assert not left_out
    return accounts


def read_plain(*accounts: Any, addresses: Any = None) -> Found:
    return plain(json.dumps({"plainAccessConfigs": accounts, "globalWhiteAddrs": addresses}).encode())


def user(name: str, **more: Any) -> dict[str, Any]:
    return {"username": name, "password": KEY, "userType": "Normal", "userStatus": "enable", **more}


def acl(name: str, *entries: dict[str, Any], policy: str = "Custom") -> dict[str, Any]:
    return {"subject": f"User:{name}", "policies": [{"policyType": policy, "entries": list(entries)}]}


def entry(resource: str, *actions: str, decision: str = "Allow", **more: Any) -> dict[str, Any]:
    return {"resource": resource, "actions": list(actions), "decision": decision, "sourceIps": None, **more}


def read_managed(users: Any, acls: Any) -> Found:
    return managed(json.dumps(users).encode(), json.dumps(acls).encode())


def test_accounts_of_4_9_come_with_keys_and_permissions() -> None:
    found = read_plain(
        account("root", admin=True),
        account("orders", topicPerms=["Orders=PUB|SUB", "Secret=DENY"], groupPerms=["billing=SUB"]),
        account("all", defaultTopicPerm="PUB", defaultGroupPerm="SUB"),
    )
    made = {one.name: one for one in made_of(found)}
    assert made["root"].admin
    assert {one.secret for one in made.values()} == {KEY}
    assert [(r["type"], r["name"], r["actions"], r["decision"]) for r in made["orders"].rules] == [
        ("Topic", "Orders", ["Pub", "Sub"], "Allow"),
        ("Topic", "Secret", ["Any"], "Deny"),
        ("Group", "billing", ["Sub"], "Allow"),
    ]
    assert [(r["type"], r["pattern"], r["actions"]) for r in made["all"].rules] == [
        ("Topic", "Any", ["Pub"]),
        ("Group", "Any", ["Sub"]),
    ]
    assert not found.left_out


def test_users_of_5_come_with_keys_and_rules() -> None:
    found = read_managed(
        [user("orders"), user("off", userStatus="disable"), user("root", userType="Super")],
        [
            acl("orders", entry("Topic:Orders", "Pub"), entry("Group:b*", "Sub", sourceIps=["10.0.0.0/8"])),
            acl("orders", entry("*", "All", decision="Deny"), policy="Default"),
        ],
    )
    made = {one.name: one for one in made_of(found)}
    assert [(r["type"], r["name"], r["pattern"], r["actions"], r["decision"]) for r in made["orders"].rules] == [
        ("Topic", "Orders", "Literal", ["Pub"], "Allow"),
        ("Group", "b", "Prefix", ["Sub"], "Allow"),
        ("Any", "", "Any", ["Any"], "Deny"),
    ]
    assert made["orders"].rules[1]["sources"] == ["10.0.0.0/8"]
    assert not made["off"].enabled
    assert made["root"].admin
    assert found.notes == ["default policies of orders: they are rules as the others, and no last resort"]


@pytest.mark.parametrize(
    ("found", "name", "why"),
    [
        (read_plain(account("a", secretKey="short")), "a", "secretKey must have 8 to 256 characters"),
        (read_plain(account("a", secretKey=None)), "a", "secretKey is absent"),
        (read_plain(account("a b")), "a b", "accessKey must have"),
        (read_plain(account("a", topicPerms=["x=ALL"])), "a", "has no permission of"),
        (read_plain("text"), "account 0", "is not a mapping"),
        (read_plain(account("admin")), "admin", "every cluster of Gantry has a super user of this name"),
        (read_managed([user("a", password="short")], []), "a", "the password must have 8 to 256 characters"),
        (read_managed([user("a", password=None)], None), "a", "the password is absent"),
        (read_managed(["text"], []), "user 0", "no JSON object"),
        (read_managed([user("a")], [acl("a", entry("Namespace:x", "Pub"))]), "a", "the resource is 'Namespace:x'"),
        (read_managed([user("a")], [acl("a", entry("Topic:x", "Fly"))]), "a", "the action is 'Fly'"),
        (read_managed([user("a")], [acl("a", entry("Topic:x", "Pub", sourceIps=["10.*"]))]), "a", "is no network"),
        (read_managed([user("a")], [acl("a", *[entry(f"Topic:t{n}", "Pub") for n in range(257)])]), "a", "257 rules"),
    ],
)
def test_who_has_no_counterpart_is_left_out_whole_and_named(found: Found, name: str, why: str) -> None:
    assert not found.users
    assert why in found.left_out[name]
    assert f"({name})" not in found.left_out[name], "its name has a column"
    assert [row["comes"] for row in lines(found)] == [False]


def test_one_bad_user_stops_no_other() -> None:
    found = read_plain(account("a", secretKey="x"), account("b"), account("c", defaultTopicPerm="?"), account("d"))
    assert sorted(found.users) == ["b", "d"]
    assert sorted(found.left_out) == ["a", "c"]


def test_addresses_without_signature_are_named() -> None:
    found = read_plain(account("a", whiteRemoteAddress="10.0.0.*"), addresses=["192.168.*.*"])
    assert [text.split(":")[0] for text in found.notes] == ["globalWhiteRemoteAddresses", "whiteRemoteAddress of a"]


def test_a_user_that_is_not_the_same_at_each_broker_does_not_come() -> None:
    """A rule of one broker would hold at all of them."""
    one = read_plain(account("a"), account("b"), account("d"))
    found = merged({
        "x": one, "y": read_plain(account("a", admin=True), account("c"), account("d", topicPerms=["t=?"])),
        "z": Found(guarded=False),
    })  # fmt: skip
    assert sorted(found.users) == ["b", "c"]
    assert found.left_out["a"] == "it is another one at y than at x: make them equal there"
    assert "has no permission of" in found.left_out["d"]
    assert found.notes == [
        "b is no user of y, and becomes one of the whole cluster",
        "c is no user of x, and becomes one of the whole cluster",
    ]


@pytest.mark.parametrize("second", [{}, {"topicPerms": ["t=?"]}, {"admin": True}])
def test_a_user_with_two_entries_does_not_come(second: dict[str, Any]) -> None:
    found = read_plain(account("a", **second), account("b"), account("a"))
    assert sorted(found.users) == ["b"]
    assert found.left_out == {"a": "the source has 2 entries of it"}
    assert read_managed([user("a"), user("a", userType="Super")], []).left_out.keys() == {"a"}


@pytest.mark.parametrize(
    ("custom", "usual", "comes"),
    [
        (("*", "Deny"), ("Topic:x", "Allow"), False),
        (("Topic:x*", "Deny"), ("Topic:x", "Allow"), False),
        (("Topic:x", "Deny"), ("Topic:x*", "Allow"), True),
        (("Topic:x", "Deny"), ("Topic:x", "Allow"), True),
        (("Topic:x*", "Allow"), ("Topic:x", "Allow"), True),
        (("Topic:x", "Allow"), ("*", "Deny"), True),
    ],
)
def test_a_default_policy_allows_nothing_that_a_custom_one_denies(
    custom: tuple[str, str], usual: tuple[str, str], comes: bool
) -> None:
    rules = [
        acl("a", entry(resource, "Any", decision=decision), policy=policy)
        for policy, (resource, decision) in (("Custom", custom), ("Default", usual))
    ]
    both = {"subject": "User:a", "policies": [rule["policies"][0] for rule in rules]}
    for acls in (rules, rules[::-1], [both]):
        found = read_managed([user("a")], acls)
        assert ("a" in found.users) == comes == ("a" not in found.left_out)


def test_an_admin_with_permissions_is_named() -> None:
    assert read_plain(account("a", admin=True, topicPerms=["t=SUB"])).notes == [
        "topicPerms and groupPerms of a: it is an admin, and with Gantry may do everything"
    ]


def test_names_that_differ_by_case_stay_two_users() -> None:
    found = read_plain(account("Orders"), account("orders"), account("ADMIN"))
    first = {("admin-2", "ADMIN"), ("orders", "Orders"), ("orders-2", "orders")}
    assert {(one.name, one.access_key) for one in made_of(found)} == first
    # One that is there by its access key stays the same one, whatever else has come at the source.
    assert {(one.name, one.access_key) for one in made_of(found, orders="orders", other="x")} == {
        ("admin-2", "ADMIN"), ("orders-2", "Orders"), ("orders", "orders"),
    }  # fmt: skip


def test_who_cannot_be_a_broker_user_stops_no_other() -> None:
    many = [f"10.0.{n}.0/24" for n in range(65)]
    found = read_managed(
        [user("___"), user("many"), user("text"), user("good")],
        [acl("many", entry("Topic:x", "Pub", sourceIps=many)), acl("text", entry("Topic:a b", "Pub"))],
    )
    accounts, nameless = accounts_of(found.users, {}, ())
    fit, refused = importable(accounts, "demo")
    assert [one.access_key for one in fit] == ["good"]
    assert (sorted(nameless), sorted(refused)) == (["___"], ["many", "text"])
    assert KEY not in repr(nameless) + repr(refused)


def test_no_text_has_a_key() -> None:
    found = merged({
        "x": read_plain(account("a"), account("b", topicPerms=["=?"]), account("c d"), addresses=["*"]),
        "y": read_managed([user("a", userType="?"), user("e")], [acl("e", entry("", "Pub"))]),
    })  # fmt: skip
    assert KEY not in repr(found) + repr(made_of(found)) + json.dumps(lines(found)) + repr(found.notes)
    assert found.left_out


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b'{"plainAccessConfigs":5}', b'{"plainAccessConfigs":{"a":1}}'])
def test_what_is_no_answer_is_an_error(body: bytes) -> None:
    with pytest.raises(MigrationError, match="cannot be read"):
        plain(body)
    if body:
        with pytest.raises(MigrationError, match="cannot be read"):
            managed(b"{" + body, b"[]")
