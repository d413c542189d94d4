"""Each file in a cluster's folder that the supervisor or a command reads, damaged: it is repaired, or refused in words.

Never another exception, and never another content that counts.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest
from gantry_broker.contracts.leadership import LeadershipRecord, MemberId
from gantry_operator.cluster.second_site import SiteState
from gantry_operator.platforms.local.events import EventLog, last_events
from gantry_operator.platforms.local.folder import ClusterFolder, read_ports
from gantry_operator.platforms.local.leaving_groups import removed_processes
from gantry_operator.platforms.local.process import load_record
from gantry_operator.platforms.local.site import LocalSiteStore, load_site
from gantry_operator.registry.base import RegistryUnavailable
from gantry_operator.registry.file import FileRegistry

SEEDS = 60


@pytest.fixture
def folder(tmp_path: Path) -> ClusterFolder:
    found = ClusterFolder(tmp_path)
    found.make()
    return found


def cut(data: bytes, rng: random.Random) -> bytes:
    return data[: rng.randrange(len(data))]


def flipped(data: bytes, rng: random.Random) -> bytes:
    at = rng.randrange(len(data))
    return data[:at] + bytes((data[at] ^ (1 << rng.randrange(8)),)) + data[at + 1 :]


def zeroed(data: bytes, rng: random.Random) -> bytes:
    at, size = rng.randrange(len(data)), rng.randrange(1, 20)
    return data[:at] + bytes(min(size, len(data) - at)) + data[at + size :]


KINDS: Final[dict[str, Callable[[bytes, random.Random], bytes]]] = {
    "empty": lambda data, rng: b"",
    "zeros": lambda data, rng: bytes(len(data)),
    "array": lambda data, rng: b"[1]",
    "text": lambda data, rng: b'"x"',
    "null": lambda data, rng: b"null",
    "nested": lambda data, rng: b"[" * 50_000,
    "not UTF-8": lambda data, rng: b'{"a":"\xff"}',
    "cut": cut,
    "flipped": flipped,
    "zeroed": zeroed,
}
DRAWN: Final = ("cut", "flipped", "zeroed")
pytestmark = pytest.mark.parametrize("kind", KINDS)


def damaged(path: Path, kind: str) -> Any:
    """Damage the file in every way of a kind, one after the other."""
    whole = path.read_bytes()
    for seed in range(SEEDS if kind in DRAWN else 1):
        data = KINDS[kind](whole, random.Random(seed))
        if data != whole:
            path.write_bytes(data)
            yield seed
    path.write_bytes(whole)


async def test_a_leadership_record(tmp_path: Path, kind: str) -> None:
    registry = FileRegistry(tmp_path)
    member = MemberId(1, "y")
    record = LeadershipRecord(12, 34, member, frozenset({member, MemberId(0, "x"), MemberId(2, "z")}))
    assert await registry.swap("a", None, record)
    for seed in damaged(tmp_path / "a.json", kind):
        try:
            found = await registry.read("a")
        except RegistryUnavailable as error:
            said = str(error)
        else:
            said = ""
            assert found is not None
            assert found.leadership == record, (seed, "no other epoch, master or in-sync set counts")
        assert not said or "move it away, and it is recovered from the members" in said


async def test_the_part_of_a_site(folder: ClusterFolder, kind: str) -> None:
    state = SiteState(role="Standby", generation=7)
    await LocalSiteStore(folder).save(state)
    for seed in damaged(folder.site, kind):
        try:
            found = load_site(folder)
        except ValueError as error:
            said = str(error)
        else:
            said = f"{folder.site} move it away"
            assert found == state, seed
        assert str(folder.site) in said
        assert "move it away" in said


def test_events(folder: ClusterFolder, kind: str) -> None:
    events = EventLog(folder.events, show=lambda line: None)
    for number in range(5):
        events.add("Normal", "Started", f"process {number} has started", "demo-a-0")
    for _ in damaged(folder.events, kind):
        assert all(isinstance(event, dict) for event in last_events(folder.events, 10))
        EventLog(folder.events, show=lambda line: None).add("Normal", "Started", "later", "demo-a-0")
        assert last_events(folder.events, 1)[0]["message"] == "later"


def test_ports_records_and_configs(folder: ClusterFolder, kind: str) -> None:
    folder.ports.write_text(json.dumps({"demo-namesrv-0": 9_876, "group/a": 10_911, "demo-a-0/http": 18_912}))
    for _ in damaged(folder.ports, kind):
        assert all(type(port) is int and 0 < port < 65_536 for port in read_ports(folder.ports).values())
    path = folder.root / "demo-a-0.record"
    path.write_text(json.dumps({"name": "demo-a-0", "pid": 2**22 + 1, "started": "mark", "config": "digest"}))
    for _ in damaged(path, kind):
        assert load_record(path) is None
    config = folder.config("demo-a-0")
    config.parent.mkdir(exist_ok=True)
    config.write_text('{"group": "a"}')
    for _ in damaged(config, kind):
        (found,) = removed_processes(folder, "demo", "a")
        assert found.name == "demo-a-0"


def test_the_owner_of_the_archive(folder: ClusterFolder, kind: str) -> None:
    whole = folder.uid
    for _ in damaged(folder.uid_file, kind):
        try:
            found = folder.uid
        except OSError as error:
            said = str(error)
        else:
            said = "write the owner into it"
            assert found.isascii()
        assert "write the owner into it" in said
    assert folder.uid == whole
