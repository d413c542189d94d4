"""An empty member follows a running RocketMQ master before it becomes a broker, until a cutover ends that.

Meanwhile its HTTP port answers `/livez`, GET `/migration` with the progress, and POST `/migration/finish`, the last
step of a cutover. Nothing of the copy is served to clients. A source that contradicts itself stops the migration for
good; only an empty disk begins again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import orjson

from gantry_broker.broker.metadata.tables import TIMERS_DELIVERED, Tables
from gantry_broker.broker.metadata.topics import TIMER_TOPIC
from gantry_broker.broker.migration import ha
from gantry_broker.broker.migration.carrying import Carrier
from gantry_broker.broker.migration.errors import MigrationError, SourceBroken
from gantry_broker.broker.migration.following import LOST, Follower
from gantry_broker.broker.migration.guarding import Guarding
from gantry_broker.broker.migration.pops import LONGEST_MS, REVIVE_GROUP, InFlight, give_again, revive_topics
from gantry_broker.broker.migration.source import FAILURES, Look, Source, bound, save
from gantry_broker.client import Admin
from gantry_broker.client.credentials import Credentials
from gantry_broker.http.interim import InterimServer
from gantry_broker.protocol import plausible
from gantry_broker.protocol.codes import REVIVE_PREFIX, Perm, Prop
from gantry_broker.protocol.digits import whole_number
from gantry_broker.protocol.message import decode_records, parse_properties
from gantry_broker.remoting.errors import ConnectError, RequestTimeout
from gantry_broker.remoting.tls import TlsError, TlsOptions
from gantry_broker.store.errors import StoreError
from gantry_broker.store.files import atomic_write
from gantry_broker.store.log.commit_log import segment_bases
from gantry_broker.store.log.epochs import FOREIGN
from gantry_broker.store.sealed import seal, unseal
from gantry_broker.store.store import MessageStore
from gantry_broker.store.types import StoreConfig
from gantry_broker.tasks import end_tasks

if TYPE_CHECKING:
    from gantry_broker.config import BrokerConfig, MigrateConfig

log = logging.getLogger(__name__)

MARK: Final = "config/migration.json"
"""In the store's folder: the source, and whether it is followed, finished, or broken."""
COPIED_FROM: Final = "nameServers"
"""In the mark: the source's NameServers that named the source of this copy."""
NOT_COMPARED: Final = "it compares the copy with the source at the other addresses"
LOOK_S: Final = 1.0
"""Seconds between two looks at the source: its role, its slaves, its end."""
TABLES_S: Final = 5.0
"""Seconds between two copies of the state beside the log."""
ENDING_S: Final = 0.1
"""Seconds between two looks, and between two copies of that state, while the source ends reads and writes."""
SETTLED_S: Final = 3.0
"""Seconds that a finish waits for a copy of that state since the source ended writes. One that died gives none."""
FINISH_S: Final = 20.0
"""Seconds that a finish waits for the end of the source's log."""
TIMER_MARGIN_MS: Final = 10_000
"""The source's timer may have passed a moment before its messages are in the log. Those come again."""
LEAVE_S: Final = 60.0
"""Seconds for the broker to register itself after a cutover."""
_leaving: Final[set[asyncio.Task[None]]] = set()
FOLLOWING, DONE, BROKEN = "following", "done", "broken"


def mark_of(data_dir: Path) -> dict[str, Any] | None:
    """Return the mark of a migration; None: there is none. Raises StoreError for an invalid file."""
    path = data_dir / MARK
    try:
        mark = orjson.loads(unseal(path.read_bytes()))
        if mark["state"] not in (FOLLOWING, DONE, BROKEN):
            raise ValueError(f"state is {mark['state']!r}")
        return dict(mark)
    except FileNotFoundError:
        return None
    except (KeyError, TypeError, ValueError) as error:
        raise StoreError(f"{path}: {error!r}; empty the member's disk") from error


def is_wanted(config: BrokerConfig) -> bool:
    """Whether the member is to follow a RocketMQ master: its disk is empty, or has an unfinished migration. Raises
    StoreError.
    """
    if config.migrate is None:
        return False
    mark = mark_of(config.data_dir)
    if mark is None:
        return not segment_bases(config.data_dir / "commitlog")
    return bool(mark["state"] != DONE)


async def migrate_first(config: BrokerConfig, guarding: Guarding | None = None) -> None:
    """Follow the source, and return once a cutover is finished. Raises OSError when the HTTP port is taken, StoreError
    when the disk cannot be used.
    """
    assert config.migrate is not None
    migration = Migration(config, config.migrate, guarding)
    await migration.run()


def leave_later(connections: contextlib.AsyncExitStack, carrier: Carrier | None = None) -> None:
    """End carrying once the broker serves clients, and close the connections by which it was registered a while after
    the cutover.

    A NameServer forgets a broker at once when the connection ends that has registered it. A client that looks for the
    route before the broker has registered itself would find none, and look again after half a minute.
    """

    async def leave() -> None:
        try:
            if carrier is not None:
                await carrier.end_when_served(LEAVE_S)
            await asyncio.sleep(LEAVE_S)
        finally:
            if carrier is not None:
                await carrier.close()
            await connections.aclose()

    task = asyncio.get_running_loop().create_task(leave())
    _leaving.add(task)
    task.add_done_callback(_leaving.discard)


def _way(migrate: MigrateConfig) -> tuple[Any, ...]:
    return sorted(migrate.name_servers), migrate.credentials, migrate.ca_file


class Migration:
    """One member that follows one master of RocketMQ."""

    def __init__(self, config: BrokerConfig, wanted: MigrateConfig, guarding: Guarding | None = None) -> None:
        self._config = config
        self._guarding = guarding or Guarding(config)
        self._wanted = wanted
        self._other = False
        """The source is looked for at other NameServers than the copy came from, and may be another one."""
        self._problem = "it looks at the source"
        self._look: Look | None = None
        self._looked_at = 0.0
        self._slaves = ha.SlaveWatch()
        self._store: MessageStore | None = None
        self._follower: Follower | None = None
        self._tables: Tables | None = None
        self._tables_at_ms = 0
        self._broken = ""
        self._finish: int | None = None
        self._finished = asyncio.Event()
        self._settled = asyncio.Event()
        """The state beside the log was copied since the source took the permission to write away."""
        self._in_flight = InFlight()
        # On Kubernetes the group's Service leads to the member's own port.
        port = config.port if config.group_port is None else config.group_port
        self._carrier: Carrier | None = Carrier(config.listen_host, port, lambda: self._present().address)
        """None: it is with those that end it later."""
        self._carries = False
        self._registered = 0.0
        self._registering = asyncio.Lock()
        self._source: Source | None = None
        self._pops_at: int | None = None
        """The next offset of the timer topic to read."""
        self._rates: list[tuple[float, int]] = []

    # What others see

    def status(self) -> dict[str, Any]:
        """Return the progress. Offsets are bytes of the log; None: not known."""
        look, store, follower, tables = self._look, self._store, self._follower, self._tables
        now = time.monotonic()
        is_fresh = look is not None and now - self._looked_at < 10 * LOOK_S
        end = None if store is None else store.log.end
        return {
            "state": BROKEN if self._broken else "finishing" if self._finish is not None else FOLLOWING,
            "problem": self._broken or self._problem,
            "group": self._wanted.broker,
            "source": None
            if look is None
            else {
                "cluster": look.cluster,
                "address": look.address,
                "version": look.version,
                "role": look.settings.get("brokerRole", ""),
                "slaves": look.slaves,
                "start": look.start,
                "end": look.end if is_fresh else None,
                "permission": look.settings.get("brokerPermission", ""),
            },
            "connected": follower is not None and follower.connected and not self._other,
            "start": None if store is None else store.log.start,
            "end": end,
            "flushed": None if store is None else store.state.flushed,
            "lag": None if look is None or not is_fresh or end is None else max(look.end - end, 0),
            "rate": self._rate(now),
            "reports": None if follower is None else follower.reports.value,
            "topics": None if tables is None else len(tables.topics),
            "groups": None if tables is None else len(tables.groups),
            "offsets": None if tables is None else len(tables.offsets),
            "tablesAtMs": self._tables_at_ms or None,
            "canCarry": self._carrier is not None,
            "carries": self._carries and self._registered > 0,
            "carried": 0 if self._carrier is None else self._carrier.clients,
        }

    def _rate(self, now: float) -> int | None:
        """Bytes a second over the last ten seconds; None: not known yet."""
        follower = self._follower
        if follower is None:
            return None
        self._rates = [(at, count) for at, count in self._rates if now - at < 10.0]
        self._rates.append((now, follower.bytes))
        (first, before) = self._rates[0]
        return None if now - first < 1.0 else int((follower.bytes - before) / (now - first))

    def text(self) -> str:
        """One sentence for people."""
        if self._broken:
            return f"the migration stopped: {self._broken}"
        status = self.status()
        if status["lag"] is None or self._problem:
            return f"migrating from RocketMQ's {self._wanted.broker}: {self._problem or 'it begins'}"
        return (
            f"migrating from RocketMQ's {self._wanted.broker}: {status['end'] - status['start'] >> 20} MiB are here, "
            f"{status['lag'] >> 20} MiB are missing"
        )

    async def _status_page(self, _: bytes) -> tuple[int, dict[str, Any]]:
        return 200, self.status()

    async def _finish_page(self, body: bytes) -> tuple[int, dict[str, Any]]:
        try:
            end = plausible.offset("end", orjson.loads(body)["end"])
        except (orjson.JSONDecodeError, KeyError, TypeError, ValueError) as error:
            return 400, {"detail": f'{error}: write {{"end": OFFSET}}'}
        if self._broken:
            return 409, {"detail": f"the migration stopped: {self._broken}"}
        if self._other:
            return 409, {"detail": self._problem or NOT_COMPARED}
        if self._ended():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(SETTLED_S):
                    await self._settled.wait()
        # What the source appended after its last end, such as a delayed message, is here already and stays.
        self._finish = end = max(end, 0 if self._store is None else self._store.log.end)
        try:
            async with asyncio.timeout(FINISH_S):
                await self._finished.wait()
        except TimeoutError:
            self._finish = None
            had = None if self._store is None else self._store.log.end
            return 409, {"detail": f"the log is at {had}, not at {end}: {self._problem or 'the source sends no more'}"}
        return 200, {"end": end}

    def _ended(self) -> bool:
        """Whether the last look saw that the source takes and gives nothing."""
        return self._look is not None and self._look.settings.get("brokerPermission") == "0"

    async def _carry_page(self, body: bytes) -> tuple[int, dict[str, Any]]:
        try:
            carries = orjson.loads(body)["on"]
            if type(carries) is not bool:
                raise ValueError(f"on is {carries!r}")
        except (orjson.JSONDecodeError, KeyError, TypeError, ValueError) as error:
            return 400, {"detail": f'{error}: write {{"on": true}}'}
        if carries and (self._carrier is None or self._look is None or self._tables is None or self._other):
            return 409, {"detail": self._problem or "this member cannot carry clients"}
        if carries and self._carries:
            return 200, {"on": carries}  # What is registered stays so.
        if carries and self._carrier is not None:
            try:
                await self._carrier.start()
            except OSError as error:
                return 409, {"detail": f"the group's port is taken: {error}"}
        # Connections are carried on: clients have the address until they look for the next route.
        had, self._carries, self._registered = self._registered, carries, 0.0
        if had and self._source is not None and self._look is not None and self._tables is not None:
            async with self._registering:
                await self._source.step_down(self._look, self._tables, self._config.group_address)
        return 200, {"on": carries}

    # The work

    async def run(self) -> None:
        """Follow until a finish. Raises OSError, StoreError."""
        pages = {
            ("GET", "/migration"): self._status_page,
            ("POST", "/migration/finish"): self._finish_page,
            ("POST", "/migration/carry"): self._carry_page,
        }
        server = InterimServer(self._config, self.text, pages)
        await server.start()
        try:
            mark = mark_of(self._config.data_dir)
            if mark is None and await self._has_led():
                log.info("group %s leads already: the empty disk joins it", self._config.group)
                return
            if mark is not None and mark["state"] == BROKEN:
                self._broken = str(mark.get("reason", ""))
            while not self._broken and not self._finished.is_set():
                await self._try()
            if self._broken:
                log.error("the migration stopped: %s; empty the member's disk to begin again", self._broken)
                await asyncio.Event().wait()
            await asyncio.sleep(0.05)  # The answer of the finish leaves.
        finally:
            if self._carrier is not None:
                await self._carrier.close()
            if self._store is not None:
                self._store.close()
                self._store = None
            await server.close()

    async def _has_led(self) -> bool:
        """Return whether one of the cluster's own NameServers knows the group: its migration is over, and this disk is
        a new one. Wait until that is known: a disk that follows the source again has to be emptied once more.
        """
        while True:
            answers = [await self._knows_group(server) for server in self._config.name_servers]
            if True in answers:
                return True
            silent = [s for s, answer in zip(self._config.name_servers, answers, strict=True) if answer is None]
            if not silent:
                return False
            names = ", ".join(silent)
            self._problem = (
                f"it waits for the cluster's NameServers ({names}), to learn whether the group leads already"
            )
            await asyncio.sleep(LOOK_S)

    async def _knows_group(self, server: str) -> bool | None:
        """Return whether a NameServer has a broker of the group; None: it is away. One that tells a member nothing,
        because it demands a signature or TLS, counts as one that does not know the group.
        """
        try:
            async with Admin(server, timeout=2.0) as admin:
                return self._config.group in (await admin.cluster_info()).brokers
        except (ConnectError, RequestTimeout) as error:
            log.info("NameServer %s is away: %s", server, error)
            return None
        except FAILURES as error:
            log.info("NameServer %s says nothing about the group: %s", server, error)
            return False

    def _is_corrected(self) -> bool:
        """Whether the manifest names another way to the source than the present one. One that a cutover uses stays."""
        written = self._guarding.wanted
        if written is None or self._carries or self._finish is not None:
            return False
        return _way(written) != _way(self._wanted)

    def _correct(self) -> None:
        """Take the way to the source that the manifest names now. What other NameServers name has to show first that it
        is the source of this copy.
        """
        corrected = self._is_corrected()
        if corrected:
            assert self._guarding.wanted is not None
            log.warning("the source is looked for at %s", ", ".join(self._guarding.wanted.name_servers))
            self._wanted = self._guarding.wanted
            self._slaves = ha.SlaveWatch()
        copied_from = (mark_of(self._config.data_dir) or {}).get(COPIED_FROM)
        had = self._store.log.end > self._store.log.start if self._store is not None else self._has_log()
        self._other = had and copied_from is not None and copied_from != sorted(self._wanted.name_servers)
        if self._other and self._follower is not None:
            self._follower.compared = False
        if corrected and not had and self._store is not None:  # Nothing has come from the former one.
            self._store.close()
            self._store = self._follower = self._look = None

    def _has_log(self) -> bool:
        return bool(segment_bases(self._config.data_dir / "commitlog"))

    def _proven(self, look: Look) -> None:
        """Note which NameServers name the source of this copy."""
        self._other = False
        mark = mark_of(self._config.data_dir)
        now = {"address": look.address, COPIED_FROM: sorted(self._wanted.name_servers)}
        if mark is not None and any(mark.get(name) != value for name, value in now.items()):
            self._save_mark(mark | now)

    async def _try(self) -> None:
        await self._guarding.read()
        self._correct()
        migrate = self._wanted
        try:
            source = Source(
                migrate.name_servers,
                migrate.broker,
                cluster=migrate.cluster,
                credentials=self._credentials(),
                tls=None if migrate.ca_file is None else TlsOptions(ca_file=migrate.ca_file),
                own=self._config.group_address,
                # Only those of the source know it: others are to name it.
                known=None if self._other else self._last_source(),
            )
            async with contextlib.AsyncExitStack() as stack:
                self._source = await stack.enter_async_context(source)
                await self._with(source)
                if self._finished.is_set() and self._registered:
                    if self._carrier is not None:
                        self._carrier.free_port()
                    leave_later(stack.pop_all(), self._carrier)
                    self._carrier = None
        except (MigrationError, OSError, StoreError, TlsError) as error:
            if self._store is not None and self._store.state.failed is not None:
                raise
            if isinstance(error, SourceBroken):
                if not self._other:
                    self._stop_for_good(str(error))
                    return
                error = MigrationError(
                    f"{', '.join(migrate.name_servers)}: another source than the one that was copied ({error}): write "
                    "the addresses of that one, or empty the member's disk to begin with this one"
                )
            if self._problem != str(error):
                log.warning("cannot follow RocketMQ's %s: %s; tried again", migrate.broker, error)
            self._problem = str(error)
            if self._finish is not None and self._arrived(self._finish) and self._tables is not None:
                # The source died after its last record: its last tables are at most some seconds old.
                await self._done()
                return
            await asyncio.sleep(1.0 if self._look is None else ha.pause_before(self._promise()))

    def _last_source(self) -> tuple[str, str] | None:
        """Return the source's cluster and address as they were known last, also before this process began."""
        if self._look is not None:
            return self._look.cluster, self._look.address
        mark = mark_of(self._config.data_dir) or {}
        cluster, address = mark.get("cluster"), mark.get("address")
        return (cluster, address) if isinstance(cluster, str) and isinstance(address, str) else None

    def _arrived(self, finish: int) -> bool:
        store = self._store
        return store is not None and store.state.flushed >= finish and store.state.confirmed >= finish

    async def _keep(self, tables: Tables, timers_ms: int | None) -> None:
        """Take the state beside the log over."""
        if timers_ms is not None:
            tables.marks[TIMERS_DELIVERED] = str(max(timers_ms - TIMER_MARGIN_MS, 0))
        self._tables, self._tables_at_ms = tables, time.time_ns() // 1_000_000

    async def _done(self) -> None:
        """Write the tables, with what is in flight as not consumed, and end the migration. Raises OSError."""
        store, tables = self._store, self._tables
        assert store is not None
        assert tables is not None
        await self._read_pops(math.inf)
        in_flight = self._in_flight
        for topic in revive_topics(tables.topics):
            for queue in store.queues.queue_numbers(topic):
                at = max(tables.offset(topic, REVIVE_GROUP, queue), store.reader.min_offset(topic, queue))
                while at < store.reader.max_offset(topic, queue):
                    at = self._take_pops(topic, queue, at)
                    await asyncio.sleep(0)
        if ahead := bound(tables, store.queues.next_offset):
            log.warning("%d offsets of groups and delays lay behind the ends of their queues", ahead)
        again = give_again(tables.offsets, in_flight.lowest())
        if again or in_flight.unreadable:
            log.info("messages in flight come again in %d queues; %d records were none", again, in_flight.unreadable)
        await asyncio.to_thread(save, tables, self._config.data_dir / "config", store.epoch_cache.epochs)
        self._save_mark({**(mark_of(self._config.data_dir) or {}), "state": DONE, "end": store.log.end})
        self._finished.set()

    async def _keep_carrying(self, source: Source, look: Look) -> None:
        """Keep the routes to this member's address as the source's are."""
        async with self._registering:
            if not self._carries or self._tables is None or self._finish is not None:
                return
            try:
                await source.register(look, self._tables, self._config.group_address)
            except MigrationError as error:
                self._problem = str(error)
            else:
                self._registered = time.monotonic() if self._carries else 0.0

    async def _read_pops(self, until: float) -> None:
        """Read on in the timer topic, where RocketMQ has what was popped, up to its end or a time of the loop."""
        store = self._store
        assert store is not None
        if TIMER_TOPIC not in store.queues.topics_queues():
            return
        # By the source's clock: this machine's may be ahead, and what is in flight would be forgotten.
        newest = store.reader.store_time(TIMER_TOPIC, 0, store.reader.max_offset(TIMER_TOPIC, 0) - 1)
        since = min(newest, time.time_ns() // 1_000_000) - LONGEST_MS
        if self._pops_at is None:
            self._pops_at = store.reader.offset_at_time(TIMER_TOPIC, 0, since)
        while self._pops_at < store.reader.max_offset(TIMER_TOPIC, 0) and time.monotonic() < until:
            self._pops_at = self._take_pops(TIMER_TOPIC, 0, self._pops_at)
            await asyncio.sleep(0)
        self._in_flight.forget(since)

    def _take_pops(self, topic: str, queue: int, at: int) -> int:
        assert self._store is not None
        got = self._store.reader.get(topic, queue, at, 1_000, 1 << 20)
        for record in decode_records(got.data) if got.data else ():
            props = parse_properties(record.properties)
            if topic != TIMER_TOPIC or props.get(Prop.REAL_TOPIC, "").startswith(REVIVE_PREFIX):
                self._in_flight.take(props.get(Prop.TAGS, ""), record.body)
        return max(got.next_offset, at + 1)

    def _credentials(self) -> Credentials | None:
        folder = self._wanted.credentials
        if folder is None:
            return None
        try:
            return Credentials((folder / "accessKey").read_text().strip(), (folder / "secretKey").read_text().strip())
        except ValueError as error:
            raise MigrationError(f"{folder}: accessKey and secretKey cannot be used: {error}") from error

    def _stop_for_good(self, reason: str) -> None:
        self._broken = reason
        mark = mark_of(self._config.data_dir) or {}
        self._save_mark({**mark, "state": BROKEN, "reason": reason})

    def _save_mark(self, mark: dict[str, Any]) -> None:
        path = self._config.data_dir / MARK
        path.parent.mkdir(parents=True, exist_ok=True)
        atomic_write(path, seal(orjson.dumps(mark)), durable=True)

    async def _with(self, source: Source) -> None:
        had = 0 if self._store is None else self._store.log.end
        look = self._saw(await source.look(), had)
        await self._guarding.check(look.settings)
        store = self._store or await self._open(source, look)
        if not self._other:
            self._proven(look)
        follower = self._follower = self._follower or Follower(store)
        if store.log.end > store.log.start and ha.reports_for(self._promise()) is ha.Reports.NEUTRAL:
            await asyncio.sleep(ha.pause_before(self._promise()))
        watching = asyncio.create_task(self._watch(source))
        looking = asyncio.create_task(self._watch_slaves(source))
        try:
            while not self._finished.is_set():
                await self._until_wanted(follower, watching, looking)
                present = self._present()
                in_sync = partial(self._in_sync, present.ha) if present.controlled else None
                following = asyncio.create_task(follower.follow(*present.ha, self._promise, in_sync))
                done = asyncio.create_task(self._finished.wait())
                tasks = (following, watching, looking, done)
                try:
                    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                    for task in (watching, looking):
                        if task.done():
                            task.result()
                    if self._finished.is_set():
                        return
                    following.result()
                except SourceBroken:
                    raise
                except MigrationError as error:
                    if watching.done():  # It looks at the source no more: all begins again.
                        raise
                    self._problem = str(error)
                    log.warning("RocketMQ's %s: %s; connected again soon", self._wanted.broker, error)
                finally:
                    await end_tasks(following, done)
                await asyncio.sleep(ha.pause_before(self._promise()))
        finally:
            await end_tasks(watching, looking)

    async def _until_wanted(self, follower: Follower, *watching: asyncio.Task[None]) -> None:
        """Wait while the source's senders would wait for a connection, or until a task ends."""
        while ha.reports_for(self._promise()) is ha.Reports.AWAY and not self._finished.is_set():
            if self._slaves.end:
                self._problem, follower.reports = LOST, ha.Reports.AWAY
            done, _ = await asyncio.wait(watching, timeout=0.1)
            if done:
                return
        if self._problem == LOST:
            self._problem = ""

    async def _watch_slaves(self, source: Source) -> None:
        """Look at the slaves of a source whose senders wait for them, again and again."""
        while True:
            look = self._present()
            if look.controlled or not ha.is_sync(look.settings):
                self._slaves = ha.SlaveWatch()
            else:
                with contextlib.suppress(MigrationError):  # The master is away: nobody sends.
                    end, ends = await source.slave_ends(look.address)
                    self._slaves.look(time.monotonic(), end, ends)
            await asyncio.sleep(ha.SLAVES_S)

    def _present(self) -> Look:
        assert self._look is not None
        return self._look

    def _promise(self) -> ha.Promise:
        look = self._present()
        return ha.Promise.of(look.settings, self._slaves.state, self._slaves.end or look.end)

    def _in_sync(self, master: tuple[str, int]) -> int | None:
        """Return the offset up to which a failover keeps the log of a master; None: not known, or another one leads
        now.
        """
        look = self._present()
        return look.in_sync if look.ha == master else None

    def _saw(self, look: Look, had: int = 0) -> Look:
        """Take a look over. `had`: the end of the copy before it. Raises SourceBroken for a source that is not the one
        that was followed.
        """
        store = self._store
        if store is not None:
            if self._look is not None and look.cluster != self._look.cluster:
                raise SourceBroken(
                    f"broker {look.name} is of cluster {look.cluster} now, and was of {self._look.cluster}"
                )
            if look.segment_size != store.log.segment_size:
                raise SourceBroken(
                    f"the source's segments are of {look.segment_size} bytes now, and were of {store.log.segment_size}"
                )
            if look.end < had:
                raise SourceBroken(
                    f"the source's log ends at {look.end}, and the copy at {had}: it was emptied, or lost its end in a "
                    "crash"
                )
            if look.start > store.log.end:
                raise SourceBroken(
                    f"the source's log begins at {look.start} now, and the copy ends at {store.log.end}: what lies "
                    "between has expired there"
                )
        self._look, self._looked_at = look, time.monotonic()
        return look

    async def _open(self, source: Source, look: Look) -> MessageStore:
        """Open the store; a new one begins where the source's log does. Raises MigrationError, StoreError, OSError."""
        config, mark = self._config, mark_of(self._config.data_dir)
        identity = {"broker": look.name, "cluster": look.cluster, "segmentSize": look.segment_size}
        if mark is not None and self._has_log():
            before = {name: mark.get(name) for name in identity}
            if before != identity:
                raise SourceBroken(f"the copy is of {before}, and the source is {identity}")
        settings = config.settings.model_copy(
            update={
                "mappedFileSizeCommitLog": look.segment_size,
                "messageDelayLevel": look.settings.get("messageDelayLevel", config.settings.messageDelayLevel),
            }
        )
        if mark is None or not self._has_log():
            # A store that has got nothing yet may have the segment size of another source.
            (config.data_dir / "config" / "epochs.json").unlink(missing_ok=True)
            self._save_mark({**identity, "state": FOLLOWING})
        store = MessageStore.open(StoreConfig(path=config.data_dir, settings=settings))
        try:
            if store.log.end == 0 and look.start > 0:
                tables = await source.tables(look.address)
                starts = await source.first_offsets(look.address, sorted(tables.topics))
                try:
                    store.truncator.reset(look.start, FOREIGN, starts)
                except ValueError as error:
                    raise SourceBroken(f"the source's log cannot be continued at {look.start}: {error}") from error
            store.indexer.confirm(store.log.end)
        except BaseException:
            store.close()
            raise
        self._store = store
        self._saw(look, store.log.end)
        return store

    async def _watch(self, source: Source) -> None:
        """Look at the source again and again, copy its tables, and finish. Raises MigrationError, SourceBroken."""
        store = self._store
        assert store is not None
        tables_at = tables_took = 0.0
        while True:
            had, before_finish = store.log.end, self._finish is None
            before = self._present().ha
            look = self._saw(await source.look(), had)
            if look.ha != before:
                raise MigrationError(f"the source has another master now: {look.address}")
            await self._guarding.check(look.settings)
            if self._is_corrected():
                raise MigrationError("the manifest names another way to the source: it is looked for there")
            if self._other and self._follower is not None and self._follower.compared:
                self._proven(look)
            await self._keep_carrying(source, look)
            permission = whole_number(look.settings.get("brokerPermission", ""))
            ending = permission is not None and not permission & Perm.READ
            if not ending:
                self._settled.clear()
            # The last tables are to be of the end: consumers commit until then.
            pause = max(ENDING_S, 2 * tables_took) if ending else LOOK_S / 2 if self._carries else TABLES_S
            if before_finish and not self._other and time.monotonic() - tables_at >= pause:
                tables_at = time.monotonic()
                tables = await source.tables(look.address)
                # What the source did after the end that a finish names is not in the copy: its progress must not be.
                if self._finish is None:
                    await self._keep(tables, await source.timers_delivered_ms(look.address))
                    await self._read_pops(time.monotonic() + 1.0)
                    if permission == 0:
                        self._settled.set()
                tables_took = time.monotonic() - tables_at
            finish = self._finish
            arrived = finish is not None and self._arrived(finish)
            if self._follower is not None and self._follower.connected:
                self._problem = NOT_COMPARED if self._other else ""
            if arrived and self._tables is not None:
                await self._done()
                return
            with contextlib.suppress(TimeoutError):
                hurries = self._carries and not self._registered
                async with asyncio.timeout(0.05 if finish is not None or hurries else ENDING_S if ending else LOOK_S):
                    await self._finished.wait()
