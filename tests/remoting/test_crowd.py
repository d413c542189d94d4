"""Which connection makes room when too many have not proved themselves."""

from __future__ import annotations

import random
from typing import Any, cast

import pytest
from gantry_broker.remoting.crowd import Crowd
from gantry_broker.remoting.tls_gate import TlsGate, _Arriving

from tests.support.remoting import Socket


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
    assert crowd.first_of_most(lambda c: c == "flood97") == "flood97"
    assert crowd.first_of_most(lambda c: c == "other") == "flood93", "others do not pay, whatever the flood waits for"
    crowd.discard("other")
    assert Crowd[str]().first_of_most() is None


class Peer(Socket):
    def __init__(self, address: str) -> None:
        super().__init__()
        self.address = address

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return (self.address, 1) if name == "peername" else default


async def test_handshakes_that_wait_for_their_turn_do_not_push_others_out() -> None:
    gate = TlsGate("test", cast(Any, None), required=True, most=8)

    def arrive(address: str, *, queued: bool) -> tuple[_Arriving, Peer]:
        made, peer = gate.accept(cast(Any, None)), Peer(address)
        made.queued = queued
        made.connection_made(peer)
        return made, peer

    _, honest = arrive("192.0.2.1", queued=False)
    flood = [arrive("192.0.2.9", queued=True)[1] for _ in range(20)]
    _, newcomer = arrive("192.0.2.2", queued=False)
    assert not honest.closed
    assert not newcomer.closed
    assert sum(not peer.closed for peer in flood) == 6
    gate.close()


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
