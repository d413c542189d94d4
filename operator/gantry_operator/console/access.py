"""Who may read and write: sessions, and the one-time link of the local console.

A session is a random cookie (HttpOnly, SameSite=Strict) in a table of this process. Each form carries the session's
CSRF token, and a request that changes something must come from a page of this console (`Origin`).
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import urlsplit

SESSION_S: Final = 12 * 3600.0
"""Seconds for which an unused session lasts."""
MAX_SESSIONS: Final = 1_000
LINK_BYTES: Final = 32
KEPT: Final = 20
"""Changes of one session that can be shown again."""


@dataclass(frozen=True, slots=True)
class Done:
    """A change that was made: where, what came of it, the command that does the same, and the page to go back to."""

    cluster: str
    section: str
    said: str
    command: str
    back: str


@dataclass(slots=True)
class Session:
    """A person's browser. `user`: for the page; `token`: the person's own, for checks of Kubernetes."""

    id: str
    csrf: str
    user: str
    used: float
    token: str = field(default="", repr=False)
    done: dict[str, Done] = field(default_factory=dict, repr=False)
    """The last changes, by the end of the address that shows each."""

    def keep(self, done: Done) -> str:
        """Keep a change for the page that the browser is sent to, so that a reload changes nothing."""
        while len(self.done) >= KEPT:
            del self.done[next(iter(self.done))]
        name = secrets.token_urlsafe(9)
        self.done[name] = done
        return name


class Sessions:
    """All sessions. Times are seconds of a monotonic clock."""

    def __init__(self) -> None:
        self._sessions: dict[str, Session] = {}

    def open(self, user: str, now: float, token: str = "") -> Session:
        """Return a new session. The one that was not used for the longest time makes room."""
        self._sessions = {k: s for k, s in self._sessions.items() if now - s.used < SESSION_S}
        while len(self._sessions) >= MAX_SESSIONS:
            del self._sessions[min(self._sessions, key=lambda k: self._sessions[k].used)]
        session = Session(secrets.token_urlsafe(32), secrets.token_urlsafe(32), user, now, token)
        self._sessions[session.id] = session
        return session

    def find(self, cookie: str | None, now: float) -> Session | None:
        session = self._sessions.get(cookie or "")
        if session is None or now - session.used >= SESSION_S:
            return None
        session.used = now
        return session

    def close(self, session: Session) -> None:
        self._sessions.pop(session.id, None)


class OneTimeLinks:
    """Secrets that open a session once, as in the URL of a Jupyter server."""

    def __init__(self) -> None:
        self._open: set[str] = set()

    def make(self) -> str:
        link = secrets.token_urlsafe(LINK_BYTES)
        self._open.add(link)
        return link

    def use(self, given: str) -> bool:
        """Whether the secret is one that was not used yet. It is used then."""
        used = [link for link in self._open if hmac.compare_digest(link.encode(), given.encode())]
        self._open.difference_update(used)
        return bool(used)


def may_change(session: Session, csrf: str, headers: Mapping[str, str]) -> str:
    """Why a request with a form is refused; empty: it is not. `headers` have lower-case names."""
    if not hmac.compare_digest(session.csrf.encode(), csrf.encode()):
        return "the form is not of this session: load the page again"
    origin = headers.get("origin")
    if origin is not None and urlsplit(origin).netloc.lower() != headers.get("host", "").lower():
        return "the request comes from another site"
    return ""
