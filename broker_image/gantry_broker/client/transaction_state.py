"""The outcomes of a transaction, and the function that returns one for a half message."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from enum import Enum

from gantry_broker.client.message import ReceivedMessage
from gantry_broker.protocol.codes import SysFlag


class TransactionState(Enum):
    """The outcome of the application's own work; UNKNOWN: the broker asks again later."""

    COMMIT = SysFlag.TRANSACTION_COMMIT
    ROLLBACK = SysFlag.TRANSACTION_ROLLBACK
    UNKNOWN = SysFlag.TRANSACTION_NOT


Check = Callable[[ReceivedMessage], Awaitable[TransactionState]]
"""Returns the outcome of the work for a half message that the broker still holds."""
