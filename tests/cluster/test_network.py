"""The network between members: who reaches whom, by what members say, and what nobody can tell."""

from __future__ import annotations

from typing import Any

import pytest
from gantry_broker.contracts.models import FollowerStatus, LeaderLink, MemberRef, MemberStatus, NameServerLink
from gantry_operator.cluster.live import MemberPlace
from gantry_operator.cluster.network import Link, links, verdict

PLACES = [MemberPlace(f"m{n}", "a", n, "") for n in range(3)]
REACHED = NameServerLink(address="ns:9876", state="connected", rtt_us=300)


def ref(number: int) -> MemberRef:
    return MemberRef(member=number, incarnation="0" * 32)


def member(number: int, **fields: Any) -> MemberStatus:
    usual: dict[str, Any] = {"role": "Slave", "epoch": 3, "version": 1, "name_servers": [REACHED]}
    return MemberStatus(
        cluster="t", group="a", name=f"m{number}", member=ref(number), broker_id=0, **usual | fields
    )  # fmt: skip


def leader(*followers: tuple[int, int, int], **fields: Any) -> MemberStatus:
    """`followers`: number, milliseconds since its last fetch, round trip in microseconds."""
    seen = [
        FollowerStatus(member=ref(n), acked=0, last_fetch_ms=at, in_sync=True, rtt_us=rtt) for n, at, rtt in followers
    ]
    return member(0, role="Master", followers=seen, **fields)


def follower(number: int, state: Any = "connected", rtt_us: int = -1, of: int = 0) -> MemberStatus:
    return member(number, leader_link=LeaderLink(member=ref(of), state=state, last_answer_ms=5, rtt_us=rtt_us))


def found(*said: MemberStatus | str, limit_ms: float = 10.0) -> dict[tuple[str, str], Link]:
    by_name = {f"m{n}": one for n, one in enumerate(said)}
    return {(link.one, link.other): link for link in links(PLACES, by_name, limit_ms)}


def test_each_pair_and_each_name_server_has_a_verdict() -> None:
    made = found(leader((1, 20, 400), (2, 20, 25_000)), follower(1, rtt_us=900), follower(2))
    assert {pair: (link.level, link.rtt_ms) for pair, link in made.items()} == {
        ("m1", "m0"): ("good", 0.4),
        ("m2", "m0"): ("fair", 25.0),
        ("m1", "m2"): ("unknown", None),
        ("m0", "ns:9876"): ("good", 0.3),
        ("m1", "ns:9876"): ("good", 0.3),
        ("m2", "ns:9876"): ("good", 0.3),
    }
    assert made["m1", "m2"].words == "no connection: followers have one to their leader alone"
    assert verdict(list(made.values())) == "all that is known is reached; slow: m2 to m0"
    patient = found(leader((1, 20, 400), (2, 20, 25_000)), follower(1), follower(2), limit_ms=30)
    assert verdict(list(patient.values())) == "all that is known is reached within the limit"


@pytest.mark.parametrize(
    ("said", "level", "words"),
    [
        ((leader((1, 60_000, 400)), follower(1)), "bad", "m1 has not asked for records for 60 s"),
        ((leader(), follower(1, "refused")), "bad", "it refuses the connection"),
        ((leader((1, 20, 400)), follower(1, "silent")), "bad", "it does not answer"),
        ((leader((1, 20, 400)), "no connection"), "good", "reached within 10 ms"),
        ((leader((1, 20, -1)), follower(1)), "unknown", "connected; the system does not report the round trip"),
        ((leader((1, 20, -1)), follower(1, rtt_us=700)), "good", "reached within 10 ms"),
        ((leader(), follower(1, rtt_us=700)), "good", "reached within 10 ms"),
        ((leader(), "no connection"), "unknown", "m0 has not heard of it since it leads"),
        ((leader(), follower(1, of=2)), "unknown", "m0 has not heard of it since it leads"),
        (("no connection", follower(1, "silent")), "bad", "it does not answer"),
        (("no connection", member(1)), "unknown", "no member that answers leads the group"),
        (("no connection", "no connection"), "unknown", "neither of them answers"),
    ],
)  # fmt: skip
def test_a_pair(said: tuple[MemberStatus | str, MemberStatus | str], level: str, words: str) -> None:
    made = found(*said, "no connection")
    link = made.get(("m1", "m0")) or made["m0", "m1"]
    assert (link.level, link.words) == (level, words)


def test_a_former_leader_that_does_not_know_it_yet_counts_no_more() -> None:
    new = member(1, role="Master", epoch=4, followers=[
        FollowerStatus(member=ref(2), acked=0, last_fetch_ms=9, in_sync=True, rtt_us=500)])  # fmt: skip
    made = found(leader((1, 9_000, 1), (2, 9_000, 1)), new, follower(2, of=1))
    assert made["m2", "m1"].level == "good"
    assert made["m0", "m1"].words == "m1 has not heard of it since it leads" if ("m0", "m1") in made else False


@pytest.mark.parametrize(
    ("servers", "level", "words"),
    [
        ([NameServerLink(address="ns:9876", state="silent")], "bad", "it cannot register there"),
        ([NameServerLink(address="ns:9876")], "unknown", "it has not registered there yet"),
        ([], "unknown", "m0 does not say: it runs an older version"),
    ],
)
def test_a_name_server(servers: list[NameServerLink], level: str, words: str) -> None:
    made = links(PLACES[:1], {"m0": member(0, role="Master", name_servers=servers)})
    assert [(link.level, link.words) for link in made] == [(level, words)]
    assert verdict(made) == (
        "not everything is reached: m0 to ns:9876"
        if level == "bad"
        else "all that is known is reached within the limit"
    )


def test_a_member_that_does_not_answer_is_no_fault_of_the_network() -> None:
    made = links(PLACES[:1], {"m0": "it does not answer in time"})
    assert [(link.level, link.words) for link in made] == [("unknown", "m0 does not say: it does not answer in time")]
