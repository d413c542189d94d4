"""Apache RocketMQ itself, one NameServer and one broker, in a network namespace of its own."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

from . import java
from .processes import Started, namespace, until
from .target import Target

_LOGBACK = """<configuration>
  <appender name="STDOUT" class="ch.qos.logback.core.ConsoleAppender">
    <encoder><pattern>%d %p %m%n</pattern></encoder>
  </appender>
  <root level="WARN"><appender-ref ref="STDOUT"/></root>
</configuration>
"""
_BROKER_PORT = 10911


def listening(prefix: list[str], port: int) -> bool:
    """Returns whether a process listens on a port in the namespace."""
    out = subprocess.run([*prefix, "ss", "-ltnH", f"sport = :{port}"], capture_output=True, text=True, check=False)
    if out.returncode == 0:
        return bool(out.stdout.strip())
    probe = f"import socket; socket.create_connection(('127.0.0.1', {port}), 1)"
    return subprocess.run([*prefix, "python3", "-c", probe], capture_output=True, check=False).returncode == 0


def environment(folder: Path) -> dict[str, str]:
    """Returns the environment of RocketMQ's servers, and writes their logging configuration below `folder`."""
    conf = folder / "home" / "conf"
    conf.mkdir(parents=True, exist_ok=True)
    for name in ("logback_namesrv.xml", "logback_broker.xml"):
        (conf / name).write_text(_LOGBACK)
    return {"ROCKETMQ_HOME": str(folder / "home"), "HOME": str(folder)}


@contextlib.contextmanager
def _broker(
    folder: Path,
    prefix: list[str],
    settings: dict[str, str],
    port: int,
    server: str | Path,
    heap: str,
    direct: str,
    flags: Sequence[str] = (),
) -> Iterator[Started]:
    """Starts one broker of group `demo-a`, with its store and its log below `folder`."""
    env = environment(folder)
    values = {
        "brokerClusterName": "demo", "brokerName": "demo-a", "brokerIP1": "127.0.0.1", "namesrvAddr": "127.0.0.1:9876",
        "listenPort": str(port), "storePathRootDir": f"{folder}/store",
        "storePathCommitLog": f"{folder}/store/commitlog", **settings,
    }  # fmt: skip
    config = folder / "broker.conf"
    config.write_text("".join(f"{k}={v}\n" for k, v in values.items()))
    flags = [f"-XX:MaxDirectMemorySize={direct}", f"-Duser.home={folder}", *flags]
    main = "org.apache.rocketmq.broker.BrokerStartup"
    words = java.command(server, main, "-c", str(config), heap=heap, flags=flags)
    with Started([*prefix, *words], folder / "broker.log", env) as br:
        until("RocketMQ's broker", lambda: listening(prefix, port), 60, [br])
        until("RocketMQ's broker", lambda: "boot success" in br.tail(100_000), 60, [br])
        yield br


@contextlib.contextmanager
def slave(
    folder: Path, master: Target, number: int = 1, settings: dict[str, str] | None = None, *, server: str = "server49"
) -> Iterator[Started]:
    """Starts a slave of a broker of `rocketmq`, with its store below `folder`. `number`: its brokerId."""
    values = {"brokerId": str(number), "brokerRole": "SLAVE", **(settings or {})}
    with _broker(folder, master.prefix, values, _BROKER_PORT + 10 * number, server, "512m", "512m") as started:
        yield started


@contextlib.contextmanager
def rocketmq(
    folder: Path,
    settings: dict[str, str] | None = None,
    *,
    heap: str = "1g",
    direct: str = "2g",
    server: str | Path = "server49",
    flags: Sequence[str] = (),
) -> Iterator[Target]:
    """Starts Apache RocketMQ; settings are lines of its broker.conf, and flags are those of both JVMs.

    `server`: the module of tests/interop/java with the version (4.9.7 is server49, 5.5.0 is server55), or a folder of
    jars.

    Raises JavaMissing or NamespaceUnavailable.
    """
    if isinstance(server, str):
        java.build()
    env = environment(folder)
    namesrv = folder / "namesrv.properties"
    namesrv.write_text(f"listenPort=9876\nkvConfigPath={folder}/kvConfig.json\n")
    values = {"brokerId": "0", "enablePropertyFilter": "true", **(settings or {})}
    with namespace("rmq") as prefix, contextlib.ExitStack() as stack:
        ns = stack.enter_context(Started(
            [*prefix, *java.command(server, "org.apache.rocketmq.namesrv.NamesrvStartup", "-c", str(namesrv),
                                    flags=[f"-Duser.home={folder}", *flags])],
            folder / "namesrv.log", env))  # fmt: skip
        until("RocketMQ's NameServer", lambda: listening(prefix, 9876), 60, [ns])
        br = stack.enter_context(_broker(folder, prefix, values, _BROKER_PORT, server, heap, direct, flags))
        yield Target(
            name="rocketmq", namesrv="127.0.0.1:9876", broker_address=f"127.0.0.1:{_BROKER_PORT}", cluster="demo",
            broker_name="demo-a", prefix=prefix, namesrv_pid=ns.pid, broker_pids=[br.pid], log=br.log,
        )  # fmt: skip
