"""The handlers of request codes, as the rows of `protocol/requests.py` name them. Sends have the sender instead."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
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
from gantry_broker.broker.handlers.requests import Handler, Result
from gantry_broker.protocol.requests import REQUESTS, SENDER

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


def handlers_of(parts: object) -> dict[int, Handler]:
    """Return the handlers of a member by request code. `parts`: all of them, as the `BrokerContext` of `wiring.py` has
    them; each module of handlers names in its `Parts` which ones it uses.
    """
    return {code: partial(handler, parts) for code, handler in HANDLERS.items()}
