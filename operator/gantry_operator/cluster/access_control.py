"""Keeps the access table of one cluster, and brings it to every member.

A pass decides on the next state, keeps it durably, sends the table to the members and then writes the Secrets: a client
never reads a key that no member knows. Every step may be repeated, so the process may end after any of them. Members
say in their status which table they hold, and whether mqadmin has changed something there.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import orjson
from gantry_broker.client.credentials import Credentials
from gantry_broker.protocol.frame import Frame
from gantry_broker.tasks import end_tasks, set_within

from gantry_operator.access.decide import Decision, decide
from gantry_operator.access.state import AccessState
from gantry_operator.access.wanted import ADMIN
from gantry_operator.cluster.member_client import JSON, SEND_TIMEOUT_S
from gantry_operator.cluster.member_http import httpx
from gantry_operator.cluster.member_watch import MemberWatch
from gantry_operator.cluster.platform import AccessStore
from gantry_operator.cluster.store_unavailable import StoreUnavailable

log = logging.getLogger(__name__)

LOOK_S = 0.25
"""Seconds between two looks at the members' status lines."""
SECRETS_AFTER_S = 1.5
"""Seconds for which a Secret with a new key waits for members that answer and do not have the table yet."""
AGAIN_S = 1.0
"""Seconds before a failed step or request is repeated, and before a status line must confirm an answer."""
CHANGES_LIMIT = 4 << 20
"""Bytes of a member's answer about changes. A member gives the oldest of many, but the whole of one user."""


@dataclass(frozen=True, slots=True)
class MemberAccess:
    """What a member says about its table."""

    version: int
    changes: int
    started_ms: int


@dataclass(frozen=True, slots=True)
class _Sent:
    """The last table that a member accepted."""

    version: int
    started_ms: int
    at: float


def access_of(watch: MemberWatch) -> MemberAccess | None:
    """None: the member does not answer, or knows no tables."""
    status = watch.status
    access = None if status is None or watch.reach != "ok" else status.get("access")
    if status is None or not isinstance(access, Mapping):
        return None
    version, changes, started = access.get("version"), access.get("changes"), status.get("started_ms", 0)
    if type(version) is not int or type(changes) is not int:
        return None
    return MemberAccess(version, changes, started)


class AccessControl:
    """Runs from `run` until cancelled. `wake` after a change of users, Secrets or the spec."""

    def __init__(
        self,
        store: AccessStore,
        watches: Callable[[], Iterable[MemberWatch]],
        client: httpx.AsyncClient,
        now: Callable[[], float] = time.time,
    ) -> None:
        """`now`: Unix time."""
        self.problem = ""
        """Why the table is not as the users say."""
        self._store = store
        self._watches = watches
        self._client = client
        self._now = now
        self._state: AccessState | None = None
        self._decision: Decision | None = None
        self._body = b""
        self._dirty = True
        self._saved_at = 0.0
        self._unwritten: dict[str, str] = {}
        """Secrets that could not be written, with the reason."""
        self._write_after = 0.0
        self._wake = asyncio.Event()
        self._pushing: dict[str, asyncio.Task[None]] = {}
        self._sent: dict[str, _Sent] = {}
        self._not_before: dict[str, float] = {}
        self._since: dict[str, tuple[Any, int]] = {}
        """By user: its part of the table, and the version with which it began."""

    def wake(self) -> None:
        self._dirty = True
        self._wake.set()

    @property
    def busy(self) -> bool:
        """A change was not looked at yet."""
        return self._dirty

    @property
    def version(self) -> int:
        """Of the present table; 0: there is none yet."""
        return 0 if self._decision is None else self._decision.state.version

    def sign(self, frame: Frame) -> None:
        """Sign a request as the super user; before the first table not at all.

        With the oldest valid key: every member that answers knows that one, also while a new one is on its way.
        """
        if self._decision is None:
            return
        admin = next((u for u in self._decision.table["users"] if u["name"] == ADMIN), None)
        if admin is not None:
            Credentials(ADMIN, admin["keys"][-1]).sign(frame)

    async def run(self) -> None:
        """Never returns."""
        try:
            while True:
                try:
                    self.problem = await self._pass()
                except StoreUnavailable as error:
                    if str(error) != self.problem:
                        log.warning("access: %s", error)
                    self.problem, self._dirty, self._state = str(error), True, None
                    await asyncio.sleep(AGAIN_S)
                self._wake.clear()
                await set_within(self._wake, LOOK_S)
        finally:
            await end_tasks(*self._pushing.values())

    async def _pass(self) -> str:
        """Why a Secret could not be written; empty: none is missing."""
        members = [(w, a) for w in self._watches() if (a := access_of(w)) is not None]
        highest = max((a.version for _, a in members), default=0)
        # A member that lacks the present table may have changes that this table contains already.
        waiting = [w for w, a in members if a.changes > 0 and (self._decision is None or a.version >= self.version)]
        due = (
            self._decision is not None and self._decision.next_at is not None and self._now() >= self._decision.next_at
        )
        if self._dirty or due or waiting or self._decision is None or highest > self.version:
            await self._decide(highest, waiting)
        if self._decision is None:
            return ""
        behind = self._push(members)
        decision = self._decision
        await self._store.write_table(self._body)
        if decision.writes and (not behind or time.monotonic() - self._saved_at >= SECRETS_AFTER_S):
            await self._write_secrets(decision)
        elif not decision.writes:
            self._unwritten = {}
        lowest = min((self._known_version(w, a) for w, a in members), default=0)
        await self._store.report(
            decision.results, lambda user: bool(members) and self._since.get(user, (None, 0))[1] <= lowest
        )
        return "; ".join(self._unwritten.values())

    async def _write_secrets(self, decision: Decision) -> None:
        """One that cannot be written keeps back no other one. It is tried again with the next decision."""
        if time.monotonic() < self._write_after:
            return
        former, self._unwritten = self._unwritten, {}
        for name, content in decision.writes.items():
            try:
                await self._store.write_secret(name, content)
            except StoreUnavailable as error:
                if former.get(name) != str(error):
                    log.warning("access: %s", error)
                self._unwritten[name] = str(error)
        if self._unwritten:
            self._write_after = time.monotonic() + AGAIN_S
        self._dirty = True  # The Secret's watch may have come before our own write.

    async def _decide(self, highest: int, waiting: Sequence[MemberWatch]) -> None:
        self._dirty = False
        seen = self._store.observe()
        if seen is None:
            self._dirty = True
            return
        if self._state is None:
            self._state = await self._store.load()
        changes = dict(await asyncio.gather(*(self._changes(w) for w in waiting)))
        seen = replace(seen, member_version=highest, changes={m: c for m, c in changes.items() if c})
        decision = decide(self._state, seen, self._now())
        if decision.state != self._state:
            await self._store.save(decision.state)
            self._state, self._saved_at = decision.state, time.monotonic()
        for kind, reason, message, user in decision.notes:
            self._store.note(kind, reason, message, user)
        by_key = {u["name"]: u for u in decision.table["users"]}
        names = {w.name for w in seen.wanted}
        self._since = {name: since for name, since in self._since.items() if name in names}
        for each in seen.wanted:
            part = (by_key.get(each.access_key), decision.table["mode"])
            if self._since.get(each.name, (None, 0))[0] != part:
                self._since[each.name] = (part, decision.state.version)
        self._decision = decision
        self._body = orjson.dumps(decision.table)

    def _known_version(self, watch: MemberWatch, access: MemberAccess) -> int:
        """Return the version of a member's table, by its status and by its answers."""
        sent = self._sent.get(watch.name)
        fresh = sent is not None and sent.started_ms == access.started_ms
        return max(access.version, sent.version) if sent is not None and fresh else access.version

    def _push(self, members: Sequence[tuple[MemberWatch, MemberAccess]]) -> bool:
        """Send the table to every member that lacks it. Returns whether an answering member still lacks it."""
        behind = False
        now = time.monotonic()
        for watch, access in members:
            if access.version >= self.version:
                continue
            sent = self._sent.get(watch.name)
            if sent is not None and sent.version >= self.version and sent.started_ms == access.started_ms:
                if now - sent.at < AGAIN_S:
                    continue
                self._sent.pop(watch.name)  # Its status contradicts its answer.
            behind = True
            if watch.name in self._pushing or now < self._not_before.get(watch.name, 0.0):
                continue
            task = asyncio.create_task(self._send(watch, access, self.version, self._body))
            self._pushing[watch.name] = task
        return behind

    async def _send(self, watch: MemberWatch, access: MemberAccess, version: int, body: bytes) -> None:
        try:
            answer = await self._client.put(
                f"{watch.url}/v1/access", content=body, headers=JSON, timeout=SEND_TIMEOUT_S
            )
            if answer.status_code != 200:
                raise ValueError(f"it answered {answer.status_code}: {answer.text[:200]}")
            held = int(answer.json()["version"])
            self._sent[watch.name] = _Sent(held, access.started_ms, time.monotonic())
        except (httpx.HTTPError, ValueError, KeyError, TypeError) as error:
            log.warning("the access table %s does not reach %s: %s", version, watch.name, error or repr(error))
            self._not_before[watch.name] = time.monotonic() + AGAIN_S
        finally:
            self._pushing.pop(watch.name, None)
            self._wake.set()

    async def _changes(self, watch: MemberWatch) -> tuple[str, list[dict[str, Any]]]:
        """Return what mqadmin changed at a member; nothing if it does not answer now."""
        try:
            answer = await self._client.get(f"{watch.url}/v1/access/changes", timeout=SEND_TIMEOUT_S)
            if answer.status_code != 200 or len(answer.content) > CHANGES_LIMIT:
                raise ValueError(f"it answered {answer.status_code} with {len(answer.content)} bytes")
            changes = answer.json()["changes"]
            return watch.name, [c for c in changes if isinstance(c, dict)]
        except (httpx.HTTPError, ValueError, KeyError, TypeError) as error:
            log.warning("the changes of mqadmin at %s cannot be read: %s", watch.name, error or repr(error))
            return watch.name, []
