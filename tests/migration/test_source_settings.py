"""Why a cutover sets more than a permission: what a real RocketMQ does with each setting alone (docs/adr/0022)."""

from __future__ import annotations

import time
import zlib
from pathlib import Path

import pytest
from gantry_broker.broker.registrar import registration_body
from gantry_broker.protocol import fastjson
from gantry_broker.protocol.bodies import DataVersion
from gantry_broker.protocol.codes import FORMER_MASTER_ID, MASTER_ID, RequestCode
from gantry_broker.protocol.headers import Long, RegisterBrokerHeader
from gantry_operator.migration.cutover_edge import ACCEPTS_FROM, NEVER_MS

from benchmarks.rig.driver import Driver
from benchmarks.rig.processes import until
from benchmarks.rig.wire import Wire
from tests.migration.scene import Scene, put, scene

READABLE, USUAL = "4", "6"
OTHER = "127.0.0.1:1"
"""An address that another master registers."""


@pytest.mark.timeout(180)
@pytest.mark.parametrize(("server", "client"), [("server49", "49"), ("server55", "55")])
def test_each_setting_of_a_cutover_is_needed(java_side: Path, tmp_path: Path, server: str, client: str) -> None:
    with scene(tmp_path, server) as made:
        clients = made.driver(client)
        permission_ends_no_writes(made, clients)
        a_master_takes_its_place_back(made, clients)
        if client == "55":
            a_master_of_a_higher_version_keeps_the_place(made, clients)
            another_number_stops_deliveries(made, clients)


def change(made: Scene, clients: Driver, name: str, value: str) -> None:
    said = clients.mqadmin("updateBrokerConfig", "-b", made.source.broker_address, "-k", name, "-v", value)
    assert "success" in said, said


def permission_ends_no_writes(made: Scene, clients: Driver) -> None:
    for topic in ("T", "Later"):
        clients.mqadmin("updateTopic", "-c", made.source.cluster, "-t", topic, "-r", 2, "-w", 2)
    put(clients, topic="T", count=1)
    writer = clients.start("failover", topic="T", pause_ms=50)
    writer.wait_for("ok")
    change(made, clients, "brokerPermission", READABLE)
    for _ in range(20):  # This client looks for a route every 30 s.
        writer.wait_for("ok")
    change(made, clients, ACCEPTS_FROM, str(NEVER_MS))
    writer.wait_for("failed")
    clients.run("stop")
    writer.finish()
    change(made, clients, ACCEPTS_FROM, "0")
    change(made, clients, "brokerPermission", USUAL)


def address_of(made: Scene, wire: Wire, number: int) -> str | None:
    """Return the address that the NameServer has for a number of the broker's name."""
    table = fastjson.loads(wire.call(RequestCode.GET_BROKER_CLUSTER_INFO, {}).body)["brokerAddrTable"]
    addresses = table[made.source.broker_name]["brokerAddrs"]
    return {int(key): str(address) for key, address in addresses.items()}.get(number)


def register(made: Scene, wire: Wire, address: str, number: int, state_version: int = 0) -> None:
    body = registration_body(DataVersion(state_version=state_version), [], [])
    header = RegisterBrokerHeader(
        brokerName=made.source.broker_name, brokerAddr=address, clusterName=made.source.cluster, brokerId=Long(number),
        haServerAddr=address, bodyCrc32=Long(zlib.crc32(body) & 0x7FFFFFFF),
    )  # fmt: skip
    wire.call(RequestCode.REGISTER_BROKER, header.ext(), body)


def a_master_takes_its_place_back(made: Scene, clients: Driver) -> None:
    source = made.source.broker_address
    with Wire(made.source.namesrv, prefix=made.source.prefix) as wire:
        register(made, wire, OTHER, MASTER_ID)
        assert address_of(made, wire, MASTER_ID) == OTHER
        # It registers at this, as it does every 30 s.
        change(made, clients, "brokerPermission", USUAL)
        until("the source has its place back", lambda: address_of(made, wire, MASTER_ID) == source, 10)
        register(made, wire, OTHER, MASTER_ID)
        change(made, clients, "brokerId", str(FORMER_MASTER_ID))
        change(made, clients, "brokerPermission", USUAL)
        until("the source is aside", lambda: address_of(made, wire, FORMER_MASTER_ID) == source, 10)
        assert address_of(made, wire, MASTER_ID) == OTHER
    change(made, clients, "brokerId", str(MASTER_ID))
    change(made, clients, "brokerPermission", USUAL)


def a_master_of_a_higher_version_keeps_the_place(made: Scene, clients: Driver) -> None:
    """A NameServer of 5.x compares state versions, and another one registers the source under its other number."""
    source = made.source.broker_address
    with Wire(made.source.namesrv, prefix=made.source.prefix) as wire:
        register(made, wire, OTHER, MASTER_ID, 1)
        register(made, wire, source, FORMER_MASTER_ID, 1)
        assert address_of(made, wire, FORMER_MASTER_ID) == source
        change(made, clients, "brokerPermission", USUAL)
        until("the source has left the routes", lambda: address_of(made, wire, FORMER_MASTER_ID) is None, 10)
        assert address_of(made, wire, MASTER_ID) == OTHER
        register(made, wire, source, FORMER_MASTER_ID, 1)
        assert (address_of(made, wire, MASTER_ID), address_of(made, wire, FORMER_MASTER_ID)) == (OTHER, source)
        # A lower version of its own address lets the source in again.
        register(made, wire, OTHER, MASTER_ID)
        assert address_of(made, wire, MASTER_ID) == OTHER
        change(made, clients, "brokerPermission", USUAL)
        until("the source has its place back", lambda: address_of(made, wire, MASTER_ID) == source, 10)


def another_number_stops_deliveries(made: Scene, clients: Driver) -> None:
    """A broker of 5.x appends messages of its own as number 0 only: what is due waits until then."""
    change(made, clients, "brokerId", str(FORMER_MASTER_ID))
    put(clients, topic="Later", count=1, delay_level=1)
    time.sleep(4)
    returned_ms = time.time() * 1000
    change(made, clients, "brokerId", str(MASTER_ID))
    found = clients.run("consume", topic="Later", group="later", count=1, each=True).of("message")
    assert [line["storeMs"] >= returned_ms for line in found] == [True]
