"""Runs a scenario file: a story in steps, with the trace below each step.

A file is blocks separated by blank lines. A block is comment lines (`#`), commands, a line `----`, and the trace of the
commands. The steps are those of `world.py`; nothing is random. The `do_...` methods below are the language.

`python -m tests.simulation.scenario FILE...` rewrites the traces: read the diff before you commit it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from gantry_broker.contracts.leadership import Assignment, LeadershipRecord, MemberId
from gantry_broker.replication.leader import Options

if not __package__:  # As a module, so that it finds the package `tests`.
    os.execl(sys.executable, sys.executable, "-m", "tests.simulation.scenario", *sys.argv[1:])

from tests.simulation.checker import Violation
from tests.simulation.operators import ModelOperator
from tests.simulation.world import Member, Message, World, describe, describe_leadership
from tests.support.present import present


@dataclass
class Block:
    comments: list[str] = field(default_factory=list)
    commands: list[str] = field(default_factory=list)
    trace: list[str] = field(default_factory=list)

    def text(self) -> str:
        lines = [*self.comments, *self.commands]
        if self.commands:
            lines += ["----", *self.trace]
        return "\n".join(lines)


def parse(text: str) -> list[Block]:
    blocks: list[Block] = []
    for paragraph in text.strip().split("\n\n"):
        block, in_trace = Block(), False
        for line in paragraph.splitlines():
            if line == "----":
                in_trace = True
            elif in_trace:
                block.trace.append(line)
            elif line.startswith("#"):
                block.comments.append(line)
            elif line.strip():
                block.commands.append(line)
        blocks.append(block)
    return blocks


class Player:
    """Plays the commands of one scenario."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.violation: Violation | None = None
        self._world: World | None = None

    @property
    def world(self) -> World:
        if self._world is None:
            raise ValueError("a scenario begins with `group COUNT`")
        return self._world

    def play(self, blocks: list[Block]) -> list[Block]:
        """Return the same blocks with the traces of this run; ends at the first violation."""
        played = []
        for block in blocks:
            self.lines = []
            for command in block.commands:
                if self.violation is not None:
                    break
                try:
                    self._do(command)
                except Violation as violation:
                    self.violation = violation
                    self.lines.append(f"VIOLATION {violation}")
            played.append(Block(block.comments, block.commands, self.lines))
        return played

    def _do(self, command: str) -> None:
        name, *words = command.split()
        action: Callable[[list[str]], None] | None = getattr(self, "do_" + name.replace("-", "_"), None)
        if action is None:
            known = ", ".join(sorted(n[3:].replace("_", "-") for n in dir(self) if n.startswith("do_")))
            raise ValueError(f"{command!r}: no such command; known are {known}")
        action(words)

    def _say(self, text: str) -> None:
        self.lines.append(text)

    def _member(self, word: str) -> Member:
        return self.world.members[int(word.removeprefix("m"))]

    def _id(self, word: str) -> MemberId:
        """`1` is the present incarnation of member 1, `1/a` names one."""
        if "/" in word:
            number, life = word.split("/")
            return MemberId(int(number), life)
        member = self.world.members[int(word)]
        saved = member.disk.saved
        if saved is None:
            raise ValueError(f"member {word} was never started")
        return saved.me

    def _ids(self, words: str) -> frozenset[MemberId]:
        return frozenset(self._id(w) for w in words.split(",") if w)

    # ---- commands

    def do_group(self, words: list[str]) -> None:
        """group COUNT [async] [sync-flush] [min=N]: a group whose members have all started."""
        options = Options(sync_replication="async" not in words, sync_flush="sync-flush" in words)
        for word in words:
            if word.startswith("min="):
                options = replace(options, min_in_sync=int(word[4:]))
        self._world = World(int(words[0]), options, trace=self._say)
        for member in self.world.members:
            member.start()

    def do_promote(self, words: list[str]) -> None:
        """promote N set=0,1,2 [unclean]: the registry records the next epoch."""
        held = self.world.registry.leadership
        fields = dict(w.split("=") for w in words[1:] if "=" in w)
        master, in_sync = self._id(words[0]), self._ids(fields["set"])
        if "unclean" in words:
            self.world.checker.unclean()
        elif held is not None and held.master is not None:
            known = held.in_sync
            if master not in known:
                self._say(f"the operator refuses: {master} is not in the in-sync set")
                return
            if not in_sync <= known:
                self._say("the operator refuses: a promotion adds no member to the set")
                return
        self._swap((held or LeadershipRecord()).promoted(master, in_sync))

    def do_record(self, words: list[str]) -> None:
        """record set=0,1 | record: the registry records another set, or the same under a new version."""
        held = present(self.world.registry.leadership)
        fields = dict(w.split("=") for w in words)
        self._swap(held.with_set(self._ids(fields["set"])) if fields else held.touched())

    def do_add(self, words: list[str]) -> None:
        """add 2: the operator sees that a follower has everything, and would add it by itself (rule 17)."""
        held = present(self.world.registry.leadership)
        in_sync = held.in_sync | self._ids(words[0])
        if in_sync != held.in_sync:
            self._say("the operator refuses: only the master proposes additions")
            return
        self._swap(held.with_set(in_sync))

    def do_record_proposal(self, words: list[str]) -> None:
        """record-proposal m0: the operator applies a master's proposal."""
        core, held = self._member(words[0]).core, self.world.registry.leadership
        assert core is not None
        assert held is not None
        if core.proposal is None:
            self._say(f"{words[0]} proposes nothing")
        elif core.proposal.base_version != held.version:
            self._say(f"refused: based on v{core.proposal.base_version}, the record is v{held.version}")
        else:
            self._swap(held.with_set(core.proposal.in_sync))

    def do_swap(self, words: list[str]) -> None:
        """swap expected=-2 promote=1 set=0,1: an operator with an old copy of the record (-2: two writes ago)
        writes.
        """
        fields = dict(w.split("=") for w in words)
        expected = self.world.registry.records[int(fields["expected"])]
        ids = self._ids(fields["set"])
        new = expected.promoted(self._id(fields["promote"]), ids) if "promote" in fields else expected.with_set(ids)
        if self.world.registry.swap(expected, new):
            self._say(f"recorded {describe_leadership(new)}")
        else:
            self._say("refused: the record is another one")

    def _swap(self, new: LeadershipRecord) -> None:
        if self.world.registry.swap(self.world.registry.leadership, new):
            self._say(f"recorded {describe_leadership(new)}")

    def do_lose_leadership(self, words: list[str]) -> None:
        """lose-leadership: the registry is empty."""
        self.world.registry.leadership = None
        self._say("the registry is empty")

    def do_bootstrap(self, words: list[str]) -> None:
        """bootstrap 0,1: an operator has reports of these members and finds no leadership record."""
        operator = ModelOperator(self.world, "op0")
        for number in words[0].split(","):
            operator.request(int(number))
        self._quietly(lambda: self._deliver_for(operator))
        operator.read()
        operator.settle(self.world.rng)
        if operator.plan is None:
            self._say("op0: nothing to do")
        operator.swap()

    def _deliver_for(self, operator: ModelOperator) -> None:
        for message in list(self.world.messages):
            left = self.world.deliver(message)
            if left is not None:
                operator.receive(left)
        for message in [m for m in self.world.messages if m.target == operator.name]:
            self.world.messages.remove(message)
            operator.receive(message)

    def do_assign(self, words: list[str]) -> None:
        """assign m0 m1 [leadership=-2] [unclean]: members get a recorded leadership, by default the last one."""
        leaderships = self.world.registry.records
        leadership = leaderships[-1]
        for word in words:
            if word.startswith("leadership="):
                leadership = leaderships[int(word.removeprefix("leadership="))]
        assert leadership.master is not None
        for word in words:
            if word.startswith("m"):
                body = Assignment(leadership, str(leadership.master.member), "unclean" in words)
                self._pass(Message("op0", word, body))

    def _pass(self, message: Message) -> None:
        """Deliver a message at once, and drop answers to operators."""
        self._say(str(message))
        self.world.messages.append(message)
        self.world.deliver(message)
        self.world.messages = [m for m in self.world.messages if m.target.startswith("m")]

    def do_send(self, words: list[str]) -> None:
        """send m0 [COUNT]: a client sends to a member, master or not."""
        for _ in range(int(words[1]) if len(words) > 1 else 1):
            member, ident = self._member(words[0]), self.world.next_id
            self.world.next_id += 1
            before = member.log.end
            member.send(ident)
            stored = f"at {before}" if member.log.end != before else "not appended"
            if ident in member.writes_paused:
                stored = "buffered"
            self._say(f"m{ident} to {member.name}: {stored}" + self._answer(ident))

    def _answer(self, ident: int) -> str:
        status = self.world.answers.get(ident)
        return "" if status is None else f", {status.name}"

    def do_answers(self, words: list[str]) -> None:
        """answers: the statuses that clients got."""
        for ident in range(1, self.world.next_id):
            self._say(f"m{ident}{self._answer(ident) or ': no answer'}")

    def do_fetch(self, words: list[str]) -> None:
        """fetch m1 [COUNT]: a follower fetches and applies the answer, COUNT times."""
        for _ in range(int(words[1]) if len(words) > 1 else 1):
            self._ask(words[0])
            self.do_deliver([])
            self.do_deliver([])

    def _ask(self, word: str) -> None:
        if not self.world.fetch(self._member(word)):
            self._say(f"{word} has no leader to fetch from")

    def do_ask(self, words: list[str]) -> None:
        """ask m1: a follower sends a fetch, which is under way."""
        self._ask(words[0])
        if self.world.messages:
            self._say(f"under way: {self.world.messages[-1]}")

    def do_deliver(self, words: list[str]) -> None:
        """deliver [N] [keep]: the last message that is under way arrives, or the Nth from the end; `keep`: it comes
        again later.
        """
        numbers = [int(w) for w in words if w.isdigit()]
        at = -(numbers[0] if numbers else 1)
        if len(self.world.messages) < -at:
            return
        message = self.world.messages[at]
        self._say(str(message))
        self.world.deliver(message, keep="keep" in words)

    def do_under_way(self, words: list[str]) -> None:
        """under-way: the messages that have not arrived yet, the last one is 1."""
        count = len(self.world.messages)
        for index, message in enumerate(self.world.messages):
            self._say(f"{count - index}: {message}")

    def do_lie(self, words: list[str]) -> None:
        """lie m1 flushed=+1000 | end=+1000: a follower acknowledges records that no member has."""
        member = self._member(words[0])
        fetch = present(member.core.next_fetch() if member.core is not None else None)
        assert member.core is not None
        assert member.core.leadership.master is not None
        for word in words[1:]:
            name, value = word.split("=")
            fetch = replace(fetch, **{name: getattr(fetch, name) + int(value)})
        self.world.post(member.name, f"m{member.core.leadership.master.member}", fetch)
        self.do_deliver([])
        self.do_deliver([])

    def do_flush(self, words: list[str]) -> None:
        """flush m0 m1: their logs are on disk."""
        for word in words:
            self.world.flush(self._member(word))

    def do_tick(self, words: list[str]) -> None:
        """tick m0: the member checks its timers."""
        for word in words:
            self.world.tick(self._member(word))

    def do_advance(self, words: list[str]) -> None:
        """advance MS: time passes."""
        self.world.now += int(words[0])

    def do_kill(self, words: list[str]) -> None:
        """kill m0: the process dies; the machine keeps the written bytes."""
        self._member(words[0]).crash(lose_tail=False)

    def do_power(self, words: list[str]) -> None:
        """power m0: the machine dies; bytes that were not on disk are lost."""
        member = self._member(words[0])
        member.log.file = bytearray(member.log.disk)
        member.crash(lose_tail=True)

    def do_wipe(self, words: list[str]) -> None:
        """wipe m0: its disk is empty."""
        member = self._member(words[0])
        member.crash(lose_tail=False)
        member.log.reset(0, (), b"")
        member.disk.saved = None
        member.life += 1

    def do_start(self, words: list[str]) -> None:
        """start m0: the process starts with the content of its disk."""
        for word in words:
            member = self._member(word)
            member.start()
            assert member.core is not None
            reason = f" ({member.core.reason})" if member.core.reason else ""
            self._say(f"{member.name} starts as {member.core.me}, {member.core.role.value}{reason}")

    def do_expire(self, words: list[str]) -> None:
        """expire m0 OFFSET: retention drops all records below the offset."""
        self._member(words[0]).log.expire(int(words[1]))

    def do_handover(self, words: list[str]) -> None:
        """handover m0 1: m0 pauses writes for member 1."""
        self._pass(Message("op0", words[0], ("handover", self._id(words[1]), present(self.world.registry.leadership))))

    def do_ready(self, words: list[str]) -> None:
        """ready m0: shows whether the target of the handover has everything."""
        core = present(self._member(words[0]).core)
        self._say(f"{words[0]}: {'ready' if core.handed_over() else 'not ready'}")

    def do_handed_over(self, words: list[str]) -> None:
        """handed-over 0 1: the registry has recorded the handover; no record with SEND_OK may be missing."""
        source, target = (self.world.members[int(w)] for w in words)
        self.world.checker.handed_over(source, target)

    def do_forward(self, words: list[str]) -> None:
        """forward m0: the old leader forwards its next buffered send."""
        if not self.world.forward(self._member(words[0])):
            self._say(f"{words[0]} has nothing to forward")
            return
        self.do_deliver([])
        self.do_deliver([])

    def do_proposal(self, words: list[str]) -> None:
        """proposal m0: the set that a master proposes."""
        proposal = present(self._member(words[0]).core).proposal
        text = (
            "none"
            if proposal is None
            else f"{{{', '.join(map(str, sorted(proposal.in_sync)))}}} on v{proposal.base_version}"
        )
        self._say(f"{words[0]} proposes {text}")

    def do_reports(self, words: list[str]) -> None:
        """reports m0: its reports for operators."""
        for report in self._member(words[0]).reports:
            self._say(report)

    def do_check(self, words: list[str]) -> None:
        """check: every log as a whole."""
        for member in self.world.members:
            self.world.checker.look_whole(member)

    def do_state(self, words: list[str]) -> None:
        """state: a line for each member: [confirmed | not yet confirmed]."""
        self.lines += self.world.draw().splitlines()

    def _quietly(self, action: Callable[[], None]) -> None:
        before = list(self.lines)
        action()
        self.lines = before


def _player(blocks: list[Block]) -> Player:
    if any(command.startswith("raft ") for block in blocks for command in block.commands):
        from tests.simulation.raft_scenario import RaftPlayer  # That module builds on this one.

        return RaftPlayer()
    return Player()


def run(path: Path) -> tuple[str, Violation | None]:
    """The file as this run writes it, and the violation that ended the run."""
    blocks = parse(path.read_text())
    player = _player(blocks)
    blocks = player.play(blocks)
    return "\n\n".join(b.text() for b in blocks) + "\n", player.violation


__all__ = ["Player", "describe", "parse", "run"]

if __name__ == "__main__":
    for name in sys.argv[1:]:
        written, _ = run(Path(name))
        Path(name).write_text(written)
