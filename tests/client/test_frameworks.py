"""Taskiq and Celery over a real broker. tests/interop does the same with Apache RocketMQ."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from datetime import UTC, datetime
from typing import Any

import pytest
from gantry_broker.client.celery import due_of, payload_of, tls_of, topic_of
from gantry_broker.testing import broker

from tests.support.present import present


@pytest.mark.parametrize("framework", ["taskiq", "celery"])
def test_the_tour(framework: str) -> None:
    with broker() as mq:
        done = subprocess.run(
            [sys.executable, "-m", "tests.client.frameworks_tour", mq.name_servers, framework],
            capture_output=True, text=True, check=False, timeout=110,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    assert "the tour is complete" in done.stdout


@pytest.mark.parametrize(
    ("eta", "due"),
    [
        (None, None),
        ("2026-01-01T00:00:00+00:00", None),
        ("2026-01-01T00:00:10+00:00", 1_767_225_610_000),
        ("2026-01-01T00:00:10", 1_767_225_610_000),
        ("2026-01-01T01:00:10+01:00", 1_767_225_610_000),
        ("2027-01-01T00:00:00+00:00", 1_767_225_601_000 + 259_200_000),
        ("soon", None),
        (5, None),
    ],
)
def test_the_time_of_a_task(eta: object, due: int | None) -> None:
    now = datetime(2026, 1, 1, 0, 0, 1, tzinfo=UTC).timestamp()
    assert due_of({"headers": {"eta": eta}}, now) == due


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b"1", b"{}", b'{"properties":[]}', b'{"properties":{"delivery_info":1}}', b"\xff"]
)
def test_a_body_of_another_program(body: bytes) -> None:
    assert payload_of(body) is None


def test_names_and_options() -> None:
    assert topic_of("celery.high@shop") == "celery-high-shop"
    assert tls_of(None) is None
    assert present(tls_of({"ca_certs": "/ca.pem"})).ca_file == "/ca.pem"
    with pytest.raises(ValueError, match="write ca_certs, certfile, keyfile"):
        tls_of({"ca": "/ca.pem"})


def test_a_strange_message_stops_no_task() -> None:
    """It is not kombu's: those behind it arrive, and it is not acknowledged."""
    import gantry_broker.client.celery  # noqa: F401
    import kombu
    from gantry_broker.client import sync

    with broker() as mq:
        with sync.Producer(mq.name_servers) as producer:
            with sync.Admin(mq.name_servers) as admin:
                admin.ensure_topic("mixed")
            producer.send("mixed", b"not kombu's")
        got: list[Any] = []

        def taken(body: object, message: Any) -> None:
            got.append(body)
            message.ack()

        with kombu.Connection(f"rocketmq://{mq.name_servers}") as connection:
            queue = kombu.Queue("mixed", kombu.Exchange("mixed"), "mixed")
            with connection.Producer() as sender:
                sender.publish({"n": 1}, exchange=queue.exchange, routing_key="mixed", declare=[queue])
            with connection.Consumer([queue], callbacks=[taken]):
                while not got:
                    connection.drain_events(timeout=10)
            assert got == [{"n": 1}]

        async def unread() -> int:
            from gantry_broker.client import Admin

            async with Admin(mq.name_servers) as admin:
                stats = await admin.consume_stats("celery-mixed", "mixed")
                return sum(one.broker_offset - one.consumer_offset for one in stats.values())

        # 2: both came to one queue, whose offset waits for the strange one.
        assert asyncio.run(unread()) in (1, 2), json.dumps(str(got))
