"""One member of a group in Raft mode: the state machine of elections over the same log, fetches and epochs.

The rules in short (docs/replication.md has the full text):

- Epoch and vote are on disk before the answer (24). Votes compare (epoch of the last record, end). Every member starts
  as a follower. A member refuses a pre-vote while it hears a leader; a leader that hears no majority steps down.
- A majority confirms only from this epoch's control record on (25), and counts bytes on disk (26).
- A disk that is empty or proves nothing is a learner: it neither votes nor counts, until a member change adds its
  new incarnation (26).
- Member changes are records of the log, one at a time (27).

The first election of a group happens only when every configured member says that its disk is new: a member that lost
its disk must not help to found the group a second time.

A Raft request counts only from a member that this one knows (`_knows`): it is in this member's list, or a member of
that list named it in an answer from its own address. So a member with an old list follows a leader that was added
meanwhile, and no member follows a stranger that names itself. An epoch counts only if elections can lead there
(`limits`).

Every input is a call with the time; messages to others are in `outbox`, keyed by a member's number.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from gantry_broker.contracts.leadership import Assignment, LeadershipRecord, MemberId
from gantry_broker.protocol import plausible
from gantry_broker.replication.core import Assigned, MemberCore, Moving, Role
from gantry_broker.replication.epochs import last_epoch
from gantry_broker.replication.follower import Follower
from gantry_broker.replication.leader import Leader, Options, Refused, ignore_refusal
from gantry_broker.replication.members import Members, Voter, ids, is_majority
from gantry_broker.replication.messages import AnswerKind, Fetch, FetchAnswer, meant_for
from gantry_broker.replication.ports import RaftLog, StateDisk
from gantry_broker.replication.raft_leader import RaftLeader
from gantry_broker.replication.raft_messages import RaftRequest, RaftRequestKind, RaftResponse
from gantry_broker.replication.state import HardState


@dataclass(frozen=True, slots=True)
class RaftOptions(Options):
    """Times in milliseconds."""

    election_ms: int = 1_500
    """A leader that was silent for this long is gone."""
    spread_ms: int = 500
    """Each member adds up to this much at random, so that one begins alone. More would only delay clients: pre-votes
    settle which of two goes first (`_goes_first`).
    """
    silent_ms: int = 1_250
    """A leader steps down when its majority has not fetched for this long. That is before the others may elect, and
    before the TCP of its clients, which retries 1.7 s after an unanswered send, waits for another 1.7 s.
    """
    gone_ms: int = 150
    """The same when the leader's process is known to be gone, shorter."""
    begin_ms: int = 300
    """The leader announces itself again to a member that has not fetched for this long."""


WAITS_MS = 10_000
"""Milliseconds between two lines of the log about a first election that does not begin."""


class RaftReplica(MemberCore):
    """One member in Raft mode. See the module."""

    leader: RaftLeader | None
    options: RaftOptions
    _log: RaftLog

    def __init__(
        self,
        state: HardState,
        log: RaftLog,
        disk: StateDisk,
        options: RaftOptions,
        addresses: Mapping[int, str],
        *,
        report: Callable[[str], None] = lambda text: None,
        refused: Refused = ignore_refusal,
        now_ms: int = 0,
        rng: random.Random | None = None,
    ) -> None:
        """`addresses`: numbers and addresses of the configured members, this one included."""
        super().__init__(state, log, disk, options, "knows no leader yet", report, refused)
        self.outbox: list[tuple[int, RaftRequest]] = []
        self._addresses = dict(addresses)
        self._rng = rng or random.Random()
        self._leader_address = ""
        self._heard_ms = now_ms - options.election_ms
        self._candidate = False
        self._election_step: RaftRequestKind | None = None
        self._election_step_ms = 0
        self._granted: set[MemberId] = set()
        self._uninitialized: dict[int, MemberId] = {}
        self._announced: dict[int, str] = {}
        """By number: the address of a configured or listed member, as itself names it. Its configured one may be old:
        on one machine a member gets another port when a program takes its own just before the start.
        """
        self._waits_since_ms = now_ms
        self._waits_said_ms = now_ms
        self._reported: dict[int, tuple[MemberId, frozenset[MemberId]]] = {}
        """By number: the identity of a listed member in its last answer, and the members that it named."""
        self._asked_about_ms = now_ms - options.gone_ms
        self._begin_ms = 0
        self._transfer_until = 0
        self._deadline = 0
        self._wait_again(now_ms)  # Every member starts as a follower.
        if self.uninitialized:
            self._deadline = now_ms  # Nothing to wait for: it only asks which members exist.

    # ---- state

    @property
    def epoch(self) -> int:
        return self._state.leadership.epoch

    @property
    def highest_seen_epoch(self) -> int:
        return self.epoch

    @property
    def state(self) -> HardState:
        return replace(self._state, leader_address=self._leader_address or None)

    @property
    def members(self) -> Members:
        """Rule 27: a change is in force when it is appended, and undone when it is truncated."""
        changes = self._log.member_changes
        return changes[-1].members if changes else self._state.first_members

    @property
    def is_voter(self) -> bool:
        # Rule 26: exactly this incarnation of the disk. By its number alone an emptied disk would vote, and could elect
        # a leader without records that the former disk had acknowledged.
        return self.me in ids(self.members)

    @property
    def uninitialized(self) -> bool:
        """Whether this disk was never part of this group. It may have records of an archive."""
        # A record that no archive brought, or an epoch, shows a former life: such a disk must not found the group a
        # second time, while others may hold its acknowledged records.
        return self.epoch == 0 and self._log.end == self._log.restored_end and not self._state.first_members

    @property
    def leadership(self) -> LeadershipRecord:
        """The record that a registry would hold: the epoch, the number of member changes, the leader, the members."""
        leader = self.me if self.leader is not None else self.follower.leader if self.follower is not None else None
        return LeadershipRecord(self.epoch, len(self._log.member_changes), leader, ids(self.members))

    @property
    def role(self) -> Role:
        if self.leader is not None:
            return Role.MASTER
        if self.follower is not None:
            return Role.SLAVE
        return Role.CANDIDATE if self._candidate else Role.WAITING

    @property
    def rank(self) -> tuple[int, int]:
        return (last_epoch(self._log.leader_epochs), self._log.end)

    # ---- epochs and votes (rule 24)

    def _save(self, state: HardState) -> None:
        # The disk first: after a failed write this member goes on with what a restart would read.
        self._disk.save(state)
        self._state = state

    def _adopt(self, epoch: int, reason: str, now_ms: int) -> None:
        """Take a higher epoch: it ends every role in the lower one."""
        self.stop(reason)
        # Durable before any answer in this epoch: else it could follow a leader of the lower one after a restart.
        self._save(replace(self._state, leadership=LeadershipRecord(epoch), vote=None))
        self._wait_again(now_ms)

    def saw_epoch(self, epoch: int, now_ms: int) -> None:
        """Note a higher epoch, which ends every role in a lower one. An impossible one changes nothing."""
        # An absurd epoch would use up the numbers: no election could go above it.
        if epoch > self.epoch and plausible.possible_successor(self.epoch, epoch):
            self._adopt(epoch, f"saw epoch {epoch}", now_ms)

    def stop(self, reason: str) -> None:
        super().stop(reason)
        self._candidate, self._election_step = False, None
        self._leader_address = ""

    def _wait_again(self, now_ms: int) -> None:
        self._deadline = now_ms + self.options.election_ms + self._rng.randrange(self.options.spread_ms)

    def _hears_leader(self, now_ms: int) -> bool:
        if self.leader is not None:
            return True
        return self.follower is not None and 0 <= now_ms - self._heard_ms < self.options.election_ms

    def leader_gone(self, now_ms: int) -> None:
        """Note that the leader's process is gone (it refuses connections): no need to wait for silence."""
        if self.follower is not None:
            self._heard_ms = now_ms - self.options.election_ms
            # At random: all followers notice it at the same moment, and would split the votes.
            self._deadline = min(self._deadline, now_ms + self._rng.randrange(self.options.gone_ms))

    # ---- elections

    def _campaign(self, kind: RaftRequestKind, now_ms: int, *, transfer: bool = False) -> None:
        self._wait_again(now_ms)
        if self.uninitialized:
            self._found_group(now_ms)
            return
        # A learner only asks who leads. Its own election would raise its epoch, and with that it could follow nobody.
        if not self.is_voter:
            self._ask_all(RaftRequest(RaftRequestKind.FIND, self.epoch, self.me, self._my_address, self.rank))
            return
        self._deadline = now_ms + self.options.spread_ms + self._rng.randrange(self.options.spread_ms)
        if self.epoch >= plausible.MAX_EPOCH:
            self.reason = f"there is no epoch above {self.epoch}: begin the group with empty disks"
            return
        # Grants of an earlier round are dropped: each member grants a round by what it knows then.
        self._election_step, self._election_step_ms, self._granted = kind, now_ms, {self.me}
        epoch = self.epoch + 1
        # A pre-vote only asks about this epoch. If it took it, a member that was cut off for a while would end a leader
        # that all others hear.
        if kind is RaftRequestKind.VOTE:
            self.stop(f"is a candidate in epoch {epoch}")
            self._election_step, self._candidate = kind, True
            # Its own vote is durable before it asks for others: a restart that forgets it could give it to another
            # member, and the epoch could have two leaders.
            self._save(replace(self._state, leadership=LeadershipRecord(epoch), vote=self.me))
        self._ask_all(RaftRequest(kind, epoch, self.me, self._my_address, self.rank, transfer, self.members))
        self._count(now_ms)

    def _found_group(self, now_ms: int) -> None:
        """Hold the first election: the lowest number begins it, once every configured member says that its disk is
        new.
        """
        others = set(self._addresses) - {self.me.member}
        # Every member, not a majority: the one that is missing may hold records that a former group has acknowledged.
        # Only the lowest number begins: two founders would make two lists of members.
        if self.me.member == min(self._addresses) and set(self._uninitialized) >= others:
            voters = {**{n: self._uninitialized[n] for n in others}, self.me.member: self.me}
            members = tuple(Voter(voters[n], self._announced.get(n, self._addresses[n])) for n in sorted(voters))
            # The next epoch is above those of the records of an archive.
            leadership = LeadershipRecord(max(last_epoch(self._log.leader_epochs), self._log.restored_epoch))
            self._save(replace(self._state, first_members=members, leadership=leadership))
            self._campaign(RaftRequestKind.VOTE, now_ms)
            return
        self._say_what_it_waits_for(others, now_ms)
        self._deadline = now_ms + self.options.gone_ms + self._rng.randrange(self.options.gone_ms)
        self._ask_all(RaftRequest(RaftRequestKind.FIND, self.epoch, self.me, self._my_address, self.rank))

    def _say_what_it_waits_for(self, others: set[int], now_ms: int) -> None:
        """Name the members whose answer the first election lacks, in the status at once and in the log now and then."""
        silent = sorted(others - set(self._uninitialized))
        answered = sorted(n for n in silent if n in self._reported)
        at = ", ".join(f"{n} at {' and '.join(self.addresses_of(n))}" for n in silent)
        if not silent:
            self.reason = f"the first election is held by member {min(self._addresses)}"
            return
        self.reason = f"the first election waits for members that say that their disks are new: {at}"
        if answered:
            self.reason += f"; {', '.join(map(str, answered))} answered otherwise"
        if now_ms - self._waits_since_ms >= WAITS_MS and now_ms - self._waits_said_ms >= WAITS_MS:
            self._waits_said_ms = now_ms
            self._report(self.reason)

    def _count(self, now_ms: int) -> None:
        if not is_majority(self._granted, self.members):
            return
        if self._election_step is RaftRequestKind.PRE_VOTE:
            self._campaign(RaftRequestKind.VOTE, now_ms)
        elif self._election_step is RaftRequestKind.VOTE and self._candidate:
            self._lead(now_ms)

    def _ask_all(self, request: RaftRequest) -> None:
        numbers = {v.id.member for v in self.members} | set(self._addresses)
        for number in sorted(numbers - {self.me.member}):
            self.outbox.append((number, request))

    def addresses_of(self, number: int) -> list[str]:
        """Return where a member may be: the address that it names, its configured one, and the log's if they differ.

        A whole group that comes back on other ports finds its old ones in the log. A member that is added while this
        process runs has its address only there.
        """
        logged = (v.address for v in self.members if v.id.member == number)
        places = (self._announced.get(number, ""), self._addresses.get(number, ""), *logged)
        return list(dict.fromkeys(a for a in places if a))

    @property
    def _my_address(self) -> str:
        return self._addresses.get(self.me.member, "")

    # ---- membership of the other side

    @property
    def _numbers(self) -> set[int]:
        """Return the member numbers of the list and of the configuration."""
        return {v.id.member for v in self.members} | set(self._addresses)

    def _knows(self, member: MemberId) -> bool:
        """Return whether Raft requests of this member count: the list has it, or a listed member named it in an
        answer from its own address. Before there is a list, only a member's statement about itself counts there.
        """
        if member in ids(self.members):
            return True
        if not self.members and self._reported.get(member.member, (None,))[0] == member:
            return True
        return any(member in named for _, named in self._reported.values())

    def _counts(self, request: RaftRequest, now_ms: int) -> bool:
        """Return whether a Raft request may change anything here. One of an unknown member makes this one query
        those that it knows.
        """
        if jump := plausible.jump_refusal(self.epoch, request.epoch):
            self._refused("poll", "epoch-jump", f"{request.kind.value} of {request.member}: {jump}")
            return False
        if request.kind is RaftRequestKind.FIND or self._knows(request.member):
            return True
        if self._is_new(request.member):
            self._refused(
                "poll",
                "unknown-member",
                f"{request.kind.value} of {request.member}, which is unknown to the members of this group",
            )
        if now_ms - self._asked_about_ms >= self.options.gone_ms or now_ms < self._asked_about_ms:
            self._asked_about_ms = now_ms
            self._ask_all(RaftRequest(RaftRequestKind.FIND, self.epoch, self.me, self._my_address, self.rank))
        return False

    def _is_new(self, member: MemberId) -> bool:
        """Return false for a configured member before the first election: its refusal ends once it has answered."""
        return bool(self.members) or member.member not in self._addresses

    def on_raft_request(self, request: RaftRequest, now_ms: int) -> RaftResponse:
        """Answer another member; what the answer promises is on disk before."""
        granted = False
        if request.member.member == self.me.member or not self._counts(request, now_ms):
            return self._answer(request, now_ms, granted=False)
        # Only now: the address of a stranger would lead requests and fetches to it.
        if request.address and request.member.member in self._numbers:
            self._announced[request.member.member] = request.address
        if request.kind is RaftRequestKind.PRE_VOTE:
            free = not self._hears_leader(now_ms) and not self._goes_first(request, now_ms)
            # It promises nothing, so nothing is written: a member may grant the pre-votes of several.
            granted = free and request.epoch > self.epoch and self._may_elect(request)
            if granted:
                self._deadline = max(self._deadline, now_ms + self.options.gone_ms)
            elif free and self.is_voter and not self._candidate and request.rank < self.rank:
                # Only this log can win, and the leader is gone: the other's attempt is a reason to begin.
                self._deadline = min(self._deadline, now_ms + self._rng.randrange(self.options.gone_ms))
        elif request.kind is RaftRequestKind.VOTE:
            granted = self._vote(request, now_ms)
        elif (
            request.kind is RaftRequestKind.BEGIN
            and request.epoch >= self.epoch
            and not self._follows_other(request, now_ms)
        ):
            self._follow(request.epoch, request.member, request.address, now_ms)
        elif request.kind is RaftRequestKind.TIMEOUT_NOW:
            # Only of the leader that it follows: a late request would end a leadership that works.
            led_by = None if self.follower is None else self.follower.leader
            if request.epoch == self.epoch and led_by == request.member:
                self._campaign(RaftRequestKind.VOTE, now_ms, transfer=True)
        return self._answer(request, now_ms, granted=granted)

    def _follows_other(self, request: RaftRequest, now_ms: int) -> bool:
        """Return whether this member hears another leader of the request's epoch: an epoch has one leader."""
        led_by = None if self.follower is None else self.follower.leader
        return led_by not in (None, request.member) and request.epoch == self.epoch and self._hears_leader(now_ms)

    def _answer(self, request: RaftRequest, now_ms: int, *, granted: bool) -> RaftResponse:
        # One that is silent is not named: the others would follow it instead of electing another one.
        leader = self.leadership.master if self._hears_leader(now_ms) else None
        address = self._my_address if self.leader is not None else self._leader_address
        return RaftResponse(
            request.kind, request.epoch, self.me, self.epoch, granted, leader, address, self.uninitialized, self.members
        )

    def _may_elect(self, request: RaftRequest) -> bool:
        """Rules 24 and 26: a voter never elects a member whose log ends before its own.

        A member that was removed and added again may not have that record yet; then the candidate's list of members
        counts. Otherwise a leader that needs this vote, and a group that needs this leader's log, would wait for each
        other for ever.
        """
        # The epoch of the last record goes before the length: a longer log of an older epoch may lack confirmed
        # records.
        return (self.is_voter or self.me in ids(request.members)) and request.rank >= self.rank

    def _goes_first(self, request: RaftRequest, now_ms: int) -> bool:
        """Return whether this member goes first, of two that notice at the same moment that the leader is gone.

        Otherwise each would vote for itself, and both would wait for the next round.
        """
        requests = (
            self._election_step is RaftRequestKind.PRE_VOTE
            and 0 <= now_ms - self._election_step_ms < self.options.gone_ms
        )
        return requests and (self.rank, self.me) > (request.rank, request.member)

    def _is_named(self, request: RaftRequest) -> bool:
        """Return whether this new disk votes: it knows of no group, and the candidate's list names this very
        incarnation, among members that are all configured here, as the candidate is.
        """
        if self.members or self.me not in ids(request.members) or request.member not in ids(request.members):
            return False
        return {v.id.member for v in request.members} <= set(self._addresses)

    def _vote(self, request: RaftRequest, now_ms: int) -> bool:
        if self._hears_leader(now_ms) and not request.transfer:
            return False  # Before the epoch is taken: a member that was cut off must not end a leader that others hear.
        named = self._is_named(request)
        # A disk that knows no group promises nothing to one: it may have lost what it acknowledged there.
        if request.epoch < self.epoch or not (named or self.members):
            return False
        if request.epoch > self.epoch:
            may = self._may_elect(request)
            # Also without a vote: the candidate follows no leader of a lower epoch any more, so the next election, of a
            # member with a longer log, has to be above its epoch.
            self._adopt(request.epoch, f"an election of epoch {request.epoch} is under way", now_ms)
            if not may:
                return False
        else:
            # One vote in an epoch, and none after its leader is known: else the epoch could have two leaders.
            taken = (
                self._state.vote not in (None, request.member) or self.leader is not None or self.follower is not None
            )
            if taken or not self._may_elect(request):
                return False
        # In one write, before the answer: after a restart without the vote this member could vote again in this epoch,
        # and after one without the list a new disk would count as one of no group.
        first = request.members if named else self._state.first_members
        self._save(replace(self._state, vote=request.member, first_members=first))
        self._wait_again(now_ms)
        return True

    def raft_answered(self, answer: RaftResponse, now_ms: int) -> None:
        """Take the answer of a listed member. A member that knows no epoch yet takes any epoch from it."""
        if answer.member.member not in self._numbers or answer.member.member == self.me.member:
            self._refused("poll-answer", "unknown-member", f"{answer.member} is not in the list of members")
            return
        if self.epoch and (jump := plausible.jump_refusal(self.epoch, answer.epoch)):
            self._refused("poll-answer", "epoch-jump", f"{answer.member}: {jump}")
            return
        self._reported[answer.member.member] = (answer.member, ids(answer.members))
        if answer.uninitialized:
            self._uninitialized[answer.member.member] = answer.member
        else:
            # What it said before it had a group must not count for the first election.
            self._uninitialized.pop(answer.member.member, None)
        # Where the answer names a leader, a follower takes the epoch together with it, below.
        if answer.epoch > self.epoch and self.members and (self.leader is not None or answer.leader is None):
            self._adopt(answer.epoch, f"{answer.member} is in epoch {answer.epoch}", now_ms)
        if answer.leader is not None and answer.leader != self.me and answer.epoch >= self.epoch:
            if self._candidate and answer.epoch == self.epoch and answer.leader != answer.member:
                return  # Second-hand news of this epoch: the leader will announce itself.
            self._follow(answer.epoch, answer.leader, answer.leader_address, now_ms)
            return
        # A vote counts in its own epoch only, or an epoch could have two leaders. A late pre-vote may count, since it
        # promises nothing: the votes that follow are counted by themselves.
        meant = self.epoch + 1 if self._election_step is RaftRequestKind.PRE_VOTE else self.epoch
        if answer.granted and answer.kind is self._election_step and answer.asked == meant:
            self._granted.add(answer.member)
            self._count(now_ms)

    # ---- roles

    def _lead(self, now_ms: int) -> None:
        first = self.members
        role_end = self._log.end
        self._candidate, self._election_step, self.reason = False, None, ""
        # Rule 25 counts from the end of this record on, so no other record of the epoch may come before it.
        self._log.begin_epoch(self.epoch, now_ms)
        self._control_end = self._log.end
        if not self._log.member_changes:
            # Who did not vote in the first election has no list yet, and gets it with the log.
            self._log.append_members(first, now_ms)
        self.leader = RaftLeader(
            self.me,
            self.leadership,
            self._log,
            self.options,
            now_ms,
            role_end=role_end,
            control_end=self._control_end,
            members=lambda: self.members,
            report=self._report,
            refused=self._refused,
        )
        self._transfer_until = 0
        self._moving, self.handed_to = None, None
        self._begin(now_ms)
        self._confirm()

    def _begin(self, now_ms: int) -> None:
        assert self.leader is not None
        self._begin_ms = now_ms
        request = RaftRequest(RaftRequestKind.BEGIN, self.epoch, self.me, self._my_address, self.rank)
        for number in sorted({v.id.member for v in self.members} | set(self._addresses)):
            seen = max((v.seen_ms for m, v in self.leader.followers.items() if m.member == number), default=-1)
            waits = any(v.waiting for m, v in self.leader.followers.items() if m.member == number)
            fetched = any(v.acked >= 0 for m, v in self.leader.followers.items() if m.member == number)
            if number != self.me.member and not waits and (not fetched or now_ms - seen > self.options.begin_ms):
                self.outbox.append((number, request))

    def _follow(self, epoch: int, leader: MemberId, address: str, now_ms: int) -> None:
        if epoch > self.epoch:
            self._adopt(epoch, f"{leader} leads epoch {epoch}", now_ms)
        # Nobody else leads the epoch in which this member was elected.
        if self.leader is not None or leader.member == self.me.member:
            return
        self._leader_address = address or next(iter(self.addresses_of(leader.member)), "")
        if self.follower is not None and self.follower.leader == leader and not self.follower.stopped:
            return
        self._candidate, self._election_step = False, None
        self.follower = Follower(self.me, self.epoch, leader, self._log, unclean=False, report=self._report)
        self.reason = "" if self.is_voter else "learner: its disk is not a member yet"
        self._heard_ms = now_ms
        self._wait_again(now_ms)
        self._end_moving(now_ms)
        if self._moving is not None:
            # Any member that is elected after a transfer has all confirmed records, so it may take the sends.
            self.handed_to, self._moving = self._leader_address or None, None

    # ---- the leader

    def epoch_counts(self, fetch: Fetch) -> bool:
        return meant_for(self.me, fetch) and fetch.member in ids(self.members)

    def tick(self, now_ms: int) -> None:
        """Run elections, a leader's check of its majority, and deadlines; every `tick_ms`."""
        late = self._late_ms(now_ms)
        # While this process did not run, it could not hear: an election now would end a leader that the others hear.
        self._deadline += late
        self._heard_ms += late if self.leader is None else 0
        self._end_moving(now_ms)
        self.waiters.expire(now_ms, self._log.flushed, True)
        if self.leader is not None:
            self._tick_leader(self.leader, now_ms)
        elif now_ms >= self._deadline and not (self.follower is not None and self._hears_leader(now_ms)):
            self._campaign(RaftRequestKind.PRE_VOTE, now_ms)

    def _tick_leader(self, leader: RaftLeader, now_ms: int) -> None:
        # Nothing that it appends can be confirmed, and its clients must look for the leader that the others may have
        # elected.
        if not leader.hears_majority(now_ms):
            self.stop(f"heard no majority in epoch {self.epoch}")
            self._wait_again(now_ms)
            return
        if leader.pause_writes is not None and self._transfer_until and now_ms >= self._transfer_until:
            # No one was elected: it goes on in its epoch.
            leader.pause_writes, self._transfer_until, self._moving = None, 0, None
        if leader.pause_writes is None:
            change = leader.wanted_change(now_ms)
            if change is not None:
                leader.change(change, now_ms)
        if now_ms - self._begin_ms >= self.options.begin_ms:
            self._begin(now_ms)
        self._confirm()

    def change_members(self, members: Members, now_ms: int) -> str:
        """Rule 27: change the members. Returns the reason for a refusal, or nothing."""
        if self.leader is None:
            return self.reason or "is not the leader"
        reason = self.leader.change(members, now_ms)
        self._confirm()
        return reason

    # ---- transfer

    def _pause_refusal(self, leader: Leader, target: MemberId, version: int) -> str:
        return "" if target in ids(self.members) else f"{target} is not a member that votes"

    def transfer(self, now_ms: int) -> None:
        """Let the target, which has everything, be elected. If none is elected in time, this leader goes on."""
        if self.leader is not None and self.leader.pause_writes is not None and not self._transfer_until:
            self._transfer_until = now_ms + self.options.election_ms
            self._moving = Moving(self.leader.pause_writes.target, self._transfer_until)
            request = RaftRequest(RaftRequestKind.TIMEOUT_NOW, self.epoch, self.me, self._my_address, self.rank)
            self.outbox.append((self.leader.pause_writes.target.member, request))

    def give_up_handover(self) -> None:
        if self.leader is not None and not self._transfer_until:
            self.leader.pause_writes = None

    def assign(self, assignment: Assignment, now_ms: int) -> Assigned:
        """Refuse an assignment: a group in Raft mode elects its leader itself."""
        return Assigned(False, "mode Raft: the group elects its leader and takes no assignments")

    # ---- the follower

    def next_fetch(self, max_bytes: int = 1 << 20) -> Fetch | None:
        fetch = super().next_fetch(max_bytes)
        return None if fetch is None else replace(fetch, address=self._my_address)

    def _heard(self, answer: FetchAnswer, now_ms: int) -> None:
        if answer.epoch != self.epoch:
            return
        # It lives and does not lead: its voice must not delay the election.
        if answer.kind is AnswerKind.REFUSED:
            self._heard_ms = min(self._heard_ms, now_ms - self.options.election_ms)
        else:
            self._heard_ms = now_ms
            self._wait_again(now_ms)
