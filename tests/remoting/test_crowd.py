"""Which connection makes room when too many have not proved themselves."""

from __future__ import annotations

import random

import pytest
from gantry_broker.remoting.crowd import Crowd


def test_a_flood_from_one_address_costs_its_own_connections() -> None:
    crowd: Crowd[str] = Crowd()
    crowd.add("other", "192.0.2.1")
    for number in range(100):
        crowd.add(f"flood{number}", "192.0.2.9")
        if len(crowd) > 10:
            victim = crowd.first_of_most()
            assert victim == f"flood{number - 9}", "its oldest one"
            crowd.discard(victim)
    assert "other" in crowd
    crowd.to_end("flood91")
    crowd.to_end("flood92")
    assert crowd.first_of_most() == "flood93"
    assert crowd.first_of_most(lambda c: c == "other") == "other", "the rest has its turn now"
    assert crowd.first_of_most(lambda c: False) is None


@pytest.mark.parametrize("seed", range(5))
def test_histories(seed: int) -> None:
    rng = random.Random(seed)
    crowd: Crowd[int] = Crowd()
    model: list[tuple[int, str]] = []
    for number in range(500):
        step = rng.randrange(4)
        if step < 2 or not model:
            model.append((number, rng.choice("abc")))
            crowd.add(*model[-1])
        elif step == 2:
            gone = rng.choice(model)
            model.remove(gone)
            crowd.discard(gone[0])
            crowd.discard(gone[0])
        else:
            moved = rng.choice(model)
            model.remove(moved)
            model.append(moved)
            crowd.to_end(moved[0])
        assert list(crowd) == [one for one, _ in model]
        counts = {address: sum(a == address for _, a in model) for address in "abc"}
        most = max(counts.values())
        wanted = next((one for one, address in model if counts[address] == most), None)
        assert crowd.first_of_most() == wanted
