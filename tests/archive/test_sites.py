"""Two sites that share one archive: a standby follows, roles are exchanged without loss, a former site is fenced."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from gantry_broker.archive.chain import FORMER_OWNERS, Archive, Identity
from gantry_broker.archive.errors import Damaged, Fenced, Overtaken
from gantry_broker.archive.manifest import Owner, Part, State
from gantry_broker.archive.objects import Location, ObjectStore
from gantry_broker.archive.upload import Settings, View
from gantry_broker.broker.errors import NotWritable
from gantry_broker.broker.fencing import Fence
from gantry_broker.broker.following import Begin, Refill, begin
from gantry_broker.broker.process import BrokerProcess, _one_life
from gantry_broker.broker.restoring import is_wanted, restore_first
from gantry_broker.broker.site import Site, load_site, next_site, prepare_disk, save_site
from gantry_broker.config import ArchiveConfig, ArchivePlace, BrokerConfig
from gantry_broker.contracts.leadership import Assignment, LeadershipRecord, MemberId
from gantry_broker.contracts.models import SiteRequest, TakeRequest
from gantry_broker.contracts.sites import first_epoch
from gantry_broker.protocol.message import pack_host
from gantry_broker.store.log.epochs import EpochStart
from gantry_broker.store.types import Put

from tests.archive.memory_objects import MemoryObjects
from tests.archive.test_broker import config, lead, put, until
from tests.archive.test_histories import World
from tests.support.present import present


class Member:
    """One member of a site, started again as its process does it."""

    def __init__(self, config: BrokerConfig) -> None:
        self.config = config
        self.process: BrokerProcess

    @asynccontextmanager
    async def life(self) -> AsyncIterator[BrokerProcess]:
        prepare_disk(self.config.data_dir, load_site(self.config.data_dir, follows=self.config.follow is not None))
        if is_wanted(self.config):
            await restore_first(self.config)
        async with BrokerProcess(self.config) as process:
            self.process = process
            yield process


def site(tmp_path: Path, name: str, *, follows: bool = False) -> Member:
    url = f"file://{tmp_path}/store"
    archive = ArchiveConfig(url=url, uid=f"u-{name}", interval_s=1)
    return Member(config(tmp_path, name, archive=archive, follow=ArchivePlace(url=url) if follows else None))


async def archived(process: BrokerProcess) -> None:
    await until(lambda: process.store.state.confirmed == process.store.log.end)
    end = process.store.log.end
    await until(lambda: (r := process.broker.archiving.report) is not None and r.known and r.end >= end)


async def filled(process: BrokerProcess) -> int:
    """Let it lead, take 30 messages and archive them. Returns the end of its log."""
    await lead(process)
    for number in range(30):
        put(process, number)
    await archived(process)
    return process.store.log.end


async def followed(process: BrokerProcess, end: int) -> None:
    await until(lambda: process.store.state.confirmed >= end)


async def test_what_differs_behind_equal_epochs_is_filled_again(tmp_path: Path) -> None:
    """As after a disk that lied: epochs and lengths agree, the bytes do not."""
    one, two = site(tmp_path, "one"), site(tmp_path, "two", follows=True)
    async with one.life() as first:
        end = await filled(first)
        async with two.life() as second:
            await followed(second, end)
        path = next((two.config.data_dir / "commitlog").iterdir())
        data = bytearray(path.read_bytes())
        data[end - 2] ^= 1  # Of a property, which no checksum covers.
        path.write_bytes(data)
        async with two.life() as second:
            await until(lambda: second.broker.sites.must_restart.is_set())
        async with two.life() as second:
            await followed(second, end)
            assert second.store.log.read_raw(0, 1 << 20) == first.store.log.read_raw(0, 1 << 20)


async def test_a_standby_prepares_a_truncation_before_it(tmp_path: Path) -> None:
    one, two = site(tmp_path, "one"), site(tmp_path, "two", follows=True)
    asked: list[int] = []

    def prepared(to: int) -> bool:
        asked.append(to)
        return len(asked) > 2

    async with one.life() as first:
        end = await filled(first)
    async with two.life() as second:
        await followed(second, end)
        second.broker.replication.before_truncation = prepared
        lost = Put("Other", 0, 0, 0, 1, pack_host("10.1.2.3", 50_000), b"of no archive", b"")
        second.store.appender.put([lost], 1)
        second.store.indexer.confirm(second.store.log.end)
        await until(lambda: second.store.log.end == end)
        assert asked == [end] * 3


async def seal_and_close(process: BrokerProcess, generation: int, token: str) -> int:
    process.broker.sites.put(SiteRequest(role="Sealed", generation=generation, token=token))
    await until(lambda: process.broker.sites.close_archive(token).closed)
    return process.store.log.end


async def activate(member: Member, generation: int, end: int) -> None:
    sites = member.process.broker.sites
    sites.put(SiteRequest(role="Active", generation=generation, origin=f"p-{generation}", origin_end=end))
    assert sites.must_restart.is_set()


async def test_roles_are_exchanged_twice_without_loss(tmp_path: Path) -> None:
    one, two = site(tmp_path, "one"), site(tmp_path, "two", follows=True)
    sent = 0
    async with one.life() as first:
        await lead(first)
        for _ in range(40):
            put(first, sent)
            sent += 1
        await archived(first)
    active, standby = one, two
    for generation in (1, 2):
        async with active.life() as first, standby.life() as second:
            await lead(first)
            await followed(second, 1)
            assert second.broker.role.site.is_standby
            assert not second.broker.role.may_append
            with pytest.raises(NotWritable, match="is a standby"):
                put(second, -1)
            for _ in range(40):
                put(first, sent)
                sent += 1
            await until(lambda store=first.store: store.state.confirmed == store.log.end)  # type: ignore[misc]
            end = await seal_and_close(first, 10 * generation, f"token-{generation}")
            with pytest.raises(NotWritable, match="hands over"):
                put(first, -1)
            await followed(second, end)
            looked = await second.broker.sites.look()
            assert (looked.handed_over, looked.groups) == (["a"], ["a"])
            with pytest.raises(Fenced, match="not handed over with this token"):
                await second.broker.sites.take(TakeRequest(token="token-of-another"))
            taken = await second.broker.sites.take(TakeRequest(token=f"token-{generation}"))
            assert (taken.archived_end, taken.end) == (end, end)
            assert await second.broker.sites.take(TakeRequest(token=f"token-{generation}")) == taken
            await activate(standby, 10 * generation + 1, end)
            first.broker.sites.put(SiteRequest(role="Standby", generation=10 * generation + 1))
            assert first.broker.sites.must_restart.is_set()
        active, standby = standby, active
    async with active.life() as first, standby.life() as second:
        await lead(first)
        put(first, sent)
        await archived(first)
        assert first.store.reader.max_offset("Orders", 0) == sent + 1
        await followed(second, first.store.log.end)
        assert second.store.reader.max_offset("Orders", 0) == sent + 1
        assert second.store.epoch_cache.epochs == first.store.epoch_cache.epochs


async def test_a_former_site_that_comes_back_is_fenced_and_becomes_the_standby(tmp_path: Path) -> None:
    one, two = site(tmp_path, "one"), site(tmp_path, "two", follows=True)
    async with one.life() as first:
        end = await filled(first)
    async with two.life() as second:
        await followed(second, end)
        with pytest.raises(Fenced, match="not handed over"):
            await second.broker.sites.take(TakeRequest(token=""))
        await second.broker.sites.take(TakeRequest(token="", accept_loss=True))
        await activate(two, 1, end)
    async with two.life() as second:
        await lead(second, epoch=first_epoch(second.store.epoch_cache.last_epoch, "p-1"))
        put(second, 30)
        await archived(second)
        async with one.life() as first:
            await lead(first)
            for number in range(90, 95):
                put(first, number)  # It does not know yet.
            await until(lambda: first.broker.role.site.superseded != "")
            assert "cluster two (u-two) was promoted" in first.broker.role.refusal()
            with pytest.raises(NotWritable, match="cluster two"):
                put(first, 95)
            assert not first.broker.role.may_append
        async with one.life() as first:
            await lead(first, may_append=False)
            assert not first.broker.role.may_append, "it knows from its disk"
            first.broker.sites.put(SiteRequest(role="Standby", generation=2))
        async with one.life() as first:
            await until(lambda: first.store.state.confirmed == second.store.log.end)
            assert first.store.reader.max_offset("Orders", 0) == 31
            assert first.store.epoch_cache.epochs == second.store.epoch_cache.epochs
    state = Archive(ObjectStore(Location(f"file://{tmp_path}/store"))).group("a").load()
    assert present(state.owner).uid == "u-two"


async def test_a_process_starts_again_in_its_new_part(tmp_path: Path) -> None:
    one = site(tmp_path, "one")
    save_site(one.config.data_dir, Site("Active", 3))
    stopped = asyncio.Event()
    life = asyncio.create_task(_one_life(one.config, stopped, Fence(None, False)))
    await asyncio.sleep(0)
    stopped.set()
    assert not await life


def test_an_older_request_changes_nothing(tmp_path: Path) -> None:
    held = Site("Active", 5, origin="p", origin_end=7, superseded="because")
    assert next_site(held, Site("Standby", 5)) == held
    assert next_site(held, Site("Standby", 4)) == held
    assert next_site(held, Site("Standby", 6)) == Site("Standby", 6)
    save_site(tmp_path, held)
    assert load_site(tmp_path, follows=True) == held
    assert load_site(tmp_path / "new", follows=True) == Site("Standby")
    assert load_site(tmp_path / "new", follows=False) == Site("Active")
    (tmp_path / "new/config").mkdir(parents=True)
    (tmp_path / "new/config/replica.json").write_bytes(b"")
    assert load_site(tmp_path / "new", follows=True) == Site("Active"), "a member whose cluster got the field later"


def test_a_log_that_differs_is_truncated_or_filled_again() -> None:
    part = Part("p", 0, 900, 2, 1, "", 1, 1, 1)
    state = State(3, Owner(1, "u"), 1_000, (EpochStart(1, 0), EpochStart(2, 500)), 0, (part,))
    one = (EpochStart(1, 0),)
    assert begin(0, 0, (), state) == Begin(None)
    assert begin(0, 300, one, state) == Begin(None)
    assert begin(0, 500, one, state) == Begin(None)
    assert begin(0, 600, one, state) == Begin(500), "what the archive does not have of epoch 1"
    assert begin(0, 950, (*one, EpochStart(2, 500)), state) == Begin(900)
    assert begin(0, 950, (*one, EpochStart(2, 500), EpochStart(3, 920)), state) == Begin(900)
    assert begin(0, 700, (*one, EpochStart(2, 400)), state) == Begin(400)
    with pytest.raises(Refill, match="differs from the first record on"):
        begin(0, 100, (EpochStart(7, 0),), state)
    pruned = State(3, Owner(1, "u"), 1_000, (EpochStart(2, 500), EpochStart(3, 2_000)), 2_000,
                   (Part("p", 2_000, 2_500, 3, 1, "", 1, 1, 1),))  # fmt: skip
    with pytest.raises(Refill, match="the archive begins at 2000"):
        begin(0, 900, (EpochStart(2, 500),), pruned)


async def test_a_former_leader_closes_no_archive_below_its_successors_log(tmp_path: Path) -> None:
    one = site(tmp_path, "one")
    async with one.life() as first:
        await lead(first)
        put(first, 1)
        await archived(first)
        broker = first.broker
        broker.sites.put(SiteRequest(role="Sealed", generation=1, token="t"))
        archiver = present(broker.archiving._archiver)
        broker.sites.close_archive("t")
        assert archiver._last == ("t", first.store.log.end)
        successor = MemberId(1, "n")
        leadership = LeadershipRecord(
            first.store.epoch_cache.epochs[-1].epoch + 1, 2, successor, frozenset({successor})
        )
        await broker.replication.assign(Assignment(leadership, "127.0.0.1:1"))
        assert not broker.role.leading
        assert archiver._last is None


def test_a_step_that_has_begun_closes_nothing_for_a_former_leader(tmp_path: Path) -> None:
    world = World(1, tmp_path)
    world.objects = world.archive.objects = MemoryObjects(1)
    archiver, store = world._archiver(0), world.members[0]
    world.put()
    world.sync()
    view = View(store.log.start, store.state.confirmed, store.log.segment_size, store.epoch_cache.epochs)
    settings = Settings(0, None)
    while archiver._step(view, settings, True):
        pass
    assert present(archiver._state).end == store.log.end
    archiver.finish("t", store.log.end)
    still_owner = archiver._still_owner

    def deposed() -> None:
        archiver.finish_no_more()
        still_owner()

    archiver._still_owner = deposed  # type: ignore[method-assign]
    with pytest.raises(Overtaken, match="leads no more"):
        archiver._step(view, settings, True)
    archiver._still_owner = still_owner  # type: ignore[method-assign]
    archiver._step(view, settings, True)
    assert world.archive.group("a").load().closed == ""
    archiver.finish("t", store.log.end)
    archiver._step(view, settings, True)
    assert world.archive.group("a").load().closed == "t"


@pytest.mark.parametrize(
    ("field", "value"),
    [("uid", "x" * 1_025), ("token", None), ("atMs", -1), ("atMs", True), ("number", True), ("number", 2)],
)
def test_an_identity_has_limits(field: str, value: object) -> None:
    usual = json.loads(Identity(1, "u", "demo", 5).to_json())
    del usual["crc"]
    with pytest.raises(Damaged, match="the identity is invalid"):
        Identity.from_json("identity/00000001.json", json.dumps(usual | {field: value}).encode())


def test_a_search_for_a_former_owner_reads_a_bounded_number_of_identities() -> None:
    objects = MemoryObjects(1)
    newest = Identity(5_000, "newest", "demo", 5)
    archive = Archive(objects)
    asked: list[str] = []
    get = objects.get
    objects.get = lambda name, most: (asked.append(name), get(name, most))[1]  # type: ignore[method-assign]
    for number in (1, 4_998):
        objects.create(f"identity/{number:08d}.json", Identity(number, f"u-{number}", "demo", 5).to_json())
    assert archive.was_owner("u-4998", newest)
    assert not archive.was_owner("u-1", newest)
    assert len(asked) <= 2 + FORMER_OWNERS
