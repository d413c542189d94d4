"""The data source against a cluster with TLS at every port: HTTPS with the cluster's CA, and remoting with TLS."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from gantry_broker.client import Producer
from gantry_spark import remoting
from gantry_spark.environment import read_environment
from gantry_spark.errors import SourceError
from gantry_spark.source import Options
from gantry_spark.trust import Trust

from tests.spark.test_remote import rows_of
from tests.support.certificates import Authority
from tests.support.tls_group import tls_group


async def test_logs_and_offsets_are_read_with_tls(tmp_path: Path) -> None:
    other = Authority("another CA").write(tmp_path / "other.crt")
    async with tls_group(tmp_path, 2, internal=True) as started:
        group = started.group
        await group.lead(0)
        await group.registered()
        async with Producer(started.name_server, tls=started.options) as producer:
            for number in range(50):
                await producer.send("Orders", b"%d" % number)
        urls = ",".join(f"demo-a=https://127.0.0.1:{m.config.http_port}" for m in group.members)
        options = {"brokers": urls, "caFile": str(started.files.ca), "tls": "true"}

        def read() -> None:
            found = [row for row in rows_of(options) if row["topic"] == "Orders"]
            assert [row["body"] for row in found] == [b"%d" % number for number in range(50)]
            assert not read_environment(Options(options).logs(), None).notes
            with pytest.raises(SourceError, match="CERTIFICATE_VERIFY_FAILED"):
                Options(options | {"caFile": str(other)}).logs()
            with pytest.raises(SourceError, match=r"option caFile: .*absent.crt cannot be read"):
                Options(options | {"caFile": str(tmp_path / "absent.crt")}).logs()
            assert remoting.broker_urls(started.name_server, Trust(str(started.files.ca), tls=True)) == [
                f"demo-a=https://127.0.0.1:{m.config.http_port}" for m in group.members
            ]
            with pytest.raises(SourceError):
                remoting.broker_urls(started.name_server, Trust(str(started.files.ca)))

        await asyncio.to_thread(read)
