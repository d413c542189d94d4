"""The rotation of a user's key: at most two valid keys, none valid for too long, and no client without a valid key."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from gantry_operator.access.keys import next_keys, usable, valid_keys
from gantry_operator.access.state import Keys
from gantry_operator.access.wanted import WantedUser

OWN = WantedUser("orders", "orders", "demo-user-orders", overlap_s=100.0)
NAMED = replace(OWN, secret="orders-key", own_secret=False)


def new_key() -> str:
    return "made-by-us"


def test_a_new_user_gets_a_key_and_a_secret() -> None:
    plan = next_keys(None, OWN, None, 0.0, new_key)
    assert plan.keys == Keys(current="made-by-us", access_key="orders")
    assert plan.write
    assert not plan.changed


def test_a_secret_without_a_state_keeps_its_key() -> None:
    """The state was lost: clients use the key of the Secret."""
    plan = next_keys(None, replace(OWN, rotate="1"), "from-clients", 0.0, new_key)
    assert plan.keys == Keys(current="from-clients", request="1", access_key="orders")
    assert not plan.write


def test_a_rotation_keeps_the_former_key_for_the_overlap() -> None:
    known = Keys(current="first-key", access_key="orders")
    plan = next_keys(known, replace(OWN, rotate="now"), "first-key", 1000.0, new_key)
    assert plan.keys == Keys(
        current="made-by-us", former="first-key", changed_at=1000.0, request="now", access_key="orders"
    )
    assert plan.write
    assert plan.changed
    assert valid_keys(plan.keys, 100.0, 1099.9) == ["made-by-us", "first-key"]
    assert valid_keys(plan.keys, 100.0, 1100.0) == ["made-by-us"]
    assert valid_keys(plan.keys, 0.0, 1000.0) == ["made-by-us"], "a shorter overlap ends it at once"


def test_a_secret_that_is_behind_is_written_again() -> None:
    """The operator ended between the state and the Secret, also after the overlap."""
    known = Keys(current="second-key", former="first-key", changed_at=0.0, request="now", access_key="orders")
    for now in (1.0, 1_000_000.0):
        plan = next_keys(known, replace(OWN, rotate="now"), "first-key", now, new_key)
        assert (plan.keys, plan.write, plan.changed) == (known, True, False)


def test_the_same_request_rotates_once() -> None:
    known = Keys(current="second-key", former="first-key", changed_at=0.0, request="now", access_key="orders")
    plan = next_keys(known, replace(OWN, rotate="now"), "second-key", 1.0, new_key)
    assert (plan.keys, plan.write, plan.waits) == (known, False, "")


def test_a_second_rotation_waits_for_the_overlap() -> None:
    """Otherwise clients with the first key would be refused before its time."""
    known = Keys(current="second-key", former="first-key", changed_at=0.0, request="1", access_key="orders")
    again = replace(OWN, rotate="2")
    waiting = next_keys(known, again, "second-key", 99.0, new_key)
    assert waiting.keys == known
    assert "shorter spec.rotation.overlap" in waiting.waits
    assert next_keys(known, again, "second-key", 100.0, new_key).changed


@pytest.mark.parametrize("wanted", [OWN, NAMED])
def test_a_secret_that_its_owner_changed_is_adopted(wanted: WantedUser) -> None:
    known = Keys(current="first-key", access_key="orders")
    plan = next_keys(known, wanted, "from-the-owner", 50.0, new_key)
    assert plan.keys is not None
    assert valid_keys(plan.keys, wanted.overlap_s, 51.0) == ["from-the-owner", "first-key"]
    assert not plan.write
    assert plan.changed


def test_a_named_secret_is_never_written_nor_rotated() -> None:
    known = Keys(current="first-key", access_key="orders")
    plan = next_keys(known, replace(NAMED, rotate="now"), "first-key", 0.0, new_key)
    assert (plan.keys, plan.write) == (known, False)
    assert "change secretKey there" in plan.waits


@pytest.mark.parametrize("found", [None, "short", "x" * 257, "with space in it", "line\nbreak-1", "größer-als"])
def test_a_named_secret_that_cannot_be_used_keeps_the_last_key(found: str | None) -> None:
    assert usable(found)
    assert next_keys(None, NAMED, found, 0.0, new_key).keys is None
    known = Keys(current="first-key", access_key="orders")
    plan = next_keys(known, NAMED, found, 0.0, new_key)
    assert plan.keys == known
    assert "orders-key" in plan.problem
    assert found is None or found not in plan.problem, "no secret in a message"


@pytest.mark.parametrize("seed", range(200))
def test_clients_keep_a_valid_key_in_every_history(seed: int) -> None:
    """A client reads the Secret now and then. Its key is valid for the overlap after the Secret got another one.

    The process may end after each step, and members may get the table before or after the Secret is written.
    """
    dice = random.Random(seed)
    numbers = iter(range(10_000))
    now, known, secret, request = 0.0, None, None, ""
    wanted = OWN if dice.random() < 0.5 else NAMED
    read: dict[str, float] = {}
    """Keys that clients read, with the time of the last read."""
    if not wanted.own_secret:
        secret = "owners-key-0"
    for step in range(60):
        now += dice.choice([0.0, 1.0, 30.0, 99.0, 100.0, 250.0])
        event = dice.random()
        if event < 0.25:
            request = f"request {step}"
        elif event < 0.4 and not wanted.own_secret and (known is None or now >= known.changed_at + wanted.overlap_s):
            secret = f"owners-key-{next(numbers)}"
        elif event < 0.45 and wanted.own_secret:
            secret = None
        plan = next_keys(known, replace(wanted, rotate=request), secret, now, lambda: f"made-key-{next(numbers)}")
        if dice.random() < 0.1:
            continue  # The process ended before it kept the state.
        assert plan.keys is not None
        known = plan.keys
        valid = valid_keys(known, wanted.overlap_s, now)
        assert 1 <= len(valid) == len(set(valid)) <= 2
        if secret is not None:
            assert secret in valid or plan.write, "a key in the Secret is valid, or the Secret is written next"
        for key, at in read.items():
            assert key in valid or now - at >= wanted.overlap_s, f"{key} was read at {at} and is refused at {now}"
        if plan.write and dice.random() < 0.8:
            assert wanted.own_secret
            secret = known.current
        if secret is not None and secret == known.current:
            read[secret] = now
        elif secret is not None and secret in valid:
            read[secret] = min(now, known.changed_at)
