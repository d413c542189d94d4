"""A NameServer over its socket, asked as 4.9.7's and 5.5.0's clients, brokers and mqadmin ask."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import sys
import threading
import time
import zlib
from collections.abc import AsyncIterator
from dataclasses import asdict
from pathlib import Path

import pytest
from gantry_broker.config import InternalTlsConfig, Listener, NameServerConfig, TlsConfig
from gantry_broker.namesrv import kv
from gantry_broker.namesrv.early import PATIENCE_MS, YOUNG_MS, EarlyQuestions
from gantry_broker.namesrv.kv import KvConfig, KvFull
from gantry_broker.namesrv.registration import decode_registration
from gantry_broker.namesrv.server import NameServer
from gantry_broker.namesrv.service import NameService, metrics
from gantry_broker.namesrv.settings import ListenerSettings, NameServerSettings
from gantry_broker.protocol import fastjson
from gantry_broker.protocol.bodies import DataVersion, RegisterBody, TopicConfig, TopicConfigs
from gantry_broker.protocol.codes import ResponseCode
from gantry_broker.protocol.fields import BodyError
from gantry_broker.protocol.frame import Frame, FrameDecoder, encode_frame
from gantry_broker.remoting.client import RemotingClient
from gantry_broker.remoting.connection import Connection
from gantry_broker.remoting.handshake import Identity
from gantry_broker.remoting.members import Membership

from tests.support.free_ports import free_port
from tests.support.remoting import encode_compressed
from tests.support.running import until

VECTORS = Path(__file__).resolve().parents[1] / "data" / "vectors" / "vectors.jsonl"


BROKERS_CODES = (103, 104, 322)


def broker_client(cluster: str = "c", group: str = "a", member: int = 0) -> RemotingClient:
    """For the registration port."""
    return RemotingClient(membership=Membership(Identity(cluster, group, member), None))


class Asker:
    """Asks one NameServer, as a client and as a broker."""

    def __init__(self, server: NameServer, member: int = 0) -> None:
        self.server = server
        self.client = RemotingClient()
        self.broker = broker_client(member=member)
        self.address = f"127.0.0.1:{server.port}"
        self.registration = f"127.0.0.1:{server.registration_port}"

    async def __call__(self, code: int, body: bytes = b"", address: str = "", **ext: object) -> Frame:
        frame = Frame(code, ext={key: str(value) for key, value in ext.items()}, body=body)
        if code in BROKERS_CODES and not address:
            return await self.broker.request(self.registration, frame, 5)
        return await self.client.request(address or self.address, frame, 5)

    async def close(self) -> None:
        await self.client.close()
        await self.broker.close()

    async def register(
        self, *, compressed: bool = False, topics: tuple[str, ...] = ("T",), version: int = 1, **ext: object
    ) -> Frame:
        configs = {topic: TopicConfig(topic, 4, 4) for topic in topics}
        body = RegisterBody(TopicConfigs(configs, DataVersion(version, version)))
        raw = encode_compressed(body) if compressed else fastjson.dumps(body.to_json())
        return await self(
            103,
            raw,
            **{
                "brokerName": "a",
                "brokerAddr": "h:1",
                "clusterName": "c",
                "brokerId": 0,
                "haServerAddr": "h:2",
                "compressed": str(compressed).lower(),
                "bodyCrc32": zlib.crc32(raw) & 0x7FFFFFFF,
                **ext,
            },
        )


@pytest.fixture
async def ask(tmp_path: Path) -> AsyncIterator[Asker]:
    settings = NameServerSettings(
        "ns",
        "127.0.0.1",
        0,
        0,
        tmp_path / "ns",
        [ListenerSettings("external", free_port())],
        cluster="c",
        registration_port=0,
    )
    async with NameServer(settings) as server:
        asker = Asker(server)
        asker.outside = f"127.0.0.1:{settings.listeners[0].port}"
        yield asker
        await asker.close()


def recorded(direction: str, code: int, version: str) -> Frame:
    for line in VECTORS.read_text().splitlines():
        vector = json.loads(line)
        if (vector["direction"], vector.get("requestCode"), vector["version"]) == (direction, code, version):
            return FrameDecoder().feed(bytes.fromhex(vector["hex"]))[0]
    raise AssertionError(f"no {direction} {code} of {version}")


def registered_by(ask: Asker, cluster: str, group: str) -> Connection:
    """A connection as the registration port has one with a broker."""
    conn = Connection(ask.server.service)
    conn.identity = Identity(cluster, group, 0)
    ask.server.service.on_open(conn)
    return conn


@pytest.mark.parametrize("version", ["4.9.7", "5.5.0"])
async def test_a_recorded_registration_gives_the_recorded_routes(ask: Asker, version: str) -> None:
    registration = recorded("client->server", 103, version)
    ext = registration.ext
    answer = ask.server.service.answer(registered_by(ask, ext["clusterName"], ext["brokerName"]), registration)
    assert answer.code == 0
    table = fastjson.loads(registration.body)["topicConfigSerializeWrapper"]["topicConfigTable"]
    sent = recorded("server->client", 105, version)
    route = fastjson.loads((await ask(105, topic="TBW102")).body)
    wanted = fastjson.loads(sent.body)
    assert route["brokerDatas"][0].items() >= wanted["brokerDatas"][0].items()
    assert route["queueDatas"][0].keys() == wanted["queueDatas"][0].keys()
    assert route["filterServerTable"] == wanted["filterServerTable"]
    info = await ask(106)
    assert b"{0:" in info.body, "ids of brokers are bare numbers there"
    wanted = fastjson.loads(recorded("server->client", 106, version).body)
    assert (
        fastjson.loads(info.body)["brokerAddrTable"]["broker-a"].items()
        >= wanted["brokerAddrTable"]["broker-a"].items()
    )
    assert fastjson.loads(info.body)["clusterAddrTable"] == wanted["clusterAddrTable"]
    assert sorted(fastjson.loads((await ask(206)).body)["topicList"]) == sorted(table)


async def test_answers_come_in_the_form_of_the_request(ask: Asker) -> None:
    await ask.register()
    frame = Frame(105, ext={"topic": "T"}, serialize=1)
    answer = await ask.client.request(ask.address, frame, 5)
    assert (answer.code, answer.serialize) == (0, 1)


async def test_compressed_registrations(ask: Asker) -> None:
    assert (await ask.register(compressed=True)).code == 0
    assert fastjson.loads((await ask(105, topic="T")).body)["queueDatas"][0]["readQueueNums"] == 4


async def test_a_registration_whose_body_was_damaged_is_refused(ask: Asker) -> None:
    answer = await ask.register(bodyCrc32=5)
    assert answer.code == 1
    assert "bodyCrc32" in (answer.remark or "")
    assert (await ask(105, topic="T")).code == 17


@pytest.mark.parametrize(
    "body",
    [
        b"junk",
        zlib.compress(b"\xff\xff\xff\xff"),
        zlib.compress(b"\0\0\0\x02{}\0\0\0\x01\0\0\0\x03a b"),
        zlib.compress(b"abc")[:-3],
    ],
)
def test_damaged_compressed_registrations_are_refused(body: bytes) -> None:
    with pytest.raises(BodyError, match="compressed registration"):
        decode_registration(body, compressed=True)


def test_compressed_registrations_come_back() -> None:
    body = RegisterBody(
        TopicConfigs({f"T{n}": TopicConfig(f"T{n}", n, n + 1, 4) for n in range(50)}, DataVersion(7, 8)), ["f:1"]
    )
    assert decode_registration(encode_compressed(body), compressed=True) == body


async def test_a_slave_gets_its_master_and_orders(ask: Asker) -> None:
    await ask.register()
    await ask(100, namespace="ORDER_TOPIC_CONFIG", key="T", value="a:4")
    answer = await ask.register(brokerId=1, brokerAddr="h:3")
    assert answer.ext == {"masterAddr": "h:1", "haServerAddr": "h:2", "gantryAccess": "0"}
    assert fastjson.loads(answer.body) == {"table": {"T": "a:4"}}
    assert fastjson.loads((await ask(105, topic="T")).body)["orderTopicConf"] == "a:4"


async def test_an_old_master_is_refused(ask: Asker) -> None:
    """No answer has an epoch: a broker that believed it would believe any earlier registration."""
    other = Asker(ask.server, member=1)
    assert "gantryEpoch" not in (await other.register(gantryEpoch=5, gantryMember=1)).ext
    answer = await ask.register(gantryEpoch=4, gantryMember=0)
    assert (answer.code, "gantryEpoch" in answer.ext) == (2000, False)
    assert "has reached epoch 5" in (answer.remark or "")
    await other.close()


async def test_a_registration_with_an_impossible_epoch_is_refused_and_counted(ask: Asker) -> None:
    await ask.register(gantryEpoch=5, gantryMember=0)
    for epoch, reason in ((2**63 - 1, "range"), (5 + 2**21, "epoch-jump")):
        answer = await ask.register(gantryEpoch=epoch, gantryMember=0)
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert "gantryEpoch" in (answer.remark or "")
        series = f'gantry_refused_values_total{{entrance="registration",reason="{reason}"}} 1'
        assert series in metrics(ask.server.service)
    assert (await ask.register(gantryEpoch=5, gantryMember=0)).code == ResponseCode.SUCCESS


async def test_listeners_give_out_their_own_addresses(ask: Asker) -> None:
    await ask.register(gantryEpoch=1, gantryMember=0, gantryAddresses='{"external":"203.0.113.7:30911"}')
    route = fastjson.loads((await ask(105, address=ask.outside, topic="T")).body)
    assert route["brokerDatas"][0]["brokerAddrs"] == {"0": "203.0.113.7:30911"}
    route = fastjson.loads((await ask(105, topic="T")).body)
    assert route["brokerDatas"][0]["brokerAddrs"] == {"0": "h:1"}


async def test_a_broken_connection_ends_a_registration(ask: Asker) -> None:
    await ask.register()
    await ask.close()
    watcher = Asker(ask.server)
    deadline = time.monotonic() + 5
    while (await watcher(105, topic="T")).code != 17:
        assert time.monotonic() < deadline
    await watcher.close()


async def test_farewell_permissions_versions_and_deletion(ask: Asker) -> None:
    await ask.register()
    assert (await ask(205, brokerName="a")).ext == {"wipeTopicCount": "1"}
    assert fastjson.loads((await ask(105, topic="T")).body)["queueDatas"][0]["perm"] == 4
    assert (await ask(327, brokerName="a")).ext == {"addTopicCount": "1"}
    assert fastjson.loads((await ask(105, topic="T")).body)["queueDatas"][0]["perm"] == 6
    identity = {"brokerName": "a", "brokerAddr": "h:1", "clusterName": "c", "brokerId": 0}
    same = fastjson.dumps(DataVersion(1, 1).to_json())
    assert (await ask(322, same, **identity)).ext == {"changed": "false"}
    assert (await ask(322, b'{"counter":9,"timestamp":1}', **identity)).ext == {"changed": "true"}
    assert fastjson.loads((await ask(224, cluster="c")).body) == {"topicList": ["T"]}
    assert fastjson.loads((await ask(304)).body) == {"topicList": ["c", "a"], "brokerAddr": "h:1"}
    for code in (311, 312, 313):
        assert fastjson.loads((await ask(code)).body) == {"topicList": []}
    assert (await ask(216, topic="T", clusterName="c")).code == 0
    assert (await ask(105, topic="T")).code == 17
    assert (await ask(104, **identity)).code == 0
    assert fastjson.loads((await ask(106)).body) == {"brokerAddrTable": {}, "clusterAddrTable": {}}


async def test_a_write_permission_that_was_taken_is_kept(ask: Asker, tmp_path: Path) -> None:
    """Over registrations with more topics, and over a restart of the NameServer."""

    async def perm() -> int:
        return int(fastjson.loads((await ask(105, topic="T")).body)["queueDatas"][0]["perm"])

    assert (await ask(205, brokerName="a")).ext == {"wipeTopicCount": "0"}
    await ask.register()
    assert await perm() == 6
    assert (await ask(205, brokerName="a")).ext == {"wipeTopicCount": "1"}
    await ask.register(topics=("T", "U"), version=2)
    assert await perm() == 4
    assert NameService("again", KvConfig(tmp_path / "ns" / "kvConfig.json")).routes.unwritable == {"a"}
    assert (await ask(327, brokerName="a")).ext == {"addTopicCount": "2"}
    assert await perm() == 6
    assert NameService("again", KvConfig(tmp_path / "ns" / "kvConfig.json")).routes.unwritable == set()


async def test_key_value_configuration_is_kept(ask: Asker, tmp_path: Path) -> None:
    assert (await ask(101, namespace="n", key="k")).code == 22
    assert (await ask(219, namespace="n")).code == 22
    assert (await ask(100, namespace="n", key="k", value="v")).code == 0
    assert (await ask(101, namespace="n", key="k")).ext == {"value": "v"}
    assert fastjson.loads((await ask(219, namespace="n")).body) == {"table": {"k": "v"}}
    assert KvConfig(tmp_path / "ns" / "kvConfig.json").get("n", "k") == "v"
    assert (await ask(102, namespace="n", key="k")).code == 0
    assert KvConfig(tmp_path / "ns" / "kvConfig.json").get("n", "k") is None
    assert (await ask(100, namespace="n", key="k")).code == 1


def _slow_disk(monkeypatch: pytest.MonkeyPatch) -> tuple[threading.Event, threading.Event]:
    """Let each change of keys wait. Return an event that says that one began, and the one that they wait for."""
    began, disk, real = threading.Event(), threading.Event(), kv._write

    def slow(path: Path, tables: dict[str, dict[str, str]]) -> None:
        began.set()
        assert disk.wait(30)
        real(path, tables)

    monkeypatch.setattr(kv, "_write", slow)
    return began, disk


async def test_a_change_of_keys_waits_for_the_disk_and_other_clients_do_not(
    ask: Asker, monkeypatch: pytest.MonkeyPatch
) -> None:
    began, disk = _slow_disk(monkeypatch)
    change = asyncio.create_task(ask(100, namespace="n", key="k", value="v"))
    assert await asyncio.to_thread(began.wait, 30)
    behind = asyncio.create_task(ask(101, namespace="n", key="k"))
    async with RemotingClient() as other:
        answer = await other.request(ask.address, Frame(101, ext={"namespace": "n", "key": "k"}), 5)
    assert answer.code == ResponseCode.QUERY_NOT_FOUND, "not on disk yet"
    assert not change.done()
    assert not behind.done()
    disk.set()
    assert (await change).code == ResponseCode.SUCCESS
    assert (await behind).ext == {"value": "v"}, "requests of one connection keep their order"


async def test_one_address_does_not_take_all_bytes_that_may_wait(ask: Asker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests of others, and registrations of brokers, find room beside one that sends more than has room."""
    began, disk = _slow_disk(monkeypatch)
    ask.server.service._waiting.most = 40_000
    put = Frame(100, ext={"namespace": "n", "key": "k", "value": "v" * 3_000})
    reader, writer = await asyncio.open_connection("127.0.0.1", ask.server.port, local_addr=("127.0.0.2", 0))
    writer.write(b"".join(encode_frame(Frame(put.code, number, 0, put.ext)) for number in range(30)))
    decoder = FrameDecoder()
    refused = decoder.feed(await reader.read(1 << 20))
    assert {frame.remark for frame in refused} == {"too many requests wait"}
    assert await asyncio.to_thread(began.wait, 30)
    change = asyncio.create_task(ask(100, namespace="n", key="k", value="v" * 3_000))
    registration = asyncio.create_task(ask.register(compressed=True))
    await asyncio.sleep(0.1)
    disk.set()
    assert (await registration).code == 0
    assert (await change).code == 0
    writer.close()
    await until(lambda: not ask.server.service._waiting.taken)


async def test_the_key_value_configuration_has_limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gantry_broker.namesrv.kv.MAX_ENTRIES", 2)
    table = KvConfig(tmp_path / "kvConfig.json")
    await table.put("a", "k", "1")
    await table.put("b", "k", "1")
    await table.put("b", "k", "2")
    with pytest.raises(KvFull, match="2 entries"):
        await table.put("b", "l", "1")
    with pytest.raises(KvFull, match="1024 characters"):
        await table.put("b", "k" * 2000, "1")


def test_a_damaged_key_value_file_is_not_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "kvConfig.json"
    path.write_text("{]")
    with pytest.raises(ValueError, match="repair it"):
        KvConfig(path)


async def test_a_changed_bit_in_the_key_value_file_is_noticed(tmp_path: Path) -> None:
    """It must not become another value, key or broker that may not be written to."""
    path = tmp_path / "kvConfig.json"
    await KvConfig(path).put("ORDER_TOPIC_CONFIG", "T", "a:4;b:4")
    written = path.read_bytes()
    for place in range(len(written)):
        for bit in range(8):
            damaged = bytearray(written)
            damaged[place] ^= 1 << bit
            path.write_bytes(damaged)
            with contextlib.suppress(ValueError):
                assert KvConfig(path).table("ORDER_TOPIC_CONFIG") == {"T": "a:4;b:4"}, (place, bit)


async def test_settings_of_the_name_server(ask: Asker) -> None:
    assert b"orderMessageEnable=true" in (await ask(319)).body
    assert (await ask(318, b"orderMessageEnable=false\n")).code == 0
    assert b"orderMessageEnable=false" in (await ask(319)).body
    assert (await ask(318, b"returnOrderTopicConfigToBroker=false\nlistenPort=1\n")).code == 1
    assert b"returnOrderTopicConfigToBroker=true" in (await ask(319)).body, "nothing of a bad change is done"


@pytest.mark.parametrize(
    ("code", "ext", "words"),
    [
        (103, {}, "brokerName"),
        (103, {"brokerName": "a", "brokerAddr": "h:1", "clusterName": "c", "brokerId": "zero"}, "brokerId"),
        (104, {"brokerName": "a"}, "brokerAddr"),
        (224, {}, "cluster"),
        (205, {}, "brokerName"),
    ],
)
async def test_bad_fields_are_named(ask: Asker, code: int, ext: dict[str, str], words: str) -> None:
    answer = await ask(code, **ext)
    assert answer.code == 1
    assert f"the field {words}" in (answer.remark or "")


async def test_unknown_codes_and_bad_bodies(ask: Asker) -> None:
    for code in range(200_000, 200_050):
        assert (await ask(code)).code == 3
    assert ask.server.service.requests == {-1: 50}, "random codes do not fill the memory"
    answer = await ask.register(gantryMember=0, gantryAddresses="[1]")
    assert (answer.code, "gantryAddresses" in (answer.remark or "")) == (1, True)
    answer = await ask(322, b"\xff", brokerName="a", brokerAddr="h", clusterName="c", brokerId=0)
    assert answer.code == 1


async def http(port: int | None, request: str) -> tuple[str, str]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request.encode())
    raw = (await reader.read()).decode()
    writer.close()
    head, _, body = raw.partition("\r\n\r\n")
    return head.split("\r\n")[0], body


async def test_health_and_metrics(ask: Asker) -> None:
    await ask.register()
    port = ask.server.http_port
    assert (await http(port, "GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n"))[0] == "HTTP/1.1 200 OK"
    status, body = await http(port, "GET /metrics HTTP/1.1\r\n\r\n")
    assert status == "HTTP/1.1 200 OK"
    assert "gantry_namesrv_brokers 1\n" in body
    assert 'gantry_namesrv_requests_total{code="103"} 1\n' in body
    assert (await http(port, "GET /secret HTTP/1.1\r\n\r\n"))[0] == "HTTP/1.1 404 Not Found"
    assert (await http(port, "POST /metrics HTTP/1.1\r\n\r\n"))[0] == "HTTP/1.1 405 Method Not Allowed"
    assert (await http(port, "GET /" + "x" * 9000))[0].startswith("HTTP/1.1 431")
    assert (await http(port, "HEAD /healthz HTTP/1.1\r\n\r\n"))[1] == ""


def test_the_process_reads_the_config_of_the_planner(tmp_path: Path) -> None:
    path = tmp_path / "ns.json"
    for config in (
        NameServerConfig(name="ns-0"),
        NameServerConfig(
            name="ns-1", listen_host="127.0.0.1", port=1, http_port=2, data_dir=tmp_path,
            listeners=[Listener(name="external", port=3)], cluster="demo", registration_port=4,
            token_file=tmp_path / "token",
            tls=TlsConfig(
                mode="Required", cert_file=tmp_path / "c", key_file=tmp_path / "k", client_ca_file=tmp_path / "ca",
                client_certificates="Optional",
            ),
            internal_tls=InternalTlsConfig(cert_file=tmp_path / "c", key_file=tmp_path / "k", ca_file=tmp_path / "ca"),
        ),
    ):  # fmt: skip
        path.write_text(config.model_dump_json())
        read = NameServerSettings.load(path)
        assert (read.name, read.listen_host, read.port, read.http_port, read.data_dir) == (
            config.name, config.listen_host, config.port, config.http_port, config.data_dir,
        )  # fmt: skip
        assert (read.cluster, read.registration_port, read.token_file) == (
            config.cluster, config.registration_port, config.token_file,
        )  # fmt: skip
        for mine, written in ((read.tls, config.tls), (read.internal_tls, config.internal_tls)):
            assert (None if mine is None else asdict(mine)) == (None if written is None else written.model_dump())
        assert [(item.name, item.port) for item in read.listeners] == [
            (item.name, item.port) for item in config.listeners
        ]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "config"),
        ('{"name":"a","prot":1}', "'prot'"),
        ('{"name":"a","port":70000}', "port"),
        ("{}", "config.name"),
        ('{"name":"a","registration_port":1,"cluster":"c"}', "token_file"),
        ('{"name":"a","registration_port":1,"listen_host":"127.0.0.1"}', "cluster"),
        ('{"name":"a","tls":{"mode":"On","cert_file":"c","key_file":"k"}}', "tls.mode is 'On'"),
        ('{"name":"a","tls":{"mode":"Required","key_file":"k"}}', "config.tls.cert_file"),
        ('{"name":"a","tls":{"mode":"Required","cert":"k"}}', "'cert'"),
        (
            '{"name":"a","tls":{"mode":"Required","cert_file":"c","key_file":"k","client_certificates":"Required"}}',
            "client_ca_file",
        ),
        ('{"name":"a","internal_tls":{"cert_file":"c","key_file":"k"}}', "config.internal_tls.ca_file"),
    ],
)
def test_a_bad_config_says_which_field(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "ns.json"
    path.write_text(text)
    with pytest.raises(BodyError, match=words):
        NameServerSettings.load(path)


def resident_kb(pid: int) -> int | None:
    """Memory of a process, where the system shows it."""
    status = Path(f"/proc/{pid}/status")
    if not status.exists():
        return None
    return int(next(row for row in status.read_text().splitlines() if row.startswith("VmRSS")).split()[1])


async def test_the_process_is_small_and_ends_at_a_signal(tmp_path: Path) -> None:
    path = tmp_path / "ns.json"
    path.write_text(json.dumps({"name": "ns", "listen_host": "127.0.0.1", "port": 0}))
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "gantry_broker.namesrv", "--config", str(path), stderr=asyncio.subprocess.PIPE
    )
    try:
        assert process.stderr is not None
        assert b"listens on port" in await asyncio.wait_for(process.stderr.readline(), 10)
        memory = resident_kb(process.pid)
        assert memory is None or memory < 30 * 1024, f"{memory} kB"
        process.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(process.wait(), 10) == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def test_a_bad_config_ends_the_process_with_code_2(tmp_path: Path) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "gantry_broker.namesrv", "--config", str(tmp_path / "none.json"),
        stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert await asyncio.wait_for(process.wait(), 10) == 2


async def test_a_taken_port_is_an_error(ask: Asker) -> None:
    with pytest.raises(OSError, match="in use"):
        await NameServer(NameServerSettings("ns", "127.0.0.1", ask.server.port)).start()


async def test_a_frame_that_cannot_be_read_is_answered_and_the_connection_closed(ask: Asker) -> None:
    await ask.register()
    reader, writer = await asyncio.open_connection("127.0.0.1", ask.server.port)
    writer.write(encode_frame(Frame(105, 1, ext={"topic": "Nowhere"})) + b"\0\0\0\x08\x05\0\0\x04abcd")
    raw = await asyncio.wait_for(reader.read(), 5)
    assert [frame.code for frame in FrameDecoder().feed(raw)] == [17]
    writer.close()


async def test_a_route_that_is_asked_for_before_the_first_master_came_waits_for_it(ask: Asker) -> None:
    await ask.register(brokerId=1, brokerAddr="h:3")
    early = asyncio.create_task(ask(105, topic="T"))
    nowhere = asyncio.create_task(ask(105, topic="Nowhere"))
    assert (await ask(106)).code == 0, "nothing else waits"
    assert not early.done()
    await ask.register()
    assert (await early).code == 0
    assert (await nowhere).code == ResponseCode.TOPIC_NOT_EXIST


async def test_a_route_waits_only_for_a_while(ask: Asker) -> None:
    began = time.monotonic()
    assert (await ask(105, topic="T")).code == ResponseCode.TOPIC_NOT_EXIST
    assert PATIENCE_MS <= (time.monotonic() - began) * 1000 < PATIENCE_MS + 1_000


def test_questions_wait_while_a_name_server_is_young_and_knows_no_master() -> None:
    early: EarlyQuestions[str] = EarlyQuestions(0)
    assert not early.keep("a master is there", 10, anybody=True)
    assert early.keep("a", 10, anybody=False)
    assert early.keep("b", 500, anybody=False)
    assert early.due(10 + PATIENCE_MS - 1, anybody=False) == []
    assert early.due(10 + PATIENCE_MS, anybody=False) == ["a"]
    assert early.due(600, anybody=True) == ["b"]
    assert early.due(99_999, anybody=True) == []
    assert early.keep("late", YOUNG_MS - 1, anybody=False)
    assert early.due(YOUNG_MS, anybody=False) == ["late"], "not for its whole patience"
    assert not early.keep("too late", YOUNG_MS, anybody=False)


async def test_a_former_master_that_stops_leaves_its_successors_route(ask: Asker) -> None:
    """At its end a master that was replaced still calls itself broker 0 at the group's address."""
    former, successor = broker_client(member=0), broker_client(member=1)
    try:
        body = fastjson.dumps(RegisterBody(TopicConfigs({"T": TopicConfig("T", 4, 4)}, DataVersion(1, 1))).to_json())
        who = {"brokerName": "a", "brokerAddr": "h:1", "clusterName": "c", "brokerId": "0"}
        for client, epoch, member in ((former, 1, 0), (successor, 2, 1)):
            sent = {**who, "gantryEpoch": str(epoch), "gantryMember": str(member)}
            assert (await client.request(ask.registration, Frame(103, ext=sent, body=body), 5)).code == 0
        assert (await former.request(ask.registration, Frame(104, ext=who), 5)).code == 0
        assert (await ask(105, topic="T")).code == ResponseCode.SUCCESS
        assert (await successor.request(ask.registration, Frame(104, ext=who), 5)).code == 0
        assert (await ask(105, topic="T")).code == ResponseCode.TOPIC_NOT_EXIST
    finally:
        await former.close()
        await successor.close()


async def test_a_wall_clock_set_forward_makes_no_broker_silent(ask: Asker, monkeypatch: pytest.MonkeyPatch) -> None:
    await ask.register()
    tomorrow = time.time_ns() + 86_400 * 10**9
    monkeypatch.setattr(time, "time_ns", lambda: tomorrow)
    ask.server.service.expire()
    assert (await ask(105, topic="T")).code == ResponseCode.SUCCESS


async def test_one_address_cannot_take_all_connections(ask: Asker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gantry_broker.namesrv.service.CONNECTIONS_OF_ADDRESS", 1)
    await ask(1)
    reader, writer = await asyncio.open_connection("127.0.0.1", ask.server.port)
    with contextlib.suppress(ConnectionError):
        assert await asyncio.wait_for(reader.read(), 10) == b""
    writer.close()
    assert ask.server.service.shared.refused == 1
    await ask(1)  # the first one goes on
