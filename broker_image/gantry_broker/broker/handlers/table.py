"""The handlers of request codes, as the rows of `protocol/requests.py` name them. Sends have the sender instead."""

from __future__ import annotations

from typing import Final

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
from gantry_broker.broker.handlers.requests import HandlerFunction
from gantry_broker.protocol.requests import REQUESTS, SENDER

_MODULES: Final = {
    module.__name__.rpartition(".")[2]: module
    for module in (
        admin, assignments, clients, groupadmin, offsets, pop, pulls, query, recall, reply, retry, topicadmin,
        transaction, users,
    )
}  # fmt: skip


def _handler(name: str) -> HandlerFunction:
    """Return the function "module.function" of this folder. Raises KeyError and AttributeError if there is none."""
    module, _, function = name.partition(".")
    found: HandlerFunction = getattr(_MODULES[module], function)
    return found


HANDLERS: Final[dict[int, HandlerFunction]] = {
    int(code): _handler(row.broker) for code, row in REQUESTS.items() if row.broker and row.broker != SENDER
}
