"""Which queue a message goes to, where it matters."""

from __future__ import annotations

from gantry_broker.broker.metadata.attributes import is_compacted
from gantry_broker.client import Admin, BrokerError, ClientError, NoRoute, Session
from gantry_broker.protocol.fields import BodyError
from gantry_broker.remoting.errors import RemotingError


async def is_by_key(session: Session, topic: str) -> bool:
    """Return whether messages of one key belong into one queue: the topic is compacted, so that a message replaces
    those of its key in its own queue alone. So it is while nobody answers; a refusal, as that of an older RocketMQ,
    means no.
    """
    try:
        return is_compacted(await Admin(session).topic_attributes(topic))
    except (NoRoute, BrokerError):
        return False
    except (ClientError, RemotingError, BodyError):
        return True
