"""The language of scenario files for groups in mode Raft: that of `scenario.py`, with commands for elections.

A command holds each election (`elect`), so a story does not depend on whose time-out ends first.
"""

from __future__ import annotations

from collections.abc import Callable

from gantry_broker.replication.messages import Fetch
from gantry_broker.replication.raft import RaftOptions, RaftReplica
from gantry_broker.replication.raft_messages import RaftRequest, RaftResponse

from tests.simulation.raft_world import RaftMember, RaftWorld, describe_raft
from tests.simulation.scenario import Player
from tests.simulation.world import Message

TURNS = 60
"""The number of clock checks, 100 ms apart, within which a member must hold an election."""
ASKS = 2


class RaftPlayer(Player):
    """Plays a story that begins with `raft COUNT`."""

    def do_raft(self, words: list[str]) -> None:
        """raft COUNT: a group in mode Raft whose members have all been started on new disks."""
        self._world = RaftWorld(int(words[0]), RaftOptions(sync_flush=True), trace=self._say)
        for member in self._world.members:
            member.start()

    def _raft(self, word: str) -> tuple[RaftMember, RaftReplica]:
        member = self._member(word)
        assert isinstance(member, RaftMember)
        assert member.core is not None
        return member, member.core

    def do_found(self, words: list[str]) -> None:
        """found: the first election, for which every member is asked whether its disk is new."""
        names = [m.name for m in self.world.members]
        self._quietly(lambda: self._until_leads("m0", names, names))
        self._say(f"{', '.join(m.name for m in self.world.members if self._raft(m.name)[1].leader)} leads epoch 1")

    def do_elect(self, words: list[str]) -> None:
        """elect m1 m2 m3: m1 holds an election; its messages to the other named members and their answers arrive,
        and no others.
        """
        self.do_gone(words)
        self._until_leads(words[0], words, words[:1])

    def do_disturb(self, words: list[str]) -> None:
        """disturb m1 m2: as `elect`, but only m1 believes that the leader is gone."""
        self.do_gone(words[:1])
        self._until_leads(words[0], words, words[:1])

    def _until_leads(self, candidate: str, names: list[str], ticking: list[str]) -> None:
        """Two requests suffice: the first teaches it the epochs that the second one needs."""
        world = self.world
        asked = 0
        for _ in range(TURNS):
            world.now += 100
            for name in ticking:
                world.tick(self._member(name))
            asked += any(isinstance(m.body, RaftRequest) and m.source == candidate for m in world.messages)
            self._deliver_among(names)
            if self._raft(candidate)[1].leader is not None:
                self._say(f"{candidate} leads epoch {self._raft(candidate)[1].epoch}")
                return
            if asked == ASKS and ticking != names:
                break
        self._say(f"{candidate} is not elected")

    def _deliver_among(self, names: list[str]) -> None:
        world = self.world
        while world.messages:
            message = world.messages[0]
            if message.source in names and message.target in names:
                if not isinstance(message.body, RaftResponse):  # The answer is in the trace from the time it was sent.
                    self._say(_drawn(message))
                world.deliver(message)
            else:
                world.messages.remove(message)

    def do_take(self, words: list[str]) -> None:
        """take m1 [BYTES]: a follower fetches once at most this many bytes, has them on disk, and acknowledges them."""
        member, core = self._raft(words[0])
        size = int(words[1]) if len(words) > 1 else 1_000
        fetch = core.next_fetch(max_bytes=size)
        if fetch is None or core.leadership.master is None:
            self._say(f"{words[0]} has no leader to fetch from")
            return
        leader = f"m{core.leadership.master.member}"
        self._exchange(member, leader, fetch, size > 0)
        self.world.flush(member)
        after = core.next_fetch(max_bytes=0)
        if after is not None and size > 0:
            self._exchange(member, leader, after, False)

    def _exchange(self, member: RaftMember, leader: str, fetch: Fetch, wants_answer: bool) -> None:
        self.world.messages.clear()
        self.world.post(member.name, leader, fetch)
        message = self.world.messages[-1]
        if wants_answer:
            self._say(str(message))
        self._heard_or_not(message, wants_answer)
        for answer in [m for m in self.world.messages if m.target == member.name]:
            if wants_answer:
                self._say(str(answer))
                self.world.deliver(answer)
        self.world.messages.clear()

    def _heard_or_not(self, message: Message, aloud: bool) -> None:
        deliver: Callable[[], object] = lambda: self.world.deliver(message)  # noqa: E731
        if aloud:
            deliver()
        else:
            self._quietly(deliver)

    def do_gone(self, words: list[str]) -> None:
        """gone m1: its connections to the leader are refused."""
        for word in words:
            member, _ = self._raft(word)
            member.step(lambda core, member=member: core.leader_gone(member.now()))  # type: ignore[misc]

    def do_passes(self, words: list[str]) -> None:
        """passes MS m0 m1: time passes; these members check their clocks, and their messages stay under way."""
        for _ in range(int(words[0]) // self.world.options.tick_ms):
            self.world.now += self.world.options.tick_ms
            for word in words[1:]:
                self.world.tick(self._member(word))
        self.world.messages.clear()

    def do_say_all(self, words: list[str]) -> None:
        """say-all m1 m2: everything that is under way between these members arrives, and nothing else."""
        self._deliver_among(words)

    def do_cut_off(self, words: list[str]) -> None:
        """cut-off m0 m1: no message passes between the two, in either direction."""
        one, other = words
        self.world.blocked |= {(one, other), (other, one)}

    def do_heal(self, words: list[str]) -> None:
        """heal: all members reach each other again."""
        self.world.blocked.clear()

    def do_members(self, words: list[str]) -> None:
        """members m0 0,1: the leader gets a request for another list of voting members."""
        member, core = self._raft(words[0])
        wanted = {int(n) for n in words[1].split(",")}
        left = tuple(v for v in core.members if v.id.member in wanted)
        said: list[str] = []
        member.step(lambda c: said.append(c.change_members(left, member.now())))
        self._say(f"{words[0]}: {said[0] or 'the change is appended'}")

    def do_who_votes(self, words: list[str]) -> None:
        """who-votes m0: the members in this one's log."""
        _, core = self._raft(words[0])
        self._say(f"{words[0]}: {', '.join(str(v.id) for v in core.members) or 'nobody'}")

    def do_transfer(self, words: list[str]) -> None:
        """transfer m0 1: the leader pauses writes, and lets member 1 be elected once it has everything."""
        member, core = self._raft(words[0])
        reason = core.pause_writes(self._id(words[1]), core.epoch, core.leadership.version)
        if reason:
            self._say(f"{words[0]}: {reason}")
        elif not core.handed_over():
            self._say(f"{words[0]} pauses writes; the target lacks records")
        else:
            self._say(f"{words[0]} pauses writes; the target has everything")
            member.step(lambda c: c.transfer(member.now()))


def _drawn(message: Message) -> str:
    body = message.body
    text = describe_raft(body) if isinstance(body, RaftRequest) else str(message).partition(" ")[2]
    return f"{message.source}->{message.target} {text}"
