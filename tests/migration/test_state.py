"""What has state beside the log, and a cutover that is killed or taken back. With real RocketMQ; INTEROP=full.

Java brokers and the times of delays make these slow: `make nightly` runs them.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from gantry_broker.protocol import fastjson
from gantry_broker.protocol.codes import Perm, RequestCode
from gantry_broker.protocol.frame import Frame
from gantry_broker.protocol.message import decode_records
from gantry_operator.platforms.local.folder import ClusterFolder

from benchmarks.rig import rocketmq
from benchmarks.rig.driver import Driver
from benchmarks.rig.processes import Started, until
from benchmarks.rig.wire import Wire
from tests.migration.scene import Scene, put, scene

pytestmark = pytest.mark.timeout(400)
ANSWERS = importlib.import_module("tests.interop.pop_answers")  # It has no types.
# The source checks no transaction itself, so that Gantry has to.
SOURCE = {"transactionCheckInterval": "600000"}
GANTRY = {"transactionCheckInterval": 2000, "transactionTimeOut": 2000}

IN_ROCKSDB = {"timerRocksDBEnable": "true", "transRocksDBEnable": "true", "transWriteOriginTransHalfEnable": "true"}
"""Timers and half messages of 5.4 and later; the log has both all the same."""


@pytest.mark.parametrize(
    ("server", "client", "settings"),
    [("server49", "49", {}), ("server55", "55", {}), ("server55", "55", IN_ROCKSDB)],
    ids=["4.9.7", "5.5.0", "5.5.0 with RocksDB"],
)
def test_what_waits_at_a_cutover_arrives_once(
    java_side: Path, tmp_path: Path, server: str, client: str, settings: dict[str, str]
) -> None:
    with scene(tmp_path, server, SOURCE | settings) as made:
        waits(made, client)


def create(made: Scene, clients: Any, *topics: str) -> None:
    for topic in topics:
        clients.mqadmin("updateTopic", "-c", made.source.cluster, "-t", topic, "-r", "1", "-w", "1")


def waits(made: Scene, client: str) -> None:
    clients, timers = made.driver(client), client == "55"
    create(made, clients, "Early", "Levels", "Timers", "Tx", "Pop")
    if timers:
        put(clients, topic="Early", count=3, run="early", deliver_in_ms=2_000)
    early = clients.start("consume", topic="Early", group="gEarly", run="early", count=99, timeout_s=300, each=True)
    put(clients, topic="Pop", count=10, run="pop")
    if timers:
        with Wire(made.source.broker_address, 30, made.source.prefix) as wire:
            popped = pop(wire, "gPop")
            assert len(popped) == 8
            ack(wire, "gPop", popped, 3)
    made.start(broker=GANTRY)
    if timers:
        assert sum(1 for _ in range(3) if early.wait_for("message", 30)) == 3
        time.sleep(12)  # What was delivered in the last seconds may come again.
    transaction = clients.start("transactions", topic="Tx", count=3, plan="unknown-commit", stay_s=150)
    for _ in range(3):
        transaction.wait_for("sent")
    put(clients, topic="Levels", count=5, run="levels", delay_level=5)
    if timers:
        put(clients, topic="Timers", count=5, run="timers", deliver_in_ms=60_000)
    made.until_following()
    made.migrate("cutover")
    for topic, expected in {"Levels": 5, "Timers": 5 if timers else 0, "Tx": 3}.items():
        if expected:
            got = clients.run(
                "consume", topic=topic, group=f"g{topic}", run=topic.lower(), count=expected, settle_ms=5_000,
                timeout_s=150, within_s=200,
            )  # fmt: skip
            assert (got.summary["unique"], got.summary["repeated"]) == (expected, 0), topic
    again_early = [line for line in early.queue.queue if line["event"] == "message"]
    assert not again_early, "a timer message that RocketMQ had delivered came again"
    if timers:
        with Wire(made.address, 30, made.source.prefix) as wire:
            again = {record.queue_offset for record in pop(wire, "gPop", 32)}
            assert again == set(range(3, 10)), "what was popped and not acknowledged comes again"


class Popped(list[Any]):
    """Records, with the answer that had them."""

    answer: Frame


def pop(wire: Wire, group: str, most: int = 8) -> Popped:
    answer = wire.ask(
        RequestCode.POP_MESSAGE,
        {k: str(v) for k, v in ANSWERS.pop_ext(group, "Pop", maxMsgNums=most, queueId=0).items()},
    )
    found = Popped(decode_records(answer.body) if answer.body else ())
    found.answer = answer
    return found


def ack(wire: Wire, group: str, popped: Popped, count: int) -> None:
    for at, record in enumerate(popped[:count]):
        fields = {
            "consumerGroup": group, "topic": "Pop", "queueId": 0, "offset": record.queue_offset,
            "extraInfo": ANSWERS.handle_of(popped.answer, at),
        }  # fmt: skip
        assert wire.ask(RequestCode.ACK_MESSAGE, {k: str(v) for k, v in fields.items()}).code == 0


@pytest.mark.parametrize(("server", "client"), [("server49", "49"), ("server55", "55")])
def test_a_cutover_that_is_killed_goes_back_or_on(java_side: Path, tmp_path: Path, server: str, client: str) -> None:
    with scene(tmp_path, server) as made:
        killed(made, client)


def killed(made: Scene, client: str) -> None:
    clients = made.driver(client)
    create(made, clients, "Orders")
    put(clients, topic="Orders", count=500, run="run")
    made.start()
    made.until_following()
    for phase in ("readers-off", "writes-off"):
        cut_at(made, phase)
        assert "has its permission back" in made.migrate("abort").stdout
        group = made.status()["groups"]["a"]
        assert (group["state"], group["sourcePermission"]) == ("following", Perm.READ | Perm.WRITE)
        sent = clients.run("produce", topic="Orders", count=10, run=phase)
        assert sent.summary["statuses"] == {"SEND_OK": 10}
    # What follows is killed at each step, too: the member, the source, and the supervisor with all members.
    kill_member(made)
    made.until_following()
    cut_at(made, "readers-off")
    kill_member(made)
    cut_at(made, "writes-off")
    with restarted_source(made):
        cut_at(made, "writes-off")
        os.kill(supervisor(made), signal.SIGKILL)
        made.start()
        cut_at(made, "finishing")
        kill_member(made)
        assert "Gantry leads" in made.migrate("cutover").stdout
        ends(made, clients)


@pytest.mark.parametrize(("server", "client"), [("server49", "49"), ("server55", "55")])
def test_a_cutover_goes_on_though_all_processes_are_killed_at_each_step(
    java_side: Path, tmp_path: Path, server: str, client: str
) -> None:
    """The command, the source's NameServer and broker, the member, the supervisor."""
    with scene(tmp_path, server, {"registerNameServerPeriod": "10000"}) as made, contextlib.ExitStack() as started:
        clients = made.driver(client)
        create(made, clients, "Orders")
        put(clients, topic="Orders", count=500, run="run")
        made.start()
        made.until_following()
        process = made.source.namesrv_pid
        (broker,) = made.source.broker_pids

        def kill() -> bool:
            os.kill(process, signal.SIGKILL)
            return True

        for number, phase in enumerate(("routing", "routed", "readers-off", "writes-off", "finishing", "taking")):
            words = words_of(process)
            deadline = time.monotonic() + 90
            while alive(process):
                assert time.monotonic() < deadline, f"the cutover never came to {phase}"
                cut_at(made, phase, kill)
            log = made.base / f"nameserver-{number}.log"
            process = started.enter_context(again(made, words, log)).pid
            words = words_of(broker)
            os.kill(broker, signal.SIGKILL)
            log = made.base / f"broker-{number}.log"
            broker = started.enter_context(again(made, words, log)).pid
            kill_member(made)
            os.kill(supervisor(made), signal.SIGKILL)
            made.start()
            until("the source is registered", lambda: made.source.broker_name in routes(clients), 60, [])
        assert "Gantry leads" in made.migrate("cutover").stdout
        got = clients.run("consume", topic="Orders", group="g", count=500, settle_ms=2_000, timeout_s=90)
        assert (got.summary["unique"], got.summary["repeated"]) == (500, 0)
        sent = clients.run("produce", topic="Orders", count=10, run="then")
        assert sent.summary["statuses"] == {"SEND_OK": 10}


@pytest.mark.parametrize(("server", "client"), [("server49", "49"), ("server55", "55")])
def test_a_source_that_starts_again_after_the_cutover_takes_no_clients(
    java_side: Path, tmp_path: Path, server: str, client: str
) -> None:
    """A master of RocketMQ registers under brokerId 0 after each start, whatever it had, here every 10 seconds."""
    with scene(tmp_path, server, {"registerNameServerPeriod": "10000"}) as made:
        clients = made.driver(client)
        create(made, clients, "Orders")
        put(clients, topic="Orders", count=100, run="run")
        made.start()
        made.until_following()
        made.migrate("cutover", "--settle", "1", "--routes", "0")
        writer = clients.start("failover", topic="Orders", run="run", first=100, size=100, threads=1, pause_ms=5)
        writer.wait_for("ok")
        with restarted_source(made):
            looks = [master(made) for _ in range(800) if time.sleep(0.03) is None]
            assert looks.count(made.source.broker_address) < 40, "the leader takes its place back"
            if server == "server55":
                assert set(looks[100:]) == {made.address}, "NameServers of 5.x refuse the source"
            clients.run("stop")
            written = {line["n"] for line in writer.finish().of("ok")}
            assert len(written) > 1_000
            got = clients.run("consume", topic="Orders", group="g", count=100 + len(written), settle_ms=2_000)
            assert got.summary["unique"] == 100 + len(written)
            assert "the source leads again" in made.migrate("rollback").stdout


def master(made: Scene) -> str | None:
    """Return the master's address as the source's NameServer has it."""
    with Wire(made.source.namesrv, prefix=made.source.prefix) as wire:
        table = fastjson.loads(wire.call(RequestCode.GET_BROKER_CLUSTER_INFO, {}).body)["brokerAddrTable"]
    return {int(k): str(v) for k, v in table[made.source.broker_name]["brokerAddrs"].items()}.get(0)


def routes(clients: Driver) -> str:
    return clients.mqadmin("clusterList")


def kill_member(made: Scene) -> None:
    until("the member runs", lambda: member_of(made) is not None, 60, [])
    if (pid := member_of(made)) is not None:
        os.kill(pid, signal.SIGKILL)


def member_of(made: Scene) -> int | None:
    member = next(m for m in made.resource()["status"]["members"] if m["group"] == "a")
    return None if member.get("pid") is None else int(member["pid"])


def supervisor(made: Scene) -> int:
    return int(json.loads(ClusterFolder(made.folder).supervisor.read_text())["pid"])


@contextlib.contextmanager
def restarted_source(made: Scene) -> Iterator[None]:
    """Kill the source's broker, and start it again."""
    (pid,) = made.source.broker_pids
    words = words_of(pid)
    os.kill(pid, signal.SIGKILL)
    with again(made, words, made.base / "broker-again.log"):
        yield


def words_of(pid: int) -> list[str]:
    return [word.decode() for word in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[:-1]]


def alive(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


@contextlib.contextmanager
def again(made: Scene, words: list[str], log: Path) -> Iterator[Started]:
    """Start a program of the source that was killed."""
    with Started([*made.source.prefix, *words], log, rocketmq.environment(made.base / "rocketmq")) as program:
        until("RocketMQ", lambda: "boot success" in program.tail(100_000), 60, [program])
        yield program


def ends(made: Scene, clients: Driver) -> None:
    refused = made.migrate("abort", check=False)
    assert refused.returncode == 1
    assert "gantry migrate rollback returns to it" in refused.stderr
    # The runs use the same numbers.
    got = clients.run("consume", topic="Orders", group="g", count=500, min_received=520, settle_ms=2_000, timeout_s=90)
    assert got.summary["received"] == 520


def cut_at(made: Scene, phase: str, done: Callable[[], bool] = lambda: True) -> None:
    """Kill a cutover as soon as this phase is recorded, and something is done; or let it be if it was past that."""
    cutover = subprocess.Popen(
        [*made.source.prefix, sys.executable, "-m", "gantry_operator.cli", "migrate", "cutover", "--settle", "1",
         "--routes", "2", "--dir", str(made.folder)],
        env=made.environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
    )  # fmt: skip
    record = made.folder / "migration.json"
    deadline = time.monotonic() + 60
    while cutover.poll() is None and time.monotonic() < deadline:
        if record.exists() and f'"{phase}"' in record.read_text() and done():
            break
        time.sleep(0.01)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(cutover.pid, signal.SIGKILL)
    cutover.communicate()
