"""What a cutover left at brokers of RocketMQ, found and given back from the source alone: without a cluster of Gantry,
its record or its operator.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

from gantry_broker.client import Admin, BrokerError
from gantry_broker.protocol.codes import FORMER_MASTER_ID
from gantry_broker.protocol.digits import whole_number

from gantry_operator.migration.cutover_edge import (
    ACCEPTS_FROM,
    ANSWER_S,
    FAILURES,
    NEVER_MS,
    SourcePlace,
    SourceSettings,
    config_of,
    settings_in,
)
from gantry_operator.migration.cutover_steps import MASTER, READ, WRITE, Refused

GANTRYS: Final = "gantryPermission"
"""A key of the runtime information that RocketMQ's brokers do not have."""
CARRIES: Final = (
    "Gantry passes clients on at {}: go back with gantry migrate abort, or delete that cluster first and wait half a "
    "minute"
)
State = Literal["released", "to release", "as it was", "refused"]


@dataclass(frozen=True, slots=True)
class Found:
    """A broker in the routes, with what it says of itself. `config`: None where it does not say it."""

    broker: str
    address: str
    number: int
    """The `brokerId` in the routes; where NameServers differ, that of a cutover."""
    config: Mapping[str, str] | None
    is_gantrys: bool = False
    refusal: str = ""
    """What it answers in place of its settings, where it asks for other keys."""

    @property
    def settings(self) -> SourceSettings:
        return settings_in(self.config or {})

    @property
    def is_aside(self) -> bool:
        """Whether it has a `brokerId` of a cutover, in the routes or in its configuration."""
        return max(self.number, self.settings.broker_id or 0) >= FORMER_MASTER_ID

    @property
    def is_carrier(self) -> bool:
        """Whether the address is Gantry's, which passes requests on: it is in the routes as the master, and the broker
        that answers stands aside, or has another address. RocketMQ's own brokers register at once under a `brokerId`
        that is set, and with the address of their settings (`BrokerController.getBrokerAddr`).
        """
        config = self.config or {}
        names_other = "brokerIP1" in config and f"{config['brokerIP1']}:{config.get('listenPort')}" != self.address
        return self.number == MASTER and ((self.settings.broker_id or 0) >= FORMER_MASTER_ID or names_other)

    @property
    def is_altered(self) -> bool:
        """Whether it has what only a cutover sets. A permission without WRITE alone may be an administrator's."""
        if self.config is None:
            return False
        permission = self.settings.permission
        readers_off = permission is not None and permission & (READ | WRITE) == WRITE
        return self.is_aside or self.config.get(ACCEPTS_FROM) == str(NEVER_MS) or readers_off


class Line(NamedTuple):
    """One broker, for people."""

    broker: str
    address: str
    state: State
    note: str
    """Why, or the settings that it has."""


def lines(brokers: Sequence[Found]) -> list[Line]:
    """Say of each broker whether it is to be released. Where another one leads its group, which may be Gantry with
    messages that the source lacks, clients would have two masters: these are refused.
    """
    verdicts = []
    for one in sorted(brokers, key=lambda f: (f.broker, f.number, f.address)):
        verdicts.append(Line(one.broker, one.address, *_state(one, brokers)))
    return verdicts


def _state(one: Found, brokers: Sequence[Found]) -> tuple[State, str]:
    if one.is_gantrys:
        return "as it was", "a broker of Gantry"
    if one.refusal:
        return "refused", f"it refuses to answer ({one.refusal}): give the keys of an administrator of the source"
    if one.config is None:
        return "refused", "it does not answer: end it or start it again, wait for two minutes, then try again"
    has = _shown(one.config)
    if one.is_carrier:
        return "refused", CARRIES.format(one.address)
    if not one.is_altered:
        return "as it was", has
    for other in brokers:
        if other.broker != one.broker or other.address == one.address or other.number != MASTER:
            continue
        if other.is_gantrys:
            return "refused", (
                f"Gantry leads the group at {other.address}: go back with gantry migrate rollback, or delete that "
                "cluster first"
            )
        if other.refusal:
            return "refused", f"{other.address} leads the group, may be Gantry and refuses to answer ({other.refusal})"
        if other.config is None:
            return "refused", f"{other.address} leads the group and does not answer: it may be Gantry. End it first"
        if other.is_carrier:
            return "refused", CARRIES.format(other.address)
    return "to release", has


def _shown(config: Mapping[str, str]) -> str:
    return ", ".join(f"{name}={config.get(name, '?')}" for name in ("brokerPermission", "brokerId", ACCEPTS_FROM))


def wanted(one: Found, permission: int) -> dict[str, str]:
    """Return the settings that it gets."""
    number = one.number if one.number >= FORMER_MASTER_ID else (one.settings.broker_id or one.number)
    return config_of(permission, number % FORMER_MASTER_ID, refuses=False)


async def look(place: SourcePlace, brokers: Sequence[str] = ()) -> list[Found]:
    """Ask all NameServers for their brokers, and these for their settings. `brokers`: only those names; empty: all.
    Raises Refused where no NameServer answers.
    """
    numbers: dict[tuple[str, str], int] = {}
    silent: list[str] = []
    async with Admin(place.name_servers[0], timeout=ANSWER_S, credentials=place.credentials, tls=place.tls) as asker:
        for server in place.name_servers:
            try:
                async with Admin(server, timeout=ANSWER_S, credentials=place.credentials, tls=place.tls) as admin:
                    info = await admin.cluster_info()
            except FAILURES as error:
                silent.append(f"{server}: {error}")
                continue
            for name, broker in info.brokers.items():
                for number, address in broker.addresses.items():
                    if not brokers or name in brokers:
                        numbers[name, address] = max(numbers.get((name, address), 0), number)
        if silent:
            # One that is not asked may give clients Gantry's address.
            raise Refused(
                f"NameServers do not answer: {'; '.join(silent)}. Start them, or leave out those that are gone"
            )
        states = await asyncio.gather(
            *(_ask(asker, name, address, number) for (name, address), number in numbers.items())
        )
    if missing := sorted(set(brokers) - {name for name, _ in numbers}):
        raise Refused(f"the NameServers know no broker {', '.join(missing)}: start it first")
    return states


async def _ask(admin: Admin, broker: str, address: str, number: int) -> Found:
    try:
        runtime = await admin.runtime_info(address)
        if whole_number(runtime.get(GANTRYS, "")) is not None:
            return Found(broker, address, number, None, is_gantrys=True)
        return Found(broker, address, number, await admin.broker_config(address))
    except BrokerError as error:
        return Found(broker, address, number, None, refusal=str(error))
    except FAILURES:
        return Found(broker, address, number, None)


async def release(place: SourcePlace, brokers: Sequence[Found], permission: int) -> list[Line]:
    """Give back what `lines` says, and return the lines with what came of it."""
    by_place = {(one.broker, one.address): one for one in brokers}
    done = []
    async with Admin(place.name_servers[0], timeout=ANSWER_S, credentials=place.credentials, tls=place.tls) as admin:
        for line in lines(brokers):
            if line.state == "to release":
                changes = wanted(by_place[line.broker, line.address], permission)
                try:
                    await admin.update_broker_config(line.address, changes)
                except FAILURES as error:
                    line = line._replace(state="refused", note=f"it did not take {changes}: {error}")
                else:
                    line = line._replace(state="released", note=_shown(changes))
            done.append(line)
    return done


__all__ = ["Found", "Line", "lines", "look", "release", "wanted"]
