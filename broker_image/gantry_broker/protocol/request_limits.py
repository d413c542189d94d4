"""Refuses requests that bring more than their row in `requests.py` allows.

A connection looks a large frame up here as soon as its header is there, before its body is kept (`FrameDecoder`).
Frames of at most `SMALL_FRAME` bytes are within every limit. RocketMQ 4.9.7 has one limit for all frames (16 MiB,
`com.rocketmq.remoting.frameMaxLength`) and closes the connection; here the request is refused, and the connection
goes on.

A limit of a body follows from what handling it costs: none takes more than some 20 ms on one core.
"""

from __future__ import annotations

from collections.abc import Callable

from gantry_broker.protocol.codes import FLAG_RESPONSE, ResponseCode
from gantry_broker.protocol.frame import MAX_FRAME, Frame, Refusal
from gantry_broker.protocol.limits import HEADER, MAX_FIELDS, SMALL_BODY
from gantry_broker.protocol.requests import BODIES, HEADERS, MEMBERS_BODIES, SENDS


class RequestLimits:
    """The limits of all codes, with the settings that they depend on."""

    def __init__(self, max_message_size: Callable[[], int] = lambda: MAX_FRAME, *, members: bool = False) -> None:
        """`max_message_size` gives the body limit of sends, which may change while the process runs.

        `members`: the port is one between members.
        """
        self._max_message_size = max_message_size
        self._bodies = MEMBERS_BODIES if members else BODIES

    def body(self, code: int) -> int:
        """Bytes that the body of a request of this code may have."""
        if code in SENDS:
            return self._max_message_size()
        return self._bodies.get(code, SMALL_BODY)

    def refusal(self, frame: Frame, header: int, body: int) -> Refusal | None:
        """Why a request with a header and a body of so many bytes is refused; None: it is within its limits.

        An answer to a request of ours may have any size: who asked for it knows what it asked for.
        """
        if frame.flag & FLAG_RESPONSE:
            return None
        code = frame.code
        if header > (most := HEADERS.get(code, HEADER)):
            return _refusal(frame, f"the header of request {code} has {header} bytes, the limit is {most}")
        if (fields := len(frame.ext)) > MAX_FIELDS:
            return _refusal(frame, f"the header of request {code} has {fields} fields, the limit is {MAX_FIELDS}")
        if body <= (most := self.body(code)):
            return None
        if code in SENDS:
            return _refusal(frame, f"the message is illegal: its body has {body} bytes, maxMessageSize is {most}")
        return _refusal(frame, f"the body of request {code} has {body} bytes, the limit is {most}")


def _refusal(frame: Frame, remark: str) -> Refusal:
    """MESSAGE_ILLEGAL for sends, as RocketMQ refuses a message that is too large, else SYSTEM_ERROR."""
    code = ResponseCode.MESSAGE_ILLEGAL if frame.code in SENDS else ResponseCode.SYSTEM_ERROR
    return Refusal(frame, int(code), remark)
