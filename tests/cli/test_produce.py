"""`gantry produce` without acknowledgements: its patience covers one failover, not each message."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, Self

import pytest
from gantry_broker.client import BrokerError, Message, NoRoute, SendStatus
from gantry_broker.protocol.codes import ResponseCode
from gantry_operator.actions.target import Clients
from gantry_operator.cli import messages
from gantry_operator.cli.errors import CliError
from gantry_operator.cli.messages import ProduceOptions, run_produce
from gantry_operator.cluster.reach import CannotTell

IN_FLIGHT = 2


class Servers:
    """Replaces a cluster."""

    @asynccontextmanager
    async def clients(self) -> AsyncIterator[Clients]:
        yield Clients("127.0.0.1:1", None, None)


class NoBroker:
    """A producer that sends nothing."""

    session = None

    def __init__(self, *args: Any, **options: Any) -> None: ...

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *args: object) -> None: ...


@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch) -> Counter[bytes]:
    """How often each body was sent. Only number 7 is acknowledged."""
    tries: Counter[bytes] = Counter()

    async def any_topic(*_: object) -> None:
        """Every topic is there."""

    class Producer(NoBroker):
        async def send(self, message: Message, key: str | None) -> SimpleNamespace:
            tries[message.body] += 1
            if message.body.startswith(b"7 "):
                return SimpleNamespace(status=SendStatus.SEND_OK)
            if message.topic == "Compacted":
                raise BrokerError("send", ResponseCode.MESSAGE_ILLEGAL, "Required message key is missing")
            raise NoRoute("no broker takes messages for topic T")

    monkeypatch.setattr(messages, "Producer", Producer)
    monkeypatch.setattr(messages, "_writable_topic", any_topic)
    monkeypatch.setattr(messages, "AGAIN_S", 0.01)
    return tries


def test_one_send_given_up_ends_the_patience_for_all(tried: Counter[bytes]) -> None:
    options = ProduceOptions("T", 500, 10, None, "", "", IN_FLIGHT, 0.1)
    with pytest.raises(CliError, match="499 messages were not acknowledged; the first: no broker takes"):
        run_produce(Servers(), options, as_json=False)  # type: ignore[arg-type]
    assert len(tried) == 500
    # Those in flight at first, and those that began after the acknowledgement.
    assert sum(times > 1 for times in tried.values()) <= 2 * IN_FLIGHT


def test_a_message_that_brokers_refuse_for_good_is_sent_once(tried: Counter[bytes]) -> None:
    options = ProduceOptions("Compacted", 20, 10, None, "", "", IN_FLIGHT, 60)
    with pytest.raises(CliError, match=r"19 messages .* first: send: MESSAGE_ILLEGAL \(13\): Required message key is"):
        run_produce(Servers(), options, as_json=False)  # type: ignore[arg-type]
    assert set(tried.values()) == {1}


@pytest.mark.parametrize(
    ("keys", "wanted", "compacted", "selects"),
    [("k", False, True, True), ("k", True, False, True), ("k", False, False, False), ("", False, True, False)],
    ids=["compacted", "--by-key", "another topic", "no key"],
)
def test_messages_of_one_key_go_to_one_queue_in_their_order(
    monkeypatch: pytest.MonkeyPatch, keys: str, wanted: bool, compacted: bool, selects: bool
) -> None:
    sent: list[tuple[bytes, str | None]] = []
    at_once = most = 0

    async def any_topic(*_: object) -> None:
        """Every topic is there."""

    async def is_by_key(*_: object) -> bool:
        return compacted

    class Producer(NoBroker):
        async def send(self, message: Message, key: str | None) -> SimpleNamespace:
            nonlocal at_once, most
            at_once += 1
            most = max(most, at_once)
            await asyncio.sleep(0)
            at_once -= 1
            sent.append((message.body, key))
            return SimpleNamespace(status=SendStatus.SEND_OK)

    monkeypatch.setattr(messages, "Producer", Producer)
    monkeypatch.setattr(messages, "_writable_topic", any_topic)
    monkeypatch.setattr(messages, "is_by_key", is_by_key)
    options = ProduceOptions("T", 50, 10, None, "", keys, IN_FLIGHT, 1, by_key=wanted)
    run_produce(Servers(), options, as_json=False)  # type: ignore[arg-type]
    assert {key for _, key in sent} == {keys if selects else None}
    assert most == (1 if selects else IN_FLIGHT)
    if selects:
        assert [int(body.rstrip(b".")) for body, _ in sent] == list(range(50))


@pytest.mark.parametrize(("keys", "body", "deletes"), [("k", "", True), ("k", "x", False), ("", "", False)])
def test_an_empty_body_with_a_key_deletes_the_key(
    monkeypatch: pytest.MonkeyPatch, keys: str, body: str, deletes: bool
) -> None:
    sent: list[Message] = []

    async def any_topic(*_: object) -> None:
        """Every topic is there, and none is compacted."""

    class Producer(NoBroker):
        async def send(self, message: Message, key: str | None) -> SimpleNamespace:
            sent.append(message)
            return SimpleNamespace(status=SendStatus.SEND_OK)

    monkeypatch.setattr(messages, "Producer", Producer)
    monkeypatch.setattr(messages, "_writable_topic", any_topic)
    monkeypatch.setattr(messages, "is_by_key", any_topic)
    options = ProduceOptions("T", None, 10, None, "", keys, IN_FLIGHT, 1, body=body)
    run_produce(Servers(), options, as_json=False)  # type: ignore[arg-type]
    assert [(one.body, one.deletes_key) for one in sent] == [(body.encode(), deletes)]


@pytest.mark.parametrize(
    ("routes", "silent", "refused"),
    [
        ({"T"}, [], False),
        ({"TBW102"}, [], False),
        (set(), [], True),
        (set(), ["group b has no master: cannot tell"], False),
        (set(), None, False),
    ],
    ids=["it is there", "brokers create it", "nobody has it", "a group may have it", "no group answers"],
)
async def test_a_topic_that_no_broker_creates_is_refused(
    monkeypatch: pytest.MonkeyPatch, routes: set[str], silent: list[str] | None, refused: bool
) -> None:
    """What cannot be told is left to the patience of the sends."""

    async def route(topic: str, *, fresh: bool) -> object | None:
        return object() if topic in routes else None

    async def asked(admin: object, groups: object) -> list[str]:
        if silent is None:
            raise CannotTell("group a has no master: cannot tell")
        return silent

    monkeypatch.setattr(messages, "leave_out_silent", asked)
    monkeypatch.setattr(messages, "Admin", lambda session: None)
    check = messages._writable_topic(SimpleNamespace(route=route), {}, "T")  # type: ignore[arg-type]
    if not refused:
        await check
        return
    with pytest.raises(CliError, match=r"there is no topic T, and brokers create none: .* gantry topic create T"):
        await check
