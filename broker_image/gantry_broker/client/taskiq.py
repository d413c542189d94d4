"""Tasks of Taskiq over RocketMQ topics: `pip install gantry-mq-client[taskiq]`.

broker = RocketMQBroker("127.0.0.1:9876", topic="tasks").with_result_backend(RocketMQResults("127.0.0.1:9876"))

@broker.task
async def add(a: int, b: int) -> int: ...

`taskiq worker module:broker` runs the tasks. A worker holds a message while its task runs; when the worker dies, the
message comes to another one after `invisible_s`. `task.kicker().with_labels(delay=30)` starts a task 30 s later.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import time
from collections import OrderedDict
from collections.abc import AsyncGenerator, Sequence
from typing import Any, Final, TypeVar

from taskiq import AckableMessage, AsyncBroker, AsyncResultBackend, BrokerMessage, TaskiqResult

from gantry_broker.client.admin import Admin
from gantry_broker.client.credentials import Credentials
from gantry_broker.client.errors import ClientError, InvalidMessage, NoRoute
from gantry_broker.client.holding import FAILURES, Holding
from gantry_broker.client.message import FromWhere, Message
from gantry_broker.client.producer import Producer
from gantry_broker.client.session import Session
from gantry_broker.client.simple_consumer import MAX_MESSAGES, PoppedMessage, SimpleConsumer
from gantry_broker.protocol.codes import SendStatus
from gantry_broker.remoting.tls import TlsOptions

log = logging.getLogger(__name__)

Result = TypeVar("Result")
TOPIC: Final = "taskiq"
RESULTS: Final = "taskiq-results"
GROUP: Final = "taskiq"
DELAY: Final = "delay"
"""The label with the seconds until a task starts."""
PAUSE_S: Final = 1.0
"""Seconds between two tries while no broker answers."""
CACHED_RESULTS: Final = 256
"""Results that were found and not fetched yet; the oldest goes first and is read again."""


class RocketMQBroker(AsyncBroker):
    """Sends tasks to a topic; workers receive them as members of one group and acknowledge each one."""

    def __init__(
        self,
        name_servers: str | Sequence[str],
        topic: str = TOPIC,
        group: str = GROUP,
        *,
        invisible_s: float = 30.0,
        longest_s: float = 3600.0,
        create_topic: bool = True,
        tls: TlsOptions | None = None,
        credentials: Credentials | None = None,
    ) -> None:
        """`invisible_s`: a task of a dead worker starts again after these seconds. `longest_s`: a task that takes
        longer is given to another worker although it still runs. `create_topic`: create the topic when it is missing.
        """
        super().__init__()
        self._addresses, self._tls, self._credentials = name_servers, tls, credentials
        self.topic, self.group = topic, group
        self.invisible_s, self.longest_s = invisible_s, longest_s
        self._create_topic = create_topic
        self._session: Session | None = None
        self._producer: Producer | None = None
        self._consumer: SimpleConsumer | None = None
        self._holding: Holding | None = None

    async def startup(self) -> None:
        """Connect. A worker's broker also joins the group. Raises NoRoute, BrokerError and RemotingError."""
        await super().startup()
        self._session = Session(self._addresses, credentials=self._credentials, tls=self._tls)
        self._producer = Producer(self._session, f"{self.group}-producer")
        await self._producer.start()
        if self._create_topic:
            await Admin(self._session).ensure_topic(self.topic)
        if self.is_worker_process:
            self._consumer = SimpleConsumer(
                self._session, self.group, from_where=FromWhere.FIRST, invisible_s=self.invisible_s
            )
            await self._consumer.start()
            await self._consumer.subscribe(self.topic)
            self._holding = Holding(self._consumer, self.invisible_s, self.longest_s)
            self._holding.start()

    async def shutdown(self) -> None:
        """Give back what is not finished, and disconnect."""
        await super().shutdown()
        if self._consumer is not None and self._holding is not None:
            await self._holding.close()
            await self._consumer.close()
            self._consumer = self._holding = None
        if self._producer is not None:
            producer, self._producer = self._producer, None
            await producer.close()

    async def kick(self, message: BrokerMessage) -> None:
        """Send a task. Raises InvalidMessage for a `delay` that is no number of seconds, else as `Producer.send`."""
        if self._producer is None:
            raise ClientError("the broker is not started: await broker.startup()")
        due = _due_ms(message.labels.get(DELAY))
        await self._producer.send(Message(self.topic, message.message, keys=message.task_id, deliver_at_ms=due))

    async def listen(self) -> AsyncGenerator[AckableMessage, None]:
        """Yield tasks. While no broker answers it tries again."""
        consumer, holding = self._consumer, self._holding
        if consumer is None or holding is None:
            raise ClientError("the broker is not started as a worker's: run it by `taskiq worker`")
        while True:
            try:
                messages = await consumer.receive(MAX_MESSAGES)
            except FAILURES as error:
                log.warning("%s: no tasks for now: %s", self.topic, error)
                await asyncio.sleep(PAUSE_S)
                continue
            for message in messages:
                holding.take(message)
            for message in messages:
                yield AckableMessage(data=message.body, ack=functools.partial(self._finish, message))

    async def _finish(self, message: PoppedMessage) -> None:
        if self._holding is not None and not await self._holding.finish(message):
            log.warning("task %s was finished too late: it may start again", " ".join(message.keys))


class RocketMQResults(AsyncResultBackend[Result]):
    """Results as messages of a topic, found by the key of the task. The topic's retention ends them."""

    def __init__(
        self,
        name_servers: str | Sequence[str],
        topic: str = RESULTS,
        *,
        create_topic: bool = True,
        tls: TlsOptions | None = None,
        credentials: Credentials | None = None,
    ) -> None:
        self._addresses, self._tls, self._credentials = name_servers, tls, credentials
        self.topic = topic
        self._create_topic = create_topic
        self._producer: Producer | None = None
        self._admin: Admin | None = None
        self._cached: OrderedDict[str, TaskiqResult[Result]] = OrderedDict()

    async def startup(self) -> None:
        """Connect. Raises NoRoute, BrokerError and RemotingError."""
        session = Session(self._addresses, credentials=self._credentials, tls=self._tls)
        self._producer, self._admin = Producer(session, f"{GROUP}-results"), Admin(session)
        await self._producer.start()
        await self._admin.__aenter__()
        if self._create_topic:
            await self._admin.ensure_topic(self.topic)

    async def shutdown(self) -> None:
        """Disconnect."""
        if self._producer is not None and self._admin is not None:
            await self._admin.__aexit__(None, None, None)
            await self._producer.close()
            self._producer = self._admin = None

    async def set_result(self, task_id: str, result: TaskiqResult[Result]) -> None:
        """Store a result as JSON. Raises as `Producer.send`."""
        producer, _ = self._started()
        sent = await producer.send(Message(self.topic, result.model_dump_json().encode(), keys=task_id))
        if sent.status is not SendStatus.SEND_OK:
            log.warning("the result of task %s is stored at one member only: %s", task_id, sent.status)

    async def is_result_ready(self, task_id: str) -> bool:
        """Ask the brokers for the key of the task. Raises BrokerError and RemotingError."""
        return await self._result(task_id) is not None

    async def get_result(self, task_id: str, with_logs: bool = False) -> TaskiqResult[Result]:
        """Return the newest result of a task. Raises KeyError when there is none, BrokerError and RemotingError."""
        result = await self._result(task_id)
        if result is None:
            raise KeyError(f"task {task_id} has no result in topic {self.topic}")
        self._cached.pop(task_id, None)
        return result if with_logs else result.model_copy(update={"log": None})

    async def _result(self, task_id: str) -> TaskiqResult[Result] | None:
        if task_id in self._cached:
            return self._cached[task_id]
        _, admin = self._started()
        try:
            messages = await admin.query(self.topic, task_id, count=8)
        except NoRoute:
            return None
        if not messages:
            return None
        newest = max(messages, key=lambda message: message.store_ms)
        self._cached[task_id] = TaskiqResult[Any].model_validate_json(newest.body)
        while len(self._cached) > CACHED_RESULTS:
            self._cached.popitem(last=False)
        return self._cached[task_id]

    def _started(self) -> tuple[Producer, Admin]:
        if self._producer is None or self._admin is None:
            raise ClientError("the result backend is not started: await broker.startup()")
        return self._producer, self._admin


def _due_ms(delay: object) -> int | None:
    """Return the time of delivery in milliseconds since 1970 for a `delay` label. Raises InvalidMessage."""
    if delay is None:
        return None
    try:
        seconds = float(str(delay))
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < 10**9:
        raise InvalidMessage(f"label {DELAY} is {delay!r}; write the seconds until the task starts, 0 or more")
    return int((time.time() + seconds) * 1000) if seconds else None
