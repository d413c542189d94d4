"""Two systems with a gRPC endpoint: Gantry, and Apache RocketMQ 5.5.0 with its proxy in cluster mode."""

from __future__ import annotations

import contextlib
import itertools
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from gantry_broker.protocol.codes import RequestCode, ResponseCode
from gantry_broker.protocol.headers import CreateTopicHeader

from benchmarks.rig import gantry, java, rocketmq
from benchmarks.rig.processes import Started, free_port, until
from benchmarks.rig.target import Target
from benchmarks.rig.wire import Refused, Wire
from tests.interop5.clients import java_classpath
from tests.support.certificates import Authority, Files

APACHE_PORT = 8081
_APACHE_PORTS = itertools.count(APACHE_PORT + 1)
QUEUES = 4

# Short times, because the defaults take minutes.
COMMON: dict[str, Any] = {
    "transactionTimeOut": 3000, "transactionCheckInterval": 3000, "recallMessageEnable": True,
}  # fmt: skip
# Apache's broker refuses a send that has waited for 200 ms, or for a second in its store: on a busy machine messages
# would be missing. It writes a commit or rollback down after 3 s, and asks for the message until then.
APACHE = {
    "waitTimeMillsInSendQueue": "10000", "osPageCacheBusyTimeOutMills": "10000", "autoCreateTopicEnable": "true",
    "transactionOpBatchInterval": "100",
}  # fmt: skip
RETRY_MS = [1000] * 18
"""Delays of a push consumer's attempts, from the group's retry policy."""


@dataclass
class System:
    """A running NameServer and broker (`target`) with a proxy."""

    target: Target
    endpoints: str
    proxy: Started

    @property
    def name(self) -> str:
        return self.target.name

    def broker(self) -> Wire:
        return Wire(self.target.broker_address, prefix=self.target.prefix)

    def port(self) -> int:
        """Returns a port for one more proxy."""
        return next(_APACHE_PORTS) if self.name == "rocketmq" else free_port()

    @contextlib.contextmanager
    def another_proxy(
        self, folder: Path, name: str, port: int = 0, tls: Files | None = None
    ) -> Iterator[tuple[str, int]]:
        """Starts one more proxy and yields its endpoints and process id. `tls`: its certificate."""
        port = port or self.port()
        start = apache_proxy if self.name == "rocketmq" else gantry_proxy
        with start(folder, self.target, port, name, tls) as proxy:
            yield f"127.0.0.1:{port}", proxy.pid

    def topic(self, name: str, kind: str = "NORMAL", queues: int = QUEUES) -> str:
        """Makes a topic of a message type, and waits for its route."""
        header = CreateTopicHeader(name, "TBW102", queues, queues, 6, "SINGLE_TAG", attributes=f"+message.type={kind}")
        with self.broker() as broker:
            broker.call(RequestCode.UPDATE_AND_CREATE_TOPIC, header.ext())

        def routed() -> bool:
            try:
                with Wire(self.target.namesrv, prefix=self.target.prefix) as names:
                    names.route(name)
            except Refused:
                return False
            return True

        until(f"a route for {name}", routed, 40)
        return name

    def group(self, name: str, orderly: bool = False, attempts: int = 16) -> str:
        """Makes a consumer group that tries again after a second. `attempts`: those after the first."""
        config = {
            "groupName": name, "consumeEnable": True, "consumeFromMinEnable": True, "consumeBroadcastEnable": True,
            "consumeMessageOrderly": orderly, "retryQueueNums": 1, "retryMaxTimes": attempts, "brokerId": 0,
            "whichBrokerWhenConsumeSlowly": 1, "notifyConsumerIdsChangedEnable": True, "groupSysFlag": 0,
            "consumeTimeoutMinute": 15,
            "groupRetryPolicy": {"type": "CUSTOMIZED", "customizedRetryPolicy": {"next": RETRY_MS}},
        }  # fmt: skip
        with self.broker() as broker:
            broker.call(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, json.dumps(config).encode())
        return name

    def stored(self, topic: str, queues: int = QUEUES) -> int:
        """Returns the number of messages in a topic; 0 when there is none of that name."""
        try:
            with self.broker() as broker:
                return sum(end for _, end in (broker.offsets(topic, queue) for queue in range(queues)))
        except Refused as refused:
            if refused.code != ResponseCode.TOPIC_NOT_EXIST:
                raise
            return 0


@contextlib.contextmanager
def apache(
    folder: Path, settings: dict[str, Any] | None = None, of_proxy: dict[str, Any] | None = None
) -> Iterator[System]:
    """Starts Apache RocketMQ 5.5.0 in a network namespace. Raises ToolMissing or NamespaceUnavailable."""
    jars = java_classpath("server55")
    texts = {key: str(value) for key, value in {**COMMON, **(settings or {})}.items()}
    with ExitStack() as stack:
        started = rocketmq.rocketmq(folder, APACHE | texts, heap="768m", direct="1g", server=jars)
        target = stack.enter_context(started)
        # The Rust client makes its message ids from a hardware address, and this namespace has the loopback only.
        words = ["ip", "link", "set", "lo", "address", "02:00:00:00:00:01"]
        subprocess.run([*target.prefix, *words], check=True)
        proxy = stack.enter_context(apache_proxy(folder, target, more=of_proxy))
        yield System(target, f"127.0.0.1:{APACHE_PORT}", proxy)


@contextlib.contextmanager
def apache_proxy(
    folder: Path, target: Target, port: int = APACHE_PORT, name: str = "proxy", tls: Files | None = None,
    more: dict[str, Any] | None = None,
) -> Iterator[Started]:  # fmt: skip
    own = {"tlsTestModeEnable": False, "tlsCertPath": str(tls.cert), "tlsKeyPath": str(tls.key)} if tls else {}
    config = folder / f"{name}.json"
    config.write_text(json.dumps({
        "rocketMQClusterName": target.cluster, "namesrvAddr": target.namesrv, "grpcServerPort": port,
        "remotingListenPort": port + 100, "proxyName": name, "localServeAddr": "127.0.0.1", "enableGrpcEpoll": False,
        "useEndpointPortFromRequest": True,
        # So often it names its transaction producers to the broker, by default each 20 s: until then checks reach none.
        "transactionHeartbeatPeriodSecond": 1, **own, **(more or {}),
    }))  # fmt: skip
    words = java.command(
        java_classpath("server55"), "org.apache.rocketmq.proxy.ProxyStartup", "-pm", "cluster", "-n", target.namesrv,
        "-pc", str(config), heap="512m", flags=["-XX:MaxDirectMemorySize=512m", f"-Duser.home={folder}"],
    )  # fmt: skip
    home = {"RMQ_PROXY_HOME": str(folder), "ROCKETMQ_HOME": str(folder / "home"), "HOME": str(folder)}
    with Started([*target.prefix, *words], folder / f"{name}.log", home) as proxy:
        until("Apache's proxy", lambda: rocketmq.listening(target.prefix, port), 90, [proxy])
        yield proxy


@contextlib.contextmanager
def ours(folder: Path, settings: dict[str, Any] | None = None) -> Iterator[System]:
    """Starts Gantry's NameServer, a broker and a proxy with TLS and plaintext."""
    port = free_port()
    with gantry.single(folder, {**COMMON, **(settings or {})}) as target, gantry_proxy(folder, target, port) as proxy:
        yield System(target, f"127.0.0.1:{port}", proxy)


@contextlib.contextmanager
def gantry_proxy(
    folder: Path, target: Target, port: int, name: str = "proxy", tls: Files | None = None,
    more: dict[str, Any] | None = None,
) -> Iterator[Started]:  # fmt: skip
    """Starts a proxy. `tls`: its certificate, without it one of its own authority."""
    http_port = free_port()
    files = tls or Authority().issue(folder / "tls", "127.0.0.1", "localhost")
    config = folder / f"{name}.json"
    config.write_text(json.dumps({
        "cluster": target.cluster, "name": name, "name_servers": [target.namesrv], "listen_host": "127.0.0.1",
        "port": port, "http_port": http_port, "drain_s": 2,
        "tls": {"mode": "Permissive", "cert_file": str(files.cert), "key_file": str(files.key)}, **(more or {}),
    }))  # fmt: skip
    words = [sys.executable, "-m", "gantry_broker.proxy", "--config", str(config)]

    def ready() -> bool:
        try:
            return httpx.get(f"http://127.0.0.1:{http_port}/readyz", timeout=1).status_code == 200
        except httpx.HTTPError:
            return False

    with Started(words, folder / f"{name}.log") as proxy:
        until("Gantry's proxy", ready, 30, [proxy])
        yield proxy
