"""Giving a message back to its broker, to be delivered again later."""

from __future__ import annotations

import logging
from typing import Final

from gantry_broker.client.errors import BrokerError, ClientError
from gantry_broker.client.message import ReceivedMessage
from gantry_broker.client.session import Session
from gantry_broker.protocol.codes import RequestCode
from gantry_broker.protocol.frame import Frame
from gantry_broker.protocol.headers import Long, SendBackHeader
from gantry_broker.remoting.errors import RemotingError

log = logging.getLogger(__name__)

RETRY_TIMES: Final = 16
"""Deliveries after the first, before a message becomes a dead letter."""


class SendBack:
    """Sends back for one group."""

    def __init__(self, session: Session, group: str) -> None:
        self._session = session
        self._group = group

    async def send(self, message: ReceivedMessage, delay_level: int, max_retries: int) -> bool:
        """False: the broker could not be told, the message is still ours."""
        header = SendBackHeader(
            Long(message.record.phys_offset),
            self._group,
            delay_level,
            message.id,
            message.topic,
            False,
            max_retries,
        )
        try:
            address = await self._session.master(message.broker)
            await self._session.demand(
                address,
                Frame(RequestCode.CONSUMER_SEND_MSG_BACK, ext=header.ext() | {"bname": message.broker}),
                f"sending back {message.id}",
            )
        except (RemotingError, BrokerError, ClientError) as error:
            log.warning("%s: %r cannot be sent back: %s", self._group, message, error)
            return False
        return True
