"""Kinds of schedules, by their frequent faults. Each finds other bugs, so a run mixes them."""

from __future__ import annotations

from typing import NamedTuple

from tests.simulation.decided import DecidingOperator
from tests.simulation.machine import MakeOperator, Profile
from tests.simulation.operators import ModelOperator
from tests.simulation.raft_world import RaftProfile


class Kind(NamedTuple):
    profile: Profile
    operator: MakeOperator = ModelOperator


_BUSY = {"think": 8, "swap": 9, "assign": 14, "poll": 10, "read": 6, "send": 14, "tick": 2}

PROFILES: dict[str, Kind] = {
    "mixed": Kind(Profile()),
    "mixed-again": Kind(Profile(steps=300)),
    # The operator's real decisions instead of random ones; two more such kinds below.
    "decided": Kind(Profile(), DecidingOperator),
    # Masters and sets change often.
    "churn": Kind(Profile(steps=300, weights=_BUSY, operators=2)),
    # Processes die between any two steps, machines lose their tails.
    "crash": Kind(
        Profile(
            steps=250,
            weights={"kill": 2, "power": 1.5, "arm": 2, "restart": 8, "assign": 12, "think": 6, "swap": 6},
            sync_replication=True,
        )
    ),
    # Everything arrives late, twice or never.
    "late": Kind(
        Profile(
            steps=300,
            weights={"duplicate": 15, "drop": 0.5, "think": 5, "swap": 5, "assign": 12, "fetch": 25},
            sync_replication=True,
            members=3,
        )
    ),
    # Two members, so that every acknowledgement counts.
    "pair": Kind(
        Profile(
            steps=300,
            weights={"think": 6, "swap": 6, "assign": 16, "poll": 8, "tick": 8, "kill": 0.1, "power": 0, "arm": 0},
            members=2,
            operators=1,
            sync_replication=True,
            min_in_sync=1,
        )
    ),
    # One handover after the other.
    "handover": Kind(Profile(steps=250, weights={"hand_over": 5, "swap": 8, "forward": 8, "send": 16, "assign": 12})),
    "decided-crash": Kind(
        Profile(weights={"kill": 2, "power": 1, "arm": 2, "restart": 8, "think": 8, "swap": 8, "poll": 12}),
        DecidingOperator,
    ),
    # The registry is emptied: the first record must come from the disks' state (rule 22).
    "decided-lost-record": Kind(
        Profile(weights={"lose_leadership": 0.4, "think": 8, "swap": 8, "poll": 14, "read": 8}, operators=1),
        DecidingOperator,
    ),
    # The whole group stops in order and returns, member after member, while others fail.
    "decided-hibernation": Kind(
        Profile(steps=300, weights={"hibernate": 2, "restart": 14, "think": 8, "swap": 8, "poll": 14, "assign": 12}),
        DecidingOperator,
    ),
}

RAFT_PROFILES: dict[str, RaftProfile] = {
    "raft": RaftProfile(),
    # Leaders die and are cut off.
    "raft-elections": RaftProfile(
        steps=400,
        weights={"tick": 25, "kill": 4, "restart": 10, "gone": 8, "send": 8, "fetch": 14, "flush": 16, "cut_off": 1.5},
    ),
    # The leadership is transferred often, and parts of the log expire.
    "raft-transfers": RaftProfile(
        steps=400,
        weights={
            "transfer": 10,
            "forward": 24,
            "tick": 22,
            "fetch": 22,
            "flush": 18,
            "send": 9,
            "expire": 2,
            "gone": 2,
        },
    ),
    # The whole group stops in order and returns, member after member, while others fail.
    "raft-hibernation": RaftProfile(steps=400, weights={"hibernate": 1.5, "restart": 14, "tick": 24, "gone": 2}),
    # Members come and go while the network parts.
    "raft-changes": RaftProfile(
        members=3, weights={"remove": 6, "cut_off": 3, "heal": 0.4, "gone": 3, "tick": 28, "wipe": 0.3}
    ),
}
