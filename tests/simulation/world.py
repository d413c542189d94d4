"""Members, network and registry of one group, in one thread and with a clock that only the scheduler moves.

Every method is one step: a member fetches, a message arrives, a process dies. The random schedules (`machine.py`) and
the written scenarios (`tests/scenarios`) call the same steps.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from gantry_broker.contracts.leadership import Assignment, LeadershipRecord, MemberId
from gantry_broker.protocol.codes import SendStatus
from gantry_broker.replication.core import Role
from gantry_broker.replication.leader import Options
from gantry_broker.replication.messages import Fetch, FetchAnswer
from gantry_broker.replication.replica import Replica
from gantry_broker.replication.state import HardState

from tests.simulation.checker import Checker, Violation
from tests.simulation.model_log import Crash, ModelDisk, ModelLog, Power, Record

SEND_TIMEOUT_MS = 3_000


@dataclass(frozen=True, slots=True)
class Report:
    """A member's report to an operator: the fields of `MemberStatus` that decisions need."""

    member: MemberId
    role: Role
    order: tuple[int, int]
    highest_seen_epoch: int
    log_trusted: bool
    position: tuple[int, int]
    """(epoch of the last record, end)."""
    empty: bool
    proposal: Any
    writes_paused: bool
    in_sync: frozenset[MemberId]
    confirmed: int = 0
    followers: tuple[tuple[MemberId, int, int], ...] = ()
    """As a master: follower, acknowledged offset, milliseconds since its last fetch."""


@dataclass(slots=True)
class Message:
    """`body`: Fetch, FetchAnswer, Assignment, Report, or a tuple whose first word names its kind."""

    source: str
    target: str
    body: Any
    number: int = 0

    def __str__(self) -> str:
        return f"{self.source}->{self.target} {describe(self.body)}"


def describe(body: Any) -> str:
    """A message in a few words, for traces."""
    if isinstance(body, Fetch):
        return f"fetch e{body.epoch} end={body.end}"
    if isinstance(body, FetchAnswer):
        text = f"{body.kind.value} e{body.epoch} for={body.asked.end}/{body.asked.epoch}"
        if body.kind.value in ("truncate", "reset"):
            text += f" to={body.to}"
        if body.kind.value == "records":
            text += f" +{len(body.data)} confirmed={body.confirmed}"
        return text + (f" ({body.reason})" if body.reason else "")
    if isinstance(body, Assignment):
        return f"assign {describe_leadership(body.leadership)}" + (" unclean" if body.unclean else "")
    if isinstance(body, Report):
        return f"report {body.role.value} {body.order} end={body.position[1]}"
    return " ".join(describe_leadership(part) if isinstance(part, LeadershipRecord) else str(part) for part in body)


def describe_leadership(leadership: LeadershipRecord) -> str:
    master = "-" if leadership.master is None else leadership.master
    in_sync = ", ".join(str(m) for m in sorted(leadership.in_sync))
    return f"e{leadership.epoch} v{leadership.version} master={master} set={{{in_sync}}}"


@dataclass
class Registry:
    """The registry: one leadership record, compared and swapped as a whole (rule 13)."""

    checker: Checker
    leadership: LeadershipRecord | None = None
    records: list[LeadershipRecord] = field(default_factory=list)

    def swap(self, expected: LeadershipRecord | None, new: LeadershipRecord) -> bool:
        if expected != self.leadership:
            return False
        self.checker.swapped(new)
        self.leadership = new
        self.records.append(new)
        return True


class Member:
    """One member: its machine, its process while it lives, and the client sends that wait there."""

    def __init__(self, world: World, number: int) -> None:
        self.world = world
        self.number = number
        self.name = f"m{number}"
        self.power = Power()
        self.log = ModelLog(self.power, world.segment)
        self.log.on_confirmed = lambda: world.checker.look(self)
        self.disk = ModelDisk(self.power)
        self.life = 0
        self.boot = 0
        self.written_in_boot = -1
        self.clean = False
        self.core: Replica | None = None
        self.log_trusted = True
        self.clock_offset = 0
        self.paused = False
        self.writes_paused: list[int] = []
        self.forward_to: int | None = None
        self.forwarding: list[int] = []
        self.in_flight: int | None = None
        self.oks: list[Record] = []
        self.led = 0
        self.reports: list[str] = []

    @property
    def alive(self) -> bool:
        return self.core is not None

    @property
    def readable_end(self) -> int:
        """Rule 9: readers see nothing from this offset on. In the store, queues get their entries at confirmation."""
        return self.log.confirmed

    def now(self) -> int:
        return self.world.now + self.clock_offset

    def start(self) -> None:
        """Start the process: decide on the incarnation of the disk (rule 16), and recover the log (rule 21)."""
        world, saved = self.world, self.disk.saved
        self.life += 1
        if saved is None:
            saved = HardState(MemberId(self.number, world.incarnation(self.number)))
            self.log_trusted = True
        else:
            log_trusted = world.options.sync_flush or self.clean or self.written_in_boot == self.boot
            self.log_trusted = True
            if not log_trusted:
                saved = replace(saved, me=MemberId(self.number, world.incarnation(self.number)))
                self.log_trusted = False
        self.clean = False
        self.written_in_boot = self.boot
        self.disk.saved = saved
        self.core = Replica(saved, self.log, self.disk, world.options, report=self.reports.append, now_ms=self.now())
        self.watch()

    def step(self, action: Callable[[Replica], None]) -> None:
        """Run an action of the living process; it may die in the middle."""
        if self.core is None:
            return
        try:
            action(self.core)
        except Crash:
            self.world.trace(f"  {self.name} dies in the middle")
            self.die()
        self.world.checker.consistent(self)
        self.watch()

    def die(self) -> None:
        """The process is gone, with its memory. Its connections break, and the messages on them are lost."""
        self.core = None
        self.led = 0
        self.power.countdown = None
        self.writes_paused, self.forwarding, self.forward_to, self.in_flight = [], [], None, None
        broken = [m for m in self.world.messages if m.source == self.name and isinstance(m.body, tuple)]
        for message in broken:
            self.world.messages.remove(message)
            self.world.lost(message)

    def crash(self, *, lose_tail: bool) -> None:
        self.die()
        if lose_tail:
            self.boot += 1
            if not self.world.options.sync_flush:
                self.oks = []  # The records were acknowledged, but not on disk.
        self.log.recover(self.world.rng, lose_tail=lose_tail)

    def watch(self) -> None:
        """Notice a change of role, as the broker would."""
        core = self.core
        if core is None:
            return
        if core.leader is not None and core.leader.epoch > self.led:
            self.led = core.leader.epoch
            before, self.oks = self.oks, []
            self.world.checker.began_epoch(self, core.leader.epoch, before)
        if self.writes_paused and not core.writes_paused:
            writes_paused, self.writes_paused = self.writes_paused, []
            if core.leader is not None:
                for ident in writes_paused:
                    self.append(ident)
            elif core.handed_to is not None:
                self.forward_to, self.forwarding = int(core.handed_to.removeprefix("m")), writes_paused
        self.world.checker.look(self)

    # ---- client sends

    def send(self, ident: int) -> None:
        """A client's send: append it, buffer it, forward it behind the buffered ones, or refuse it."""
        core = self.core
        if core is None:
            return
        if core.writes_paused:
            self.writes_paused.append(ident)
        elif core.leader is not None:
            self.append(ident)
        elif self.forwarding:
            self.forwarding.append(ident)

    def append(self, ident: int) -> None:
        def act(core: Replica) -> None:
            assert core.leader is not None
            epoch = core.leader.epoch
            record = self.log.append(epoch, ident)

            def answered(status: SendStatus) -> None:
                self.world.answers[ident] = status
                if status is SendStatus.SEND_OK:
                    self.world.checker.send_ok(self, record, epoch)

            core.add_waiter(self.log.end, self.now() + SEND_TIMEOUT_MS, answered)
            core.appended()

        self.step(act)


class World:
    """One group of `count` members under one registry."""

    def __init__(
        self,
        count: int,
        options: Options,
        *,
        seed: int = 0,
        segment: int = 0,
        trace: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.rng = random.Random(seed)
        self.segment = segment
        self.options = options
        self.trace = trace
        self.now = 1_000
        self.checker = Checker(sync_replication=options.sync_replication)
        self.registry = Registry(self.checker)
        self.messages: list[Message] = []
        self.blocked: set[tuple[str, str]] = set()
        self.confirms_late = False
        """A follower takes over the confirmed offset after its next fetch; False: with the answer."""
        self.answers: dict[int, SendStatus] = {}
        self.next_id = 1
        self._sent = 0
        self._incarnations = [0] * count
        self.members = [Member(self, number) for number in range(count)]
        self.route = 0

    def incarnation(self, number: int) -> str:
        self._incarnations[number] += 1
        return "abcdefghijklmnopqrstuvwxyz"[min(25, self._incarnations[number] - 1)]

    # ---- network

    def post(self, source: str, target: str, body: Any) -> None:
        self._sent += 1
        self.messages.append(Message(source, target, body, self._sent))

    def deliver(self, message: Message, *, keep: bool = False) -> Message | None:
        """Deliver a message (with `keep` it may come again). Returns the answers for operators."""
        if not keep:
            self.messages.remove(message)
        if (message.source, message.target) in self.blocked:
            self.trace("  lost: cut off")
            self.lost(message)
            return None
        if not message.target.startswith("m"):
            return message
        member = self.members[int(message.target[1:])]
        if member.paused and not keep:
            self.messages.append(message)
        elif member.core is not None:
            self._receive(member, message)
        else:
            self.lost(message)
        return None

    def lost(self, message: Message) -> None:
        """A message will not arrive. A forward without an answer is never sent again: its clients get an error."""
        match message.body:
            case ("forward", _):
                sender = self.members[int(message.source[1:])]
            case ("forwarded", _, _):
                sender = self.members[int(message.target[1:])]
            case _:
                return
        sender.forwarding, sender.in_flight = [], None

    def _receive(self, member: Member, message: Message) -> None:
        body, reply = message.body, message.source

        def act(core: Replica) -> None:
            if isinstance(body, Fetch):
                answer = core.fetched(body, member.now()) or core.answer_fetch(body, member.now())
                if answer is None:  # It would be held, and answered once it has news.
                    core.confirm(member.now())
                    answer = core.answer_fetch(body, member.now(), empty=True)
                assert answer is not None
                self.trace(f"  {member.name} answers {describe(answer)}")
                self.post(member.name, reply, answer)
                core.confirm(member.now())
            elif isinstance(body, FetchAnswer):
                try:
                    applied = core.answered(body, member.now())
                except ValueError as error:
                    self.trace(f"  {member.name}'s store refuses it: {error}")
                    return
                self.trace(f"  {member.name} {'applies' if applied else 'drops'} it, ends at {member.log.end}")
                if not self.confirms_late:
                    core.confirm(member.now())
            elif isinstance(body, Assignment):
                done = core.assign(body, member.now())
                said = "takes" if done.accepted else "refuses"
                self.trace(f"  {member.name} {said} it" + (f": {done.reason}" if done.reason else ""))
                self.post(member.name, reply, ("assigned", done.accepted, body.leadership))
            else:
                self._command(member, core, body, reply)

        member.step(act)

    def _command(self, member: Member, core: Replica, body: tuple[Any, ...], reply: str) -> None:
        match body:
            case ("report?",):
                self.post(member.name, reply, self.report(member))
            case ("handover", target, leadership):
                reason = core.pause_writes(target, leadership.epoch, leadership.version)
                self.trace(f"  {member.name} {reason or 'pauses'}")
                if not reason:
                    self.post(member.name, member.name, ("handed-over?", target, leadership, reply))
            case ("handed-over?", target, leadership, operator):
                if core.handed_over():
                    self.trace(f"  {member.name}: {target} has everything")
                    self.post(member.name, operator, ("ready", target, leadership))
                elif core.writes_paused:
                    self.post(member.name, member.name, body)
            case ("give-up", _):
                core.give_up_handover()
            case ("forward", ident):
                if core.may_append:
                    member.append(ident)
                    self.post(member.name, reply, ("forwarded", ident, True))
                else:
                    self.post(member.name, reply, ("forwarded", ident, False))
            case ("forwarded", ident, stored):
                if member.in_flight == ident:
                    member.in_flight = None
                    master = core.leadership.master
                    if stored and member.forwarding and member.forwarding[0] == ident:
                        member.forwarding.pop(0)
                    elif not stored and (master is None or master.member != member.forward_to):
                        member.forwarding = []  # The role changed: its clients look up the route again.

    # ---- steps of members

    def fetch(self, member: Member) -> bool:
        """A follower sends a fetch. False when it has no leader."""
        core = member.core
        if core is None or member.paused:
            return False
        fetch = core.next_fetch(max_bytes=40)
        master = core.leadership.master
        if fetch is None or master is None:
            return False
        self.post(member.name, f"m{master.member}", fetch)
        member.step(lambda core: core.confirm(member.now()))
        return True

    def tick(self, member: Member) -> None:
        if not member.paused:
            member.step(lambda core: core.tick(member.now()))

    def flush(self, member: Member) -> None:
        if member.core is not None and not member.paused:
            member.log.flush()
            member.step(lambda core: core.appended())

    def forward(self, member: Member) -> bool:
        """Forward the next buffered record; one at a time, so that they keep their order (rule 23)."""
        if member.core is None or not member.forwarding or member.in_flight is not None or member.paused:
            return False
        member.in_flight = member.forwarding[0]
        self.post(member.name, f"m{member.forward_to}", ("forward", member.in_flight))
        return True

    def client_send(self) -> None:
        """The one client sends in order, and learns of a new address only from an announcement."""
        here = self.members[self.route]
        if here.core is None or not (here.core.leader is not None or here.forwarding or here.core.writes_paused):
            masters = [m for m in self.members if m.core is not None and m.core.leader is not None]
            if masters:
                self.route = max(masters, key=lambda m: m.led).number
        ident, self.next_id = self.next_id, self.next_id + 1
        self.members[self.route].send(ident)

    def report(self, member: Member) -> Report:
        core, log = member.core, member.log
        assert core is not None
        log_trusted = member.log_trusted or core.me in core.leadership.in_sync
        last = log.leader_epochs[-1].epoch if log.leader_epochs else 0
        empty = log.end == 0 and core.leadership.epoch == 0
        return Report(
            core.me,
            core.role,
            core.leadership.order,
            core.highest_seen_epoch,
            log_trusted,
            (last, log.end),
            empty,
            core.proposal,
            core.hands_over,
            core.leadership.in_sync,
            log.confirmed,
            ()
            if core.leader is None
            else tuple((m, v.acked, max(0, member.now() - v.seen_ms)) for m, v in core.leader.followers.items()),
        )

    def hibernate(self) -> None:
        """All processes end in order: the followers, then the leader. Their machines are switched off."""
        for member in sorted(self.members, key=lambda m: m.core is not None and m.core.leader is not None):
            if member.alive:
                member.log.flush()
                member.crash(lose_tail=False)
                member.clean = True
                member.boot += 1

    # ---- for readers

    def draw(self) -> str:
        """The state of all members, a line each."""
        lines = [
            "leadership "
            + ("none" if self.registry.leadership is None else describe_leadership(self.registry.leadership))
        ]
        for m in self.members:
            log = m.log
            if m.core is None:
                lines.append(f"{m.name} down    [{' '.join(map(str, log.records))}]")
                continue
            shown = " ".join(str(r) for r in log.records if r.offset < log.confirmed)
            rest = " ".join(str(r) for r in log.records if r.offset >= log.confirmed)
            role = m.core.role.value + ("(writes paused)" if m.core.writes_paused else "")
            lines.append(
                f"{m.name} {role:7} e{m.core.leadership.epoch} v{m.core.leadership.version} [{shown} | {rest}]"
                f" end={log.end} flushed={log.flushed} confirmed={log.confirmed}"
            )
        return "\n".join(lines)


__all__ = ["Member", "Message", "Registry", "Report", "Violation", "World", "describe", "describe_leadership"]
