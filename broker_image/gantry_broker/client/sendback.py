"""Returns a message to its broker for a later delivery."""

from __future__ import annotations

import logging
import time
from typing import Final

from gantry_broker.client.errors import BrokerError, ClientError
from gantry_broker.client.message import ReceivedMessage, pack_properties
from gantry_broker.client.session import Session
from gantry_broker.protocol.codes import AUTO_CREATE_TOPIC, RETRY_PREFIX, Prop, RequestCode
from gantry_broker.protocol.frame import Frame
from gantry_broker.protocol.headers import Long, SendBackHeader, SendHeader
from gantry_broker.remoting.errors import RemotingError

log = logging.getLogger(__name__)

RETRY_TIMES: Final = 16
"""Deliveries after the first before a message becomes a dead letter."""
_FIRST_LEVEL: Final = 3
"""RocketMQ's delay level of the first retry; each further retry uses the next level."""


class SendBack:
    """Sends messages back for one group."""

    def __init__(self, session: Session, group: str) -> None:
        self._session = session
        self._group = group

    async def send(self, message: ReceivedMessage, delay_level: int, max_retries: int) -> bool:
        """Asks the broker to deliver the message again; False: the request failed, and the message stays with this
        client.

        A broker may no longer have the message, after an unclean failover or an expiry. Then it gets a copy.
        """
        header = SendBackHeader(
            Long(message.record.phys_offset), self._group, delay_level, message.id, message.topic, False, max_retries
        )
        try:
            address = await self._session.master(message.broker)
            await self._session.call_checked(
                address,
                Frame(RequestCode.CONSUMER_SEND_MSG_BACK, ext=header.ext() | {"bname": message.broker}),
                f"sending back {message.id}",
            )
        except BrokerError as error:
            log.warning("%s: the broker did not take %r back: %s", self._group, message, error)
            return await self.send_copy(message, max_retries)
        except (RemotingError, ClientError) as error:
            log.warning("%s: cannot send %r back: %s", self._group, message, error)
            return False
        return True

    async def send_copy(self, message: ReceivedMessage, max_retries: int) -> bool:
        """Send a copy to the group's retry topic; the broker makes it a dead letter after `max_retries`."""
        times = message.record.reconsume_times + 1
        properties = dict(message.properties)
        properties[Prop.RETRY_TOPIC] = message.topic
        properties.setdefault(Prop.ORIGIN_MESSAGE_ID, message.id)
        properties[Prop.RECONSUME_TIME] = str(times)
        properties[Prop.MAX_RECONSUME_TIMES] = str(max_retries)
        properties[Prop.DELAY_TIME_LEVEL] = str(_FIRST_LEVEL + message.record.reconsume_times)
        properties.pop(Prop.TRANSACTION_PREPARED, None)
        try:
            header = SendHeader(
                "CLIENT_INNER_PRODUCER",
                RETRY_PREFIX + self._group,
                AUTO_CREATE_TOPIC,
                1,
                0,
                message.record.sys_flag & ~0x3C,  # keep the compression bits; drop transaction and host bits
                Long(time.time_ns() // 1_000_000),
                message.record.flag,
                pack_properties(properties).decode(),
                times,
                False,
                max_retries,
                False,
                message.broker,
            )
            frame = Frame(RequestCode.SEND_MESSAGE_V2, ext=header.short_ext(), body=message.record.body)
            address = await self._session.master(message.broker)
            await self._session.call_checked(address, frame, f"sending {message.id} to the retry topic")
        except (RemotingError, BrokerError, ClientError) as error:
            log.warning("%s: cannot send a copy of %r: %s", self._group, message, error)
            return False
        return True
