"""Fair shares of the places in which requests wait."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from gantry_broker.broker.pull.held import HeldPull, HeldPulls
from gantry_broker.shares import Shares


def _fill(shares: Shares, *owners: str) -> int:
    taken = 0
    while shares.take(owners):
        taken += 1
    return taken


def test_an_owner_gets_as_much_as_is_left() -> None:
    shares = Shares(1_200)
    assert _fill(shares, "a") == 600
    assert _fill(shares, "b") == 300
    assert _fill(shares, "c") == 150
    for _ in range(600):
        shares.give_back(["a"])
    assert _fill(shares, "b") == 225, "b has 525 now, and 525 are free"
    assert not shares.take(["b"])


def test_a_users_connections_share() -> None:
    shares = Shares(1_000)
    assert sum([_fill(shares, f"connection {number}", "user") for number in range(3)]) == 500
    assert shares.take(["connection 9", "other user"])


@pytest.mark.parametrize("seed", range(20))
def test_a_new_owner_always_finds_a_place(seed: int) -> None:
    rng = random.Random(seed)
    shares, held = Shares(64), Counter[str]()
    for _ in range(3_000):
        owner = rng.choice("abcdef"[: rng.randint(1, 6)])
        if rng.random() < 0.7:
            if shares.take([owner]):
                held[owner] += 1
                assert held[owner] <= 32
        elif held[owner]:
            shares.give_back([owner])
            held[owner] -= 1
        assert shares.taken == held.total() < 64
        assert shares.take(["new"])
        shares.give_back(["new"])


class _Pull(HeldPull):
    def __init__(self, owner: str) -> None:
        self.owner = owner


@pytest.mark.parametrize("seed", range(10))
def test_held_pulls_have_shares_when_there_are_many(seed: int) -> None:
    rng = random.Random(seed)
    owner_of = {"now": ""}
    held: HeldPulls[_Pull] = HeldPulls(limit=400, owners=lambda pull: (pull.owner + owner_of["now"],))
    for number in range(1_000):
        held.hold("T", number % 8, _Pull("greedy"), 1_000)
    assert len(held) == 200
    assert held.hold("T", 0, _Pull("other"), 500)
    owner_of["now"] = " under another policy"
    kept = held.everything()
    for pull in rng.sample(kept, 180):
        held.end(pull)
    assert len(held) == 21
    for number in range(1_000):
        held.hold("T", number % 8, _Pull("greedy"), 1_000)
    assert 190 <= len(held) <= 201
    for pull in held.everything():
        held.end(pull)
    assert len(held) == 0
