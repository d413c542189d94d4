"""A whole source moves by messages: topics as they come, killed and gone on with, and the offsets at the end."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from gantry_broker.client import Admin, Message, MessageQueue, Producer
from gantry_broker.protocol.bodies import ClusterInfo
from gantry_broker.remoting.errors import ConnectError
from gantry_broker.testing import broker
from gantry_operator.cli import migrate_by_messages
from gantry_operator.cli.app import app
from gantry_operator.migration import by_messages
from gantry_operator.migration.by_messages import Record, TopicsCopy, is_copied
from gantry_operator.migration.copying import Behind
from gantry_operator.migration.cutover_steps import Refused
from typer.testing import CliRunner

from tests.migration.test_copying import content, fill


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, seconds in {"ROUND_S": 0.01, "QUIET_S": 0.3, "GROUPS_S": 0.05}.items():
        monkeypatch.setattr(by_messages, name, seconds)
    monkeypatch.setattr("gantry_operator.migration.copying.TOPICS_S", 0.05)
    monkeypatch.setattr("gantry_operator.migration.copying.SETTLE_S", 0.05)


async def until_sent(copy: TopicsCopy, count: int) -> None:
    """Follow until so many messages are copied."""

    enough = asyncio.Event()
    following = asyncio.create_task(
        by_messages.follow(copy, lambda copied, missing: enough.set() if copied >= count else None)
    )
    waiting = asyncio.create_task(enough.wait())
    try:
        await asyncio.wait([following, waiting], return_when=asyncio.FIRST_COMPLETED, timeout=60)
        if following.done():
            following.result()
        assert enough.is_set()
    finally:
        for task in (following, waiting):
            task.cancel()
        await asyncio.gather(following, waiting, return_exceptions=True)


async def test_a_source_moves_with_topics_that_come_later(tmp_path: Path) -> None:
    async with broker() as source, broker() as target:
        await fill(source.name_servers, "T", 200)
        async with Admin(source.name_servers) as here, Admin(target.name_servers) as there:
            await until_sent(TopicsCopy(here, there, None, tmp_path / "copy.json"), 200)
            await fill(source.name_servers, "Later", 60)
            await here.set_offset("billing", MessageQueue("T", "test", 1), 17)
            # It was ended: the next one goes on.
            second = TopicsCopy(here, there, None, tmp_path / "copy.json")
            await until_sent(second, 260)
            async with asyncio.timeout(60):
                moved = await by_messages.finish(
                    TopicsCopy(here, there, None, tmp_path / "copy.json"), 30, lambda copied, missing: None
                )
            assert await content(there, "T") == await content(here, "T")
            assert await content(there, "Later") == await content(here, "Later")
            assert moved in ({"billing": 1}, {})  # The second one may have set it.
            assert await there.offset("billing", MessageQueue("T", "test", 1)) == 17


async def test_a_queue_that_a_topic_gets_is_copied_once_the_target_has_one_for_it(tmp_path: Path) -> None:
    async with broker() as source, broker() as target:
        await fill(source.name_servers, "T", 40)
        async with Admin(source.name_servers) as here, Admin(target.name_servers) as there:
            copy = TopicsCopy(here, there, None, tmp_path / "copy.json")
            await until_sent(copy, 40)
            await here.create_topic("T", queues=6)
            async with Producer(source.name_servers) as producer:
                for number in range(12):
                    await producer.send(Message("T", b"%d" % number), queue=MessageQueue("T", "test", number % 6))
            copy = TopicsCopy(here, there, None, tmp_path / "copy.json")
            with pytest.raises(Refused, match="give it 6 queues there"):
                await by_messages.finish(copy, 30, lambda copied, missing: None)
            await there.create_topic("T", queues=6)
            await by_messages.finish(
                TopicsCopy(here, there, None, tmp_path / "copy.json"), 30, lambda copied, missing: None
            )
            assert await content(there, "T") == await content(here, "T")


async def test_a_source_that_is_written_to_is_not_at_its_end(tmp_path: Path) -> None:
    async with broker() as source, broker() as target:
        await fill(source.name_servers, "T", 10)
        async with Admin(source.name_servers) as here, Admin(target.name_servers) as there:
            ended = asyncio.Event()

            async def write() -> None:
                async with Producer(source.name_servers) as producer:
                    while not ended.is_set():
                        await producer.send(Message("T", b"on"))

            writing = asyncio.create_task(write())
            try:
                with pytest.raises(Refused, match="still gets messages"):
                    await by_messages.finish(
                        TopicsCopy(here, there, ["T"], tmp_path / "copy.json"), 1.0, lambda copied, missing: None
                    )
            finally:
                ended.set()
                await writing


async def test_brokers_that_are_away_for_a_while_end_no_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with broker() as source, broker() as target:
        await fill(source.name_servers, "T", 50)
        async with Admin(source.name_servers) as here, Admin(target.name_servers) as there:
            breaks: list[bool] = []

            def made() -> TopicsCopy:
                copy = TopicsCopy(here, there, ["T"], tmp_path / "copy.json")
                run = copy.run

                async def away(*, follow: bool) -> None:
                    await run(follow=follow)
                    if breaks.pop(0):
                        for queue in copy.queues["T"]:  # What it sent is not noted.
                            queue.runs, queue.next = [], 0
                        raise ConnectError("it is away")

                monkeypatch.setattr(copy, "run", away)
                return copy

            breaks[:] = [True]
            with pytest.raises(ConnectError):
                await by_messages.follow(made(), lambda copied, missing: None)
            breaks[:], enough, trouble = [False, True, True, *[False] * 1_000], asyncio.Event(), list[Exception]()
            following = asyncio.create_task(
                by_messages.follow(
                    made(), lambda copied, missing: enough.set() if len(breaks) < 1_000 else None, trouble.append
                )
            )
            async with asyncio.timeout(30):
                await enough.wait()
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)
            assert len(trouble) == 2
            assert await content(there, "T") == await content(here, "T")


@pytest.mark.parametrize(("grown", "said"), [(12, "ends at 3, and was copied up to 10"), (80, "not the one that")])
async def test_a_source_that_was_emptied_is_not_taken_for_one_that_is_copied(
    tmp_path: Path, grown: int, said: str
) -> None:
    """What it gets from then on would be missing at the end."""
    async with broker() as target, Admin(target.name_servers) as there:
        for count in (40, grown):
            async with broker() as source, Admin(source.name_servers) as here:
                await fill(source.name_servers, "T", count)
                copy = TopicsCopy(here, there, ["T"], tmp_path / "copy.json")
                if count == 40:
                    await by_messages.finish(copy, 30, lambda copied, missing: None)
                    continue
                with pytest.raises((Refused, Behind), match=said):
                    await by_messages.finish(copy, 30, lambda copied, missing: None)


@pytest.mark.parametrize(("count", "said"), [(0, "not so long"), (12, "not so long"), (80, "not the one that")])
async def test_other_addresses_have_to_be_of_the_source_that_was_copied(tmp_path: Path, count: int, said: str) -> None:
    state = tmp_path / "copy.json"
    async with broker() as source, broker() as other, broker() as target:
        await fill(source.name_servers, "T", 40)
        if count:
            await fill(other.name_servers, "T", count)
        async with (
            Admin(source.name_servers) as here,
            Admin(other.name_servers) as elsewhere,
            Admin(target.name_servers) as there,
        ):
            await TopicsCopy(elsewhere, there, None, state).compare()  # Nothing was copied yet.
            await by_messages.finish(TopicsCopy(here, there, None, state), 30, lambda copied, missing: None)
            before = await content(there, "T")
            await TopicsCopy(here, there, None, state).compare()
            with pytest.raises(Refused, match=said):
                await TopicsCopy(elsewhere, there, None, state).compare()
            assert await content(there, "T") == before


def test_a_source_that_was_named_wrongly_is_corrected_by_the_same_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The record names another source only once that is found to be the one that was copied."""
    spec = {"nameServers": {"replicas": 1}, "brokerGroups": [{"name": "a", "members": 1}]}
    file, folder = tmp_path / "cluster.yaml", tmp_path / "c"
    file.write_text(
        json.dumps(
            {"apiVersion": "gantry.dev/v1alpha1", "kind": "BrokerCluster", "metadata": {"name": "moved"}, "spec": spec}
        )
    )
    compared: list[str] = []

    async def compare(_: object, record: Record) -> None:
        compared.append(record.name_servers)
        if record.name_servers == "other:1":
            raise Refused("it is another one")

    async def copied(*_: object) -> dict[str, int]:
        return {}

    monkeypatch.setattr(migrate_by_messages, "_compare", compare)
    monkeypatch.setattr(migrate_by_messages, "_copy_all", copied)
    monkeypatch.setattr("gantry_operator.cli.up.up", lambda file, directory, *_: directory.mkdir(exist_ok=True))

    def start(server: str, *words: str) -> str:
        arguments = ["migrate", "start", str(file), "--by", "messages", "--from", server, "--dir", str(folder), *words]
        result = CliRunner().invoke(app, arguments)
        return "" if result.exit_code == 0 else str(result.exception) + result.output

    def recorded() -> Record | None:
        return Record.load(folder / migrate_by_messages.MESSAGES)

    assert not start("wrong:1")
    assert not start("wrong:1")
    assert not compared
    assert not start("right:1")
    assert "it is another one" in start("other:1")
    assert compared == ["right:1", "other:1"]
    assert recorded() == Record("right:1")
    assert "other topics" in start("right:1", "--topics", "T")


async def test_a_topic_that_is_named_and_not_there_is_refused(tmp_path: Path) -> None:
    async with (
        broker() as source,
        broker() as target,
        Admin(source.name_servers) as here,
        Admin(target.name_servers) as there,
    ):
        copy = TopicsCopy(here, there, ["Missing"], tmp_path / "copy.json")
        with pytest.raises(Refused, match="no broker has the topic Missing"):
            await by_messages.finish(copy, 5, lambda copied, missing: None)


@pytest.mark.parametrize(
    ("name", "perm", "copied"),
    [
        ("Orders", 6, True), ("%RETRY%g", 6, True), ("%DLQ%g", 2, False), ("broker-a", 7, False), ("demo", 7, False),
        ("demo_REPLY_TOPIC", 6, False), ("SCHEDULE_TOPIC_XXXX", 6, False), ("TBW102", 7, False),
        ("rmq_sys_wheel_timer", 6, False), ("Orders", 2, False),
    ],
)  # fmt: skip
def test_topics_of_brokers_are_not_copied(name: str, perm: int, copied: bool) -> None:
    info = ClusterInfo.from_json(
        {
            "brokerAddrTable": {
                "broker-a": {"cluster": "demo", "brokerName": "broker-a", "brokerAddrs": {"0": "127.0.0.1:1"}}
            },
            "clusterAddrTable": {"demo": ["broker-a"]},
        }
    )
    assert is_copied(name, perm, info) is copied


def test_the_record_is_what_was_saved_and_another_content_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "messages.json"
    assert Record.load(path) is None
    for record in (Record("a:1;b:2"), Record("a:1", "secret", ("T", "U"), True)):
        record.save(path)
        assert Record.load(path) == record
    for text in ("", "[]", '{"from": "a:1"}', '{"from": "a", "secret": null, "topics": 5, "done": false}'):
        path.write_text(text)
        with pytest.raises(Refused, match="no record of a migration"):
            Record.load(path)


@pytest.mark.parametrize(
    ("words", "bootstrap", "said"),
    [
        (["--by", "messages"], False, "--by messages needs --from"),
        (["--by", "messages", "--from", "a:1", "--topics", ","], False, "--topics names no topic"),
        (["--by", "messages", "--from", "a:1"], True, "by messages a cluster begins empty"),
        (["--by", "messages", "--from", "a:1", "--source-secret", "none"], False, "Secret none"),
        (["--topics", "T"], True, "are for --by messages"),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_starts(
    tmp_path: Path, words: list[str], bootstrap: bool, said: str
) -> None:
    spec = {"nameServers": {"replicas": 1}, "brokerGroups": [{"name": "a", "members": 1}]}
    source = {"bootstrap": {"fromRocketMQ": {"nameServers": ["127.0.0.1:1"]}}}
    manifest = {
        "apiVersion": "gantry.dev/v1alpha1", "kind": "BrokerCluster", "metadata": {"name": "moved"},
        "spec": spec | (source if bootstrap else {}),
    }  # fmt: skip
    file = tmp_path / "cluster.yaml"
    file.write_text(json.dumps(manifest))
    result = CliRunner().invoke(app, ["migrate", "start", str(file), "--dir", str(tmp_path / "c"), *words])
    assert result.exit_code != 0
    assert said in str(result.exception) + result.output
    assert not (tmp_path / "c").exists()


@pytest.mark.parametrize(("authentication", "said"), [("Disabled", True), ("Enabled", False)])
def test_protection_is_not_lost_without_a_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, authentication: str, said: bool
) -> None:
    async def copied(*_: object) -> dict[str, int]:
        return {}

    monkeypatch.setattr(migrate_by_messages, "keys_of", lambda secret: None)
    monkeypatch.setattr(migrate_by_messages, "_copy_all", copied)
    monkeypatch.setattr("gantry_operator.cli.up.up", lambda file, directory, *_: directory.mkdir())
    spec = {
        "nameServers": {"replicas": 1}, "brokerGroups": [{"name": "a", "members": 1}],
        "security": {"authentication": authentication},
    }  # fmt: skip
    file = tmp_path / "cluster.yaml"
    file.write_text(
        json.dumps(
            {"apiVersion": "gantry.dev/v1alpha1", "kind": "BrokerCluster", "metadata": {"name": "moved"}, "spec": spec}
        )
    )
    words = ["migrate", "start", str(file), "--by", "messages", "--from", "a:1", "--source-secret", "keys"]
    result = CliRunner().invoke(app, [*words, "--dir", str(tmp_path / "c")])
    assert result.exit_code == 0, result.exception
    assert ("the new cluster lets everybody in" in result.stderr) is said
