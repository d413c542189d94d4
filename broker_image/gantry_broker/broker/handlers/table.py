"""The handlers of request codes, as the rows of `protocol/requests.py` name them. Sends have the sender instead."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

from gantry_broker.broker.handlers import (
    admin,
    assignments,
    clients,
    groupadmin,
    offsets,
    pop,
    pulls,
    query,
    recall,
    reply,
    retry,
    topicadmin,
    transaction,
    users,
)
from gantry_broker.broker.handlers.requests import Handler, Result
from gantry_broker.protocol.requests import REQUESTS, SENDER

if TYPE_CHECKING:
    from gantry_broker.broker.wiring import BrokerContext

_MODULES: Final = {
    module.__name__.rpartition(".")[2]: module
    for module in (
        admin, assignments, clients, groupadmin, offsets, pop, pulls, query, recall, reply, retry, topicadmin,
        transaction, users,
    )
}  # fmt: skip


def _handler(name: str) -> Callable[..., Result]:
    """Return the function "module.function" of this folder. Raises KeyError and AttributeError if there is none."""
    module, _, function = name.partition(".")
    handler: Callable[..., Result] = getattr(_MODULES[module], function)
    return handler


HANDLERS: Final[dict[int, Callable[..., Result]]] = {
    int(code): _handler(row.broker) for code, row in REQUESTS.items() if row.broker and row.broker != SENDER
}


def handlers_of(broker: BrokerContext) -> dict[int, Handler]:
    """Return the handlers of a member by request code. The whole context ends here: each gets it as its `Parts`."""
    return {code: partial(handler, broker) for code, handler in HANDLERS.items()}
