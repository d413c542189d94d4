"""The data source and the report's environment on a cluster with authentication, the default in Kubernetes."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from gantry_broker.client import Admin
from gantry_broker.client.credentials import Credentials
from gantry_broker.protocol.bodies import SubscriptionGroup
from gantry_broker.protocol.fastjson import MessageQueue
from gantry_spark import remote, remoting
from gantry_spark.environment import read_environment
from gantry_spark.errors import SourceError
from gantry_spark.main import run_summary
from gantry_spark.page import _missing
from gantry_spark.source import Options
from gantry_spark.summary import GroupOffset
from gantry_spark.trust import Trust

from tests.support.broker_group import Group, MakeGroup, make_group, until

__all__ = ["make_group"]

ADMIN = Credentials("admin", "admin-secret")


async def secured(make_group: MakeGroup) -> Group:
    group = await make_group(1, authentication="Enabled")
    await group.lead(0)
    await group.registered()
    table = {"version": 1, "mode": "Enabled", "users": [{"name": "admin", "keys": [ADMIN.secret_key], "super": True}]}
    answer = await group.members[0].http.put("/v1/access", content=json.dumps(table))
    assert answer.status_code == 200, answer.text

    async def known() -> bool:
        return group.names.service.access.version >= 1

    await until(known, "the NameServer has the access table", 10)
    async with Admin(group.name_server, credentials=ADMIN) as admin:
        await admin.create_topic("Orders", queues=1)
        await admin.create_group(SubscriptionGroup("billing"))
        await admin.set_offset("billing", MessageQueue("Orders", group.members[0].config.group, 0), 0)
    return group


async def test_offsets_disks_and_retention_are_read_where_requests_need_a_signature(make_group: MakeGroup) -> None:
    """The driver has the brokers' admin token, and no user."""
    group = await secured(make_group)
    config = group.members[0].config
    options = {"brokers": f"{config.group}=http://127.0.0.1:{config.http_port}"}

    def read() -> None:
        found = read_environment(Options(options).logs(), None)
        assert (found.notes, found.missing) == ([], [])
        assert GroupOffset("billing", config.group, "Orders", 0, 0) in found.offsets
        assert found.reserved_hours == config.settings.fileReservedTime
        assert len(found.disks) == 1

    await asyncio.to_thread(read)


async def test_requests_to_name_servers_are_signed_with_the_given_keys(make_group: MakeGroup, tmp_path: Path) -> None:
    group = await secured(make_group)
    config = group.members[0].config
    keys = tmp_path / "keys.json"
    keys.write_text(json.dumps({"accessKey": ADMIN.access_key, "secretKey": ADMIN.secret_key}))

    def read() -> None:
        with pytest.raises(SourceError, match="set option credentialsFile"):
            remoting.broker_urls(group.name_server)
        url = f"{config.group}=http://127.0.0.1:{config.http_port}"
        assert remoting.broker_urls(group.name_server, Trust(credentials_file=str(keys))) == [url]
        logs = Options({"cluster": group.name_server, "credentialsFile": str(keys)}).logs()
        assert [log.name for log in logs] == [config.group]
        for content in ("", "[]", '{"accessKey": "a"}', '{"accessKey": "a", "secretKey": 1}'):
            wrong = tmp_path / f"wrong-{len(content)}.json"
            wrong.write_text(content)
            with pytest.raises(SourceError, match="holds no JSON with accessKey and secretKey"):
                remoting.broker_urls(group.name_server, Trust(credentials_file=str(wrong)))

    await asyncio.to_thread(read)


async def test_a_part_that_cannot_be_read_is_named_and_takes_no_other_with_it(
    make_group: MakeGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = await secured(make_group)
    config = group.members[0].config
    options = {"brokers": f"{config.group}=http://127.0.0.1:{config.http_port}"}
    answers = remote.http_get

    def read() -> None:
        logs = Options(options).logs()
        for body in (b"", b"{}", b'{"lags": [{"group": "g", "topic": "t", "queues": [[0, 1, -1]]}]}', b'{"lags": 7}'):
            monkeypatch.setattr(
                remote, "http_get", lambda *given, body=body: body if "tables" in given[2] else answers(*given)
            )
            found = read_environment(logs, None)
            assert found.missing == [f"consumer groups of {config.group}"]
            assert "the lag of consumer groups is not known" in found.notes[0]
            assert len(found.disks) == 1

    await asyncio.to_thread(read)
    report = {
        "topics": [], "run": "r", "asOf": None, "durationSeconds": 1, "scan": {"scannedBytes": 1, "logBytes": 1},
        "totals": {"records": 1, "savedBytes": 0}, "missing": ["consumer groups of <a>"], "notes": [],
    }  # fmt: skip
    assert run_summary(report, None)["missing"] == ["consumer groups of <a>"]
    assert "This report lacks: consumer groups of &lt;a&gt;" in _missing(["consumer groups of <a>"])
    assert _missing([]) == ""
