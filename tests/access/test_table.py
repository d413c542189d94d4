"""The table's models: what they refuse, and that no text of theirs has a key."""

from __future__ import annotations

import gc
from typing import Any

import orjson
import pytest
from gantry_broker.access import table
from gantry_broker.access.building import beside_loop
from gantry_broker.access.decide import Policy
from gantry_broker.access.table import AccessTable, User, read_table, table_json
from pydantic import ValidationError

SECRET = "very-secret-key"


def value(**changes: Any) -> dict[str, Any]:
    return {"version": 1, "mode": "Enabled", "users": [{"name": "orders", "keys": [SECRET]}], **changes}


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"version": -1}, "version"),
        ({"version": 2**53 + 1}, "version"),
        ({"version": "1"}, "version"),
        ({"mode": "On"}, "mode"),
        ({"more": 1}, "more"),
        ({"users": [{"name": "a b", "keys": [SECRET]}]}, "name"),
        ({"users": [{"name": "a" * 129, "keys": [SECRET]}]}, "name"),
        ({"users": [{"name": "a", "keys": []}]}, "keys"),
        ({"users": [{"name": "a", "keys": [SECRET] * 3}]}, "keys"),
        ({"users": [{"name": "a", "keys": ["short"]}]}, "keys"),
        ({"users": [{"name": "a", "keys": [SECRET]}] * 2}, "twice"),
        (
            {"users": [{"name": "a", "keys": [SECRET], "rules": [{"type": "Topic", "actions": ["Pub"]}]}]},
            "needs a name",
        ),
        ({"users": [{"name": "a", "keys": [SECRET], "rules": [{"type": "T", "name": "x", "actions": []}]}]}, "type"),
        (
            {
                "users": [
                    {
                        "name": "a",
                        "keys": [SECRET],
                        "rules": [{"type": "Any", "pattern": "Any", "actions": ["Any"], "sources": ["10.0.0.300"]}],
                    }
                ]
            },
            "no network",
        ),
        ({"topicQuotas": [{"topic": "a", "bytesPerSecond": 0}]}, "bytesPerSecond"),
        ({"topicQuotas": [{"topic": "a"}, {"topic": "a"}]}, "two quotas"),
    ],
)
def test_a_wrong_table_is_refused_without_its_keys(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(ValidationError) as caught:
        AccessTable.model_validate(value(**changes))
    assert field in str(caught.value)
    assert SECRET not in str(caught.value)
    assert SECRET not in repr(caught.value)


def test_no_repr_has_a_key() -> None:
    made = AccessTable.model_validate(value())
    policy = Policy.of(made.model_dump())
    for thing in (made, made.users, policy, policy.users["orders"], User(name="a", keys=(SECRET,))):
        assert SECRET not in repr(thing)
        assert SECRET not in str(thing)


def test_a_table_goes_through_json() -> None:
    made = AccessTable.model_validate(value(topicQuotas=[{"topic": "a", "messagesPerSecond": 3}], merged={"m-0": 4}))
    assert AccessTable.model_validate_json(made.model_dump_json()) == made
    assert len(made.model_dump_json()) < table.MAX_VERSION


def test_a_table_is_read_in_parts_as_it_is_as_a_whole() -> None:
    rules = [{"type": "Topic", "name": f"t{n}", "actions": ["Pub"], "sources": ["10.0.0.0/8"]} for n in range(3)]
    users = [{"name": f"u{n}", "keys": [SECRET], "rules": rules, "super": n == 1} for n in range(5)]
    for body in (value(users=users, merged={"m-0": 4}), value(users=[]), {"version": 3, "mode": "Disabled"}):
        data = orjson.dumps(body)
        made = read_table(data)
        assert made == AccessTable.model_validate_json(data)
        assert read_table(table_json(made)) == made


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b"{", "not JSON"),
        (b"5", "dictionary"),
        (orjson.dumps(value(users={"name": "a"})), "users"),
        (orjson.dumps(value(users=[{"name": "a", "keys": [SECRET]}, {"name": "b", "keys": [5]}])), "users.1.keys"),
        (orjson.dumps(value(users=[{"name": "a", "keys": [SECRET]}] * 2)), "twice"),
        (orjson.dumps(value(users=[{}] * (table.MAX_USERS + 1))), "users has 2001 entries, the limit is 2000"),
        (orjson.dumps(value(version=-1)), "version"),
    ],
)  # fmt: skip
def test_a_wrong_table_names_the_field_and_no_key(body: bytes, text: str) -> None:
    with pytest.raises(ValueError, match=text) as caught:
        read_table(body)
    assert SECRET not in str(caught.value)


async def test_garbage_is_collected_again_after_a_table_was_built() -> None:
    assert await beside_loop(gc.isenabled) is False
    assert gc.isenabled()
    with pytest.raises(ValueError, match="not JSON"):
        await beside_loop(lambda: read_table(b"{"))
    assert gc.isenabled()
