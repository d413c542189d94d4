"""Requests of `gantry demote` and `gantry promote` in an annotation of the cluster, and the answer. Pure."""

from __future__ import annotations

import uuid
from typing import NamedTuple

from gantry_broker.protocol.digits import whole_number

from gantry_operator.api.annotations import GROUP

SITE = f"{GROUP}/site"
"""Annotation `demote` or `promote`, then words `token=TOKEN`, `accept-loss`, `timeout=SECONDS`. An optional ` #id`
distinguishes equal requests.
"""
SITE_RESULT = f"{GROUP}/site-result"
"""Annotation with the request, then "done: ..." or "failed: ..."."""
LONGEST_S = 3_600


class SiteRequest(NamedTuple):
    """What a user asks for."""

    op: str
    token: str = ""
    accept_loss: bool = False
    timeout_s: float = 120.0


def new_request(op: str, token: str, *, accept_loss: bool, timeout_s: float) -> str:
    words = [op, *([f"token={token}"] if token else []), *(["accept-loss"] if accept_loss else [])]
    return f"{' '.join(words)} timeout={max(int(timeout_s), 1)} #{uuid.uuid4().hex[:8]}"


def parse_request(text: str) -> SiteRequest:
    """Read a request. Raises ValueError, which says what to write."""
    op, *words = text.split(" #")[0].split() or [""]
    if op not in ("demote", "promote"):
        raise ValueError(f"{text!r}: write demote or promote")
    request = SiteRequest(op)
    for word in words:
        name, _, value = word.partition("=")
        seconds = whole_number(value)
        if name == "token" and value:
            request = request._replace(token=value)
        elif word == "accept-loss":
            request = request._replace(accept_loss=True)
        elif name == "timeout" and seconds is not None and 1 <= seconds <= LONGEST_S:
            request = request._replace(timeout_s=float(seconds))
        else:
            raise ValueError(f"{word!r}: write token=TOKEN, accept-loss or timeout=SECONDS (1 to {LONGEST_S})")
    return request
