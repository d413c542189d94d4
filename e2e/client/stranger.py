"""Sends the smallest frames that there are, 29 bytes each, without a signature. Runs in a pod or anywhere.

    python stranger.py HOST PORT MEBIBYTES...

One connection for each number. The last line is one JSON array: the bytes that each could send before it was closed.
"""

from __future__ import annotations

import json
import socket
import struct
import sys
import threading

QUERY = 33
"""A request code that needs a signature."""
HEADER = struct.pack(">hBhiiii", QUERY, 12, 401, 7, 0, 0, 0)
FRAME = struct.pack(">ii", 4 + len(HEADER), (1 << 24) | len(HEADER)) + HEADER


def attempt(host: str, port: int, mebibytes: int) -> int:
    """Return the bytes that were sent. Answers are read, so that they hold up nothing."""
    left = (mebibytes << 20) // len(FRAME)
    sent = 0
    with socket.create_connection((host, port), 60) as conn:
        conn.settimeout(20)
        threading.Thread(target=drain, args=(conn,), daemon=True).start()
        try:
            while left:
                count = min(left, 8_192)
                conn.sendall(FRAME * count)
                left -= count
                sent += count * len(FRAME)
        except OSError:
            pass
    return sent


def drain(conn: socket.socket) -> None:
    try:
        while conn.recv(1 << 20):
            pass
    except OSError:
        pass


if __name__ == "__main__":
    assert len(FRAME) == 29
    print(json.dumps([attempt(sys.argv[1], int(sys.argv[2]), int(size)) for size in sys.argv[3:]]), flush=True)
