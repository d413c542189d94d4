"""Four producers, groups of different kinds with changing members, and a failover in the middle.

    python -m tests.delivery.scenario                          # 1,000,000 messages
    python -m tests.delivery.scenario --messages 100000
    python -m tests.delivery.scenario --through proxies        # POP by gRPC, two proxies that are killed in turn

A cluster of real processes under `gantry up` loses its master by `kill -9` after half of the messages. Members leave
every 3 to 6 s, and the scenario kills one of them every 7 s. At the end it checks the members' logs (`judge` and
`judge_popped`).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from gantry_broker.client import Admin, ClientError, DeadLetters
from gantry_broker.protocol.bodies import SubscriptionGroup
from gantry_broker.remoting.errors import RemotingError

if not __package__:  # Run as a script: start it again as a module, so that it finds the package `tests`.
    os.execl(sys.executable, sys.executable, "-m", "tests.delivery.scenario", *sys.argv[1:])

from benchmarks.rig.gantry import Cluster
from benchmarks.rig.processes import Started, free_port
from tests.delivery.plan import (
    ALL,
    FILTERED,
    GROUPS,
    LOG_ENTRY,
    ORDERED,
    POP_GROUPS,
    POPPED_ORDERED,
    PRODUCERS,
    QUEUES,
    RETRIES,
    TOPIC,
    Plan,
    parse,
)
from tests.interop5.clients import python_environment

ROOT = Path(__file__).resolve().parents[2]
MEMBERS = 2
KILL_EVERY_S = 7.0
PROXIES = 2
PROXY_KILL_EVERY_S = 5.0
GRACE_NS = 2_000_000_000
"""An acknowledgement and a delivery nearer to each other than this may have crossed."""


@dataclass
class DeliveryLog:
    """The log of a group's members in the order of time: (ns, key, number, retries)."""

    lines: list[tuple[int, int, int, int]]

    @classmethod
    def read(cls, logs: list[Path]) -> DeliveryLog:
        lines = []
        for log in logs:
            data = log.read_bytes()
            data = data[: len(data) - len(data) % LOG_ENTRY.size]
            lines += [(ns, key, number, tried) for key, number, ns, tried in LOG_ENTRY.iter_unpack(data)]
        lines.sort()
        return cls(lines)


@dataclass
class Outcome:
    """The result of a run; `problems` is empty when all guarantees held. Times are seconds."""

    messages: int
    seconds: float
    deliveries: dict[str, int]
    repeated: dict[str, int]
    members_killed: int
    failover_at: int
    dead: int
    problems: list[str] = field(default_factory=list)
    proxies_killed: int = 0


def judge(plan: Plan, group: str, delivered: DeliveryLog) -> tuple[list[str], int]:
    """Returns the faults in the deliveries of one group, and the number of repeated ones."""
    problems = []
    got = [bytearray(plan.per_key) for _ in range(QUEUES)]
    newest = [-1] * QUEUES
    most_retries: dict[tuple[int, int], int] = {}
    again = 0
    for _, key, number, tried in delivered.lines:
        if not 0 <= key < QUEUES or not 0 <= number < plan.per_key or not plan.wanted(group, number):
            problems.append(f"{group} got {key}:{number}, which is none of its own")
            continue
        fails = group == ALL and (plan.poisoned(number) or plan.transient_failures(number))
        if tried and not fails:
            problems.append(f"{group} got {key}:{number} as retry {tried}, but it never failed there")
        if fails:
            most_retries[key, number] = max(tried, most_retries.get((key, number), 0))
        if got[key][number]:
            again += not tried
            continue
        got[key][number] = 1
        if group == ORDERED:
            if number < newest[key]:
                problems.append(f"{group} got {key}:{number} for the first time after {newest[key]}")
            newest[key] = max(newest[key], number)
    missing = [
        f"{key}:{n}" for key in range(QUEUES) for n in range(plan.per_key) if plan.wanted(group, n) and not got[key][n]
    ]
    if missing:
        problems.append(f"{group} never got {len(missing)} messages: {missing[:10]}")
    for (key, number), tried in most_retries.items():
        wanted = RETRIES if plan.poisoned(number) else plan.transient_failures(number)
        if tried != wanted:
            problems.append(f"{group}: {key}:{number} was tried again {tried} times, not {wanted}")
    return problems[:20], again


def judge_popped(plan: Plan, group: str, delivered: DeliveryLog, acknowledged: DeliveryLog) -> tuple[list[str], int]:
    """Returns the faults of a POP group, and the number of repeated deliveries.

    Each message comes at least once. None comes again after its acknowledgement. An orderly group gets the messages of
    a key for the first time in order.
    """
    problems = []
    done: dict[tuple[int, int], int] = {}
    for ns, key, number, _ in acknowledged.lines:
        done.setdefault((key, number), ns)
    got = [bytearray(plan.per_key) for _ in range(QUEUES)]
    newest = [-1] * QUEUES
    again = 0
    for ns, key, number, _ in delivered.lines:
        if not 0 <= key < QUEUES or not 0 <= number < plan.per_key:
            problems.append(f"{group} got {key}:{number}, which is none of its own")
            continue
        end = done.get((key, number))
        if end is not None and ns > end + GRACE_NS:
            problems.append(f"{group} got {key}:{number} {(ns - end) / 1e9:.1f} s after its acknowledgement")
        if got[key][number]:
            again += 1
            continue
        got[key][number] = 1
        if group == POPPED_ORDERED:
            if number < newest[key]:
                problems.append(f"{group} got {key}:{number} for the first time after {newest[key]}")
            newest[key] = max(newest[key], number)
    missing = [f"{key}:{n}" for key in range(QUEUES) for n in range(plan.per_key) if not got[key][n]]
    if missing:
        problems.append(f"{group} never got {len(missing)} messages: {missing[:10]}")
    return problems[:20], again


def judge_dead(plan: Plan, letters: list[tuple[int, int]]) -> list[str]:
    """Returns the differences between the dead letters and the messages that always fail."""
    wanted = {(key, n) for key in range(QUEUES) for n in range(plan.per_key) if plan.poisoned(n)}
    problems = []
    if wanted - set(letters):
        problems.append(f"{len(wanted - set(letters))} are missing among the dead letters: {sorted(wanted)[:5]}")
    if set(letters) - wanted:
        problems.append(f"dead letters that should live: {sorted(set(letters) - wanted)[:5]}")
    return problems


class Proxies:
    """Two gRPC proxies of the cluster; each is killed and started again in its turn."""

    def __init__(self, folder: Path, name_servers: list[str]) -> None:
        self._running: list[Started] = []
        self._words: list[list[str]] = []
        self._logs: list[Path] = []
        self.addresses: list[str] = []
        self.killed = 0
        for number in range(PROXIES):
            port = free_port()
            config = folder / f"proxy-{number}.json"
            config.write_text(json.dumps({
                "cluster": "demo", "name": f"proxy-{number}", "name_servers": name_servers,
                "listen_host": "127.0.0.1", "port": port, "drain_s": 1,
            }))  # fmt: skip
            self.addresses.append(f"127.0.0.1:{port}")
            self._words.append([sys.executable, "-m", "gantry_broker.proxy", "--config", str(config)])
            self._logs.append(folder / f"proxy-{number}.log")
            self._running.append(Started(self._words[number], self._logs[number]))

    def kill_next(self) -> None:
        number = self.killed % PROXIES
        self.killed += 1
        self._running[number].popen.kill()
        self._running[number].popen.wait()
        self._running[number] = Started(self._words[number], self._logs[number])

    def stop(self) -> None:
        for proxy in self._running:
            proxy.stop(5)


class Scenario:
    """One run; `play` returns its outcome. `groups`: GROUPS or POP_GROUPS, or all of them."""

    def __init__(
        self, folder: Path, plan: Plan, patience_s: float, seed: int = 1, groups: tuple[str, ...] = GROUPS
    ) -> None:
        self._folder, self._plan, self._patience_s = folder, plan, patience_s
        self._groups = groups
        self._proxies: Proxies | None = None
        self._broker = ""
        self._rng = random.Random(seed)
        self._cluster = Cluster(folder / "cluster", self._manifest())
        self._members: dict[tuple[str, int], subprocess.Popen[str]] = {}
        self._logs: dict[str, list[Path]] = {group: [] for group in groups}
        self._killed = 0
        self._failover_at = 0

    def _manifest(self) -> Path:
        self._folder.mkdir(parents=True, exist_ok=True)
        file = self._folder / "cluster.yaml"
        spec = {
            "nameServers": {"replicas": 2},
            "brokerGroups": [{"name": "a", "members": 3}],
            "broker": {"messageDelayLevel": " ".join(["1s"] * 18)},
        }
        names = {"apiVersion": "gantry.dev/v1alpha1", "kind": "BrokerCluster", "metadata": {"name": "demo"}}
        file.write_text(json.dumps({**names, "spec": spec}))
        return file

    def _start(self, servers: str, work: str, *words: object) -> subprocess.Popen[str]:
        plan = (self._plan.messages, self._plan.poison_every, self._plan.transient_every)
        command = [sys.executable, "-m", "tests.delivery.worker", work, "--namesrv", servers, "--plan", *map(str, plan)]
        errors = (self._folder / "workers.log").open("ab")
        with errors:
            return subprocess.Popen(
                [*command, *map(str, words)], stdout=subprocess.PIPE if work == "produce" else errors, stderr=errors,
                text=True, start_new_session=True, cwd=ROOT,
            )  # fmt: skip

    def _start_member(self, servers: str, group: str, number: int) -> None:
        log = self._folder / f"{group}-{len(self._logs[group])}.log"
        log.touch()
        self._logs[group].append(log)
        words = ("--group", group, "--log", log, "--seed", self._rng.randrange(1_000_000))
        if group in POP_GROUPS:
            log.with_name(log.name + ".acks").touch()
            self._members[group, number] = self._start_popping(*words)
        else:
            self._members[group, number] = self._start(servers, "consume", *words)

    def _start_popping(self, *words: object) -> subprocess.Popen[str]:
        assert self._proxies is not None
        command = [
            str(python_environment()), "-P", str(Path(__file__).with_name("grpc_member.py")), "--topic", TOPIC,
            "--broker", self._broker, "--proxies", *self._proxies.addresses,
        ]  # fmt: skip
        with (self._folder / "workers.log").open("ab") as errors:
            return subprocess.Popen(
                [*command, *map(str, words)], stdout=errors, stderr=errors, text=True, start_new_session=True,
                env={**os.environ, "PYTHONPATH": "", "HOME": str(self._folder)},
            )  # fmt: skip

    async def play(self) -> Outcome:
        with self._cluster as cluster:
            servers = ";".join(cluster.status()["nameServers"])
            async with Admin(servers) as admin:
                await admin.create_topic(TOPIC, queues=QUEUES)
                for group in self._groups:
                    if group in POP_GROUPS:
                        orderly = group == POPPED_ORDERED
                        await admin.create_group(SubscriptionGroup(group, orderly=orderly))
                self._broker = next(iter(await admin.masters()))
            if any(group in POP_GROUPS for group in self._groups):
                self._proxies = Proxies(self._folder, cluster.status()["nameServers"])
            started = time.monotonic()
            producers: list[subprocess.Popen[str]] = []
            try:
                for group in self._groups:
                    for number in range(MEMBERS):
                        self._start_member(servers, group, number)
                each = QUEUES // PRODUCERS
                for number in range(PRODUCERS):
                    keys = range(number * each, (number + 1) * each)
                    producers.append(self._start(servers, "produce", "--keys", *keys))
                await self._run(servers, producers)
                letters = await self._letters(servers) if ALL in self._groups else []
                seconds = time.monotonic() - started
                for process in self._members.values():
                    process.terminate()
                for process in self._members.values():
                    await asyncio.to_thread(process.wait, 20)
            finally:
                for process in (*producers, *self._members.values()):
                    if process.poll() is None:
                        process.kill()
                    process.wait()
                if self._proxies is not None:
                    self._proxies.stop()
        return self._judge(seconds, letters)

    async def _run(self, servers: str, producers: list[subprocess.Popen[str]]) -> None:
        sent = [0] * len(producers)

        async def follow(number: int) -> None:
            out = producers[number].stdout
            assert out is not None
            while line := await asyncio.to_thread(out.readline):
                sent[number] = int(line)

        followers = [asyncio.create_task(follow(n)) for n in range(len(producers))]
        deadline = time.monotonic() + self._patience_s
        next_kill = time.monotonic() + KILL_EVERY_S
        next_proxy = time.monotonic() + PROXY_KILL_EVERY_S
        while not await self._finished(servers, all(f.done() for f in followers)):
            if time.monotonic() > deadline:
                return  # the judge names the missing messages
            if not self._failover_at and sum(sent) >= self._plan.messages // 2:
                self._failover_at = sum(sent)
                self._kill_the_master()
            if time.monotonic() > next_kill:
                next_kill += KILL_EVERY_S
                place = self._rng.choice(sorted(self._members))
                self._members[place].kill()
                self._members[place].wait()
                self._killed += 1
                self._start_member(servers, *place)
            # The first one dies early, however fast the messages are.
            due = time.monotonic() > next_proxy
            first = self._proxies is not None and not self._proxies.killed and sum(sent) >= self._plan.messages // 4
            if self._proxies is not None and (due or first):
                next_proxy = time.monotonic() + PROXY_KILL_EVERY_S
                self._proxies.kill_next()
            await asyncio.sleep(0.2)

    def _kill_the_master(self) -> None:
        master = next(member for member in self._cluster.members() or [] if member["role"] == "Master")
        os.kill(master["pid"], signal.SIGKILL)

    async def _finished(self, servers: str, all_sent: bool) -> bool:
        """Whether all groups have consumed everything, after all is sent."""
        if not all_sent or not self._failover_at:
            return False
        await asyncio.sleep(2)
        try:
            async with Admin(servers) as admin:
                for group in self._groups:
                    stats = await admin.consume_stats(group)  # of a POP group up to its first message in flight
                    own = sum(queue.topic == TOPIC for queue in stats)
                    if own < QUEUES or any(item.broker_offset > item.consumer_offset for item in stats.values()):
                        return False
            return ALL not in self._groups or not judge_dead(self._plan, await self._letters(servers))
        except (ClientError, RemotingError):
            return False

    async def _letters(self, servers: str) -> list[tuple[int, int]]:
        async with DeadLetters(servers) as dead:
            if await dead.group(ALL) is None:
                return []
            return [parse(letter.body) async for page in dead.pages(ALL) for letter in page.letters]

    def _judge(self, seconds: float, letters: list[tuple[int, int]]) -> Outcome:
        outcome = Outcome(
            self._plan.messages, round(seconds, 1), {}, {}, self._killed, self._failover_at, len(letters),
            judge_dead(self._plan, letters) if ALL in self._groups else [],
            proxies_killed=0 if self._proxies is None else self._proxies.killed,
        )  # fmt: skip
        for group in self._groups:
            delivered = DeliveryLog.read(self._logs[group])
            if group in POP_GROUPS:
                acknowledged = DeliveryLog.read([log.with_name(log.name + ".acks") for log in self._logs[group]])
                problems, again = judge_popped(self._plan, group, delivered, acknowledged)
                if 2 * len(acknowledged.lines) < self._plan.messages:
                    problems.append(f"the members of {group} recorded {len(acknowledged.lines)} acknowledgements only")
            else:
                problems, again = judge(self._plan, group, delivered)
            outcome.problems += problems
            outcome.deliveries[group] = len(delivered.lines)
            outcome.repeated[group] = again
        if not self._failover_at:
            outcome.problems.append("the failover did not happen")
        return outcome


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--patience", type=float, default=1_800, help="seconds until it is judged as it is")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--through", choices=["remoting", "proxies", "both"], default="remoting")
    options = parser.parse_args()
    groups = {"remoting": GROUPS, "proxies": POP_GROUPS, "both": GROUPS + POP_GROUPS}[options.through]
    plan = Plan(options.messages, max(options.messages // 160, 50), max(options.messages // 800, 10))
    with tempfile.TemporaryDirectory() as name:
        outcome = asyncio.run(Scenario(Path(name), plan, options.patience, options.seed, groups).play())
    print(json.dumps(vars(outcome), indent=1))
    return 1 if outcome.problems else 0


if __name__ == "__main__":
    sys.exit(main())

__all__ = ["FILTERED", "DeliveryLog", "Outcome", "Plan", "Scenario", "judge", "judge_dead", "judge_popped"]
