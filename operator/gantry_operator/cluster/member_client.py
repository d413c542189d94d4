"""Assignments and handover requests to members. They run beside the loop, one of each kind at a time."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final, NamedTuple

from gantry_broker.contracts.leadership import Assignment, LeadershipRecord, MemberId
from gantry_broker.contracts.models import AssignmentAnswer, HandoverAnswer, RemovalAnswer, RemovalRequest
from gantry_broker.tasks import end_tasks

from gantry_operator.cluster.failures import in_words
from gantry_operator.cluster.member_http import httpx
from gantry_operator.cluster.member_messages import assignment_body, handover_body

log = logging.getLogger(__name__)

SEND_TIMEOUT_S = 1.5
AGAIN_AFTER_FAILURE_S = 0.1
AGAIN_AFTER_REFUSAL_S = 0.5
AGAIN_AFTER_SUCCESS_S = 1.0
"""Seconds before an accepted assignment is sent again to the same member."""
REFUSED_FOR_S = 2.0
"""Seconds before a refused assignment is sent again. A new process may accept it."""
REFUSING_S = 3 * REFUSED_FOR_S
"""Seconds without a refusal after which the next one starts a new series."""
LINE_AFTER_ANSWER_S = 3.0
"""Seconds within which a status line newer than the answer must arrive. Otherwise the old line counts again."""


JSON: Final = {"content-type": "application/json"}
_TOKEN: Final = frozenset({401, 403, 503})
"""HTTP status codes for a wrong token. With the last one the member cannot read its own token."""


class _Refusal(NamedTuple):
    leadership: LeadershipRecord | None
    """HTTP status codes of a member that could not act on any assignment."""
    why: str
    at: float
    token: bool


class MemberClient:
    """The client of one group. Calls `wake` after each answer."""

    def __init__(
        self,
        client: httpx.AsyncClient,
        wake: Callable[[], None],
        now: Callable[[], float],
    ) -> None:
        self._client = client
        self._wake = wake
        self._now = now
        self._underway: dict[int, tuple[LeadershipRecord, asyncio.Task[None], float]] = {}
        self._orders: dict[int, tuple[int, int]] = {}
        self._accepted: dict[int, Assignment] = {}
        self._answered_at: dict[int, float] = {}
        self._not_before: dict[int, tuple[LeadershipRecord, float]] = {}
        self._refusals: dict[int, _Refusal] = {}
        self._refusing_since: dict[int, float] = {}

    def send_assignment(
        self, member: int, url: str, assignment: Assignment, then: Callable[[], None] | None = None
    ) -> None:
        """Send an assignment unless it is in progress or was sent just now. Calls `then` once it is accepted."""
        busy = self._underway.get(member)
        if busy is not None:
            if busy[0] == assignment.leadership:
                return
            busy[1].cancel()
        not_before = self._not_before.get(member)
        if not_before is not None and not_before[0] == assignment.leadership and self._now() < not_before[1]:
            return
        self._orders[member] = assignment.leadership.order
        task = asyncio.create_task(self._send(member, url, assignment, then))
        self._underway[member] = (assignment.leadership, task, self._now())

    def pending(self, member: int, line_at: float, order: tuple[int, int]) -> bool:
        """Return whether the last report of the member is older than its last assignment. `order`: (epoch, version) in
        its last line.

        The line often arrives before the HTTP answer. A line with the new assignment is current at any time.
        """
        if self._orders.get(member, (0, 0)) == order:
            return False
        if member in self._underway:
            return True
        answered_at = self._answered_at.get(member)
        return answered_at is not None and line_at <= answered_at and self._now() - answered_at < LINE_AFTER_ANSWER_S

    def assigned_order(self, member: int) -> tuple[int, int]:
        """(epoch, version) of the assignment that is on its way, or was sent last."""
        return self._orders.get(member, (0, 0))

    def accepted_order(self, member: int) -> tuple[int, int]:
        """(epoch, version) of the last accepted assignment."""
        accepted = self._accepted.get(member)
        return (0, 0) if accepted is None else accepted.leadership.order

    def assigned_unclean(self, member: int) -> bool | None:
        """Whether the last accepted assignment allows giving confirmed records up; None: this program sent none."""
        accepted = self._accepted.get(member)
        return None if accepted is None else accepted.unclean

    def refusal(self, member: int, leadership: LeadershipRecord) -> str:
        """Why it refused exactly this record a moment ago, or could act on no assignment; empty: it did not."""
        refused = self._refusals.get(member)
        if refused is None or refused.leadership not in (None, leadership) or self._now() - refused.at >= REFUSED_FOR_S:
            return ""
        return refused.why

    def lacks_token(self, member: int) -> bool:
        """Its last refusal was because of the token."""
        refused = self._refusals.get(member)
        return refused is not None and refused.token

    def refusing_s(self, member: int) -> float:
        """Seconds since the first refusal of the present series, without an acceptance since; 0: none."""
        return self._now() - self._refusing_since.get(member, self._now())

    def _refused(self, member: int, url: str, record: LeadershipRecord, why: str, *, status: int = 200) -> None:
        now, last = self._now(), self._refusals.get(member)
        if last is None or now - last.at >= REFUSING_S:
            self._refusing_since[member] = now
        # A member that cannot act refuses the next epoch, too. If all members do, epochs would follow each other
        # without a pause.
        self._refusals[member] = _Refusal(record if status == 200 else None, why, now, status in _TOKEN)
        if last is None or last.why != why:
            log.warning("%s refuses epoch %s version %s: %s", url, record.epoch, record.version, why)

    def any_underway(self) -> bool:
        return bool(self._underway)

    def busy_for_s(self) -> float:
        """Seconds since the start of the oldest request under way; 0: none."""
        return max((self._now() - since for _, _, since in self._underway.values()), default=0.0)

    async def handover(
        self, url: str, target: MemberId, leadership: LeadershipRecord, timeout_ms: int
    ) -> tuple[bool, str]:
        """Ask the leader to pause writes and to bring `target` to the end of the log. Returns (ready, reason if
        not).
        """
        try:
            answer = await self._client.post(
                f"{url}/v1/handover",
                content=handover_body(target, leadership, timeout_ms),
                headers=JSON,
                timeout=httpx.Timeout(1.0, read=timeout_ms / 1000 + 1.0),
            )
            if answer.status_code != 200:
                return False, f"the master answered {answer.status_code} to the handover request: {answer.text[:200]}"
            answered = HandoverAnswer.model_validate_json(answer.content)
        except (httpx.HTTPError, ValueError) as error:
            return False, f"the master did not answer the handover request: {in_words(error)}"
        return answered.ready, answered.reason

    async def remove(self, url: str, member: int) -> str:
        """Mode Raft: ask the leader to remove a member that has left the plan. Returns the reason for a refusal, or
        "".
        """
        try:
            answer = await self._client.post(
                f"{url}/v1/members/remove",
                content=RemovalRequest(member=member).model_dump_json(),
                headers=JSON,
                timeout=SEND_TIMEOUT_S,
            )
            if answer.status_code != 200:
                return f"the leader answered {answer.status_code}: {answer.text[:200]}"
            answered = RemovalAnswer.model_validate_json(answer.content)
        except (httpx.HTTPError, ValueError) as error:
            return f"the leader did not answer: {in_words(error)}"
        return answered.reason

    async def close(self) -> None:
        await end_tasks(*(task for _, task, _ in self._underway.values()))

    async def _send(self, member: int, url: str, assignment: Assignment, then: Callable[[], None] | None) -> None:
        leadership = assignment.leadership
        again = AGAIN_AFTER_FAILURE_S
        try:
            answer = await self._client.put(
                f"{url}/v1/assignment",
                content=assignment_body(assignment),
                headers=JSON,
                timeout=SEND_TIMEOUT_S,
            )
            if answer.status_code != 200:
                # It could not write its disk, or has another token. Another member may succeed.
                again = AGAIN_AFTER_REFUSAL_S
                why = f"it answered {answer.status_code}: {answer.text[:200]}"
                self._refused(member, url, leadership, why, status=answer.status_code)
                return
            answered = AssignmentAnswer.model_validate_json(answer.content)
            self._answered_at[member] = self._now()
            if answered.accepted:
                again = AGAIN_AFTER_SUCCESS_S
                self._accepted[member] = assignment
                self._refusals.pop(member, None)
                self._refusing_since.pop(member, None)
                if then is not None:
                    then()
            elif (answered.epoch, answered.version) <= leadership.order:
                self._refused(member, url, leadership, answered.reason or "it gave no reason")
        except (httpx.HTTPError, ValueError) as error:
            log.info("request to %s: %r", url, error)
        finally:
            if self._underway.get(member, (leadership, None, 0.0))[0] == leadership:
                self._underway.pop(member, None)
            self._not_before[member] = (leadership, self._now() + again)
            self._wake()
