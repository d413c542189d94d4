"""The one table of request codes: each code has a row, and what a row names exists."""

from __future__ import annotations

import dataclasses
import importlib
from pathlib import Path
from typing import Any

import pytest
from gantry_broker.broker import handlers
from gantry_broker.broker.handlers.table import HANDLERS
from gantry_broker.broker.member_requests import MemberRequests
from gantry_broker.broker.wiring import BrokerContext
from gantry_broker.namesrv.service import SERVED, NameService
from gantry_broker.protocol import repeated_pulls, requests
from gantry_broker.protocol.codes import GantryCode, RequestCode
from gantry_broker.protocol.frame import MAX_FRAME, MAX_HEADER, SMALL_FRAME
from gantry_broker.protocol.requests import HANDSHAKE, REQUESTS, SENDER, Request


def named(path: str) -> Any:
    """Return what a path in `gantry_broker` names. Raises ImportError and AttributeError if it does not exist."""
    parts = path.split(".")
    for end in range(len(parts), 0, -1):
        name = ".".join(["gantry_broker", *parts[:end]])
        try:
            found: Any = importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name is None or not name.startswith(error.name):
                raise
            continue
        for attribute in parts[end:]:
            found = getattr(found, attribute)
        return found
    raise ImportError(path)


def test_each_code_has_a_row_and_each_row_a_code() -> None:
    codes = {int(code) for code in (*RequestCode, *GantryCode)}
    missing, unknown = codes - REQUESTS.keys(), REQUESTS.keys() - codes
    assert not missing, f"protocol/requests.py has no row for {sorted(missing)}"
    assert not unknown, f"protocol/codes.py has no code for {sorted(unknown)}"


@pytest.mark.parametrize("code", sorted(REQUESTS))
def test_what_a_row_names_exists(code: int) -> None:
    row = REQUESTS[code]
    if row.broker and row.broker != SENDER:
        assert callable(named(f"broker.handlers.{row.broker}"))
        assert HANDLERS[code] is named(f"broker.handlers.{row.broker}")
    for method in filter(None, (row.name_server, row.registration)):
        assert callable(getattr(NameService, method))
    if row.member and row.member != HANDSHAKE:
        assert callable(getattr(MemberRequests, row.member))


@pytest.mark.parametrize("code", sorted(REQUESTS))
def test_a_row_does_not_contradict_itself(code: int) -> None:
    row = REQUESTS[code]
    for_clients = row.broker or row.name_server
    assert not for_clients or not row.member, "clients and members have ports of their own"
    assert not row.broker or not row.registration
    assert for_clients or not (row.right or row.users or row.audited or row.place or row.send), "clients never ask"
    assert not row.users or row.right is None
    assert row.right is None or not (row.member or row.to_client), "members and clients need no right"
    assert row.broker or not (row.writes or row.leader or row.newest or row.every_member or row.for_leader)
    assert row.broker or not (row.cheap or row.polls)
    assert row.writes + row.leader + row.newest + row.for_leader <= 1
    assert row.writes or not row.every_member
    assert not row.send or (row.writes and row.body == SMALL_FRAME), "the limit of a send is a setting"
    assert row.member or not row.followers
    assert SMALL_FRAME <= row.body <= MAX_FRAME
    assert row.header <= MAX_HEADER
    if not any((for_clients, row.registration, row.member, row.to_client)):
        assert row == Request(), "nobody answers it"


def test_the_tables_of_handlers_are_those_of_the_rows() -> None:
    assert HANDLERS.keys() == {code for code, row in REQUESTS.items() if row.broker} - requests.TO_SENDER
    assert {code for code, row in REQUESTS.items() if row.name_server} <= SERVED
    assert int(GantryCode.UPDATE_ACCESS) not in SERVED


def test_each_public_function_of_a_handler_module_is_in_the_table_or_no_handler() -> None:
    """A handler without a row is never called."""
    served = set(HANDLERS.values())
    for module in {row.broker.partition(".")[0] for row in REQUESTS.values() if row.broker and row.broker != SENDER}:
        source = getattr(handlers, module)
        for name, value in vars(source).items():
            parameters = getattr(value, "__annotations__", {})
            if name.startswith("_") or getattr(value, "__module__", "") != source.__name__:
                continue
            if list(parameters)[:3] == ["broker", "conn", "frame"]:
                assert value in served, f"{module}.{name} has no row"


def test_the_sets_that_lower_modules_keep_for_themselves_are_those_of_the_table() -> None:
    assert repeated_pulls.PULLS == requests.PULLS
    assert requests.TO_SENDER < requests.SENDS
    assert all(requests.NAMED[code] for code in requests.SENDS), "a quota counts by the topic in the header"


def test_only_writes_and_reads_of_the_leader_may_be_forwarded() -> None:
    reads = {code for code in requests.FORWARDED if not REQUESTS[code].writes}
    assert reads == {
        RequestCode.GET_MAX_OFFSET, RequestCode.PEEK_MESSAGE, RequestCode.NOTIFICATION, RequestCode.POLLING_INFO,
    }  # fmt: skip
    assert {code for code in REQUESTS if REQUESTS[code].every_member} == requests.TO_EVERY_MEMBER < requests.FORWARDED


def test_handlers_name_the_parts_that_they_use() -> None:
    """`mypy` holds them to it: a module with the whole context could use any part."""
    folder = Path(handlers.__file__).parent
    whole = [path.name for path in folder.glob("*.py") if "BrokerContext" in path.read_text()]
    assert whole == ["table.py"], "name the parts in a class `Parts`, as recall.py does"


MODULES = sorted({row.broker.partition(".")[0] for row in REQUESTS.values()} - {"", SENDER})


@pytest.mark.parametrize("module", MODULES)
def test_the_parts_that_handlers_name_are_parts_of_a_member(module: str) -> None:
    """`mypy` does not see it: the table finds the handlers by name."""
    parts = {field.name: field.type for field in dataclasses.fields(BrokerContext)}
    for kind in getattr(handlers, module).Parts.__mro__:
        assert getattr(kind, "__annotations__", {}).items() <= parts.items()
