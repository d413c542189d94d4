"""The Lease by which one of several operators acts: one acts and renews a Lease, the others stand by.

Why not kopf's peering: it elects by priority and has no time bound after which a silent operator must stop. Failover
needs that bound, and needs a standby to take over before the Lease expires (docs/adr/0003-own-watches.md).

The leader stops acting when it could not renew for `GIVE_UP_S`, which is shorter than the Lease. Times come from its
own monotonic clock, so clocks need not agree. An operator that ends cleanly releases the Lease.

A node that dies may run the leader and also the master of a group. No operator replaces that master before there is a
new leader. Therefore a standby takes over early if the leader misses renewals and its address does not answer. A slow
leader keeps its address, because the kernel accepts connections. A leader that the standby cannot reach keeps the Lease
while it renews. A leader that neither renews nor answers, but lives, can act for `GIVE_UP_S` at most. No
message depends on that: epochs and the compare-and-swap of each group's Lease protect them.
"""

from __future__ import annotations

import asyncio
import logging
import time
from datetime import UTC, datetime

from gantry_broker.remoting.client import split_address
from gantry_broker.remoting.connecting import LATE_S, first_of
from gantry_broker.remoting.errors import ConnectError

from gantry_operator.api.annotations import GROUP
from gantry_operator.platforms.kubernetes.api.client import LEASE, ApiError, ApiUnavailable, KubeApi, Object

log = logging.getLogger(__name__)

DURATION_S = 6
RENEW_S = 0.75
LOOK_S = 0.5
JUST_AFTER_S = 0.01
GIVE_UP_S = 4.0
"""Seconds without a renewal after which the leader stops. The margin is DURATION_S minus this."""
MISSED_S = 1.5
"""Seconds without a renewal, two missed ones, after which a standby tries to connect to the leader."""
ATTEMPTS = 3
REACH_S = ATTEMPTS * LATE_S
"""Seconds for which a standby tries to connect: one attempt every `LATE_S`."""
ADDRESS = f"{GROUP}/address"
"""Annotation of the Lease with the holder's address."""


class Election:
    """Usage: `await acquire()`, act while `hold()` runs, `await release()` at the end."""

    def __init__(self, api: KubeApi, namespace: str, name: str, identity: str, address: str = "") -> None:
        """`address`: "host:port" at which this process listens; empty: standbys do not probe it."""
        self.leading = False
        self._address = address
        self._api = api
        self._namespace = namespace
        self._name = name
        self._identity = identity
        self._seen: tuple[str, float] | None = None
        """The last observed write of the Lease, and its time by the own clock."""
        self._renewed_at = 0.0
        self._written: Object | None = None
        """The Lease as last written by this process; None: read it first."""

    async def acquire(self) -> None:
        """Return when this process leads."""
        while True:
            if await self._try_within(GIVE_UP_S):
                break
            await asyncio.sleep(self._next_look())
        self.leading = True
        log.info("%s leads", self._identity)

    async def hold(self) -> None:
        """Renew the Lease until it is lost, then return. The process must not act any more.

        One request may be lost: an attempt has half of the time that is left after a renewal, and the next one follows
        a slow one at once.
        """
        begun = time.monotonic()
        while True:
            await asyncio.sleep(max(0.0, begun + RENEW_S - time.monotonic()))
            begun = time.monotonic()
            left = self._renewed_at + GIVE_UP_S - begun
            mine = await self._try_within(max(0.1, min(left, (GIVE_UP_S - RENEW_S) / 2)))
            if not mine and (self._taken_by_other() or time.monotonic() - self._renewed_at >= GIVE_UP_S):
                # By the own clock and before the Lease ends: two operators must not decide at the same time for long.
                self.leading = False
                log.error("%s does not lead any more", self._identity)
                return

    async def release(self) -> None:
        """Release the Lease if this process holds it, so that the next leader need not wait for its end."""
        if not self.leading:
            return
        self.leading = False
        try:
            lease = await self._api.get(LEASE, self._namespace, self._name)
            if lease is not None and lease["spec"].get("holderIdentity") == self._identity:
                lease["spec"] |= {"holderIdentity": "", "leaseDurationSeconds": 1, "renewTime": _now()}
                await self._api.replace(lease)
        except (ApiError, ApiUnavailable) as error:
            log.warning("releasing the Lease: %s", error)

    def _taken_by_other(self) -> bool:
        return self._holder not in ("", self._identity)

    _holder = ""

    async def _try_within(self, seconds: float) -> bool:
        """Like `_try_once`; False also without an answer in time."""
        try:
            async with asyncio.timeout(seconds):
                return await self._try_once()
        except TimeoutError:
            return False

    async def _try_once(self) -> bool:
        """Acquire or renew. True: this process holds the Lease.

        A renewal replaces the last written Lease without reading it. The API server refuses that after another write or
        a deletion, and the Lease is read again.
        """
        last_written, self._written = self._written, None
        try:
            begun = time.monotonic()
            lease = last_written or await self._api.get(LEASE, self._namespace, self._name)
            if lease is None:
                self._written = await self._api.create(self._lease({}, 0))
            else:
                spec = lease.get("spec") or {}
                self._holder = spec.get("holderIdentity") or ""
                if self._holder not in ("", self._identity) and not await self._may_be_taken(lease):
                    return False
                changes = int(spec.get("leaseTransitions") or 0) + (self._holder != self._identity)
                written = self._lease(lease["metadata"], changes)
                if self._holder == self._identity:
                    written["spec"]["acquireTime"] = spec.get("acquireTime", written["spec"]["acquireTime"])
                self._written = await self._api.replace(written)
            # The time before the request counts: the API server may have written it long before its answer came.
            self._holder, self._renewed_at = self._identity, begun
        except ApiError as error:
            if last_written is not None and error.reason in ("Conflict", "NotFound"):
                return await self._try_once()
            if error.reason not in ("Conflict", "AlreadyExists"):
                log.warning("the operator's Lease: %s", error)
            return False
        except ApiUnavailable as error:
            log.warning("the operator's Lease: %s", error)
            return False
        return True

    async def _may_be_taken(self, lease: Object) -> bool:
        """Return whether the Lease was not renewed for its full duration by the own clock; or renewals are late and its
        holder is unreachable.
        """
        version, now = lease["metadata"]["resourceVersion"], time.monotonic()
        # The age is that of the version, by this clock: the holder's may be wrong by any amount.
        if self._seen is None or self._seen[0] != version:
            self._seen = (version, now)
        age = now - self._seen[1]
        if age > float(lease["spec"].get("leaseDurationSeconds") or DURATION_S):
            return True
        address = (lease["metadata"].get("annotations") or {}).get(ADDRESS)
        if age < MISSED_S or not address or await _listens(address):
            return False
        log.warning("%s has not renewed for %.1f s, and no process answers at %s", self._holder, age, address)
        return True

    def _next_look(self) -> float:
        """Seconds: `LOOK_S`, or less if the state of the Lease may change sooner."""
        if self._seen is None:
            return LOOK_S
        age = time.monotonic() - self._seen[1]
        return min([LOOK_S, *(at - age + JUST_AFTER_S for at in (MISSED_S, DURATION_S) if at > age)])

    def _lease(self, meta: Object, transitions: int) -> Object:
        now = _now()
        return {
            "apiVersion": LEASE.api_version,
            "kind": "Lease",
            "metadata": {
                "name": self._name,
                "namespace": self._namespace,
                "annotations": {ADDRESS: self._address},
            }
            | ({"resourceVersion": meta["resourceVersion"]} if meta else {}),
            "spec": {
                "holderIdentity": self._identity,
                "leaseDurationSeconds": DURATION_S,
                "acquireTime": now,
                "renewTime": now,
                "leaseTransitions": transitions,
            },
        }


async def _listens(address: str) -> bool:
    """Whether a process accepts connections there. An invalid address counts as yes, because nothing is known."""

    async def connect(target: tuple[str, int]) -> asyncio.StreamWriter:
        _, writer = await asyncio.open_connection(*target)
        return writer

    try:
        async with asyncio.timeout(REACH_S):
            writer = await first_of(
                [split_address(address)], connect, asyncio.StreamWriter.close, round(REACH_S / LATE_S)
            )
    except ConnectError:
        return True
    except (OSError, TimeoutError):
        return False
    writer.close()
    return True


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
