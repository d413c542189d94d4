"""An exception in the failover loop is reported and does not end the failover. Real brokers of two members."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
from gantry_broker.broker.process import BrokerProcess
from gantry_broker.config import BrokerConfig
from gantry_broker.replication.replica import Replica
from gantry_operator.cluster.group_controller import GroupController
from gantry_operator.cluster.master_slave_controller import MasterSlaveController
from gantry_operator.cluster.member_http import make_client
from gantry_operator.cluster.platform import Change, Event, MemberEndpoint, ProcessState
from gantry_operator.cluster.restart import run_with_restarts
from gantry_operator.failover.model import FailoverSettings
from gantry_operator.platforms.local.events import EventLog, last_events
from gantry_operator.registry.file import FileRegistry

from tests.support.failing_calls import raising
from tests.support.free_ports import free_port
from tests.support.present import present
from tests.support.running import until


class Group:
    """Two members, and the platform of their controllers."""

    def __init__(self, folder: Path) -> None:
        self.configs = [self._config(folder, number) for number in range(2)]
        self.running: dict[str, BrokerProcess] = {}
        self.events: list[Event] = []
        self.controllers: list[MasterSlaveController] = []
        self.registry = FileRegistry(folder / "registry")
        self.client = make_client(lambda: None)
        self.failing: Callable[[], None] = lambda: None
        """Called in each pass of the first loop."""

    @staticmethod
    def _config(folder: Path, number: int) -> BrokerConfig:
        port, replication_port = free_port(), free_port()
        return BrokerConfig(
            replication_port=replication_port, replication_address=f"127.0.0.1:{replication_port}",
            cluster="t", group="a", member=number, name=f"t-a-{number}", data_dir=folder / str(number),
            listen_host="127.0.0.1", port=port, http_port=free_port(), member_address=f"127.0.0.1:{port}",
            group_address=f"127.0.0.1:{port}",
        )  # fmt: skip

    async def start(self, number: int) -> None:
        config = self.configs[number]
        process = BrokerProcess(config)
        await process.start()
        self.running[config.name] = process

    async def stop(self, number: int) -> None:
        await self.running.pop(self.configs[number].name).stop()
        self.controllers[-1].wake()

    def make(self) -> GroupController:
        made = MasterSlaveController("a", self.registry, self, self.client, FailoverSettings)
        self.controllers.append(made)
        return made

    def master(self) -> int | None:
        """The leader by its own report to the newest controller."""
        for watch in self.controllers[-1].watches.values():
            report = watch.report
            if report is not None and watch.reach == "ok" and report.role == "Master" and watch.name in self.running:
                return report.id.member
        return None

    def in_sync(self) -> int:
        leadership = self.controllers[-1].leadership
        return 0 if leadership is None else len(leadership.in_sync)

    # ---- platform

    def members(self, group: str) -> Sequence[MemberEndpoint]:
        return [
            MemberEndpoint(c.name, c.member, f"http://127.0.0.1:{c.http_port}", c.replication_address)
            for c in self.configs
        ]

    def process_state(self, name: str) -> ProcessState:
        if len(self.controllers) == 1:
            self.failing()
        return ProcessState(gone=name not in self.running)

    async def announce(self, group: str, master: MemberEndpoint, epoch: int) -> None:
        """Each member has its own address here."""

    def event(self, event: Event) -> None:
        self.events.append(event)

    def changed(self, change: Change) -> None:
        self.events.append(Event("Normal", "MasterChanged", change.new, change.group))


@pytest.fixture
async def group(tmp_path: Path) -> AsyncIterator[Group]:
    made = Group(tmp_path)
    try:
        for number in range(2):
            await made.start(number)
        yield made
    finally:
        for process in list(made.running.values()):
            await process.stop()
        await made.client.aclose()


@asynccontextmanager
async def kept(group: Group) -> AsyncIterator[None]:
    task = asyncio.create_task(run_with_restarts(group.make(), group.make, group.event, again_s=0.05))
    try:
        await until(lambda: group.in_sync() == 2 and group.master() is not None, "both are in sync")
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


def failures(group: Group) -> list[str]:
    return [e.message for e in group.events if e.reason == "GroupControllerFailed"]


async def _fail_over(group: Group) -> None:
    old = present(group.master())
    await group.stop(old)
    await until(lambda: group.master() == 1 - old, "the other one leads")


async def test_a_pass_that_raises_is_reported_and_followed_by_the_next(group: Group) -> None:
    async with kept(group):
        failed = asyncio.Event()

        def fail_once() -> None:
            if not failed.is_set():
                failed.set()
                raise ValueError("a fault in a pass")

        group.failing = fail_once
        group.controllers[0].wake()
        await until(lambda: failures(group) == ["ValueError: a fault in a pass"], "the fault is reported")
        await _fail_over(group)
        assert len(group.controllers) == 1, "the loop itself went on"
        assert group.controllers[0].problem == ""


async def test_a_loop_that_ends_is_reported_and_another_takes_over(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with kept(group):
        first = group.controllers[0]
        monkeypatch.setattr(first, "_pause", raising(KeyError("outside of a pass")))
        first.wake()
        await until(lambda: len(group.controllers) == 2, "another loop runs")
        assert failures(group) == ["KeyError: 'outside of a pass'; it is started again"]
        await until(lambda: group.in_sync() == 2 and group.master() is not None, "it knows the group")
        await _fail_over(group)


async def test_a_loop_that_dies_while_the_master_does_too_loses_no_failover(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next controller completes the step of the failed one: a swap without its assignments."""
    async with kept(group):

        def broken(*_: object) -> None:
            raise RuntimeError("no assignment can be sent")

        monkeypatch.setattr(group.controllers[0], "_send_assignment", broken)
        monkeypatch.setattr(group.controllers[0], "_report_problem", broken)
        await _fail_over(group)
        assert failures(group) == ["RuntimeError: no assignment can be sent; it is started again"]
        assert len(group.controllers) == 2


async def test_a_report_that_fails_does_not_end_the_failover(group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group, "event", raising(OSError(28, "No space left on device")))
    async with kept(group):
        monkeypatch.setattr(group.controllers[0], "_pause", raising(KeyError("outside of a pass")))
        group.controllers[0].wake()
        await until(lambda: len(group.controllers) == 2, "another loop runs")
        await until(lambda: group.master() is not None, "it knows the group")


def test_an_event_that_cannot_be_written_is_shown_all_the_same(tmp_path: Path) -> None:
    shown: list[str] = []
    (tmp_path / "events").mkdir()
    events = EventLog(tmp_path / "events", shown.append)
    events.add("Warning", "FailoverStarted", "a folder is where the file should be", "group a")
    assert len(shown) == 1
    written = EventLog(tmp_path / "written", lambda line: print(line, file=open("/dev/full", "w")))  # noqa: SIM115
    written.add("Warning", "FailoverStarted", "the terminal is gone", "group a")
    assert [e["reason"] for e in last_events(tmp_path / "written", 5)] == ["FailoverStarted"]


async def test_a_member_that_reports_an_impossible_epoch_is_named_and_moves_nothing(group: Group) -> None:
    """Its report is ignored until it is plausible again. Its epoch never reaches the registry."""
    async with kept(group):
        loop = group.controllers[-1]
        before = present(group.registry.read_now("a"))
        for config in group.configs:
            core = group.running[config.name].broker.replication.core
            assert isinstance(core, Replica)
            highest = core.highest_seen_epoch
            core._highest_seen_epoch = 2**40
            await until(lambda: "highest_seen_epoch" in loop.problem, "the problem is named")
            assert f"{config.name}: its report cannot be used" in loop.problem
            core._highest_seen_epoch = highest
            await until(lambda: not loop.problem, "it is solved")
        now = present(group.registry.read_now("a"))
        assert now.leadership.master == before.leadership.master
        assert now.leadership.epoch == before.leadership.epoch
        assert any("highest_seen_epoch: epoch 1099511627776 cannot follow" in text for text in failures(group))
        assert group.master() is not None
