"""What each request code may bring: bytes of its body and of its header. The one table of it.

A connection looks a large frame up here as soon as its header is there, before its body is kept (`FrameDecoder`).
Frames of at most `SMALL_FRAME` bytes are within every limit. RocketMQ 4.9.7 has one limit for all frames (16 MiB,
`com.rocketmq.remoting.frameMaxLength`) and closes the connection; here the request is refused, and the connection
goes on.

A limit of a body follows from what handling it costs: none takes more than some 20 ms on one core.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from gantry_broker.protocol import plausible
from gantry_broker.protocol.codes import FLAG_RESPONSE, GantryCode, RequestCode, ResponseCode
from gantry_broker.protocol.frame import MAX_FRAME, MAX_HEADER, SMALL_FRAME, Frame, Refusal

KIB: Final = 1024
SMALL_BODY: Final = SMALL_FRAME
"""Bytes of the body of a request that is not in the table, known or unknown: most have none."""
HEADER: Final = 256 * KIB
"""Bytes of a header: 32 KiB of properties, each byte of which JSON may write as six."""
MAX_FIELDS: Final = 256
"""Fields of a header over `SMALL_HEADER` bytes. The longest header of RocketMQ has some 20."""

MAX_QUEUES: Final = 4_096
"""Queues of a topic in a broker group."""
MAX_KEYS: Final = 1_000
"""Keys of one message: each costs every member of the group some 2 µs. RocketMQ's trace messages have the most, under
1,000: 33 bytes for each in at most 32 KiB of properties.
"""
MAX_REQUEST_KEYS: Final = 4_000
"""Keys of all messages of one request, the unique ones aside."""

MAX_ACCESS: Final = 4 * KIB * KIB
"""Bytes of an access table, which is read in a thread."""

MAX_RELAYED: Final = KIB * KIB
"""Bytes of a client that a follower carries to the leader in one frame, or back."""

SENDS: Final = frozenset(
    int(code)
    for code in (
        RequestCode.SEND_MESSAGE,
        RequestCode.SEND_MESSAGE_V2,
        RequestCode.SEND_BATCH_MESSAGE,
        RequestCode.SEND_REPLY_MESSAGE,
        RequestCode.SEND_REPLY_MESSAGE_V2,
    )
)
"""Their body limit is the broker's `maxMessageSize`."""
BODIES: Final[dict[int, int]] = {
    int(RequestCode.HEART_BEAT): 512 * KIB,
    int(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST): 512 * KIB,
    int(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST): 512 * KIB,
    int(RequestCode.LOCK_BATCH_MQ): 256 * KIB,
    int(RequestCode.UNLOCK_BATCH_MQ): 256 * KIB,
    int(GantryCode.PROXY_CLIENTS): 1024 * KIB,  # 200 clients of 16 topics
}
"""Bytes of the body by request code, where that is more than `SMALL_BODY`."""
MEMBERS_BODIES: Final[dict[int, int]] = {
    int(GantryCode.FETCH): plausible.MAX_LEADER_EPOCHS_BYTES,
    int(RequestCode.REGISTER_BROKER): 8 * KIB * KIB,  # some 50,000 topics; parsed in slices
    int(GantryCode.REGISTER_CHANGES): SMALL_BODY,  # some 400 topics
    int(GantryCode.UPDATE_ACCESS): MAX_ACCESS,
    int(GantryCode.FORWARD): MAX_FRAME,  # other members' bundles, which are bounded by their sender
    int(GantryCode.RELAY): MAX_RELAYED,
}
"""The same for requests that only the ports between members take."""
HEADERS: Final[dict[int, int]] = {int(RequestCode.PUT_KV_CONFIG): MAX_HEADER}
"""Bytes of the header by request code, where that is more than `HEADER`: a value of the NameServer's configuration."""


class RequestLimits:
    """The table with the settings that it depends on."""

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
