"""The kinds of faults. Each is a coroutine that causes a fault, waits, and ends it.

`Plan` chooses the member and the duration from the seed alone. A fault looks up the master when it begins. A fault that
takes away a disk, or a part of one, needs a whole group: the loss of the only copy is no bug.
"""

from __future__ import annotations

import asyncio
import errno
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass

from gantry_operator.platforms.local import control

from tests.chaos.cluster import CLIENTS, GROUP, SUPERVISOR, Cluster
from tests.chaos.links import ANYBODY, Weather
from tests.chaos.packets import Losses

FAILURES = ((errno.EIO,), (errno.ENOSPC,), (errno.EMFILE,), (errno.EIO, errno.ENOSPC, errno.EMFILE))
WHOLE_S = 60.0
"""Seconds within which a group must be whole again, on a busy machine of two cores."""


@dataclass(frozen=True)
class Step:
    """One fault of a plan."""

    kind: str
    on_master: bool
    """Act on the master; otherwise on a slave."""
    which: int
    """Which one of several members."""
    seconds: float
    amount: float
    """From 0 to 1: the strength of the fault."""
    calm: bool
    """Wait until the group is whole before the next fault."""

    def __str__(self) -> str:
        return f"{self.kind} {'master' if self.on_master else 'slave'} {self.seconds:.1f} s"


class Scene:
    """The objects on which faults act. `say` writes a line of the trace."""

    def __init__(
        self, cluster: Cluster, say: Callable[[str], None], sends_again: Callable[[], Awaitable[None]]
    ) -> None:
        """`sends_again`: wait until the clients have some more acknowledgements."""
        self.sends_again = sends_again
        self.cluster = cluster
        self.links = cluster.links
        self.losses = Losses()
        self.say = say

    async def pick(self, step: Step) -> str:
        """The member that the step is for."""
        master = await self.cluster.master()
        others = [m for m in self.cluster.members if m != master]
        return master if step.on_master and master is not None else others[step.which % len(others)]

    async def peers(self, name: str) -> list[str]:
        return [m for m in self.cluster.members if m != name]

    async def heal(self) -> None:
        """End every fault that can end."""
        self.links.heal()
        if self.cluster.store is not None:
            self.cluster.store.heal()
        lost = self.losses.end()
        if lost is not None:
            self.say(f"no packets are lost any more; {lost} were")
        self.cluster.thaw()
        self.cluster.empty()
        for name in self.cluster.members:
            self.cluster.plant(name)
        if not self.cluster.supervised:
            self.cluster.start_supervisor()

    async def whole(self) -> None:
        await self.cluster.until("every member in sync under one master", self.cluster.whole, WHOLE_S)

    async def killed(self, name: str) -> None:
        """Wait until the killed process is gone."""
        pid = self.cluster.pid(name)
        self.cluster.kill(name)
        for _ in range(200):
            if self.cluster.pid(name) != pid:
                return
            await asyncio.sleep(0.01)


async def kill(scene: Scene, step: Step) -> None:
    name = await scene.pick(step)
    scene.say(f"kill -9 {name}")
    scene.cluster.kill(name)


async def kill_twice(scene: Scene, step: Step) -> None:
    """Kill the next leader, too."""
    first = await scene.pick(step)
    scene.say(f"kill -9 {first}")
    await scene.killed(first)
    await asyncio.sleep(step.amount)
    second = await scene.cluster.master()
    if second is not None:
        scene.say(f"kill -9 {second}, which leads now")
        scene.cluster.kill(second)


async def kill_all(scene: Scene, step: Step) -> None:
    scene.say("kill -9 of all members")
    for name in scene.cluster.members:
        scene.cluster.kill(name)


async def freeze(scene: Scene, step: Step) -> None:
    name = await scene.pick(step)
    scene.say(f"SIGSTOP {name}")
    scene.cluster.freeze(name)
    await asyncio.sleep(step.seconds)
    scene.say(f"SIGCONT {name}")
    scene.cluster.thaw()


async def cut_off(scene: Scene, step: Step) -> None:
    """Cut the member off from all others."""
    name = await scene.pick(step)
    scene.say(f"{name} is cut off from all others")
    scene.links.cut(name, ANYBODY)
    scene.links.cut(ANYBODY, name)
    await asyncio.sleep(step.seconds)


async def cut_from_peers(scene: Scene, step: Step) -> None:
    """Cut the member off from its peers. Clients and the supervisor still reach it."""
    name = await scene.pick(step)
    scene.say(f"{name} and the other members do not reach each other")
    for peer in await scene.peers(name):
        scene.links.part(name, peer)
    await asyncio.sleep(step.seconds)


async def one_way(scene: Scene, step: Step) -> None:
    """Cut one direction: the others hear the member, but it hears nothing, or the reverse."""
    name = await scene.pick(step)
    deaf = step.amount < 0.5
    scene.say(f"{name} {'receives nothing, and is heard' if deaf else 'is not heard, and receives'}")
    for peer in (*await scene.peers(name), SUPERVISOR):
        scene.links.cut(*((peer, name) if deaf else (name, peer)))
    await asyncio.sleep(step.seconds)


async def unsupervised(scene: Scene, step: Step) -> None:
    """Cut the supervisor and the member off from each other, in one direction or both."""
    name = await scene.pick(step)
    scene.say(f"{name} and the supervisor do not hear each other")
    scene.links.cut(name, SUPERVISOR)
    if step.amount < 0.5:
        scene.links.cut(SUPERVISOR, name)
    await asyncio.sleep(step.seconds)


async def clients_cut(scene: Scene, step: Step) -> None:
    name = await scene.pick(step)
    scene.say(f"clients do not reach {name}")
    scene.links.cut(*((CLIENTS, name) if step.amount < 0.5 else (name, CLIENTS)))
    await asyncio.sleep(step.seconds)


async def bad_weather(scene: Scene, step: Step) -> None:
    weather = Weather(0.002 + 0.03 * step.amount, 0.05 * step.amount, 0.02 + 0.05 * step.amount)
    scene.say(f"every link: {weather.delay_s * 1000:.0f} ms and up to {weather.jitter_s * 1000:.0f} ms more, "
              f"{weather.loss:.0%} lost")  # fmt: skip
    scene.links.weather = weather
    await asyncio.sleep(step.seconds)


async def slow_link(scene: Scene, step: Step) -> None:
    """Slow the link to one member or to the supervisor, in one direction or both. All other links keep their speed."""
    name = await scene.pick(step)
    others = [*await scene.peers(name), SUPERVISOR]
    other = others[step.which % len(others)]
    weather = Weather(0.02 + 0.4 * step.amount, 0.1 * step.amount)
    both = step.which % 2 == 0
    scene.say(f"the link {'between' if both else 'from'} {name} {'and' if both else 'to'} {other}: "
              f"{weather.delay_s * 1000:.0f} ms and up to {weather.jitter_s * 1000:.0f} ms more")  # fmt: skip
    scene.links.slow[name, other] = weather
    if both:
        scene.links.slow[other, name] = weather
    await asyncio.sleep(step.seconds)


async def packets_lost(scene: Scene, step: Step) -> None:
    share = 0.01 + 0.09 * step.amount
    scene.say(f"{share:.1%} of all packets are lost")
    scene.losses.lose(share)
    await asyncio.sleep(step.seconds)


async def resets(scene: Scene, step: Step) -> None:
    for _ in range(3):
        scene.say(f"{scene.links.reset(step.amount)} connections are reset")
        await asyncio.sleep(step.seconds / 3)


async def full_disk(scene: Scene, step: Step) -> None:
    name = await scene.pick(step)
    scene.say(f"the disk of {name} is full")
    await asyncio.to_thread(scene.cluster.fill, name)
    await asyncio.sleep(step.seconds)
    if step.amount < 0.3:
        scene.say(f"kill -9 {name}, whose disk is full")
        scene.cluster.kill(name)
        await asyncio.sleep(1.0)
    scene.say(f"the disk of {name} has room again")
    scene.cluster.empty([name])


async def slow_disk(scene: Scene, step: Step) -> None:
    name = await scene.pick(step)
    scene.say(f"every fsync of {name} takes {step.amount:.2f} s, every write {step.amount * 50:.0f} ms")
    scene.cluster.plant(name, sync_s=step.amount, write_s=step.amount * 0.05)
    await asyncio.sleep(step.seconds)


async def failing_calls(scene: Scene, step: Step) -> None:
    """Let some calls on its disk fail. The member may end and start any number of times."""
    errors = FAILURES[step.which % len(FAILURES)]
    if errno.EIO in errors:  # The member may give up records that it cannot read.
        await scene.heal()
        await scene.whole()
    name = await scene.pick(step)
    kind, rest = divmod(step.amount * 3, 1)
    share = (0.002, 0.02, 0.2)[int(kind)]
    said = " and ".join(errno.errorcode[error] for error in errors)
    scene.say(f"{share:.1%} of the calls on the disk of {name} fail with {said}")
    scene.cluster.plant(name, fails=share, errors=errors)
    if rest < 0.5:
        await asyncio.sleep(step.seconds / 2)
        scene.say(f"kill -9 {name}, whose start meets the same")
        scene.cluster.kill(name)
    await asyncio.sleep(step.seconds)
    scene.say(f"the disk of {name} is well again")
    scene.cluster.plant(name)


async def clock_skew(scene: Scene, step: Step) -> None:
    name = await scene.pick(step)
    skew = (step.amount - 0.5) * 7_200
    scene.say(f"the clock of {name} jumps by {skew:+.0f} s")
    scene.cluster.plant(name, clock_s=skew)
    await asyncio.sleep(step.seconds)


async def corrupted(scene: Scene, step: Step) -> None:
    """Change bytes of its log while the member is down, near the end or anywhere."""
    await scene.heal()
    await scene.whole()
    name = await scene.pick(step)
    scene.cluster.freeze(name)
    status = next(s for n, s in (await scene.cluster.statuses()).items() if n != name)
    at = int(status.confirmed * (1 - 0.2 * step.amount if step.which % 2 else step.amount))
    scene.cluster.corrupt(name, at)
    scene.say(f"64 bytes of {name}'s log change at {at} of about {status.confirmed}; kill -9 {name}")
    scene.cluster.kill(name)
    scene.cluster.stopped.discard(name)


async def new_disk(scene: Scene, step: Step) -> None:
    await scene.heal()
    await scene.whole()
    name = await scene.pick(step)
    scene.cluster.freeze(name)
    scene.cluster.wipe(name)
    scene.say(f"{name} loses its disk; kill -9 {name}")
    scene.cluster.kill(name)
    scene.cluster.stopped.discard(name)


async def name_server_killed(scene: Scene, step: Step) -> None:
    names = scene.cluster.name_servers
    for name in names if step.amount < 0.5 else names[step.which % len(names) :][:1]:
        scene.say(f"kill -9 {name}")
        scene.cluster.kill(name)


async def name_servers_away(scene: Scene, step: Step) -> None:
    """Freeze all NameServers: clients and brokers continue with the routes that they know."""
    scene.say("SIGSTOP of every NameServer")
    for name in scene.cluster.name_servers:
        scene.cluster.freeze(name)
    await asyncio.sleep(step.seconds)
    if step.on_master:
        await kill(scene, step)
        await asyncio.sleep(step.seconds)
    scene.say("SIGCONT of every NameServer")
    scene.cluster.thaw()


async def supervisor_killed(scene: Scene, step: Step) -> None:
    scene.say("kill -9 of the supervisor")
    scene.cluster.kill_supervisor()
    await asyncio.sleep(step.seconds / 2)
    if step.amount < 0.6:
        await kill(scene, step)
        await asyncio.sleep(step.seconds / 2)
    scene.say("another supervisor takes over")
    scene.cluster.start_supervisor()


async def hand_over(scene: Scene, step: Step) -> None:
    scene.say("a planned switch-over")
    asked = asyncio.create_task(control.ask(scene.cluster.folder, "switchover", 20.0, group=GROUP))
    if step.amount < 0.4:
        await asyncio.sleep(step.amount / 4)
        await kill(scene, step)
    with suppress(control.ControlError):
        done = await asked
        scene.say(f"  {done['done']}")


async def replaced_under_weather(scene: Scene, step: Step) -> None:
    """Kill a member while the network is bad."""
    scene.links.weather = Weather(0.01, 0.03, 0.03)
    await kill(scene, step)
    await asyncio.sleep(step.seconds)


async def signalled(scene: Scene, step: Step) -> None:
    """A clean stop that is not planned."""
    name = await scene.pick(step)
    scene.say(f"SIGTERM {name}")
    scene.cluster.end(name)


async def kill_alone(scene: Scene, step: Step) -> None:
    """Kill the master after it has lost its slaves, or some of them. Async has then acknowledged records that only the
    master had. If one slave still follows, that slave must be promoted.
    """
    master = await scene.cluster.master()
    if master is None:
        return
    slaves = await scene.peers(master)
    if step.which % 3 == 0:
        slaves = slaves[step.which % 2 :][:1]
    scene.say(f"{' and '.join(slaves)} and {master} do not reach each other")
    for slave in slaves:
        scene.links.part(master, slave)
    await asyncio.sleep(step.seconds / 4)
    scene.say(f"kill -9 {master}")
    scene.cluster.kill(master)
    await asyncio.sleep(step.amount)


async def _store_fails(scene: Scene, step: Step, said: str, how: str, delay_s: float = 0.0) -> None:
    """Let the object store fail until the faults are healed. Senders of a whole group whose master they reach notice
    nothing.
    """
    assert scene.cluster.store is not None
    scene.say(said)
    scene.cluster.store.fail(how, delay_s)
    if await scene.cluster.whole() and await _is_reached(scene):
        await scene.sends_again()
    await asyncio.sleep(step.seconds)


async def _is_reached(scene: Scene) -> bool:
    """Whether no fault before this one still keeps clients from the master."""
    master = await scene.cluster.master()
    return master is not None and not (scene.links.is_cut(CLIENTS, master) or scene.links.is_cut(master, CLIENTS))


async def store_away(scene: Scene, step: Step) -> None:
    await _store_fails(scene, step, "the object store is away", "cut")


async def store_slow(scene: Scene, step: Step) -> None:
    delay_s = 0.1 + 2.0 * step.amount
    await _store_fails(scene, step, f"each request of the object store waits for {delay_s:.1f} s", "slow", delay_s)


async def store_read_only(scene: Scene, step: Step) -> None:
    await _store_fails(scene, step, "the object store refuses writes", "read-only")


async def store_lies(scene: Scene, step: Step) -> None:
    """One write is answered with success and forgotten."""
    store = scene.cluster.store
    assert store is not None
    store.heal()
    store.lie()
    scene.say("the object store says once that it has written what it has not")
    before = store.lies
    for _ in range(50):
        if store.lies > before:
            scene.say("it has lied")
            break
        await asyncio.sleep(0.1)
    await asyncio.sleep(step.seconds / 4)


Fault = Callable[[Scene, Step], Awaitable[None]]
FAULTS: dict[str, Fault] = {
    "kill": kill,
    "kill-twice": kill_twice,
    "kill-all": kill_all,
    "stop": signalled,
    "freeze": freeze,
    "cut-off": cut_off,
    "cut-from-peers": cut_from_peers,
    "one-way": one_way,
    "unsupervised": unsupervised,
    "clients-cut": clients_cut,
    "bad-weather": bad_weather,
    "kill-in-bad-weather": replaced_under_weather,
    "resets": resets,
    "full-disk": full_disk,
    "slow-disk": slow_disk,
    "clock-skew": clock_skew,
    "corrupted": corrupted,
    "new-disk": new_disk,
    "name-server-killed": name_server_killed,
    "name-servers-away": name_servers_away,
    "supervisor-killed": supervisor_killed,
    "hand-over": hand_over,
}
"""Drawn for every plan. One more kind would change the plans of the seeds below `MORE_FROM`."""
MORE: dict[str, Fault] = {"slow-link": slow_link, "packets-lost": packets_lost, "failing-calls": failing_calls}
MORE_FROM = 1_000_000
"""Plans from this seed on also draw these kinds. Recorded results refer to seeds below it."""
STORE: dict[str, Fault] = {
    "store-away": store_away, "store-slow": store_slow, "store-read-only": store_read_only, "store-lies": store_lies,
}  # fmt: skip
STORE_FROM = 2_000_000
"""Plans from this seed on also draw the faults of an object store, of those with `MORE`. The cluster then archives."""
ALONE: dict[str, Fault] = {"kill-alone": kill_alone}
"""Only drawn where replication is Async."""
EVERY_FAULT: dict[str, Fault] = FAULTS | MORE | STORE | ALONE
NEEDS_ROOT = frozenset({"full-disk"})
NEEDS_OWN_NETWORK = frozenset({"packets-lost"})


def draw(rng: random.Random, kind: str) -> Step:
    return Step(
        kind,
        on_master=rng.random() < 0.65,
        which=rng.randrange(6),
        seconds=rng.choice((0.4, 1.2, 2.5, 4.0, 6.0)),
        amount=rng.random(),
        calm=rng.random() < 0.5,
    )
