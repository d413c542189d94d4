"""Measures the gRPC endpoint beside Apache's proxy: messages a second, CPU a message of proxy and broker, memory.

    python benchmarks/proxy.py [--clients 64] [--messages 20000] [--body 1024] [--apache FOLDER] [--rounds 1]
        [--warm-up 1]

Each system has one NameServer, one broker and one proxy, as processes of their own on free ports of 127.0.0.1. Clients
are channels of grpcio in this process, each with one request in work: sends of `--body` bytes, then receives of up to
32 messages with an acknowledgement for all of them. `--apache`: a folder with the jars of Apache RocketMQ's proxy,
broker and NameServer (`mvn dependency:copy-dependencies` of `rocketmq-proxy`, `rocketmq-broker`, `rocketmq-namesrv`);
without it only Gantry is measured. `--warm-up`: rounds before those that count; Java's compiler needs about 100,000
messages. The client often limits the rate, so compare the CPU. The last lines are medians of the rounds, and Gantry's
part of Apache's CPU and memory.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
from gantry_broker.client.session import Session
from gantry_broker.protocol import fastjson
from gantry_broker.protocol.codes import AUTO_CREATE_TOPIC, RequestCode
from gantry_broker.protocol.frame import Frame
from gantry_broker.protocol.grpc_contract import SERVICE, v2

TICK = os.sysconf("SC_CLK_TCK")
STARTS = 32
"""Clients that start at the same time."""
LATE_S = 20
"""An answer that takes longer is late: the request is sent again, and the figure counts it."""
ROOT = Path(__file__).resolve().parents[1]


@dataclass
class System:
    name: str
    name_server: str
    broker: str
    proxy: str
    broker_pid: int
    proxy_pid: int


@dataclass
class Figure:
    system: str
    what: str
    rate: float
    proxy_us: float
    broker_us: float
    proxy_mib: float
    broker_mib: float
    late: int = 0

    @property
    def cpu_us(self) -> float:
        return self.proxy_us + self.broker_us

    @property
    def mib(self) -> float:
        return self.proxy_mib + self.broker_mib

    def __str__(self) -> str:
        return (
            f"{self.system:8} {self.what:14} {self.rate:8.0f}/s   proxy {self.proxy_us:6.0f} us   broker "
            f"{self.broker_us:6.0f} us   together {self.proxy_us + self.broker_us:6.0f} us   memory "
            f"{self.proxy_mib:5.0f} + {self.broker_mib:5.0f} MiB" + f"   {self.late} answers late" * (self.late > 0)
        )


def free_ports(count: int) -> list[int]:
    """Ports that are free, and the ones beside them: Apache's broker takes two more."""
    with contextlib.ExitStack() as stack:
        found = []
        while len(found) < count:
            sock = stack.enter_context(socket.socket())
            sock.bind(("127.0.0.1", 0))
            found.append(sock.getsockname()[1])
        return found


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICK


def resident_mib(pid: int) -> float:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / (1 << 20)


def wait_for(address: str, seconds: float = 60) -> None:
    host, _, port = address.rpartition(":")
    ends = time.monotonic() + seconds
    while True:
        try:
            socket.create_connection((host, int(port)), 1).close()
            return
        except OSError:
            if time.monotonic() > ends:
                raise SystemExit(f"nothing listens on {address} after {seconds:g} s") from None
            time.sleep(0.2)


@contextlib.contextmanager
def process(command: list[str], log: Path, env: dict[str, str] | None = None) -> Iterator[int]:
    with log.open("wb") as out:
        child = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, env={**os.environ, **(env or {})})
    try:
        yield child.pid
    finally:
        child.terminate()
        try:
            child.wait(10)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


def pid_of(config: str, state: Path) -> int:
    """The process that runs with this configuration."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if f"{state}/config/{config}" in path.read_text():
                return int(path.parent.name)
    raise SystemExit(f"no process runs with {config}")


@contextlib.contextmanager
def gantry(folder: Path) -> Iterator[System]:
    """A cluster of one broker by `gantry up`, and a proxy."""
    manifest = folder / "cluster.yaml"
    manifest.write_text(
        "apiVersion: gantry.dev/v1alpha1\nkind: BrokerCluster\nmetadata: {name: bench}\n"
        "spec: {nameServers: {replicas: 1}, brokerGroups: [{name: a, members: 1}]}\n"
    )
    command = [sys.executable, "-m", "gantry_operator.cli"]
    state = folder / "state"
    subprocess.run([*command, "up", str(manifest), "--dir", str(state), "--detach"], check=True, capture_output=True)
    try:
        member = json.loads((state / "config" / "bench-a-0.json").read_text())
        names = member["name_servers"][0]
        (port,) = free_ports(1)
        config = folder / "proxy.json"
        config.write_text(json.dumps({"name_servers": [names], "listen_host": "127.0.0.1", "port": port}))
        with process(
            [sys.executable, "-m", "gantry_broker.proxy", "--config", str(config)], folder / "proxy.log"
        ) as pid:
            address = f"127.0.0.1:{port}"
            wait_for(address)
            yield System("Gantry", names, member["group_address"], address, pid_of("bench-a-0.json", state), pid)
    finally:
        subprocess.run([*command, "down", "--dir", str(state)], check=False, capture_output=True)


@contextlib.contextmanager
def apache(folder: Path, jars: Path) -> Iterator[System]:
    names, broker, proxy, remoting = free_ports(4)
    home = folder / "home"
    (home / "conf").mkdir(parents=True)
    (folder / "names.properties").write_text(f"listenPort={names}\n")
    (folder / "broker.conf").write_text(
        f"brokerClusterName=DefaultCluster\nbrokerName=a\nbrokerId=0\nbrokerIP1=127.0.0.1\nlistenPort={broker}\n"
        f"namesrvAddr=127.0.0.1:{names}\nstorePathRootDir={folder}/store\n"
        f"storePathCommitLog={folder}/store/commitlog\nmappedFileSizeCommitLog=268435456\n"
    )
    (folder / "proxy.json").write_text(
        json.dumps(
            {
                "rocketMQClusterName": "DefaultCluster",
                "namesrvAddr": f"127.0.0.1:{names}",
                "proxyMode": "cluster",
                "grpcServerPort": proxy,
                "remotingListenPort": remoting,
            }
        )
    )
    env = {"ROCKETMQ_HOME": str(home), "CLASSPATH": f"{jars}/*"}
    java = ["java", "-Xms512m", "-Xmx1g", "-XX:MaxDirectMemorySize=2g", f"-Duser.home={folder}"]
    package = "org.apache.rocketmq"
    with contextlib.ExitStack() as stack:
        stack.enter_context(
            process(
                [*java, f"{package}.namesrv.NamesrvStartup", "-c", str(folder / "names.properties")],
                folder / "names.log",
                env,
            )
        )
        wait_for(f"127.0.0.1:{names}")
        broker_pid = stack.enter_context(
            process(
                [*java, f"{package}.broker.BrokerStartup", "-c", str(folder / "broker.conf")],
                folder / "broker.log",
                env,
            )
        )
        wait_for(f"127.0.0.1:{broker}")
        time.sleep(10)  # it registers; the proxy ends when no broker is known
        command = [
            *java,
            f"-Dcom.rocketmq.proxy.configPath={folder}/proxy.json",
            f"{package}.proxy.ProxyStartup",
            "-pc",
            str(folder / "proxy.json"),
        ]
        proxy_pid = stack.enter_context(process(command, folder / "proxy.log", env))
        wait_for(f"127.0.0.1:{proxy}", 120)
        time.sleep(3)
        yield System("Apache", f"127.0.0.1:{names}", f"127.0.0.1:{broker}", f"127.0.0.1:{proxy}", broker_pid, proxy_pid)


async def make_topic(system: System, topic: str, group: str) -> None:
    ext = {
        "topic": topic, "defaultTopic": AUTO_CREATE_TOPIC, "readQueueNums": "8", "writeQueueNums": "8", "perm": "6",
        "topicFilterType": "SINGLE_TAG", "order": "false", "attributes": "+message.type=NORMAL",
    }  # fmt: skip
    body = fastjson.dumps({"groupName": group, "consumeEnable": True, "retryMaxTimes": 16})
    async with Session(system.name_server) as session:
        await session.call_checked(system.broker, Frame(RequestCode.UPDATE_AND_CREATE_TOPIC, ext=ext), "topic")
        frame = Frame(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body)
        await session.call_checked(system.broker, frame, "group")
        ends = time.monotonic() + 30
        while await session.route(topic, fresh=True) is None:
            if time.monotonic() > ends:
                raise SystemExit(f"no route for {topic}")
            await asyncio.sleep(0.2)


_numbers = itertools.count()


def metadata(client: str) -> list[tuple[str, str]]:
    """Return the fields of a request, which has a number of its own as those of RocketMQ's clients have."""
    return [
        ("x-mq-client-id", client), ("x-mq-language", "PYTHON"), ("x-mq-client-version", "5.1.2"),
        ("x-mq-protocol", "v2"), ("x-mq-date-time", "20261125T120000Z"),
        ("x-mq-request-id", f"8f0b5a9e-5d7c-4c1e-8a60-{next(_numbers):012x}"),
    ]  # fmt: skip


class Client:
    """One client with its own connection."""

    def __init__(self, address: str, name: str) -> None:
        options = [("grpc.use_local_subchannel_pool", 1)]
        self.channel = grpc.aio.insecure_channel(address, options=options)
        self._name = name
        self.send = self.channel.unary_unary(SERVICE + "SendMessage")
        self.ack = self.channel.unary_unary(SERVICE + "AckMessage")
        self.receive = self.channel.unary_stream(SERVICE + "ReceiveMessage")
        self._telemetry = self.channel.stream_stream(SERVICE + "Telemetry")

    @property
    def metadata(self) -> list[tuple[str, str]]:
        return metadata(self._name)

    async def start(self, settings: Any) -> None:
        self.line = self._telemetry(metadata=self.metadata)
        await self.line.write(v2.TelemetryCommand(settings=settings).SerializeToString())
        await self.line.read()

    async def close(self) -> None:
        self.line.cancel()
        await self.channel.close()


async def clients_of(system: System, count: int, settings: Any) -> list[Client]:
    found = [Client(system.proxy, f"client-{number}@1@0@x") for number in range(count)]
    for some in range(0, count, STARTS):
        await asyncio.gather(*(client.start(settings) for client in found[some : some + STARTS]))
    return found


async def measured(system: System, what: str, work: Any) -> Figure:
    before = cpu_s(system.proxy_pid), cpu_s(system.broker_pid)
    begun = time.monotonic()
    messages, late = await work
    seconds = time.monotonic() - begun
    after = cpu_s(system.proxy_pid), cpu_s(system.broker_pid)
    proxy, broker = ((b - a) / messages * 1e6 for a, b in zip(before, after, strict=True))
    return Figure(
        system.name,
        what,
        messages / seconds,
        proxy,
        broker,
        resident_mib(system.proxy_pid),
        resident_mib(system.broker_pid),
        late,
    )


def is_late(error: grpc.aio.AioRpcError) -> bool:
    return error.code() is grpc.StatusCode.DEADLINE_EXCEEDED


async def sends(clients: list[Client], topic: str, messages: int, body: int) -> tuple[int, int]:
    """Return how many messages were sent, and how many answers were late."""
    message = v2.Message(body=b"x" * body)
    message.topic.name = topic
    message.system_properties.message_type = 1
    message.system_properties.body_encoding = 1
    message.system_properties.born_host = "bench"
    left, late = messages, 0

    async def one(client: Client) -> None:
        nonlocal left, late
        while left > 0:
            left -= 1
            message.system_properties.message_id = f"01{left:032X}"
            request = v2.SendMessageRequest(messages=[message]).SerializeToString()
            try:
                answer = await client.send(request, metadata=client.metadata, timeout=LATE_S)
            except grpc.aio.AioRpcError as error:
                if not is_late(error):
                    raise
                left, late = left + 1, late + 1
                continue
            status = v2.SendMessageResponse.FromString(answer).status
            if status.code == 42_900:  # the broker is busy
                left += 1
                await asyncio.sleep(0.05)
            elif status.code != 20_000:
                raise SystemExit(f"a send failed: {status}")

    await asyncio.gather(*(one(client) for client in clients))
    return messages, late


async def receives(clients: list[Client], topic: str, group: str, messages: int) -> tuple[int, int]:
    """Return how many messages were received and acknowledged, and how many answers were late."""
    request = v2.ReceiveMessageRequest(batch_size=32)
    request.group.name = group
    request.message_queue.topic.name = topic
    request.message_queue.id = -1
    request.message_queue.broker.name = "a"
    request.filter_expression.type = 1
    request.filter_expression.expression = "*"
    request.invisible_duration.seconds = 60
    request.long_polling_timeout.seconds = 5
    asked = request.SerializeToString()
    got = late = 0

    async def one(client: Client) -> None:
        nonlocal got, late
        while got < messages:
            ack = v2.AckMessageRequest()
            ack.topic.name, ack.group.name = topic, group
            try:
                async for part in client.receive(asked, metadata=client.metadata, timeout=LATE_S):
                    answer = v2.ReceiveMessageResponse.FromString(part)
                    if answer.HasField("message"):
                        system = answer.message.system_properties
                        ack.entries.add(message_id=system.message_id, receipt_handle=system.receipt_handle)
                if ack.entries:
                    got += len(ack.entries)
                    await client.ack(ack.SerializeToString(), metadata=client.metadata, timeout=LATE_S)
            except grpc.aio.AioRpcError as error:
                if not is_late(error):
                    raise
                late += 1

    tasks = [asyncio.ensure_future(one(client)) for client in clients]
    while got < messages * 0.99 and not all(task.done() for task in tasks):  # noqa: ASYNC110
        await asyncio.sleep(0.02)
    for task in tasks:
        task.cancel()
    for result in await asyncio.gather(*tasks, return_exceptions=True):
        if isinstance(result, Exception):
            raise result
    return got, late


async def run(system: System, options: argparse.Namespace) -> list[Figure]:
    topic, group = "Bench", "bench"
    await make_topic(system, topic, group)
    producing = v2.Settings(client_type=1)
    producing.publishing.topics.add(name=topic)
    consuming = v2.Settings(client_type=3)
    consuming.request_timeout.seconds = 3
    consuming.subscription.group.name = group
    entry = consuming.subscription.subscriptions.add()
    entry.topic.name = topic
    entry.expression.type, entry.expression.expression = 1, "*"
    figures = []
    producers = await clients_of(system, options.clients, producing)
    consumers = await clients_of(system, options.clients, consuming)
    for _ in range(options.warm_up):
        await sends(producers, topic, options.messages, options.body)
        await receives(consumers, topic, group, options.messages)
    for _ in range(options.rounds):
        work = sends(producers, topic, options.messages, options.body)
        figures.append(await measured(system, f"send {options.body} B", work))
        figures.append(await measured(system, "receive, ack", receives(consumers, topic, group, options.messages)))
    for client in [*producers, *consumers]:
        await client.close()
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--messages", type=int, default=20_000)
    parser.add_argument("--body", type=int, default=1_024)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--warm-up", type=int, default=1, help="rounds that do not count")
    parser.add_argument("--apache", type=Path, help="folder with the jars of Apache's proxy, broker and NameServer")
    options = parser.parse_args()
    os.environ["PYTHONPATH"] = os.pathsep.join(str(ROOT / name) for name in ("operator", "broker_image", "spark_jobs"))
    systems: list[Any] = [gantry]
    if options.apache is not None and shutil.which("java"):
        systems.append(lambda folder: apache(folder, options.apache))
    found: list[Figure] = []
    for make in systems:
        with tempfile.TemporaryDirectory(prefix="proxy-") as folder, make(Path(folder)) as system:
            for figure in asyncio.run(run(system, options)):
                print(figure, flush=True)
                found.append(figure)
    summarize(found)


def summarize(figures: list[Figure]) -> None:
    """Print the medians of each kind, and what part of the second system's the first one needs."""
    print()
    kinds: dict[str, dict[str, Figure]] = {}
    for figure in figures:
        same = [other for other in figures if (other.system, other.what) == (figure.system, figure.what)]
        middle = statistics.median_low([other.cpu_us for other in same])
        kinds.setdefault(figure.what, {})[figure.system] = next(other for other in same if other.cpu_us == middle)
    for of_kind in kinds.values():
        for figure in of_kind.values():
            print(figure)
        if len(of_kind) == 2:
            ours, theirs = of_kind.values()
            print(f"{'':8} {ours.what:14} CPU {ours.cpu_us / theirs.cpu_us:.2f}   memory {ours.mib / theirs.mib:.2f}")


if __name__ == "__main__":
    main()
