"""`gantry restore FILE` refuses what the archive does not have before it starts anything."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from gantry_broker.archive import chain
from gantry_broker.archive.chain import Archive
from gantry_broker.archive.manifest import Change, Owner, Part, State
from gantry_broker.archive.objects import Location, ObjectStore
from gantry_operator.cli.errors import CliError
from gantry_operator.cli.options import Output
from gantry_operator.cli.restore import restore

MONDAY = 1_767_571_200_000
"""2026-01-05, midnight in UTC."""


@pytest.fixture
def url(tmp_path: Path) -> str:
    """An archive of group a: records of that Monday, from midnight to one minute past."""
    place = f"file://{tmp_path}/archive"
    archive = Archive(ObjectStore(Location(place)))
    owner = Owner(archive.claim("u", "shop", MONDAY).number, "u")
    part = Part("p.gar", 0, 900, 1, 10, "", 1, MONDAY, MONDAY + 60_000)
    state = State()
    for change in (Change(base=(0, ())), Change(added=(part,))):
        state = chain.write(
            archive.group("a"), state, change, owner=owner, segment_size=1_000, epochs=(), now_ms=MONDAY
        )
    return place


def refused(tmp_path: Path, source: dict[str, Any], group: str = "a") -> str:
    """What the command says; nothing was started."""
    spec = {"brokerGroups": [{"name": group, "members": 1}], "bootstrap": {"fromArchive": source}}
    kind = {"apiVersion": "gantry.dev/v1alpha1", "kind": "BrokerCluster"}
    file = tmp_path / "restore.yaml"
    file.write_text(json.dumps(kind | {"metadata": {"name": "again"}, "spec": spec}))
    with pytest.raises(CliError) as said:
        restore(str(file), directory=tmp_path / "again", output=Output.text)
    assert not (tmp_path / "again").exists()
    return str(said.value)


def test_a_target_that_no_restore_reaches_starts_nothing(tmp_path: Path, url: str) -> None:
    early = refused(tmp_path, {"url": url, "time": "2026-01-04T23:59:59Z"})
    assert early.endswith("before the first record of the archive: write 2026-01-05T00:00:00.000Z or later")
    for offset in (0, 901):
        assert "write one above 0, up to 900" in refused(tmp_path, {"url": url, "offset": offset})
    assert "has no group b; its groups: a" in refused(tmp_path, {"url": url}, "b")
    assert "archive of cluster shop, not of mall" in refused(tmp_path, {"url": url, "cluster": "mall"})
    assert "there is no archive at this place" in refused(tmp_path, {"url": f"{url}/elsewhere"})
