"""A group in Raft mode in the simulated world: the same logs, disks and network, and elections instead of operators."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Any

from gantry_broker.contracts.leadership import MemberId
from gantry_broker.replication.core import Role
from gantry_broker.replication.members import Members, ids
from gantry_broker.replication.messages import Fetch, FetchAnswer
from gantry_broker.replication.raft import RaftOptions, RaftReplica
from gantry_broker.replication.raft_messages import RaftRequest, RaftRequestKind, RaftResponse
from gantry_broker.replication.state import HardState

from tests.simulation.checker import Violation
from tests.simulation.machine import DEFAULT, Profile
from tests.simulation.model_log import MEMBER_TABLE, SEGMENT
from tests.simulation.steps import SILENT, Steps
from tests.simulation.world import Member, Message, World, describe

SETTLE_ROUNDS = 250


def describe_raft(body: Any) -> str:
    if isinstance(body, RaftRequest):
        return f"{body.kind.value} e{body.epoch} rank={body.rank}" + (" transfer" if body.transfer else "")
    if isinstance(body, RaftResponse):
        said = "yes" if body.granted else "no"
        return f"{body.kind.value}? {said} (e{body.epoch}, leader {body.leader})"
    return describe(body)


class RaftMember(Member):
    core: RaftReplica | None  # type: ignore[assignment]

    def start(self) -> None:
        """Acknowledgements count bytes on disk: a start proves its log, unless the disk is another one."""
        world = self.world
        self.life += 1
        if self.disk.saved is None:
            self.disk.saved = HardState(MemberId(self.number, world.incarnation(self.number)))
        assert isinstance(world.options, RaftOptions)
        self.core = RaftReplica(
            self.disk.saved,
            self.log,
            self.disk,
            world.options,
            {m.number: m.name for m in world.members},
            report=self.reports.append,
            now_ms=self.now(),
            rng=random.Random(world.rng.random()),
        )
        self.watch()

    def step(self, action: Callable[[Any], None]) -> None:
        super().step(action)
        self.send_out()

    def send_out(self) -> None:
        core = self.core
        if core is None:
            return
        outbox, core.outbox = core.outbox, []
        for number, request in outbox:
            self.world.post(self.name, f"m{number}", request)


class RaftWorld(World):
    """As World; members are RaftMember, and Raft requests are messages too."""

    members: list[RaftMember]  # type: ignore[assignment]

    def __init__(self, count: int, options: RaftOptions, *, trace: Any, **more: Any) -> None:
        super().__init__(count, options, trace=trace, **more)
        MEMBER_TABLE.clear()  # A repeated schedule has records of the same sizes, whatever ran before it.
        self.members = [RaftMember(self, number) for number in range(count)]

    def _receive(self, member: Member, message: Message) -> None:
        body, reply = message.body, message.source

        def act(core: Any) -> None:
            if isinstance(body, RaftRequest):
                answer = core.on_raft_request(body, member.now())
                self.trace(f"  {member.name} answers {describe_raft(answer)}")
                self.post(member.name, reply, answer)
            elif isinstance(body, RaftResponse):
                core.raft_answered(body, member.now())

        if isinstance(body, Fetch | FetchAnswer | tuple):
            super()._receive(member, message)
        else:
            member.step(act)

    def client_send(self) -> None:
        """A client's send. A leader that hands over buffers it, and a former one forwards it behind those."""
        leaders = [m for m in self.members if m.core is not None and (m.core.leader is not None or m.forwarding)]
        ident, self.next_id = self.next_id, self.next_id + 1
        if leaders:
            self.rng.choice(leaders).send(ident)

    def draw(self) -> str:
        lines = super().draw().splitlines()[1:]
        for index, member in enumerate(self.members):
            core = member.core
            if core is not None:
                lines[index] += (
                    f" {core.me} vote={core.state.vote} members=({','.join(str(v.id) for v in core.members)})"
                )
        return "\n".join(lines)


RAFT: dict[str, float] = {
    "deliver": 46,
    "duplicate": 1.5,
    "drop": 1.5,
    "fetch": 18,
    "send": 9,
    "flush": 12,
    "tick": 16,
    "kill": 0.7,
    "power": 0.5,
    "wipe": 0.12,
    "arm": 0.6,
    "restart": 4,
    "cut_off": 0.7,
    "heal": 1.0,
    "jump": 0.2,
    "pause": 0.4,
    "resume": 1.5,
    "gone": 1.0,
    "transfer": 0.6,
    "forward": 2,
    "remove": 0.3,
    "expire": 0.4,
    "hibernate": 0,
}


@dataclass(frozen=True)
class RaftProfile:
    steps: int = 320
    members: int | None = None
    settle: bool = True
    weights: dict[str, float] = field(default_factory=dict)


class RaftSchedule(Steps):
    """One seeded run of a group in Raft mode; `run` raises Violation."""

    def __init__(
        self, seed: int, *, profile: RaftProfile = RaftProfile(), trace: Callable[[str], None] | None = None
    ) -> None:
        self.rng = random.Random(seed)
        self.profile = profile
        self.tracing = trace is not None
        count = profile.members or self.rng.choice((1, 3, 3, 3, 5))
        options, segment = RaftOptions(sync_flush=True), SEGMENT if seed % 2 else 0
        self.world = RaftWorld(count, options, seed=seed, segment=segment, trace=trace or SILENT)
        self.world.confirms_late = True
        weights = {**RAFT, **profile.weights}
        self._actions: list[Callable[[], None]] = [getattr(self, f"_{name}") for name in weights]
        self._weights = list(accumulate(weights.values()))
        self.steps = 0

    def run(self) -> None:
        world, rng = self.world, self.rng
        for member in world.members:
            member.start()
        if rng.random() < 0.85:
            for _ in range(14):
                self._round()
        for _ in range(self.profile.steps):
            self.steps += 1
            world.now += rng.choice((0, 0, 5, 20, 60, 150))
            rng.choices(self._actions, cum_weights=self._weights)[0]()
            if len(world.messages) > 50:
                world.messages.pop(rng.randrange(25))
        for member in world.members:
            world.checker.look_whole(member)
        if self.profile.settle:
            self._settle()

    # ---- steps

    def _deliver(self, *, keep: bool = False) -> None:
        messages = self.world.messages
        if messages:
            message = messages[0 if self.rng.random() < 0.6 else self.rng.randrange(len(messages))]
            if isinstance(message.body, tuple):
                keep = False  # One connection: no forwarded message comes twice.
            if self.tracing:
                self._say(
                    f"{'(answer_fetch later) ' if keep else ''}{message.source}->{message.target} "
                    f"{describe_raft(message.body)}"
                )
            self.world.deliver(message, keep=keep)

    def _drop(self) -> None:
        if self.world.messages:
            self.world.lost(self.world.messages.pop(self.rng.randrange(len(self.world.messages))))

    def _fetch(self) -> None:
        self.world.fetch(self._member())

    def _send(self) -> None:
        self._say(f"client sends m{self.world.next_id}")
        self.world.client_send()

    def _power(self) -> None:
        member = self._member()
        self._say(f"{member.name} loses power")
        member.crash(lose_tail=True)

    def _wipe(self) -> None:
        """A member loses its disk, as long as every majority that may count on it keeps one."""
        member = self._member()
        lives = {m.disk.saved.me for m in self.world.members if m.disk.saved is not None and m is not member}
        seen: list[Members] = [m.core.members for m in self.world.members if m.core is not None]
        seen += [c.members for m in self.world.members for c in m.log.member_changes]
        saved = [m.disk.saved.first_members for m in self.world.members if m.disk.saved is not None]
        groups = [g for g in seen + saved if g]
        if len(self.world.members) < 3 or not groups:
            return
        if all(2 * len(ids(g) & lives) > len(g) + 1 for g in groups):
            self._say(f"{member.name} loses its disk")
            member.crash(lose_tail=False)
            member.log.reset(0, (), b"")
            member.disk.saved = None

    def _restart(self) -> None:
        down = [m for m in self.world.members if not m.alive]
        if down:
            member = self.rng.choice(down)
            member.log.recover(self.rng, lose_tail=False)
            self._say(f"{member.name} starts")
            member.paused = False
            member.start()

    def _cut_off(self) -> None:
        if len(self.world.members) > 1:
            one, other = self.rng.sample([m.name for m in self.world.members], 2)
            self._say(f"cut off: {one} -> {other}")
            self.world.blocked.add((one, other))
            if self.rng.random() < 0.6:
                self.world.blocked.add((other, one))

    def _heal(self) -> None:
        self.world.blocked.clear()

    def _jump(self) -> None:
        self._member().clock_offset += self.rng.choice((-5_000, -300, 300, 2_000, 60_000))

    def _pause(self) -> None:
        self._member().paused = True

    def _gone(self) -> None:
        """A follower's connection to its leader is refused, sometimes although the leader lives."""
        member = self._member()
        master = None if member.core is None else member.core.leadership.master
        if master is not None and (not self.world.members[master.member].alive or self.rng.random() < 0.1):
            member.step(lambda core: core.leader_gone(member.now()))

    def _transfer(self) -> None:
        member = self._member()
        core = member.core
        if core is None or core.leader is None:
            return
        if core.writes_paused:
            if core.handed_over():
                self._say(f"{member.name} transfers its leadership")
                member.step(lambda c: c.transfer(member.now()))
            elif self.rng.random() < 0.3:
                core.give_up_handover()
            return
        others = [v.id for v in core.members if v.id != core.me]
        if others:
            self._say(f"{member.name} prepares a transfer")
            core.pause_writes(self.rng.choice(others), core.epoch, core.leadership.version)

    def _expire(self) -> None:
        """Retention that considers only some followers: the others get a full copy."""
        member = self._member()
        core, log = member.core, member.log
        limit = min(log.confirmed, log.flushed)
        if core is not None and core.leader is not None and self.rng.random() < 0.5:
            limit = min(limit, core.leader.needed_from(member.now()))
        old = [r.offset for r in log.records if r.offset <= limit]
        if member.alive and len(old) > 4:
            self._say(f"{member.name} expires records")
            log.expire(old[len(old) // 2])

    def _remove(self) -> None:
        """A member is removed, and then joins again as a learner."""
        member = self._member()
        core = member.core
        if core is None or core.leader is None or len(core.members) < 2:
            return
        gone = self.rng.choice([v for v in core.members if v.id != core.me])
        left = tuple(v for v in core.members if v != gone)
        if len(left) >= 2 or len(self.world.members) < 3:
            self._say(f"{member.name} is asked for the members {[str(v.id) for v in left]}")
            member.step(lambda c: c.change_members(left, member.now()))

    # ---- after the faults

    def rounds(self, count: int) -> None:
        """This many rounds: every live member acts once, and every message arrives."""
        for _ in range(count):
            self._round()

    def _round(self) -> None:
        world = self.world
        for member in world.members:
            world.tick(member)
        self._deliver_all()
        for _ in range(2):
            for member in world.members:
                world.fetch(member)
                world.forward(member)
            self._deliver_all()
            for member in world.members:
                world.flush(member)
        world.now += 150

    def _deliver_all(self) -> None:
        for _ in range(300):
            if not self.world.messages:
                return
            message = self.world.messages[0]
            if self.tracing:
                self._say(f"{message.source}->{message.target} {describe_raft(message.body)}")
            self.world.deliver(message)

    def _settle(self) -> None:
        world = self.world
        self._say("faults stop")
        world.blocked.clear()
        world.messages.clear()
        for member in world.members:
            member.paused, member.power.countdown = False, None
            member.forwarding, member.in_flight = [], None
            if member.core is not None:
                member.core.give_up_handover()
        while any(not m.alive for m in world.members):
            self._restart()
        self._calm_within(SETTLE_ROUNDS, patience=10)

    def _calm(self) -> bool:
        leaders = [m for m in self.world.members if m.core is not None and m.core.role is Role.MASTER]
        if len(leaders) != 1:
            return False
        leader = leaders[0]
        assert leader.core is not None
        everybody = {m.core.me for m in self.world.members if m.core is not None}
        return ids(leader.core.members) == everybody and all(
            m.log.end == leader.log.end and m.log.confirmed == leader.log.end for m in self.world.members
        )


def run_raft_seed(seed: int, *, profile: RaftProfile = RaftProfile()) -> Violation | None:
    """Run one schedule; returns the violation that it found."""
    return RaftSchedule(seed, profile=profile).violation()


def draw_raft(seed: int, *, profile: RaftProfile = RaftProfile()) -> list[str]:
    """The trace of one schedule, with its end."""
    lines: list[str] = []
    schedule = RaftSchedule(seed, profile=profile, trace=lines.append)
    return lines + schedule.end()


__all__ = [
    "DEFAULT",
    "Profile",
    "RaftProfile",
    "RaftRequestKind",
    "RaftSchedule",
    "draw_raft",
    "replace",
    "run_raft_seed",
]
