"""The first election of a Raft group one of whose members has another address than the others' configurations say."""

from __future__ import annotations

import random

from gantry_broker.contracts.leadership import MemberId
from gantry_broker.replication.core import Role
from gantry_broker.replication.raft import WAITS_MS, RaftOptions, RaftReplica
from gantry_broker.replication.raft_messages import RaftRequestKind
from gantry_broker.replication.state import HardState

from tests.simulation.model_log import ModelLog, Power


class Disk:
    def save(self, state: HardState) -> None:
        self.saved = state


def group(moved: dict[int, str]) -> tuple[dict[str, RaftReplica], list[str]]:
    """Three new members by the address at which each listens. `moved`: another address than all others know."""
    said: list[str] = []
    by_address = {}
    for n in range(3):
        known = {m: f"old:{m}" for m in range(3)} | {n: moved.get(n, f"old:{n}")}
        by_address[known[n]] = RaftReplica(
            HardState(MemberId(n, f"life{n}")),
            ModelLog(Power()),  # type: ignore[arg-type]
            Disk(),
            RaftOptions(),
            known,
            report=said.append,
            rng=random.Random(n),
        )
    return by_address, said


def run(by_address: dict[str, RaftReplica], until_ms: int, step_ms: int = 20) -> list[tuple[int, set[str]]]:
    """Carry requests to the members that listen at their addresses; returns the number and the voters' addresses of the
    leaders. Nothing is fetched here, so a leader soon steps down.
    """
    led = []
    for now in range(0, until_ms, step_ms):
        for member in by_address.values():
            member.tick(now)
            outbox, member.outbox = member.outbox, []
            for number, request in outbox:
                for address in member.addresses_of(number):
                    other = by_address.get(address)
                    if other is not None and request.kind is not RaftRequestKind.TIMEOUT_NOW:
                        member.raft_answered(other.on_raft_request(request, now), now)
            if member.role is Role.MASTER:
                led.append((member.me.member, {v.address for v in member.members}))
    return led


def test_a_member_that_got_another_port_is_found() -> None:
    for number in range(3):
        by_address, _ = group({number: "new:1"})
        led = run(by_address, 5_000)
        assert led, f"nobody leads when member {number} has moved"
        assert led[0] == (0, set(by_address))


def test_a_first_election_that_does_not_begin_says_for_whom_it_waits() -> None:
    by_address, said = group({})
    del by_address["old:2"]
    run(by_address, 2 * WAITS_MS + 1_000)
    reasons = {m.reason for m in by_address.values()}
    assert reasons == {"the first election waits for members that say that their disks are new: 2 at old:2"}
    assert 1 <= len([text for text in said if "2 at old:2" in text]) <= 4
