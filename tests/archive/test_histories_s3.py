"""The histories of `test_histories.py` with a real S3 server, behind a proxy whose lists lag and which answers old
objects, among other faults.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from gantry_broker.archive import chain, inspection, manifest, restore
from gantry_broker.archive.errors import ArchiveError, Unavailable
from gantry_broker.archive.objects import Location, ObjectStore
from gantry_broker.archive.sealing import Encrypted

from tests.archive.faulty_proxy import FaultyProxy
from tests.archive.s3 import S3Server
from tests.archive.s3 import server as server
from tests.archive.test_histories import World, check_restored

pytestmark = pytest.mark.timeout(300)
HISTORIES = int(os.environ.get("ARCHIVE_HISTORIES", "10"))
FAULTS = ("old", "old", "old list", "old list", "lie", "lost", 403)
WHOLE_EVERY = 4
"""Entries of which one has the whole state: fewer than a list lags behind."""


class Files(Mapping[str, bytes]):
    """What the server keeps: objects by name, read from its folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __getitem__(self, name: str) -> bytes:
        return (self._folder / name).read_bytes()

    def __iter__(self) -> Iterator[str]:
        return (str(path.relative_to(self._folder)) for path in self._folder.rglob("*") if path.is_file())

    def __len__(self) -> int:
        return sum(1 for _ in self)


class ProxiedObjects(ObjectStore):
    """A bucket behind the proxy, with the switches that a history uses."""

    def __init__(self, location: Location, kept: Path) -> None:
        super().__init__(location)
        self.objects = Files(kept)
        self.away = False
        self.now_ms = 0
        self.fail = self.lie = self.lost = 0.0

    def _call(self, call: Callable[[Any], Any], what: str, *, new: bool = False) -> Any:
        if self.away:
            raise Unavailable("the store is away")
        return super()._call(call, what, new=new)


class ProxiedWorld(World):
    """A history whose faults the proxy draws for each request."""

    def __init__(self, seed: int, folder: Path, objects: ProxiedObjects, proxy: FaultyProxy) -> None:
        rng = random.Random(-seed)
        proxy.lag = rng.choice([1, 3, 6, 20])
        share = rng.choice([0.05, 0.3])
        self.proxy = proxy
        self.faulty = lambda: rng.choice(FAULTS) if rng.random() < share else "pass"
        proxy.draw = self.faulty
        sealer = Encrypted(bytes(32)) if seed % 3 == 0 else None
        super().__init__(seed, folder, sealer, objects)  # type: ignore[arg-type]

    def step(self, member: int) -> None:
        if self.random.random() < 0.1:
            self.archivers[member]._cleaned = 0.0
        super().step(member)

    def settle(self) -> Any:
        self.proxy.draw, self.proxy.always = None, "old list"
        return super().settle()


@contextmanager
def world_of(seed: int, folder: Path, server: S3Server, keys: Path) -> Iterator[ProxiedWorld]:
    url = server.bucket(f"history-{seed}")
    proxy = FaultyProxy(server.port)
    with proxy.in_thread():
        location = Location(url, f"http://127.0.0.1:{proxy.port}", server.credentials(keys))
        objects = ProxiedObjects(location, server.folder / f"history-{seed}" / "archive")
        yield ProxiedWorld(seed, folder, objects, proxy)


@pytest.mark.parametrize("seed", range(HISTORIES))
def test_what_is_restored_equals_what_was_confirmed(
    seed: int, quick_dir: Path, server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (chain, manifest):
        monkeypatch.setattr(module, "WHOLE_EVERY", WHOLE_EVERY)
    with world_of(seed, quick_dir / "members", server, quick_dir / "keys") as world:
        world.run(200)
        state = world.settle()
        assert world.proxy.done["old"] + world.proxy.done["old list"] > 0
        assert inspection.verify(world.group, state).faults == ()
        check_restored(world, state, quick_dir)
        if state.parts and state.readable_from < state.end:
            # A reader that knows nothing yet takes a manifest whose last entries are not answered for a shorter one.
            world.proxy.draw = lambda: "pass" if (fault := world.faulty()) == "old" else fault
            assert restored_at_last(world, quick_dir / "again") == state.end
            one, other = ((quick_dir / name / "commitlog") for name in ("new", "again"))
            assert [p.name for p in sorted(one.iterdir())] == [p.name for p in sorted(other.iterdir())]


def restored_at_last(world: ProxiedWorld, store: Path) -> int:
    """Restore to the end, as often as it takes; what is there already is kept."""
    for _ in range(50):
        try:
            return restore.restore(world.group, world.group.load(), restore.Target(), store)
        except ArchiveError:
            continue
    raise AssertionError("the restore does not come to an end")
