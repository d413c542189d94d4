"""Limits of sizes and numbers in requests. `requests.py` has those of each request code."""

from __future__ import annotations

from typing import Final

from gantry_broker.protocol.frame import SMALL_FRAME

KIB: Final = 1024
SMALL_BODY: Final = SMALL_FRAME
"""Bytes of the body of a request whose row names no limit, known or unknown: most have none."""
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
