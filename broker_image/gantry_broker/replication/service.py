"""The asyncio driver of replication: binds a `Core` to the message store, the clock and the sockets.

It makes no decisions. It feeds the core (`replica.py` or `raft.py`), sends fetches and delivers answers, runs the
fsyncs of SYNC_FLUSH, and notifies the broker of changes. The broker's part of the contract:

- It appends only while `may_append` is true, calls `appended` once per pass, and adds one waiter per pass.
- It passes frames with GantryCode.FETCH to `on_fetch`, and ended connections to `on_connection_lost`.
- It shows readers what the store shows (confirmed records only), and holds a pull above that while `epoch_confirmed`
  is false.
- `on_role_change` comes after the waiting sends were answered (rule 10).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, Protocol

from gantry_broker.contracts.leadership import Assignment, LeadershipRecord, MemberId
from gantry_broker.contracts.models import (
    AssignmentAnswer,
    FollowerStatus,
    HandoverAnswer,
    LeaderLink,
    MemberRef,
    ProposalModel,
)
from gantry_broker.protocol import plausible
from gantry_broker.protocol.codes import ResponseCode, SendStatus
from gantry_broker.protocol.frame import Frame
from gantry_broker.refusals import Refusals
from gantry_broker.remoting.errors import RemotingError
from gantry_broker.replication import wire
from gantry_broker.replication.core import Core, Role
from gantry_broker.replication.fetching import FetchLoop
from gantry_broker.replication.identity import ReplicaFile, Started
from gantry_broker.replication.leader import Options
from gantry_broker.replication.log_repair import Peer
from gantry_broker.replication.messages import AnswerKind, Fetch, FetchAnswer
from gantry_broker.replication.pending_fetches import HOLD_S, PendingFetches, refuse_malformed
from gantry_broker.replication.raft import RaftOptions, RaftReplica
from gantry_broker.replication.raft_leader import RaftLeader
from gantry_broker.replication.raft_messages import RaftRequest, RaftRequestKind
from gantry_broker.replication.raftlog import RaftStoreLog
from gantry_broker.replication.replica import Replica
from gantry_broker.replication.state import HardState
from gantry_broker.replication.storelog import StoreLog, StoreLogHooks
from gantry_broker.store.errors import BadRecords, StoreError, StoreFull
from gantry_broker.store.group_commit import GroupCommit, OnDurable
from gantry_broker.tasks import end_tasks, set_within

if TYPE_CHECKING:
    from gantry_broker.config import BrokerConfig
    from gantry_broker.remoting.client import RemotingClient
    from gantry_broker.remoting.connection import Connection
    from gantry_broker.remoting.handshake import Identity
    from gantry_broker.replication.ports import Log
    from gantry_broker.store.store import MessageStore
    from gantry_broker.store.types import Confirmed

log = logging.getLogger(__name__)

TICK_S: Final = 0.1
RAFT_HOLD_S: Final = 0.25
"""A follower must hear its leader well within the time after which it holds an election, and a leader its followers.
A held fetch counts as heard, so a leader that is cut off steps down later by this much.
"""
RAFT_REQUEST_S: Final = 1.0
STANDBY: Final = "standby"
"""The incarnation of a member that has no place in its group."""
ASK_S: Final = 5.0
"""Seconds for a request to another member besides fetches."""


class OldRecords(Protocol):
    """Another source of records for a member that is far behind."""

    def wanted(self, mine: Log, leader_end: int) -> bool:
        """Whether it has much of what a log lacks. `leader_end`: the end of the leader's log."""
        ...

    def was_cut(self) -> None:
        """Note that the leader cut the log."""
        ...

    async def fill(self, mine: Log, append: Callable[[int, bytes], bool]) -> None:
        """Append some of its records. `append` gets the offset where they begin, and returns whether it took them."""
        ...


class ReplicationService:
    """One member's replication; owned by the event loop in which `start` was awaited."""

    def __init__(
        self,
        config: BrokerConfig,
        store: MessageStore,
        client: RemotingClient,
        *,
        epoch_body: Callable[[int], bytes] = lambda epoch: b"",
        on_confirmed: Callable[[Confirmed], None] = lambda confirmed: None,
        on_role_change: Callable[[], None] = lambda: None,
        on_change: Callable[[], None] = lambda: None,
        on_truncated: Callable[[int], None] = lambda to: None,
        report: Callable[[str], None] = log.warning,
        on_store_error: Callable[[StoreError], None] = lambda error: None,
        monotonic: Callable[[], float] = time.monotonic,
        unix_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        standby: bool = False,
    ) -> None:
        """`standby`: this member follows the archive of another cluster, and takes no part in its group.

        `epoch_body(epoch)`: body of an epoch's control record.

        `on_store_error` gets the error when the store refuses a leader's records (usually for a full disk).
        `on_confirmed` gets the result of `Indexer.confirm`. `on_role_change` reports a change of `role` or
        `may_append`, `on_change` a change of anything in `status_fields`. `on_truncated(to)` reports that the log was
        truncated to `to` or reset at `to`.
        """
        self._config = config
        self._group = f"{config.cluster}/{config.group}"
        self._store = store
        self._client = client
        self._on_role_change = on_role_change
        self._on_change = on_change
        self._report = report
        self._on_store_error = on_store_error
        self._monotonic = monotonic
        self._file = ReplicaFile(config.data_dir / "config" / "replica.json", config.mode)
        hooks = StoreLogHooks(epoch_body, on_confirmed, on_truncated, unix_ms)
        self._standby = standby
        self._raft = config.mode == "Raft" and not standby
        self._log = StoreLog(store, hooks)
        self._raft_log = RaftStoreLog(store, config.data_dir / "config" / "members.json", hooks) if self._raft else None
        # Rule 26: in Raft mode acknowledgements count bytes on disk, in each flush mode.
        self._sync_flush = config.flush == "Sync" or self._raft
        self._fetching = FetchLoop(client, self)
        self._commit: GroupCommit | None = None
        self._pending_fetches: PendingFetches | None = None
        self._core: Core | None = None
        self._log_trusted = True
        self._tick: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Future[None]] = set()
        self._flushed_at = 0.0
        self._unix_ms = unix_ms
        self._shown: tuple[object, ...] = ()
        self._unconfirmable = ""
        """Why the last `confirm` failed."""
        self._acked = asyncio.Event()
        self._stopped = False
        self.refusals = Refusals(monotonic)
        """Counts the values from other members that were refused."""
        self._fetchers: dict[int, Connection] = {}
        """By number: the members whose fetches count here, and the connections of these fetches."""
        self.old_records: OldRecords | None = None
        """Where old records come from, besides the leader."""
        self.before_truncation: Callable[[int], bool] = lambda to: True
        """Called with the offset to which the log is to be truncated, again and again until it returns True."""
        self.on_damaged_answer: Callable[[int], None] = lambda at: None
        """Called with the offset of a damaged record in the leader's answer."""
        self.on_unreadable: Callable[[int], None] = lambda at: None
        """Called with the offset from which a follower's records could not be read."""
        self.on_flushed: Callable[[float], None] = lambda seconds: None
        """Called with the duration of each fsync of the log, seconds."""

    # ---- life cycle

    @property
    def log(self) -> StoreLog:
        """The log as the core sees it. A standby, whose core does nothing, continues it by itself."""
        return self._log

    async def start(self) -> None:
        """Find out the member's identity, and go on from its last state. Raises identity.StateError, OSError."""
        loop = asyncio.get_running_loop()
        empty = self._store.log.end == self._store.log.start == 0
        if self._standby:
            started = Started(HardState(MemberId(self._config.member, STANDBY)), log_trusted=True)
        else:
            started = self._file.start(
                self._config.member,
                sync_flush=self._sync_flush,
                log_is_empty=empty,
                damaged=self._store.state.damage is not None,
            )
        # Only now: the new incarnation is on disk. Had the mark gone before, a kill in between would let a log that
        # lost acknowledged records keep its name in the set.
        self._store.recovery.acknowledge_damage()
        self._log_trusted = started.log_trusted
        self._commit = GroupCommit(self._store)
        self._commit.ended = self._flush_ended
        self._commit.took = self.on_flushed
        self._pending_fetches = PendingFetches(
            self._answer_to,
            self._held,
            self._has_news,
            lambda: self._store.log.end,
            self._is_beyond_quorum,
            self._store.log.read_soon,
            lambda at: self.on_unreadable(at),
            RAFT_HOLD_S if self._raft else HOLD_S,
        )
        self._core = self._raft_core(started.state) if self._raft else self._replica(started.state)
        self._changed()
        self._tick = loop.call_later(TICK_S, self._on_tick)

    def _replica(self, state: HardState) -> Replica:
        options = Options(
            sync_replication=self._config.replication == "Sync",
            sync_flush=self._sync_flush,
            min_in_sync=self._config.min_in_sync,
        )
        return Replica(
            state,
            self._log,
            self._file,
            options,
            report=self._report,
            refused=self.refusals.add,
            now_ms=self._now(),
        )

    def _raft_core(self, state: HardState) -> RaftReplica:
        assert self._raft_log is not None
        addresses = {**self._config.members, self._config.member: self._config.replication_address}
        options = RaftOptions(sync_flush=True)
        return RaftReplica(
            state,
            self._raft_log,
            self._file,
            options,
            addresses,
            report=self._report,
            refused=self.refusals.add,
            now_ms=self._now(),
        )

    async def stop(self) -> None:
        """Give up the role (the waiting sends are answered first) and end every task. The store stays open.

        The member takes no role afterwards: an epoch begun in the last moment would need a successor at once.
        """
        self._stopped = True
        if self._tick is not None:
            self._tick.cancel()
        if self._core is not None:
            self._core.stop("stops")
            self._changed()
        if self._pending_fetches is not None:
            self._pending_fetches.close()
        await self._fetching.stop()
        await end_tasks(*self._tasks)
        if self._commit is not None:
            await self._commit.close()

    def mark_clean(self) -> None:
        """Mark a clean stop: the store was closed and is on disk, so the next start trusts the log (rule 16). Call it
        last.

        After a failed write or flush it marks nothing: recent appends may be missing on disk.
        """
        if self._store.state.failed is not None:
            return
        if self._store.log.end > 0:
            self._file.holds_records()
        self._file.mark_clean()

    def disk_failed(self) -> None:
        """Note a failed write or flush: the kernel may have dropped the written bytes (rule 16)."""
        if not self._store.state.disk_untrusted:
            return
        try:
            self._file.invalidate_boot_id()
        except OSError as error:
            log.error("cannot record that the disk failed: %s", error)

    @property
    def core(self) -> Core:
        """The state machine. Raises RuntimeError before `start`."""
        if self._core is None:
            raise RuntimeError("the replication service was not started")
        return self._core

    # ---- state

    @property
    def me(self) -> MemberId:
        return self.core.me

    @property
    def role(self) -> Role:
        return self.core.role

    @property
    def epoch(self) -> int:
        return self.core.leadership.epoch

    @property
    def leadership(self) -> LeadershipRecord:
        """The leadership as this member knows it."""
        return self.core.leadership

    @property
    def broker_id(self) -> int:
        """RocketMQ's broker id: 0 for the leader, else the member's number + 1."""
        return 0 if self.role is Role.MASTER else self._config.member + 1

    @property
    def writes_paused(self) -> bool:
        """A handover is under way: buffer new sends, in their order, until this changes (rule 23)."""
        return self.core.writes_paused

    @property
    def may_append(self) -> bool:
        """Whether the broker may append; checked before every append."""
        return self.core.may_append

    @property
    def epoch_confirmed(self) -> bool:
        """Rule 9: while false, the broker holds a pull above the confirmed offset and never answers "offset moved"."""
        return self.core.epoch_confirmed

    @property
    def handed_to(self) -> str | None:
        """After a handover: the replication address of the new leader.

        The broker forwards buffered sends there in their order, then those that still arrive. None when there was no
        handover, or once this member has another role.
        """
        return self.core.handed_to

    @property
    def leader_address(self) -> str | None:
        """The address at which the group's leader serves fetches, as last assigned; None on the leader itself."""
        return None if self.role is Role.MASTER else self.core.state.leader_address

    def status_fields(self) -> dict[str, Any]:
        """Return the fields of `MemberStatus` that replication knows."""
        core, now = self.core, self._now()
        leader, follower, leadership = core.leader, core.follower, core.leadership
        proposal = core.proposal
        followers = []
        if leader is not None:
            followers = [
                FollowerStatus(
                    member=MemberRef.of(member),
                    acked=view.acked,
                    last_fetch_ms=max(0, now - view.seen_ms),
                    in_sync=member in leader.recorded,
                    rtt_us=-1 if (conn := self._fetchers.get(member.member)) is None else conn.round_trip_us,
                )
                for member, view in sorted(leader.followers.items())
            ]
        return {
            "member": MemberRef.of(core.me),
            "broker_id": self.broker_id,
            "role": core.role.value,
            "epoch": leadership.epoch,
            "version": leadership.version,
            "highest_seen_epoch": core.highest_seen_epoch,
            "log_trusted": self._log_trusted or core.me in leadership.in_sync or core.me == leadership.master,
            "last_epoch": self._log.leader_epochs[-1].epoch if self._log.leader_epochs else 0,
            "start": self._store.log.start,
            "end": self._store.log.end,
            "flushed": self._store.state.flushed,
            "confirmed": self._store.state.confirmed,
            "lag_bytes": 0 if follower is None else max(0, follower.leader_end - self._store.log.end),
            "in_sync": [MemberRef.of(m) for m in sorted(leadership.in_sync)],
            "proposal": None if proposal is None else ProposalModel.of(proposal),
            "followers": followers,
            "leader_link": self._link(),
            "writes_paused": core.hands_over,
            "writable": core.may_append,
            "reason": core.reason,
        }

    def _link(self) -> LeaderLink:
        master = self.core.leadership.master
        if self.core.follower is None or master is None:
            return LeaderLink()
        return LeaderLink(
            member=MemberRef.of(master),
            state=self._fetching.state,
            last_answer_ms=self._fetching.last_answer_ms(),
            rtt_us=-1 if (address := self.leader_address) is None else self._client.round_trip_us(address),
        )

    @property
    def follows(self) -> bool:
        """Whether it is a follower whose leader answers it."""
        return self.core.follower is not None and self._fetching.state == "connected"

    def needed_from(self) -> int:
        """Return the offset from which a follower still fetches this log; without such a follower, the log's end."""
        leader = self.core.leader
        return self._store.log.end if leader is None else leader.needed_from(self._now())

    # ---- assignments

    async def assign(self, assignment: Assignment) -> AssignmentAnswer:
        """Take an assignment. It is on disk before the member acts (rule 15). Raises OSError when the write fails."""
        if self._stopped or self._standby:
            held = self.core.leadership
            why = "it stops" if self._stopped else "its cluster is a standby"
            return AssignmentAnswer(accepted=False, epoch=held.epoch, version=held.version, reason=why)
        # A disk that had records and has none at the next start is another disk (rule 16).
        if self._store.log.end > 0:
            self._file.holds_records()
        try:
            done = self.core.assign(assignment, self._now())
        finally:
            self._changed()  # After a failed write, too: a leader has lost its role, and its clients learn it now.
        leadership = self.core.leadership
        return AssignmentAnswer(
            accepted=done.accepted, epoch=leadership.epoch, version=leadership.version, reason=done.reason
        )

    def saw_epoch(self, epoch: int) -> None:
        """Note the epoch of a member of the set: a higher one stops a leader at once (rule 14)."""
        if epoch > self.core.highest_seen_epoch:
            self.core.saw_epoch(epoch, self._now())
            self._changed()

    # ---- the leader

    def appended(self, end: int) -> None:
        """Note that the broker has appended up to `end`; once per pass of the event loop is enough."""
        core = self.core
        core.appended()
        if self._pending_fetches is not None:
            self._pending_fetches.appended()
        if self._sync_flush:
            self._flush_soon()

    def add_waiter(self, end: int, callback: Callable[[SendStatus], None], timeout_ms: int) -> None:
        """Call `callback(status)` once, in log order: SEND_OK as soon as the promise holds."""
        self.core.add_waiter(end, self._now() + timeout_ms, callback)

    def on_fetch(self, conn: Connection, frame: Frame) -> None:
        """Answer a frame with GantryCode.FETCH now, or hold it until there is news."""
        try:
            fetch = wire.parse_fetch(frame)
        except wire.WireError as error:
            self.refusals.add("fetch", error.reason, f"{conn!r}: {error}")
            refuse_malformed(conn, frame, error)
            return
        # In another member's name it would acknowledge records that this one does not have.
        stranger = wire.not_its_own(conn.identity, fetch.member.member)
        if stranger:
            conn.send(Frame.response_to(frame, ResponseCode.NO_PERMISSION, stranger))
            return
        assert self._pending_fetches is not None
        answer = self.core.fetched(fetch, self._now())
        if answer is None:
            self._fetchers[fetch.member.member] = conn
        self._acked.set()
        self._pending_fetches.take(conn, frame, fetch, answer)
        if answer is None:
            self._confirm_later()
        self._changed()

    def on_raft_request(self, conn: Connection, frame: Frame) -> None:
        """Answer a frame with GantryCode.RAFT: a Raft request of another member."""
        core = self.core
        try:
            request = wire.parse_raft_request(frame)
        except wire.WireError as error:
            self.refusals.add("poll", error.reason, f"{conn!r}: {error}")
            refuse_malformed(conn, frame, error)
            return
        # A vote in another member's name could make a second leader.
        stranger = wire.not_its_own(conn.identity, request.member.member)
        if stranger:
            conn.send(Frame.response_to(frame, ResponseCode.NO_PERMISSION, stranger))
            return
        if not isinstance(core, RaftReplica):
            conn.send(Frame.response_to(frame, ResponseCode.SYSTEM_ERROR, "this group is in mode MasterSlave"))
            return
        stranger = wire.not_of_group(frame, self._group, self._config.group_address)
        if stranger:
            conn.send(Frame.response_to(frame, ResponseCode.SYSTEM_ERROR, stranger))
            return
        answer = core.on_raft_request(request, self._now())
        self._changed()
        conn.send(wire.raft_response_frame(frame, answer))

    async def _raft_request(self, core: RaftReplica, address: str, request: RaftRequest) -> None:
        try:
            question = wire.raft_request_frame(request, self._group, self._config.group_address)
            frame = await self._client.request(address, question, RAFT_REQUEST_S)
            answer = wire.parse_raft_response(frame)
        except RemotingError as error:
            log.debug("Raft request of %s: %s", address, error)
            return
        except wire.WireError as error:
            if error.reason:
                self.refusals.add("poll-answer", error.reason, f"{address}: {error}")
            return
        core.raft_answered(answer, self._now())
        self._changed()

    def _send_out(self, core: RaftReplica) -> None:
        outbox, core.outbox = core.outbox, []
        for number, request in outbox:
            places = core.addresses_of(number)
            # A request to hold an election counts only at the member that it names.
            for address in places[:1] if request.kind is RaftRequestKind.TIMEOUT_NOW else places:
                self._spawn(self._raft_request(core, address, request))

    def on_connection_lost(self, conn: Connection) -> None:
        """Note that a connection of any kind has ended."""
        for member, used in list(self._fetchers.items()):
            if used is conn:
                del self._fetchers[member]
        if self._pending_fetches is not None:
            self._pending_fetches.connection_lost(conn)

    def peers(self) -> list[Peer]:
        """Return the other members that can be reached now: for a follower its leader, for a leader its followers,
        over the connections on which they fetch.
        """
        if self._core is None:
            return []
        address = self.leader_address
        if self._core.follower is not None and address is not None:
            return [(address, lambda frame: self._client.request(address, frame, ASK_S))]
        if self._core.leader is None:
            return []
        return [
            (f"member {member}", lambda frame, conn=conn: conn.request(frame, ASK_S))  # type: ignore[misc]
            for member, conn in sorted(self._fetchers.items())
            if not conn.closed
        ]

    def is_followed_by(self, peer: Identity | None) -> bool:
        """Whether this member leads, and the one at the other end fetches from it now."""
        if self._core is None or self._core.leader is None or peer is None:
            return False
        conn = self._fetchers.get(peer.member)
        return conn is not None and not conn.closed

    def follows_member(self, peer: Identity | None) -> bool:
        """Whether this member follows the one at the other end."""
        if self._core is None or self._core.follower is None or peer is None:
            return False
        master = self._core.leadership.master
        return master is not None and not peer.is_name_server and master.member == peer.member

    def _confirm_later(self) -> None:
        """Confirm, once the follower has its answer."""
        before = self._store.state.confirmed
        self.core.confirm(self._now())
        if self._store.state.confirmed > before and self._pending_fetches is not None:
            self._pending_fetches.confirmed()

    def _answer_to(self, fetch: Fetch, news: bool, empty: bool) -> FetchAnswer | None:
        return self.core.answer_fetch(fetch, self._now(), news=news, empty=empty)

    def _held(self, member: MemberId, waiting: bool) -> None:
        leader = self.core.leader
        if leader is not None:
            leader.hold(member, waiting, self._now())

    def _has_news(self, fetch: Fetch) -> bool:
        leader = self.core.leader
        return leader is None or leader.has_news(fetch)

    def _is_beyond_quorum(self, fetch: Fetch) -> bool:
        leader = self.core.leader
        return isinstance(leader, RaftLeader) and leader.is_beyond_quorum(fetch.member)

    async def handover(
        self, target: MemberId, epoch: int, version: int | None = None, timeout_ms: int = 2_000
    ) -> HandoverAnswer:
        """Pause writes and wait until `target` has everything (rule 23).

        `version` is that of the leadership record that the swap will expect; None: the version that this leader holds.
        After "ready" the sends stay buffered until an assignment above that version. The operator writes one when it
        sees a write pause without a handover.
        """
        reason = self.core.pause_writes(target, epoch, self.core.leadership.version if version is None else version)
        if reason:
            return HandoverAnswer(ready=False, end=self._store.log.end, reason=reason)
        self._changed()
        self._flush_soon()
        deadline = self._monotonic() + timeout_ms / 1000
        while not self.core.handed_over():
            left = deadline - self._monotonic()
            if left <= 0 or not self.core.hands_over:
                self.core.give_up_handover()
                self._changed()
                return HandoverAnswer(
                    ready=False, end=self._store.log.end, reason=f"{target} did not reach {self._store.log.end} in time"
                )
            self._acked.clear()
            await set_within(self._acked, min(left, TICK_S))
        if isinstance(self.core, RaftReplica):
            return await self._transfer(self.core, target, deadline)
        return HandoverAnswer(ready=True, end=self._store.log.end)

    async def _transfer(self, core: RaftReplica, target: MemberId, deadline: float) -> HandoverAnswer:
        """Let the target, which has everything, be elected; this member then follows it."""
        deadline = max(deadline, self._monotonic() + core.options.election_ms / 1000)
        core.transfer(self._now())
        self._changed()
        while self._monotonic() < deadline:
            if core.follower is not None:
                return HandoverAnswer(ready=True, end=self._store.log.end)
            if core.leader is not None and not core.hands_over:
                break
            self._acked.clear()
            await set_within(self._acked, TICK_S)
        return HandoverAnswer(ready=False, end=self._store.log.end, reason=f"{target} was not elected in time")

    async def remove_member(self, number: int) -> str:
        """Raft mode, on the leader: remove a member from the group (rule 27). Returns the reason for a refusal, or
        nothing.
        """
        core = self.core
        if not isinstance(core, RaftReplica):
            return "mode MasterSlave: the operator sets the members"
        left = tuple(v for v in core.members if v.id.member != number)
        if core.leader is not None and len(left) == len(core.members):
            return ""  # It is no member: the request came twice, or it never was one.
        reason = core.change_members(left, self._now())
        self.appended(self._store.log.end)
        self._changed()
        return reason

    # ---- the follower (called by the fetch loop)

    def next_fetch(self) -> tuple[str, Fetch] | None:
        """Return the next fetch and its destination; None without a leader."""
        fetch = self.core.next_fetch()
        address = self.core.state.leader_address
        if fetch is not None and self.fills():
            fetch = replace(fetch, max_bytes=1)  # It keeps the link, and shows the leader where the log ends.
        return None if fetch is None or address is None else (address, fetch)

    def fills(self) -> bool:
        """Whether old records come from elsewhere before the next fetch."""
        follower, source = self.core.follower, self.old_records
        return (
            source is not None
            and follower is not None
            and not follower.stopped
            and source.wanted(follower.log, follower.leader_end)
        )

    async def fill(self) -> None:
        """Append some old records from elsewhere, or wait a moment for them."""
        follower, source = self.core.follower, self.old_records
        if follower is None or source is None:
            return

        def append(at: int, data: bytes) -> bool:
            if self.core.follower is not follower or follower.stopped or follower.log.end != at:
                return False
            try:
                follower.append_old(data)
            except StoreFull as error:
                self._on_store_error(error)
                raise
            self._flush_soon()
            return True

        await source.fill(follower.log, append)

    def answered(self, answer: FetchAnswer) -> bool:
        """Apply an answer; return whether the next fetch may follow at once.

        The answer that cuts the log is dropped until `before_truncation` is ready: the leader gives it again.
        """
        if answer.kind is AnswerKind.TRUNCATE:
            if not self.before_truncation(answer.to):
                return False
            if self.old_records is not None:
                self.old_records.was_cut()
        try:
            applied = self.core.answered(answer, self._now())
        except StoreFull as error:
            self._on_store_error(error)
            applied = False
        except plausible.Implausible as error:
            self.refusals.add("fetch-answer", error.reason, str(error))
            applied = False
        except BadRecords as error:
            log.warning("the leader's answer holds a damaged record: %s", error)
            self.on_damaged_answer(error.at)
            applied = False
        self._changed()
        return applied

    def when_durable(self, then: OnDurable) -> None:
        """Call `then` once the next fetch may acknowledge what was applied: under SYNC_FLUSH it waits for the disk
        (rule 11).
        """
        if not self._sync_flush or self._commit is None:
            then(None)
            return
        self._commit.when_durable(self._store.log.end, then)
        self.confirm()

    def confirm(self) -> None:
        """Take over what the leader has confirmed, while it or the disk is at work."""
        try:
            self.core.confirm(self._now())
            self._unconfirmable = ""
        except (BadRecords, OSError) as error:
            if str(error) != self._unconfirmable:
                self._unconfirmable = str(error)
                log.error("cannot index what the leader has confirmed: %s", error)

    def malformed_answer(self, error: wire.WireError) -> None:
        if error.reason:
            self.refusals.add("fetch-answer", error.reason, str(error))

    def link_changed(self) -> None:
        if self._fetching.state == "refused" and isinstance(self.core, RaftReplica):
            self.core.leader_gone(self._now())
        self._on_change()

    # ---- inner parts

    def _now(self) -> int:
        return int(self._monotonic() * 1000)

    def _on_tick(self) -> None:
        self._tick = asyncio.get_running_loop().call_later(TICK_S, self._on_tick)
        try:
            self.core.tick(self._now())
            if self.core.follower is not None:
                self.confirm()
            now = self._monotonic()
            interval = self._config.settings.flushIntervalCommitLog / 1000
            if self._store.state.flushed < self._store.log.end and now - self._flushed_at >= interval:
                self._flush_soon()
            if self._commit is not None:
                self._commit.checkpoint_if_behind()
            self._changed()
            # This comes last: an exception here must not stop anything else.
            self._store.checkpointer.run_periodic_tasks(self._unix_ms())
        except Exception as error:
            # A loop that dies of its own exception would never shrink the set again: log it and go on.
            log.exception("tick of replication failed")
            self._report(f"replication: {type(error).__name__}: {error}")

    def _flush_soon(self) -> None:
        if self._commit is not None and self._store.state.flushed < self._store.log.end:
            self._commit.begin()

    def _flush_ended(self) -> None:
        """Group commit: one fsync for all that was appended before it began."""
        self._flushed_at = self._monotonic()
        if self._store.state.failed is not None:
            self._report(f"replication: the disk failed: {self._store.state.failed}")
            return
        if self._stopped or self._core is None or self._core.leader is None:
            return
        try:
            if self._sync_flush:
                self._flush_soon()
            self._core.appended()
            self._acked.set()
            self._changed()
        except Exception as error:
            log.exception("confirming after a flush failed")
            self._report(f"replication: {type(error).__name__}: {error}")

    def _spawn(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Future[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self._report(f"replication: {task.exception()!r}")

    def _changed(self) -> None:
        """Notify the broker of changes, and point the fetch loop at the leader."""
        core = self.core
        if isinstance(core, RaftReplica) and core.outbox:
            self._send_out(core)
        leadership = core.leadership
        role = (core.role, core.may_append, leadership.epoch, self.writes_paused)
        status = (*role, leadership.version, core.highest_seen_epoch, core.proposal, core.reason, core.epoch_confirmed)
        if status == self._shown:
            return
        former, self._shown = self._shown, status
        try:
            following = None if core.follower is None else (core.follower, core.state.leader_address)
            self._fetching.follow(following)
            if self._pending_fetches is not None:
                self._pending_fetches.wake()
            if former[: len(role)] != role:
                self._acked.set()
                self._on_role_change()
            self._on_change()
        except BaseException:
            self._shown = ()  # A member may not have the news yet: the next tick notifies all of them again.
            raise
