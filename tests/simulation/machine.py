"""Random schedules: a seed decides on the group and on every step.

One schedule is a few hundred steps of members, network, disks, clocks, operators and a client, with a check of the
invariants after every step. Then the faults stop. Within a bound a master must lead, every member must have its log and
be in the in-sync set, and a new send must get SEND_OK.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import accumulate

from gantry_broker.contracts.leadership import Assignment
from gantry_broker.replication.core import Role
from gantry_broker.replication.leader import Options

from tests.simulation.checker import Violation
from tests.simulation.model_log import SEGMENT
from tests.simulation.operators import ModelOperator, Operator
from tests.simulation.steps import SILENT, Steps
from tests.simulation.world import Member, World, describe

SETTLE_ROUNDS = 60


@dataclass(frozen=True)
class Profile:
    """The parameters of a schedule: `weights` override those of `DEFAULT`; the others are fixed or drawn from the
    seed.
    """

    steps: int = 220
    members: int | None = None
    sync_flush: bool | None = None
    sync_replication: bool | None = None
    min_in_sync: int | None = None
    operators: int | None = None
    settle: bool = True
    weights: dict[str, float] = field(default_factory=dict)


DEFAULT: dict[str, float] = {
    "deliver": 44,
    "duplicate": 1.5,
    "drop": 1.5,
    "fetch": 20,
    "send": 11,
    "flush": 5,
    "tick": 5,
    "read": 4,
    "poll": 6,
    "think": 3,
    "swap": 4,
    "assign": 7,
    "forward": 4,
    "hand_over": 0.7,
    "kill": 0.6,
    "power": 0.25,
    "arm": 0.6,
    "restart": 4,
    "cut_off": 0.6,
    "heal": 1.2,
    "jump": 0.3,
    "pause": 0.4,
    "resume": 1.5,
    "expire": 0.3,
    "lie": 0.15,
    "lose_leadership": 0,
    "hibernate": 0,
}

MakeOperator = Callable[[World, str], Operator]


class Schedule(Steps):
    """One seeded run; `run` raises Violation."""

    def __init__(
        self,
        seed: int,
        *,
        profile: Profile = Profile(),
        trace: Callable[[str], None] | None = None,
        make_operator: MakeOperator = ModelOperator,
    ) -> None:
        self.rng = rng = random.Random(seed)
        count = profile.members or rng.choice((2, 3, 3, 3, 4))
        options = Options(
            sync_replication=_pick(profile.sync_replication, rng, 0.8),
            sync_flush=_pick(profile.sync_flush, rng, 0.5),
            min_in_sync=profile.min_in_sync or rng.choice((1, 1, 2)),
        )
        self.profile = profile
        self.tracing = trace is not None
        segment = SEGMENT if seed % 2 else 0
        self.world = World(count, options, seed=seed, segment=segment, trace=trace or SILENT)
        operators = profile.operators or rng.choice((1, 2))
        self.world.confirms_late = True
        self.operators = [make_operator(self.world, f"op{n}") for n in range(operators)]
        weights = {**DEFAULT, **profile.weights}
        self._actions: list[Callable[[], None]] = [getattr(self, f"_{name}") for name in weights]
        self._weights = list(accumulate(weights.values()))
        self.steps = 0
        self._lost_leadership = False

    def run(self) -> None:
        for member in self.world.members:
            member.start()
        self._start_up()
        rng, actions, weights = self.rng, self._actions, self._weights
        for _ in range(self.profile.steps):
            self.steps += 1
            self.world.now += rng.choice((0, 0, 1, 5, 20, 100))
            rng.choices(actions, cum_weights=weights)[0]()
            if len(self.world.messages) > 40:
                self.world.lost(self.world.messages.pop(rng.randrange(20)))
        for member in self.world.members:
            self.world.checker.look_whole(member)
        if self.profile.settle:
            self._settle()

    def _start_up(self) -> None:
        """Most schedules begin with a group that runs; the others start by random steps."""
        if self.rng.random() < 0.85:
            for _ in range(4):
                self._round()

    # ---- steps

    def _operator(self) -> Operator:
        return self.rng.choice(self.operators)

    def _deliver(self, *, keep: bool = False) -> None:
        messages = self.world.messages
        if not messages:
            return
        # Mostly in order, sometimes any message: complete reordering would let few requests succeed.
        index = 0 if self.rng.random() < 0.6 else self.rng.randrange(len(messages))
        message = messages[index]
        if keep and isinstance(message.body, tuple) and message.body[0] in ("forward", "forwarded"):
            keep = False  # One connection: no message on it comes twice.
        if self.tracing:
            self._say(f"{'(answer_fetch later) ' if keep else ''}{message}")
        left = self.world.deliver(message, keep=keep)
        if left is not None:
            for operator in self.operators:
                if operator.name == left.target:
                    operator.receive(left)

    def _drop(self) -> None:
        messages = self.world.messages
        if messages:
            message = messages.pop(self.rng.randrange(len(messages)))
            self.world.lost(message)
            if self.tracing:
                self._say(f"lost: {message}")

    def _fetch(self) -> None:
        member = self._member()
        if self.world.fetch(member) and self.tracing:
            self._say(f"{member.name} asks")

    def _send(self) -> None:
        self._say(f"client sends m{self.world.next_id} to m{self.world.route}")
        self.world.client_send()

    def _read(self) -> None:
        self._operator().read()

    def _poll(self) -> None:
        self._operator().request(self._member().number)

    def _think(self) -> None:
        self._operator().think(self.rng)

    def _swap(self) -> None:
        operator = self._operator()
        self._say(f"{operator.name} writes")
        operator.swap()

    def _assign(self) -> None:
        self._operator().assign(self._member().number)

    def _hand_over(self) -> None:
        operator = self._operator()
        operator.read()
        self._say(f"{operator.name} requests a handover")
        operator.hand_over(self.rng)

    def _power(self) -> None:
        member = self._member()
        if self._may_lose_power(member):
            self._say(f"{member.name} loses power")
            member.crash(lose_tail=True)

    def _may_lose_power(self, member: Member) -> bool:
        """With ASYNC_FLUSH one member of the recorded set keeps its proof; otherwise nothing is guaranteed (rule
        16).
        """
        leadership = self.world.registry.leadership
        if self.world.options.sync_flush or leadership is None:
            return True
        return any(
            m is not member and m.disk.saved is not None and m.disk.saved.me in leadership.in_sync and self._proves(m)
            for m in self.world.members
        )

    @staticmethod
    def _proves(member: Member) -> bool:
        return member.written_in_boot == member.boot

    def _restart(self) -> None:
        down = [m for m in self.world.members if not m.alive]
        if down:
            member = self.rng.choice(down)
            if member.log.end != member.log.start + len(member.log.file):
                member.log.recover(self.rng, lose_tail=False)  # It died in the middle of a write.
            else:
                member.crash(lose_tail=False)
            self._say(f"{member.name} starts")
            member.paused = False
            member.start()

    def _cut_off(self) -> None:
        names = [m.name for m in self.world.members] + [o.name for o in self.operators]
        one, other = self.rng.sample(names, 2)
        self._say(f"cut off: {one} -> {other}")
        self.world.blocked.add((one, other))
        if self.rng.random() < 0.5:
            self.world.blocked.add((other, one))

    def _heal(self) -> None:
        if self.world.blocked:
            self._say("network healed")
            self.world.blocked.clear()

    def _jump(self) -> None:
        member = self._member()
        member.clock_offset += self.rng.choice((-5_000, -300, 300, 2_000, 60_000))
        self._say(f"clock of {member.name} jumps")

    def _pause(self) -> None:
        member = self._member()
        self._say(f"{member.name} stands still")
        member.paused = True

    def _expire(self) -> None:
        member = self._member()
        log = member.log
        limit = min(log.confirmed, log.flushed)
        old = [r.offset for r in log.records if r.offset <= limit]
        if member.alive and len(old) > 4:
            self._say(f"{member.name} expires records")
            log.expire(old[len(old) // 2])

    def _lie(self) -> None:
        """A follower acknowledges more than the leader's log (apache/rocketmq 1155): a master must not believe it."""
        member = self._member()
        fetch = member.core.next_fetch() if member.core is not None else None
        if fetch is not None and member.core is not None and member.core.leadership.master is not None:
            self._say(f"{member.name} acknowledges records that no member has")
            self.world.post(
                member.name, f"m{member.core.leadership.master.member}", replace(fetch, flushed=fetch.flushed + 100_000)
            )

    def _lose_leadership(self) -> None:
        """The registry loses its content; an operator must not guess a new one (rule 22)."""
        # No answering member would know of an assignment that is still under way when the operator asks the disks.
        under_way = any(isinstance(m.body, Assignment) for m in self.world.messages)
        if self.world.registry.leadership is not None and not self._lost_leadership and not under_way:
            self._say("the registry is emptied")
            self._lost_leadership = True
            # An assignment that no member received has no effect.
            leaderships = [m.disk.saved.leadership for m in self.world.members if m.disk.saved is not None]
            self.world.checker.leadership = max(leaderships, key=lambda c: c.order)
            self.world.registry.leadership = None

    # ---- after the faults

    def _settle(self) -> None:
        world = self.world
        self._say("faults stop")
        world.blocked.clear()
        for message in world.messages:
            world.lost(message)
        world.messages.clear()
        for member in world.members:
            member.paused = False
            member.power.countdown = None
        while any(not m.alive for m in world.members):
            self._restart()
        self._calm_within(SETTLE_ROUNDS, patience=8)

    def _given_up(self) -> bool:
        """Records were given up: a follower that confirmed them stops until it may truncate."""
        return self._nobody_left() or not self.world.checker.clean

    def _nobody_left(self) -> bool:
        """Every recorded disk has lost its proof: the next promotion gives up records and is no clean failover."""
        leadership, members = self.world.registry.leadership, self.world.members
        lives = {m.core.me for m in members if m.core is not None}
        if leadership is None:
            # Rule 22: the newest set on any disk must be complete, or no operator may guess.
            leaderships = [m.core.leadership for m in members if m.core is not None]
            newest = max(leaderships, key=lambda c: c.order)
            return not newest.in_sync <= lives or any(c.epoch == 0 for c in leaderships)
        return not leadership.in_sync & lives and not self.world.options.sync_flush

    def _round(self) -> None:
        """Every member acts once, and every message arrives."""
        world = self.world
        for operator in self.operators:
            operator.read()
            for member in world.members:
                operator.request(member.number)
            self._deliver_all()
            operator.read()
            operator.settle(self.rng)
            operator.swap()
            for member in world.members:
                operator.assign(member.number)
            self._deliver_all()
        for _ in range(3):
            for member in world.members:
                world.fetch(member)
                world.forward(member)
            self._deliver_all()
        for member in world.members:
            world.flush(member)
            world.tick(member)
        world.now += 400

    def _deliver_all(self) -> None:
        for _ in range(400):
            if not self.world.messages:
                return
            message = self.world.messages[0]
            if self.tracing:
                self._say(str(message))
            left = self.world.deliver(message)
            if left is not None:
                for operator in self.operators:
                    if operator.name == left.target:
                        operator.receive(left)

    def _calm(self) -> bool:
        leadership = self.world.registry.leadership
        if leadership is None or leadership.master is None:
            return False
        master = self.world.members[leadership.master.member]
        leader = master.core.leader if master.core is not None else None
        if leader is None or leader.epoch != leadership.epoch or master.log.confirmed != master.log.end:
            return False
        for member in self.world.members:
            if member.core is None or member.core.me not in leadership.in_sync or member.log.end != master.log.end:
                return False
            if member is not master and member.core.role is not Role.SLAVE:
                return False
        return True


def _pick(fixed: bool | None, rng: random.Random, chance: float) -> bool:
    drawn = rng.random() < chance
    return drawn if fixed is None else fixed


def run_seed(
    seed: int, *, profile: Profile = Profile(), make_operator: MakeOperator = ModelOperator
) -> Violation | None:
    """Run one schedule; returns the violation that it found."""
    return Schedule(seed, profile=profile, make_operator=make_operator).violation()


def draw(seed: int, *, profile: Profile = Profile(), make_operator: MakeOperator = ModelOperator) -> list[str]:
    """The trace of one schedule, with its end."""
    lines: list[str] = []
    schedule = Schedule(seed, profile=profile, trace=lines.append, make_operator=make_operator)
    lines.append(f"seed {seed}: {len(schedule.world.members)} members, {schedule.world.options}")
    return lines + schedule.end()


__all__ = ["DEFAULT", "Profile", "Schedule", "describe", "draw", "run_seed"]
