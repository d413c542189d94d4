"""What is between members is served to members alone: a local cluster of real processes, and a stranger beside it."""

from __future__ import annotations

import json
import resource
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
from gantry_broker.protocol import fastjson
from gantry_broker.protocol.bodies import DataVersion, RegisterBody, TopicConfig, TopicConfigs
from gantry_broker.protocol.codes import GantryCode, RequestCode, ResponseCode
from gantry_broker.protocol.frame import Frame, encode_frame
from gantry_broker.remoting.handshake import HandshakeError, Identity
from gantry_operator.platforms.local.ports import Ports, registration, replication

from benchmarks.rig.wire import Wire
from tests.local.cluster import Cluster, kill, one_group, running

HALF_OPEN = 2_000
UNKNOWN = 30_999
"""An unknown request code."""
MAKE_TOPIC = {
    "topic": "T", "defaultTopic": "TBW102", "readQueueNums": "1", "writeQueueNums": "1", "perm": "6",
    "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false",
}  # fmt: skip


class Target:
    """A cluster `t` with one group `a` of two members and one NameServer."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.ports = Ports.load(cluster.folder.ports)
        self.token = cluster.folder.token_file.read_bytes()
        self.master = cluster.master()["name"]
        self.slave = next(m for m in cluster.members() if m != self.master)

    def get(self, member: str, path: str) -> httpx.Response:
        address = self.ports.address(f"{member}/http")
        headers = {"Authorization": f"Bearer {self.token.decode()}"}
        return httpx.get(f"http://{address}{path}", headers=headers, timeout=5).raise_for_status()

    def status(self, member: str) -> dict[str, Any]:
        found: dict[str, Any] = self.get(member, "/v1/status").json()
        return found

    def pid(self, member: str) -> int | None:
        """None while the member does not answer."""
        try:
            return int(self.status(member)["pid"])
        except httpx.HTTPError:
            return None

    def standing(self) -> dict[str, Any]:
        """State that no stranger may change: roles, epochs, followers and their acknowledgements."""
        found = {}
        for member in (self.master, self.slave):
            s = self.status(member)
            found[member] = {key: s[key] for key in ("role", "epoch", "highest_seen_epoch", "in_sync", "proposal")}
            found[member]["followers"] = {json.dumps(f["member"]): f["in_sync"] for f in s["followers"]}
        return found

    def failed(self, member: str, reason: str) -> int:
        """How many handshakes failed there for that reason."""
        lines = self.get(member, "/metrics").text.splitlines()
        mine = [x for x in lines if x.startswith("gantry_member_handshakes_failed_total") and f'"{reason}"' in x]
        return sum(int(float(line.rpartition(" ")[2])) for line in mine)

    def settled(self, reason: str) -> int:
        """As `failed` on the master, once two pages made one after the other agree."""
        counts = [-1, self.failed(self.master, reason)]
        while counts[-1] != counts[-2]:
            time.sleep(0.2)
            counts.append(self.failed(self.master, reason))
        return counts[-1]

    def counts(self, reason: str, wanted: int) -> None:
        """Waits until the master's page says so; it is refreshed after some milliseconds."""
        self.cluster.until(f"{wanted} failed by {reason}", lambda: self.failed(self.master, reason) == wanted, 5)

    def clients_ports(self) -> list[str]:
        return [self.ports.address(use) for use in (self.master, self.slave, "group/a")]

    @property
    def name_server(self) -> str:
        return self.ports.address("t-namesrv-0")

    @property
    def registration(self) -> str:
        return self.ports.address(registration("t-namesrv-0"))

    @property
    def replication(self) -> str:
        """The master's."""
        return self.ports.address(replication(self.master))

    def route(self) -> bytes:
        with Wire(self.name_server) as wire:
            return wire.call(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "T"}).body

    def fetch(self, of: str, *, epoch: int | None = None) -> Frame:
        """A fetch as that member would send it."""
        reported, known = self.status(of), self.status(self.master)
        ext = {
            "epoch": str(known["epoch"] if epoch is None else epoch),
            "member": str(reported["member"]["member"]),
            "incarnation": reported["member"]["incarnation"],
            "end": str(known["end"]),
            "flushed": str(known["end"]),
            "confirmed": str(known["confirmed"]),
            "maxBytes": "1000",
        }
        return Frame(GantryCode.FETCH, 1, ext=ext, body=b"[[1,0]]")


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    with running(Cluster(tmp_path_factory.mktemp("internal"), **one_group(2))) as cluster:
        cluster.until("both are in sync", cluster.whole)
        found = Target(cluster)
        with Wire(found.ports.address("group/a")) as wire:
            wire.call(RequestCode.UPDATE_AND_CREATE_TOPIC, MAKE_TOPIC)
        yield found


def forged_registration(cluster: str = "t", group: str = "a") -> tuple[dict[str, str], bytes]:
    """Clients of the group's topics are to be sent to 127.0.0.1:1."""
    body = RegisterBody(TopicConfigs({"T": TopicConfig("T", 4, 4)}, DataVersion(9**15, 9)))
    ext = {"brokerName": group, "brokerAddr": "127.0.0.1:1", "clusterName": cluster, "brokerId": "0"}
    return ext, fastjson.dumps(body.to_json())


def answer_to(address: str, data: bytes, seconds: float = 10.0) -> bytes:
    """Everything that comes back until the other end closes."""
    host, port = address.rsplit(":", 1)
    with socket.create_connection((host, int(port)), seconds) as stranger:
        stranger.sendall(data)
        found = b""
        try:
            while more := stranger.recv(1 << 16):
                found += more
        except ConnectionResetError:
            pass
        return found


@pytest.mark.parametrize("code", list(GantryCode), ids=lambda code: code.name)
def test_a_port_for_clients_does_not_know_the_codes_of_members(target: Target, code: GantryCode) -> None:
    """Proxies send PROXY_CLIENTS to brokers' ports for clients: only a NameServer does not know it."""
    before = target.standing()
    bodies = {
        GantryCode.FETCH: target.fetch(target.slave, epoch=before[target.master]["epoch"] + 5),
        GantryCode.READ_LOG: Frame(code, ext={"at": "0"}),
        GantryCode.FORWARD: Frame(code, ext={"hosts": "[]"}),
    }
    asked = bodies.get(code, Frame(code, body=b'{"kind":"begin","epoch":99}'))
    brokers = [] if code is GantryCode.PROXY_CLIENTS else target.clients_ports()
    for address in (*brokers, target.name_server):
        with Wire(address) as wire:
            answer, unknown = wire.ask(code, asked.ext, asked.body), wire.ask(UNKNOWN, asked.ext, asked.body)
        if code is GantryCode.REGISTER_CHANGES and address == target.name_server:
            assert answer.code == ResponseCode.NO_PERMISSION  # As for a broker's whole registration.
            continue
        assert answer.code == unknown.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
        assert (answer.remark or "").replace(str(int(code)), str(UNKNOWN)) == unknown.remark
        assert (answer.body, answer.ext) == (unknown.body, unknown.ext)
    assert target.standing() == before


@pytest.mark.parametrize("code", [c for c in GantryCode if c is not GantryCode.HANDSHAKE], ids=lambda code: code.name)
def test_without_a_handshake_the_connection_ends_unanswered(target: Target, code: GantryCode) -> None:
    before = target.standing()
    counted = target.settled("malformed")
    asked = target.fetch(target.slave) if code is GantryCode.FETCH else Frame(code, 1, ext={"at": "0"})
    assert answer_to(target.replication, encode_frame(asked)) == b""
    target.counts("malformed", counted + 1)
    assert target.standing() == before


def test_a_wrong_token_opens_no_port_between_members(target: Target) -> None:
    counted = target.settled("token")
    for address in (target.replication, target.registration):
        for token in (b"", b"guess", target.token + b"x"):
            with pytest.raises(HandshakeError, match="does not know the token"):
                Wire(address, member=Identity("t", "a", 7), token=token)
    target.counts("token", counted + 3)


def test_a_member_of_another_group_is_refused_despite_its_token(target: Target) -> None:
    for who in (Identity("t", "b", 1), Identity("other", "a", 1), Identity.of_name_server("t")):
        with pytest.raises(HandshakeError, match="this is member"):
            Wire(target.replication, member=who, token=target.token)
    with pytest.raises(HandshakeError, match="this is a NameServer"):
        Wire(target.registration, member=Identity("other", "a", 1), token=target.token)


def test_a_member_fetches_and_polls_in_its_own_name_only(target: Target) -> None:
    """Else one member could acknowledge for another: SEND_OK for records that only the master has."""
    before = target.standing()
    asked = target.fetch(target.slave, epoch=before[target.master]["epoch"] + 5)
    vote = {
        "kind": "vote", "epoch": 99, "member": [1, "x"], "address": "127.0.0.1:1", "rank": [99, 99], "transfer": True,
        "members": [],
    }  # fmt: skip
    with Wire(target.replication, member=Identity("t", "a", 7), token=target.token) as wire:
        answer = wire.ask(GantryCode.FETCH, asked.ext, asked.body)
        assert answer.code == ResponseCode.NO_PERMISSION
        assert (
            answer.remark
            == f"the request is in the name of member {asked.ext['member']}, but the peer is member 7 of t/a"
        )
        answer = wire.ask(GantryCode.RAFT, {"group": "t/a"}, json.dumps(vote).encode())
        assert answer.code == ResponseCode.NO_PERMISSION
        assert wire.ask(UNKNOWN, {}).code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    assert target.standing() == before


@pytest.mark.parametrize("code", [103, 104, 322])
def test_no_broker_registers_at_the_port_for_clients(target: Target, code: int) -> None:
    before = target.route()
    ext, body = forged_registration()
    own = {**ext, "brokerAddr": target.ports.address("group/a")}
    with Wire(target.name_server) as wire:
        for fields in (ext, own, {**ext, "brokerName": "new"}, {}):
            answer = wire.ask(code, fields, body)
            assert answer.code == ResponseCode.NO_PERMISSION
            assert "registration port" in (answer.remark or "")
    assert target.route() == before


def test_a_registration_without_a_handshake_or_for_another_group_is_refused(target: Target) -> None:
    before = target.route()
    ext, body = forged_registration()
    assert answer_to(target.registration, encode_frame(Frame(103, 1, ext=ext, body=body))) == b""
    with Wire(target.registration, member=Identity("t", "b", 0), token=target.token) as wire:
        for code in (103, 104, 322):
            answer = wire.ask(code, ext, body)
            assert answer.code == ResponseCode.NO_PERMISSION
            assert answer.remark == (
                "the request is for clusterName 't', brokerName 'a', but the peer is member 0 of t/b"
            )
        assert wire.ask(RequestCode.GET_BROKER_CLUSTER_INFO, {}).code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    assert target.route() == before


def test_a_silent_stranger_is_sent_away_in_time(target: Target) -> None:
    began = time.monotonic()
    assert answer_to(target.replication, b"\0") == b""
    assert 4.0 < time.monotonic() - began < 30.0


def test_half_open_handshakes_keep_no_member_out(target: Target) -> None:
    """Strangers that open connections and say nothing, again and again, while a member comes back."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(max(soft, 8_192), hard), hard))
    stop = threading.Event()
    opened = 0

    def fill() -> None:
        nonlocal opened
        held: list[socket.socket] = []
        with ExitStack() as stack:
            while not stop.is_set():
                for address in (target.replication, target.registration):
                    host, port = address.rsplit(":", 1)
                    held.append(stack.enter_context(socket.create_connection((host, int(port)), 10)))
                opened += 2
                if len(held) >= HALF_OPEN:
                    for stranger in held[: HALF_OPEN // 2]:
                        stranger.close()
                    del held[: HALF_OPEN // 2]
                    time.sleep(0.2)

    thread = threading.Thread(target=fill)
    thread.start()
    try:
        target.cluster.until(f"{HALF_OPEN} connections were opened", lambda: opened >= HALF_OPEN)
        former = target.pid(target.slave)
        assert former is not None
        kill(former, signal.SIGKILL)
        target.cluster.until("the slave was started again", lambda: target.pid(target.slave) not in (None, former))
        target.cluster.until("the slave is in sync again", target.cluster.whole)
        for address in (target.replication, target.registration):
            with Wire(address, member=Identity("t", "a", 7), token=target.token) as wire:
                assert wire.ask(UNKNOWN, {}).code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    finally:
        stop.set()
        thread.join()
    assert target.settled("crowded") > 0
    log = Path(target.cluster.folder.log(target.master)).read_text()
    assert log.count("have not proved themselves") < 20, "logged at a limited rate"
