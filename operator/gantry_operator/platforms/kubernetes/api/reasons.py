"""Why Kubernetes does not make or start an object: the newest warning about it, from its events.

A quota, a LimitRange or a missing PriorityClass refuses pods of a StatefulSet, and only the events say so. Nothing is
read while no object is missing.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Iterable, Mapping
from typing import Any, Final

from gantry_operator.platforms.kubernetes.api.client import EVENT, ApiError, ApiUnavailable, KubeApi, Object

log = logging.getLogger(__name__)

About = tuple[str, str]
"""Kind and name of an object."""

LOOK_S: Final = 5.0
"""Seconds between two readings of one object's events."""
_NO_CLASS: Final = re.compile(r'storageclass\.storage\.k8s\.io "([^"]+)" not found')
_PREFIX: Final = re.compile(r"^create Pod \S+ in StatefulSet \S+ failed error: ")
_QUOTA: Final = re.compile(r"is forbidden: exceeded quota: ([^,]+)(.*)")


_OF_RUNNING = ("BackOff", "Unhealthy")
"""Reasons of events about a container that runs or ran: a probe that fails is no reason why another one starts late."""


class Reasons:
    """The newest warnings of the objects that were asked for last."""

    def __init__(self, api: KubeApi, namespace: str) -> None:
        self._api = api
        self._namespace = namespace
        self._warnings: dict[About, str] = {}
        self._looked_at: dict[About, float] = {}

    def of(self, kind: str, name: str) -> str:
        """Empty: no warning is known."""
        return self._warnings.get((kind, name), "")

    def missing_classes(self) -> set[str]:
        """Storage classes that do not exist, by the warnings of volume claims."""
        return {m[1] for warning in self._warnings.values() if (m := _NO_CLASS.search(warning)) is not None}

    async def look(self, objects: Iterable[About], now: float | None = None) -> bool:
        """Read the events of these objects, and forget all others. True: something changed."""
        at = time.monotonic() if now is None else now
        watched = list(dict.fromkeys(objects))
        before = dict(self._warnings)
        for gone in set(self._looked_at) - set(watched):
            self._looked_at.pop(gone)
            self._warnings.pop(gone, None)
        for about in watched:
            if at - self._looked_at.get(about, -LOOK_S) < LOOK_S:
                continue
            self._looked_at[about] = at
            fields = f"involvedObject.kind={about[0]},involvedObject.name={about[1]},type=Warning"
            try:
                events, _ = await self._api.list(EVENT, self._namespace, fields=fields)
            except (ApiError, ApiUnavailable) as error:
                log.warning("events of %s %s: %s", *about, error)
                continue
            warning = newest_warning(events, *about)
            if warning:
                self._warnings[about] = warning
            else:
                self._warnings.pop(about, None)
        return self._warnings != before


def newest_warning(events: Iterable[Object], kind: str, name: str) -> str:
    """Return the message of the newest warning about an object; empty: there is none."""
    warnings = [
        e
        for e in events
        if e.get("type") == "Warning"
        and e.get("reason") not in _OF_RUNNING
        and (e.get("involvedObject") or {}).get("kind") == kind
        and (e.get("involvedObject") or {}).get("name") == name
    ]
    newest = max(warnings, key=_time, default=None)
    return "" if newest is None else in_words(str(newest.get("message") or newest.get("reason") or ""))


def _time(event: Mapping[str, Any]) -> str:
    """RFC 3339 times in UTC compare as text."""
    series = event.get("series") or {}
    times = (series.get("lastObservedTime"), event.get("lastTimestamp"), event.get("eventTime"))
    stamp = (event.get("metadata") or {}).get("creationTimestamp")
    return max((str(t)[:19] for t in (*times, stamp) if t), default="")


def in_words(message: str) -> str:
    """Return a warning without the parts that repeat what the reader knows."""
    text = _PREFIX.sub("", " ".join(message.split()))
    quota = _QUOTA.search(text)
    if quota is not None:
        return f"quota {quota[1]} of the namespace is used up{quota[2]}: raise it, or lower resources or members"
    return text
