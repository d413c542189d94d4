"""A follower that fetches and stores nothing: it shows a slave's cost for its master, without the slave's own work.

    python -m rig.reader CONFIG.json

The file holds {"address", "epoch", "leaderEpochs", "member", "leader", "cluster", "group", "token_file"}. `address` is
the master's replication port. `member` and `leader` are pairs of number and incarnation.

Each line on standard input sets its state: `away` fetches nothing, `in sync` fetches at the end of the log, `behind`
fetches from the beginning. At the log's end it starts again from the beginning.
"""

from __future__ import annotations

import json
import select
import sys
from pathlib import Path

from gantry_broker.contracts.leadership import MemberId
from gantry_broker.protocol.frame import encode_frame
from gantry_broker.remoting.handshake import Identity
from gantry_broker.replication import wire
from gantry_broker.replication.messages import Fetch
from gantry_broker.store.log.epochs import EpochStart, LeaderEpochs

from .wire import Wire

FETCH_BYTES = 9 << 20
BATCH_BYTES = 256 << 10
NEAR_END_BYTES = 8 << 20
"""Distance from the log's end at which a reader that is behind starts again."""


class Reader:
    """One connection to the master."""

    def __init__(
        self, connection: Wire, epoch: int, leader_epochs: LeaderEpochs, me: MemberId, leader: MemberId
    ) -> None:
        self._socket = connection.socket
        self._socket.settimeout(None)
        self._config = (epoch, me, leader_epochs, leader)
        self._fetch_bytes = memoryview(bytearray(FETCH_BYTES))
        self.end = 0
        self.leader_end = 0

    def fetch(self) -> None:
        """Sends one fetch and returns its answer."""
        epoch, me, leader_epochs, leader = self._config
        fetch = Fetch(epoch, me, self.end, self.end, leader_epochs, leader=leader)
        self._socket.sendall(encode_frame(wire.fetch_frame(fetch)))
        self._read(4, 4)
        size = int.from_bytes(self._fetch_bytes[:4], "big")
        self._read(size, BATCH_BYTES)
        head_end = 4 + (int.from_bytes(self._fetch_bytes[:4], "big") & 0xFFFFFF)
        fields = json.loads(bytes(self._fetch_bytes[4:head_end]))["extFields"]
        if fields["kind"] != "records":
            raise SystemExit(f"the master answers {fields}")
        self.end += size - head_end
        self.leader_end = int(fields["leaderEnd"])

    def _read(self, size: int, at_once: int) -> None:
        have = 0
        while have < size:
            got = self._socket.recv_into(self._fetch_bytes[have:size], min(at_once, size - have))
            if not got:
                raise SystemExit("the master has ended the connection")
            have += got


def main() -> None:
    fields = json.loads(Path(sys.argv[1]).read_text())
    leader_epochs = tuple(EpochStart(*map(int, start)) for start in fields["leaderEpochs"])
    me = MemberId(*fields["member"])
    identity = Identity(fields["cluster"], fields["group"], me.member)
    connection = Wire(fields["address"], member=identity, token=Path(fields["token_file"]).read_bytes().strip())
    reader = Reader(connection, fields["epoch"], leader_epochs, me, MemberId(*fields["leader"]))
    state = "away"
    while True:
        if select.select([sys.stdin], [], [], None if state == "away" else 0.0)[0]:
            state = sys.stdin.readline().strip()
            if not state:
                return
            reader.end = 0
            if state == "in sync":
                reader.fetch()
                reader.end = reader.leader_end
        elif state != "away":
            reader.fetch()
            if state == "behind" and reader.leader_end - reader.end < NEAR_END_BYTES:
                reader.end = 0


if __name__ == "__main__":
    main()
