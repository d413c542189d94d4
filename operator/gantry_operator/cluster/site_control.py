"""The edge of `second_site.py`: tells members their part, and carries out `gantry demote` and `gantry promote`.

Each step may be repeated, so the process may end after any of them. The state is kept before members hear of it; if the
last write was lost, members know better (`adopt`).
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, replace
from typing import Any, Final, TypeVar

from gantry_broker.contracts.models import CloseAnswer, SiteLook, TakeAnswer
from gantry_broker.tasks import set_within
from pydantic import BaseModel, ValidationError

from gantry_operator.cluster.failures import in_words
from gantry_operator.cluster.group_controller import GroupController
from gantry_operator.cluster.member_client import JSON
from gantry_operator.cluster.member_http import httpx
from gantry_operator.cluster.member_watch import MemberWatch
from gantry_operator.cluster.platform import Event, SiteStore
from gantry_operator.cluster.second_site import (
    UNKNOWN,
    Looked,
    MemberSite,
    Refused,
    SiteState,
    adopt,
    demote,
    demoted,
    first_state,
    given_up,
    instruction,
    member_site,
    not_here,
    promote,
    site_condition,
    taken,
)

log = logging.getLogger(__name__)

LOOK_S: Final = 0.25
"""Seconds between two steps while the part changes or a member does not know it."""
IDLE_S: Final = 1.0
AGAIN_S: Final = 1.0
"""Seconds until a member gets the same instruction again."""
CALL_S: Final = 5.0
ARCHIVE_S: Final = 90.0
"""Seconds of a call that reads or writes the archive."""
GIVE_UP_S: Final = 30.0
"""Seconds without progress after which a demotion gives up what is not archived, if a person has accepted that."""


_M = TypeVar("_M", bound=BaseModel)


class _Failed(Exception):
    """A member refused or did not answer. The text is its reason."""


def _detail(answer: httpx.Response) -> str:
    try:
        return str(answer.json()["detail"])[:500]
    except (ValueError, KeyError, TypeError):
        return f"it answered {answer.status_code}: {answer.text[:200]}"


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


class SiteControl:
    """Runs from `run` until cancelled."""

    def __init__(
        self,
        store: SiteStore,
        controllers: Mapping[str, GroupController],
        client: httpx.AsyncClient,
        *,
        groups: Callable[[], Iterable[str]],
        follows: Callable[[], bool],
        archives: Callable[[], bool],
        elects: Callable[[], bool] = lambda: False,
        on_event: Callable[[Event], None],
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        """Set up for one cluster. `groups`: those of the spec. `follows`: the spec has bootstrap.follow. `archives`:
        the spec has an archive. `elects`: the members elect their leader (mode Raft). `changed`: the state is another
        one.
        """
        self.waits = ""
        """What a change waits for."""
        self._store = store
        self._controllers = controllers
        self._client = client
        self._groups, self._follows, self._archives, self._elects = groups, follows, archives, elects
        self._event, self._changed = on_event, changed
        self._state: SiteState | None = None
        self._instructed_at: dict[str, float] = {}
        self._archived: tuple[int, int] = (-1, 0)
        """Demoting: the generation, and the sum of the groups' archived ends."""
        self._archived_at = 0.0
        """When that last changed, by the monotonic clock."""
        self._wake = asyncio.Event()
        self._lock = asyncio.Lock()

    # ---- what others see

    @property
    def state(self) -> SiteState:
        """The part of the cluster as far as it is known."""
        if self._state is not None:
            return self._state
        # An ordinary cluster may get the field later; its members go on.
        return first_state(self._members(), follows=self._follows())

    @property
    def is_standby(self) -> bool:
        return self.state.role in ("Standby", "Promoting")

    @property
    def known_standby(self) -> bool:
        """Whether it was read or told that the cluster is a standby; False also before anything is known."""
        return self._state is not None and self.is_standby

    @property
    def reads_only(self) -> str:
        """Why clients can only read; empty: they can write, too."""
        if self.is_standby:
            return "the cluster is a standby"
        return next((m.superseded for m in self._members() if m.superseded), "")

    @property
    def condition(self) -> tuple[Any, str, str] | None:
        return site_condition(self.state, self._members(), self.waits)

    def why_not_ready(self) -> str:
        """Why a standby does not serve reads in all groups; empty: it does, or the cluster is no standby."""
        if not self.is_standby:
            return ""  # A cluster that was superseded serves reads as before.
        members = self._members()
        lacking = [g for g in self._groups() if not any(m.follows for m in members if m.group == g)]
        return f"the standby has not read the archive of group {', '.join(lacking)} yet" if lacking else ""

    # ---- requests

    async def demote(self, *, accept_loss: bool, timeout_s: float) -> str:
        """End the writes, archive the last byte, and return the token; "" after a cluster that was superseded. Raises
        Refused, also when it takes too long: it goes on all the same.
        """
        async with self._lock:
            if not self._archives() and self.state.role == "Active":
                raise Refused("this cluster has no archive: write spec.archive, so that the other site can follow")
            members = self._members()
            silent = sorted(set(self._groups()) - {m.group for m in members if m.leads or m.superseded})
            if silent and self.state.role == "Active":
                raise Refused(f"group {', '.join(silent)} has no leader that answers: demote when all groups have one")
            state = demote(self.state, members, secrets.token_hex(16), accept_loss=accept_loss, now_ms=_now_ms())
            if state != self.state:
                await self._take(state, "DemotionStarted", "writes end, the last bytes go to the archive")
        await self._until(lambda: self.state.role != "Demoting", timeout_s, "the demotion")
        return self.state.token

    async def promote(self, token: str, *, accept_loss: bool, timeout_s: float) -> str:
        """Make this standby the cluster, and wait until its groups have leaders. Returns the name of the promotion.
        Raises Refused as `demote`.
        """
        async with self._lock:
            if self.state.role == "Standby":
                if not self._archives():
                    raise Refused(
                        "after a promotion this cluster goes on with the archive: write spec.archive with the url that "
                        "it follows, then repeat"
                    )
                looked = [await self._look(group) for group in self._groups()]
                state = promote(
                    self.state, looked, token, secrets.token_hex(6), accept_loss=accept_loss, now_ms=_now_ms()
                )
                absent = ", ".join(not_here(looked))
                without = f" without group {absent}, which this cluster does not have" if absent else ""
                await self._take(state, "PromotionStarted", f"the archive is taken over{without}")
            else:
                state = promote(self.state, [], token, "", accept_loss=accept_loss, now_ms=_now_ms())
                if state != self.state:
                    await self._take(state, "PromotionStarted", "what was not handed over is given up")
        await self._until(
            lambda: self.state.role != "Promoting" and not self._without_leader(), timeout_s, "the promotion"
        )
        return self.state.origin

    def _without_leader(self) -> list[str]:
        return sorted(set(self._groups()) - {m.group for m in self._members() if m.leads})

    async def _until(self, done: Callable[[], bool], timeout_s: float, what: str) -> None:
        ends = time.monotonic() + timeout_s
        while not done():
            if time.monotonic() > ends:
                silent = self._without_leader()
                why = self.waits or (f"group {', '.join(silent)} has no leader yet" if silent else "")
                raise Refused(f"{what} is not complete yet and goes on: {why or 'no member has answered yet'}")
            await asyncio.sleep(LOOK_S / 2)

    async def _look(self, group: str) -> Looked:
        """Ask the members. Raises Refused."""
        watches = [w for w, m in self._seen() if m.group == group and m.role == "Standby"]
        why = "no member answers"
        for watch in watches:
            try:
                archive = await self._call("GET", f"{watch.url}/v1/site/archive", SiteLook, timeout_s=ARCHIVE_S)
            except _Failed as error:
                why = f"{watch.name}: {error}"
                continue
            return Looked(
                group, archive.owner_cluster, archive.closed, archive.archived_end, archive.archived_ms,
                tuple(archive.handed_over), tuple(archive.groups),
            )  # fmt: skip
        raise Refused(f"the archive of group {group} cannot be read: {why}")

    # ---- the loop

    async def run(self) -> None:
        while True:
            try:
                busy = await self.step()
            except Exception as error:  # It goes on: a half demoted cluster takes no writes.
                log.exception("the part of this site")
                self.waits, busy = f"{type(error).__name__}: {error}", False
            self._wake.clear()
            await set_within(self._wake, LOOK_S if busy else IDLE_S)

    async def step(self) -> bool:
        """Do what is due. True: look again soon."""
        if self._state is None:
            stored = self._store.load()
            # What a new cluster begins as is no knowledge: a status may have it from before members were seen.
            begins = stored is not None and stored.generation == 0 and stored.role in ("Active", "Standby")
            self._state = None if begins else stored
        members = self._members()
        state = await self._find_ends(adopt(self.state, members, self._groups()), members)
        if state != self.state:
            await self._take(state, "SiteAdopted", f"members know that this cluster is {state.role}")
        await self._instruct()
        if state.role == "Demoting":
            await self._close_all()
        elif state.role == "Promoting":
            await self._take_archive()
        else:
            self.waits = ""
            return any(instruction(state, m) for m in members)
        return True

    async def _find_ends(self, state: SiteState, members: list[MemberSite]) -> SiteState:
        """Look in the archive for an end that every member of a group lacks: it is this cluster's, and none of them
        leads, so it still ends there.
        """
        for group in [g for g, end in state.ends.items() if end == UNKNOWN]:
            heard = [m for m in members if m.group == group]
            controller = self._controllers.get(group)
            if controller is None or len(heard) < len(controller.watches):
                continue
            try:
                end = (await self._look(group)).archived_end
            except Refused as error:
                log.info("%s", error)
                continue
            state = replace(state, ends={**state.ends, group: end})
        return state

    async def _take(self, state: SiteState, reason: str, text: str) -> None:
        await self._store.save(state)
        self._state = state
        log.info("the part of this cluster is %s (generation %d): %s", state.role, state.generation, text)
        warns = state.role in ("Demoting", "Promoting")
        self._event(Event("Warning" if warns else "Normal", reason, text, ""))
        self._changed()
        self._wake.set()

    async def _instruct(self) -> None:
        now, calls = time.monotonic(), []
        for watch, member in self._seen():
            news = instruction(self.state, member)
            if news is not None and now - self._instructed_at.get(watch.url, -AGAIN_S) >= AGAIN_S:
                self._instructed_at[watch.url] = now
                calls.append(self._put(watch, asdict(news)))
        await asyncio.gather(*calls)

    async def _put(self, watch: MemberWatch, body: dict[str, Any]) -> None:
        try:
            answer = await self._client.put(f"{watch.url}/v1/site", json=body, timeout=CALL_S)
            if answer.status_code != 200:
                log.warning("%s does not take its part: %s", watch.name, answer.text[:200])
        except httpx.HTTPError as error:
            log.info("%s does not answer: %r", watch.name, error)

    async def _close_all(self) -> None:
        """Each group's leader closes its archive. The cluster is a standby once all are closed."""
        missing, archived = [], 0
        for group in self._groups():
            leaders = [(w, m) for w, m in self._seen() if m.group == group and m.leads]
            if not leaders:
                missing.append(f"group {group} has no leader")
                continue
            watch, member = leaders[0]
            if instruction(self.state, member) is not None:
                missing.append(f"{watch.name} does not know it yet")
                continue
            try:
                reply = await self._call("POST", f"{watch.url}/v1/site/close", CloseAnswer, {"token": self.state.token})
            except _Failed as error:
                missing.append(f"{watch.name}: {error}")
                continue
            archived += reply.archived
            if not reply.closed:
                missing.append(f"{watch.name}: {reply.reason}")
        self.waits = "; ".join(missing)
        if not missing:
            text = f"all is archived; promote the other site with --token {self.state.token}"
            await self._take(demoted(self.state, _now_ms()), "Demoted", text)
            return
        progress, now = (self.state.generation, archived), time.monotonic()
        if progress != self._archived:
            self._archived, self._archived_at = progress, now
        elif self.state.accept_loss and now - self._archived_at >= GIVE_UP_S:
            await self._take(given_up(self.state, _now_ms()), "Demoted", f"what is not archived is lost: {self.waits}")

    async def _take_archive(self) -> None:
        ends: dict[str, int] = {}
        body = {"token": self.state.token, "accept_loss": self.state.accept_loss}
        for group in self._groups():
            why = f"group {group}: no member answers"
            for watch, member in self._seen():
                if member.group != group or member.role != "Standby":
                    continue
                try:
                    reply = await self._call("POST", f"{watch.url}/v1/site/take", TakeAnswer, body, timeout_s=ARCHIVE_S)
                except _Failed as error:
                    why = f"{watch.name}: {error}"
                    continue
                ends[group] = reply.archived_end
                break
            if group not in ends:
                self.waits = why
                return
        # Members vote by what they have, and a majority may lack what one member has.
        needed = {g: len(c.watches) for g, c in self._controllers.items()} if self._elects() else {}
        done = taken(self.state, ends, self._members(), _now_ms(), needed)
        if isinstance(done, str):
            self.waits = done
            return
        await self._take(done, "Promoted", "this cluster takes writes and owns the archive")

    # ---- members

    def _seen(self) -> list[tuple[MemberWatch, MemberSite]]:
        seen = []
        for group in self._groups():
            controller = self._controllers.get(group)
            for watch in () if controller is None else controller.watches.values():
                if watch.reach != "ok" or watch.status is None:
                    continue
                member = member_site(watch.name, group, watch.status)
                if member is not None:
                    seen.append((watch, member))
        return seen

    def _members(self) -> list[MemberSite]:
        return [member for _, member in self._seen()]

    async def _call(
        self, method: str, url: str, model: type[_M], body: dict[str, Any] | None = None, timeout_s: float = CALL_S
    ) -> _M:
        """Send one request. Raises _Failed with what the member says."""
        try:
            answer = await self._client.request(
                method, url, json=body, headers=JSON, timeout=httpx.Timeout(CALL_S, read=timeout_s)
            )
            if answer.status_code != 200:
                raise _Failed(_detail(answer))
            return model.model_validate_json(answer.content)
        except httpx.HTTPError as error:
            raise _Failed(in_words(error)) from None
        except ValidationError as error:
            raise _Failed(f"an answer that is not understood: {error.errors()[0]['msg']}") from None
