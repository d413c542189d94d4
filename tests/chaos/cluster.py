"""One local cluster whose members reach each other through `Links`."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from gantry_broker.contracts.models import LogInfo, MemberStatus
from gantry_operator.api.cluster import BrokerCluster
from gantry_operator.cluster.member_http import httpx, make_client
from gantry_operator.plan.plan import plan
from gantry_operator.platforms.local import control
from gantry_operator.platforms.local.events import last_events
from gantry_operator.platforms.local.folder import ClusterFolder
from gantry_operator.platforms.local.manifest import save_manifest
from gantry_operator.platforms.local.ports import HOST, registration
from gantry_operator.platforms.local.ports import replication as replication_use
from gantry_operator.platforms.local.process import ProcessRecord, end, load_record

from tests.chaos.archived import Final
from tests.chaos.lineage import Lineage, changes_in, epochs_in
from tests.chaos.links import Links
from tests.chaos.store import Store
from tests.chaos.supervisor import links_file
from tests.support.free_ports import free_ports

GROUP = "a"
CLIENTS = "clients"
SUPERVISOR = "supervisor"
DISK_MIB = 96
READY_S = 60.0


class NotInTime(Exception):
    """The expected state was not reached in time after the faults."""


class PortsTaken(Exception):
    """Another program took a port before the cluster started, which therefore uses other ones than this one knows."""


class Cluster:
    """Three members of one group, two NameServers, and their supervisor. Use as an async context manager."""

    def __init__(
        self,
        base: Path,
        seed: int,
        *,
        mode: str,
        flush: str,
        min_in_sync: int,
        small_disks: bool,
        replication: str = "Sync",
        archives: bool = False,
    ) -> None:
        """`small_disks`: every member has a small disk of its own, which a fault can fill. This needs root.
        `archives`: the log goes to an object store that faults reach.
        """
        self.folder = ClusterFolder(base)
        self.store = Store(base.with_name("store")) if archives else None
        self.replication = replication
        spec: dict[str, Any] = {
            "mode": mode,
            "flush": flush,
            "replication": replication,
            "minInSyncReplicas": min_in_sync,
            "nameServers": {"replicas": 2},
            "brokerGroups": [{"name": GROUP, "members": 3}],
            "broker": {
                # Retention removes the oldest segments of a full disk, but never the segment that is written.
                "mappedFileSizeCommitLog": 64 << 20 if small_disks else 1 << 20,
                "mappedFileSizeConsumeQueue": 20_000,
                "maxHashSlotNum": 5_000,
                "maxIndexNum": 20_000,
                "diskMaxUsedSpaceRatio": 95,
                "flushConsumerOffsetInterval": 1_000,
            },
        }
        manifest = {
            "apiVersion": "gantry.dev/v1alpha1",
            "kind": "BrokerCluster",
            "metadata": {"name": "c"},
            "spec": spec,
        }
        self._manifest = manifest
        self.cluster = BrokerCluster.model_validate(manifest)
        self.plan = plan(self.cluster)
        self.members = [m.name for m in self.plan.members]
        self.name_servers = [s.name for s in self.plan.name_servers]
        uses = [*self.name_servers, *map(registration, self.name_servers), f"group/{GROUP}"]
        uses += [use for m in self.members for use in (m, replication_use(m), f"{m}/http")]
        ports = free_ports(2 * len(uses))
        self.real = dict(zip(uses, ports[: len(uses)], strict=True))
        self.announced = dict(zip(uses, ports[len(uses) :], strict=True))
        self.small_disks = small_disks
        self.links = Links({self.real[u]: self.announced[u] for u in uses}, self._processes, seed)
        self.http: httpx.AsyncClient = make_client(lambda: self.folder.token.read())
        self._supervisor: subprocess.Popen[bytes] | None = None
        self._mounted: list[Path] = []
        self.stopped: set[str] = set()
        self.ending: set[int] = set()
        """Processes that are stopping. They still answer for a moment."""
        """Names of frozen processes."""

    # ---- life

    async def __aenter__(self) -> Cluster:
        if self.store is not None:
            await self.store.__aenter__()
            self._manifest["spec"] |= {"archive": self.store.spec}
            self.cluster = BrokerCluster.model_validate(self._manifest)
        self.folder.make()
        (self.folder.root / "faults").mkdir()
        save_manifest(self.folder, self.cluster)
        self.folder.ports.write_text(json.dumps(self.real))
        links_file(self.folder).write_text(json.dumps(self.announced))
        if self.small_disks:
            for name in self.members:
                self._mount(self.folder.data(name))
        await self.links.__aenter__()
        try:
            self.start_supervisor()
            await self.until("ready", self._ready_at_its_ports, READY_S)
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def _ready_at_its_ports(self) -> bool:
        """Return whether all are ready. Raises PortsTaken if a process has another port than that of its link: it may
        never be ready.
        """
        ready = await self._ready()
        chosen = json.loads(self.folder.ports.read_text())
        moved = [use for use, port in self.real.items() if chosen.get(use) != port]
        if moved:
            raise PortsTaken(f"the ports of {', '.join(moved)} were taken before the cluster started")
        return ready

    async def __aexit__(self, *exc: object) -> None:
        self.kill_supervisor()
        await asyncio.to_thread(end, self._records(), 5.0)
        await self.links.__aexit__()
        await self.http.aclose()
        self._unmount_all()
        if self.store is not None:
            await self.store.__aexit__()

    def kill_everything(self) -> None:
        """Kill every process at once, without the event loop: for a run that does not end otherwise."""
        self.kill_supervisor()
        end(self._records(), 0.0)
        self._unmount_all()
        if self.store is not None:
            self.store.kill()

    def _records(self) -> list[ProcessRecord]:
        return [r for r in map(self.record, (*self.members, *self.name_servers)) if r is not None]

    def _unmount_all(self) -> None:
        while self._mounted:
            self._unmount(self._mounted.pop())

    def _unmount(self, path: Path) -> None:
        subprocess.run(["umount", "-l", str(path)], check=False)

    def _mount(self, path: Path) -> None:
        path.mkdir(parents=True, exist_ok=True)
        words = ["mount", "-t", "tmpfs", "-o", f"size={DISK_MIB}m", "gantry-chaos", str(path)]
        subprocess.run(words, check=True)
        self._mounted.append(path)

    def start_supervisor(self) -> None:
        root = Path(__file__).resolve().parents[2]
        # The supervisor imports the same modules as this process, mutants included.
        paths = [str(root), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
        with open(self.folder.supervisor_log, "ab") as out:
            self._supervisor = subprocess.Popen(
                [sys.executable, "-P", "-m", "tests.chaos.supervisor", str(self.folder.root)],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env=os.environ
                | {"PYTHONPATH": os.pathsep.join(filter(None, paths))}
                | (self.store.environment if self.store is not None else {}),
                start_new_session=True,
            )

    def kill_supervisor(self) -> None:
        if self._supervisor is not None:
            self._supervisor.kill()
            self._supervisor.wait()
            self._supervisor = None

    @property
    def supervised(self) -> bool:
        return self._supervisor is not None

    async def _ready(self) -> bool:
        with suppress(control.ControlError):
            return bool((await control.ask(self.folder, "info", 5.0))["ready"])
        return False

    # ---- who is who

    def record(self, name: str) -> ProcessRecord | None:
        return load_record(self.folder.process(name))

    def pid(self, name: str) -> int | None:
        record = self.record(name)
        return None if record is None else record.pid

    def _processes(self) -> dict[int, str]:
        found = {os.getpid(): CLIENTS}
        if self._supervisor is not None:
            found[self._supervisor.pid] = SUPERVISOR
        for name in (*self.members, *self.name_servers):
            pid = self.pid(name)
            if pid is not None:
                found[pid] = name
        return found

    @property
    def name_server_addresses(self) -> str:
        """The addresses for clients."""
        return ";".join(f"{HOST}:{self.announced[n]}" for n in self.name_servers)

    def direct(self, use: str) -> str:
        """An address past the links, for observers."""
        return f"{HOST}:{self.real[use]}"

    async def status(self, name: str) -> MemberStatus | None:
        """A member's status; None when it does not answer."""
        try:
            answer = await self.http.get(f"http://{self.direct(f'{name}/http')}/v1/status", timeout=0.5)
            return MemberStatus.model_validate_json(answer.content) if answer.status_code == 200 else None
        except httpx.HTTPError:
            return None

    async def statuses(self) -> dict[str, MemberStatus]:
        said = await asyncio.gather(*(self.status(name) for name in self.members))
        return {name: s for name, s in zip(self.members, said, strict=True) if s is not None}

    async def lineage(self, name: str) -> Lineage:
        """The leadership history of a member's log. Raises NotInTime when the member does not answer."""
        log = await self.log(name)
        events = last_events(self.folder.events, 1_000_000)
        return Lineage(epochs_in(log.data), log.confirmed, changes_in(events))

    async def log(self, name: str) -> Final:
        """Return the confirmed log of a member. Raises NotInTime when the member does not answer."""
        try:
            url = f"http://{self.direct(f'{name}/http')}/v1/log"
            known = LogInfo.model_validate_json((await self.http.get(url, timeout=5.0)).content)
            span = {"from": known.start, "to": known.confirmed}
            log = await self.http.get(f"{url}/bytes", params=span, timeout=20.0)
        except httpx.HTTPError as error:
            raise NotInTime(f"{name} does not give its log: {error!r}") from error
        return Final(known.start, known.confirmed, log.content)

    async def master(self) -> str | None:
        masters = [(s.epoch, name) for name, s in (await self.statuses()).items() if s.role == "Master"]
        return max(masters)[1] if masters else None

    async def whole(self) -> bool:
        """Every process answers, one member leads, and all present disks are in sync with it."""
        said = await self.statuses()
        masters = [s for s in said.values() if s.role == "Master"]
        if len(said) != len(self.members) or len(masters) != 1 or not masters[0].writable:
            return False
        if any(s.pid in self.ending for s in said.values()):
            return False
        followers = [s for s in said.values() if s.role == "Slave" and s.epoch == masters[0].epoch]
        in_sync = {(m.member, m.incarnation) for m in masters[0].in_sync}
        return len(followers) == len(said) - 1 and in_sync == {
            (s.member.member, s.member.incarnation) for s in said.values()
        }

    async def until(self, what: str, condition: Callable[[], Any], timeout_s: float) -> None:
        """Wait for a condition. Raises NotInTime."""
        clock = asyncio.get_running_loop().time
        deadline = clock() + timeout_s
        while not await condition():
            if clock() > deadline:
                raise NotInTime(f"not within {timeout_s:.0f} s: {what}")
            await asyncio.sleep(0.1)

    # ---- faults of processes

    def signal(self, name: str, number: int) -> bool:
        record = self.record(name)
        if record is None:
            return False
        with suppress(ProcessLookupError):
            os.kill(record.pid, number)
            return True
        return False

    def end(self, name: str) -> None:
        """Ask a process to stop cleanly; the supervisor starts it again."""
        record = self.record(name)
        if record is not None:
            self.ending.add(record.pid)
            self.signal(name, signal.SIGTERM)

    def freeze(self, name: str) -> bool:
        self.stopped.add(name)
        return self.signal(name, signal.SIGSTOP)

    def thaw(self) -> None:
        """Resume every frozen process."""
        for name in list(self.stopped):
            self.signal(name, signal.SIGCONT)
        self.stopped.clear()

    def kill(self, name: str) -> bool:
        return self.signal(name, signal.SIGKILL)

    def plant(self, name: str, **faults: float | Sequence[int]) -> None:
        """Plant faults (tests/chaos/broker.py); without arguments, end them."""
        path = self.folder.root / "faults" / f"{name}.json"
        fresh = path.with_suffix(".new")
        fresh.write_text(json.dumps(faults))
        fresh.replace(path)

    def segments(self, name: str) -> list[Path]:
        return sorted((self.folder.data(name) / "commitlog").iterdir())

    def wipe(self, name: str) -> None:
        """Replace the disk by a new, empty one."""
        for path in self.folder.data(name).iterdir():
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()

    def corrupt(self, name: str, at: int, size: int = 64) -> None:
        """Change bytes of its log from the offset `at` on."""
        base = max((s for s in self.segments(name) if int(s.name) <= at), key=lambda s: int(s.name))
        with open(base, "r+b") as file:
            file.seek(at - int(base.name))
            held = file.read(size)
            file.seek(at - int(base.name))
            file.write(bytes(b ^ 0x5A for b in held))

    def ballast(self, name: str) -> Path:
        return self.folder.data(name) / "ballast"

    def fill(self, name: str) -> None:
        """Fill the member's disk to the last byte."""
        with suppress(OSError), open(self.ballast(name), "ab") as file:
            while True:
                file.write(bytes(1 << 16))
                file.flush()

    def empty(self, names: Iterable[str] | None = None) -> None:
        for name in names or self.members:
            self.ballast(name).unlink(missing_ok=True)

    def story(self, size: int = 1_500) -> str:
        """The events of the cluster, for the report of a failed run."""
        logs = sorted((self.folder.root / "log").iterdir())
        text = "".join(f"\n--- {p.name}\n{p.read_text(errors='replace')[-size:]}" for p in logs)
        events = self.folder.events
        return text + "\n--- events\n" + (events.read_text()[-8_000:] if events.exists() else "")
