"""Settings changed while the broker runs: who keeps them, for how long, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from gantry_broker.broker.metadata import snapshots
from gantry_broker.broker.metadata.live_settings import BadSetting, change_of, effective, parse_changes, stale
from gantry_broker.broker.metadata.tables import Tables
from gantry_broker.contracts.leadership import Assignment, LeadershipRecord, MemberId
from gantry_broker.protocol.frame import Frame
from gantry_broker.settings import BrokerSettings

from tests.support.running import until

if TYPE_CHECKING:
    from tests.broker.conftest import Bench

UPDATE, SHOW = 25, 26


@pytest.fixture
def another(bench: Bench, tmp_path: Path) -> Callable[..., Any]:
    kind = type(bench)
    return lambda **options: kind(tmp_path / "other", **options)


async def change(made: Any, text: str) -> Frame:
    answer: Frame = await made.ask(UPDATE, body=text.encode())
    return answer


async def shown(made: Any, name: str) -> str:
    lines = (await made.ask(SHOW)).body.decode().splitlines()
    return next(line.partition("=")[2] for line in lines if line.startswith(f"{name}="))


async def test_a_change_holds_at_once_and_is_shown(bench: Bench) -> None:
    assert (await change(bench, "# by hand\nmaxMessageSize=2048\nslaveReadEnable=true\n")).code == 0
    assert bench.broker.settings.maxMessageSize == 2048
    assert await shown(bench, "slaveReadEnable") == "true"
    assert (await bench.send(b"x" * 2049)).code == 13
    assert bench.broker.config.settings.maxMessageSize == 4_194_304, "what the resource says is not touched"


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("", "names no setting"),
        ("maxMessageSize", "'maxMessageSize' is not name=value"),
        ("maxMessageSize=4_096", "a whole number in the digits 0 to 9 is expected, not '4_096'"),
        ("maxMessageSize=+4096", "a whole number in the digits 0 to 9 is expected"),
        ("maxMessageSize=4096.0", "a whole number in the digits 0 to 9 is expected"),
        ("maxMessageSize=\u0664\u0660\u0669\u0666", "a whole number in the digits 0 to 9 is expected"),
        ("nonsense=1", "the setting nonsense does not exist here"),
        ("maxMessageSize=7", "the setting maxMessageSize: .* not '7'"),
        ("maxMessageSize=many", "the setting maxMessageSize: .* not 'many'"),
        ("messageDelayLevel=1s", "write it in spec.broker"),
        ("fileReservedTime=5\nnonsense=1", "nonsense"),
    ],
)
async def test_refused_changes_change_nothing(bench: Bench, body: str, says: str) -> None:
    end = bench.store.log.end
    answer = await change(bench, body)
    assert answer.code == 1
    with pytest.raises(BadSetting, match=says):
        change_of(BrokerSettings(), BrokerSettings(), parse_changes(body.encode()))
    assert answer.remark is not None
    assert bench.store.log.end == end
    assert bench.broker.settings == bench.broker.config.settings


@pytest.mark.parametrize("from_snapshot", [True, False])
async def test_a_change_outlives_restarts_until_the_resource_overrules_it(
    another: Callable[..., Any], from_snapshot: bool
) -> None:
    async def start(**settings: Any) -> Any:
        made = another(settings=settings)
        made.broker.replay.start(made.config.data_dir / "config")
        await made.lead()
        return made

    async def stop(made: Any) -> None:
        if from_snapshot:
            snapshots.write(
                made.config.data_dir / "config", snapshots.render(made.broker.meta, made.store.epoch_cache.epochs)
            )
        await made.close()

    first = await start()
    await change(first, "fileReservedTime=24\nslaveTimeout=500")
    await stop(first)
    second = await start()
    assert (second.broker.settings.fileReservedTime, second.broker.settings.slaveTimeout) == (24, 500)
    await stop(second)
    third = await start(fileReservedTime=48)
    assert (third.broker.settings.fileReservedTime, third.broker.settings.slaveTimeout) == (48, 500)
    await until(lambda: list(third.broker.meta.working.settings) == ["slaveTimeout"], "what is overruled is forgotten")
    await stop(third)
    fourth = await start()
    assert fourth.broker.settings.fileReservedTime == 72, "and does not come back with the former text"
    assert (await change(fourth, "slaveTimeout=3000")).code == 0
    assert fourth.broker.meta.working.settings == {}, "what the resource says is no change"
    await stop(fourth)


async def test_a_slave_follows_refuses_and_undoes_unconfirmed_changes(another: Callable[..., Any]) -> None:
    made = another(min_in_sync=2)
    await made.broker.replication.start()
    me, other = made.broker.replication.me, MemberId(1, "other")
    await made.broker.replication.assign(
        Assignment(LeadershipRecord(1, 1, me, frozenset({me, other})), "127.0.0.1:10911")
    )
    frame = made.frame(UPDATE, body=b"fileReservedTime=24")
    made.give(frame)
    await until(lambda: made.broker.settings.fileReservedTime == 24, "the change holds on the master")
    await made.broker.replication.assign(
        Assignment(LeadershipRecord(2, 2, other, frozenset({me, other})), "127.0.0.1:1")
    )
    assert (await made.answer(frame.opaque)).code == 1
    assert made.broker.settings.fileReservedTime == 72
    refused = await change(made, "fileReservedTime=24")
    assert (refused.code, "is a slave" in (refused.remark or "")) == (14, True)
    made.broker.meta.confirm(1 << 40, b'{"kind":"meta","settings":{"fileReservedTime":["36","72"]}}')
    made.broker.events.tables_changed()
    assert made.broker.settings.fileReservedTime == 36
    await made.close()


def test_settings_of_another_version_do_no_harm() -> None:
    from_spec = BrokerSettings()
    changes = {"unknown": ("1", "2"), "maxMessageSize": ("nonsense", "4194304"), "mappedFileSizeCommitLog": ("1", "2")}
    assert effective(from_spec, changes) == from_spec
    assert stale(from_spec, changes) == ["unknown", "mappedFileSizeCommitLog"]
    tables, copy = Tables(settings=dict(changes)), Tables()
    for part in tables.all_changes(1):
        copy.apply(part)
    assert copy.settings == changes
