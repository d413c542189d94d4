"""The access table: versions grow, an AccessKey has one owner, changes of mqadmin are merged once."""

from __future__ import annotations

import random
from typing import Any

import pytest
from gantry_broker.access.table import MAX_ALL_RULES, AccessTable
from gantry_operator.access.decide import Decision, Observed, decide
from gantry_operator.access.state import AccessState
from gantry_operator.access.wanted import wanted_admin, wanted_user
from gantry_operator.api.security import Security
from gantry_operator.api.user import BrokerUser

RULE = {"type": "Topic", "name": "o-", "pattern": "Prefix", "actions": ["Pub"]}


def user(name: str, created: str = "", **spec: Any) -> BrokerUser:
    found = BrokerUser.make(name, "demo", **spec)
    found.metadata.creationTimestamp = created
    return found


def seen(*users: BrokerUser, **more: Any) -> Observed:
    known: dict[str, Any] = {"mode": "Enabled", "security": Security(), "secrets": {}} | more
    return Observed("demo", wanted=[wanted_admin("demo"), *map(wanted_user, users)], **known)


def decided(state: AccessState, observed: Observed, now: float = 0.0) -> Decision:
    numbers = iter(range(1000))
    decision = decide(state, observed, now, lambda: f"new-key-{len(state.users)}-{next(numbers)}")
    AccessTable.model_validate(decision.table)
    return decision


def names(decision: Decision) -> list[str]:
    return [u["name"] for u in decision.table["users"]]


def written(decision: Decision) -> dict[str, dict[str, str]]:
    return {name: dict(content) for name, content in decision.writes.items()}


def test_the_super_user_and_a_user_with_rights() -> None:
    decision = decided(AccessState(), seen(user("orders", rules=[RULE], quotas={"messagesPerSecond": 5})))
    assert decision.table["version"] == 1
    admin, orders = decision.table["users"]
    assert (admin["name"], admin["super"], len(admin["keys"])) == ("admin", True, 1)
    assert orders["rules"] == [RULE | {"decision": "Allow", "sources": []}]
    assert (orders["messagesPerSecond"], orders["bytesPerSecond"]) == (5, None)
    assert written(decision) == {
        "demo-admin-user": {"accessKey": "admin", "secretKey": admin["keys"][0]},
        "demo-user-orders": {"accessKey": "orders", "secretKey": orders["keys"][0]},
    }


def test_nothing_changes_without_a_change() -> None:
    first = decided(AccessState(), seen(user("orders")))
    second = decided(first.state, seen(user("orders"), secrets=written(first)))
    assert second.state == first.state
    assert second.table == first.table
    assert not second.writes


def test_every_change_raises_the_version() -> None:
    first = decided(AccessState(), seen(user("orders")))
    secrets = written(first)
    changes: list[Observed] = [
        seen(user("orders", enabled=False), secrets=secrets),
        seen(secrets=secrets),
        seen(user("orders"), secrets=secrets, mode="Permissive"),
        seen(user("orders"), secrets=secrets, security=Security(topicQuotas=[{"topic": "t", "messagesPerSecond": 1}])),
        seen(user("orders"), secrets=secrets | {"demo-user-orders": {"secretKey": "another-key"}}),
    ]
    for change in changes:
        assert decided(first.state, change).table["version"] == 2


def test_the_version_exceeds_that_of_every_member() -> None:
    """The state was lost, and members hold a table already: they ignore lower versions."""
    first = decided(AccessState(), seen(member_version=41))
    assert first.table["version"] == 42
    assert decided(first.state, seen(secrets=written(first), member_version=42)).table["version"] == 42
    assert decided(first.state, seen(secrets=written(first), member_version=50)).table["version"] == 51


def test_clusters_of_one_name_never_share_a_version() -> None:
    """Members keep the former cluster's table on their volumes, and may answer after the first decision."""
    state = decided(AccessState(), seen(user("orders")), 1_000.0).state
    for number in range(50):
        state = decided(state, seen(user("orders", enabled=number % 2 == 0)), 1_000.0 + number).state
    assert decided(AccessState(), seen(user("orders")), 1_051.0).table["version"] > state.version


def test_one_access_key_has_one_user() -> None:
    older, newer = (
        user("b", "2026-01-01T00:00:00Z", accessKey="shop"),
        user("a", "2026-01-02T00:00:00Z", accessKey="shop"),
    )
    first = decided(AccessState(), seen(newer, older))
    assert names(first) == ["admin", "shop"]
    assert first.results["b"].accepted
    refused = first.results["a"]
    assert (refused.accepted, refused.reason) == (False, "AccessKeyTaken")
    assert "belongs to BrokerUser b" in refused.message
    oldest = user("c", "2025-01-01T00:00:00Z", accessKey="shop")
    second = decided(first.state, seen(newer, older, oldest, secrets=written(first)))
    assert second.results["b"].accepted, "who has it keeps it"
    assert not second.results["c"].accepted
    third = decided(second.state, seen(newer, secrets=written(first)))
    assert third.results["a"].accepted, "once the first is gone, the key is free"


def test_the_super_users_access_key_is_refused_to_others() -> None:
    decision = decided(AccessState(), seen(user("me", accessKey="admin", superUser=False)))
    assert names(decision) == ["admin"]
    assert decision.table["users"][0]["super"] is True
    assert "super user's of demo" in decision.results["me"].message


def test_a_key_that_ends_by_time_alone() -> None:
    first = decided(AccessState(), seen(user("orders", rotation={"overlap": "10s"})))
    secrets = written(first) | {"demo-user-orders": {"accessKey": "orders", "secretKey": "another-key"}}
    orders = user("orders", rotation={"overlap": "10s"})
    second = decided(first.state, seen(orders, secrets=secrets), 100.0)
    assert second.next_at == 110.0
    assert second.results["orders"].keys == 2
    assert [n[1] for n in second.notes] == ["KeyRotated"]
    third = decided(second.state, seen(orders, secrets=secrets), 110.0)
    assert third.next_at is None
    assert third.table["version"] == second.table["version"] + 1
    assert third.table["users"][1]["keys"] == ["another-key"]


def change(number: int, op: str, name: str, at: int = 0, **fields: Any) -> dict[str, Any]:
    made = {"name": name, "keys": ["mqadmins-key"], **fields} if op != "DeleteUser" else None
    return {"number": number, "op": op, "name": name, "user": made, "at_ms": at}


def test_changes_of_mqadmin_become_part_of_the_table() -> None:
    first = decided(AccessState(), seen())
    changes = {"demo-a-0": [change(1, "CreateUser", "bob"), change(2, "UpdateUser", "bob", 5, super=True)]}
    second = decided(first.state, seen(secrets=written(first), changes=changes))
    assert names(second) == ["admin", "bob"]
    assert second.table["users"][1]["super"] is True
    assert second.table["merged"] == {"demo-a-0": 2}
    again = decided(second.state, seen(secrets=written(first), changes=changes))
    assert again.table == second.table, "a change is merged once"
    deleted = {"demo-b-0": [change(1, "DeleteUser", "bob", 9)]}
    third = decided(second.state, seen(secrets=written(first), changes=deleted))
    assert names(third) == ["admin"]
    assert third.table["merged"] == {"demo-a-0": 2, "demo-b-0": 1}


def test_changes_of_several_members_count_by_their_times() -> None:
    changes = {
        "demo-a-0": [change(1, "UpdateUser", "bob", 20, enabled=False)],
        "demo-b-0": [change(7, "CreateUser", "bob", 10)],
    }
    assert decided(AccessState(), seen(changes=changes)).table["users"][1]["enabled"] is False


def test_mqadmin_does_not_change_users_that_have_a_resource() -> None:
    changes = {"demo-a-0": [change(1, "UpdateUser", "orders", super=True), change(2, "DeleteUser", "admin")]}
    decision = decided(AccessState(), seen(user("orders"), changes=changes))
    assert names(decision) == ["admin", "orders"]
    assert [u["super"] for u in decision.table["users"]] == [True, False]
    assert decision.table["merged"] == {"demo-a-0": 2}, "the member drops it"
    assert [n[1] for n in decision.notes] == ["ChangeNotMerged"] * 2


def test_a_resource_takes_a_user_of_mqadmin_over() -> None:
    first = decided(AccessState(), seen(changes={"demo-a-0": [change(1, "CreateUser", "bob", super=True)]}))
    second = decided(first.state, seen(user("bob"), secrets=written(first)))
    assert names(second) == ["admin", "bob"]
    assert second.table["users"][1]["super"] is False


@pytest.mark.parametrize(
    "bad", [{}, {"number": -1}, {"number": 1, "op": "CreateUser", "name": "x y"}, change(1, "CreateUser", "b", keys=[])]
)
def test_changes_that_are_not_understood_are_left_out(bad: dict[str, Any]) -> None:
    decision = decided(AccessState(), seen(changes={"demo-a-0": [bad]}))
    assert names(decision) == ["admin"]
    assert [n[1] for n in decision.notes] == ["ChangeNotMerged"]


def test_too_many_rules_are_refused_before_the_members_would() -> None:
    many = [RULE] * 256
    users = [user(f"u{i:03d}", rules=many) for i in range(MAX_ALL_RULES // 256 + 1)]
    decision = decided(AccessState(), seen(*users))
    assert [n for n, r in decision.results.items() if not r.accepted] == [users[-1].name]
    assert decision.results[users[-1].name].reason == "TooManyRules"


@pytest.mark.parametrize("seed", range(100))
def test_interrupted_at_any_step_it_ends_the_same(seed: int) -> None:
    """A pass may end before the state is kept, before a Secret is written, or between two Secrets."""
    dice = random.Random(seed)
    users = [user(n, f"2026-01-0{dice.randint(1, 9)}T00:00:00Z", accessKey=dice.choice("xyz")) for n in "abcdef"]
    state, secrets, version = AccessState(), {}, 0
    for _ in range(40):
        chosen = [u for u in users if dice.random() < 0.9]
        decision = decided(state, seen(*chosen, secrets=secrets))
        if dice.random() < 0.3:
            continue
        assert decision.table["version"] >= version
        state, version = decision.state, decision.table["version"]
        for name, content in written(decision).items():
            if dice.random() < 0.6:
                secrets[name] = content
    for _ in range(2):
        decision = decided(state, seen(*users, secrets=secrets))
        state = decision.state
        secrets |= written(decision)
    done = decided(state, seen(*users, secrets=secrets))
    assert not done.writes
    assert done.state == state
    for entry in done.table["users"][1:]:
        owner = next(u for u in users if u.access_key == entry["name"] and done.results[u.name].accepted)
        assert secrets[f"demo-user-{owner.name}"] == {"accessKey": entry["name"], "secretKey": entry["keys"][0]}


def test_users_of_mqadmin_never_make_a_table_that_members_refuse() -> None:
    """Otherwise no later change reaches them: a disabled user stays valid."""
    plain = {"keys": ["made-secret"], "super": False, "enabled": True, "connections": None}
    plain |= {"bytesPerSecond": None, "messagesPerSecond": None}
    rule = RULE | {"decision": "Allow", "sources": []}
    made = [{**plain, "name": f"made{number:02}", "rules": [rule] * 500} for number in range(41)]
    made.append({**plain, "name": "small", "rules": []})
    decision = decided(AccessState(version=3, made=made), seen())
    assert names(decision) == ["admin", *(f"made{number:02}" for number in range(40)), "small"]
    assert [(reason, "made40" in text) for _, reason, text, _ in decision.notes] == [("ChangeNotMerged", True)]
