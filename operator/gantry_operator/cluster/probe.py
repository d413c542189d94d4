"""The availability check behind the condition `Available`: a client's send and read over the protocol.

A message goes to a system topic at the clients' address and is read back. Every NameServer that answers must return
that address for the group's master.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from gantry_broker.protocol import fastjson
from gantry_broker.protocol.bodies import ClusterInfo
from gantry_broker.protocol.codes import MASTER_ID, PROBE_TOPIC, PullFlag, RequestCode, ResponseCode
from gantry_broker.protocol.fields import BodyError
from gantry_broker.protocol.frame import Frame
from gantry_broker.protocol.headers import Long, PullHeader, SendHeader
from gantry_broker.remoting.client import RemotingClient
from gantry_broker.remoting.errors import RemotingError

CALL_S = 3.0
WAIT_FOR_NEW_MS = 2_000
PRODUCER = "SELF_TEST_P_GROUP"
CONSUMER = "SELF_TEST_C_GROUP"


async def name_server_knows(client: RemotingClient, server: str, group: str, expected: str) -> str | None:
    """None if the NameServer returns `expected` as the master's address; else the reason."""
    try:
        answer = await client.request(server, Frame(RequestCode.GET_BROKER_CLUSTER_INFO), CALL_S)
        if answer.code != ResponseCode.SUCCESS:
            return f"NameServer {server} refuses the check: {answer.remark or answer.code}"
        info = ClusterInfo.from_json(fastjson.loads(answer.body))
    except (RemotingError, BodyError, fastjson.JsonError) as error:
        return f"NameServer {server} does not answer: {error}"
    broker = info.brokers.get(group)
    address = None if broker is None else broker.addresses.get(MASTER_ID)
    if address is None:
        return f"NameServer {server} knows no master of it"
    return None if address == expected else f"NameServer {server} gives out {address} as its master, not {expected}"


async def send_and_read(client: RemotingClient, broker: str) -> str | None:
    """None if a message was sent to `broker` (host:port) and read back; else the reason."""
    now = time.time_ns() // 1_000_000
    body = f"availability check {now}".encode()
    send = SendHeader(PRODUCER, PROBE_TOPIC, PROBE_TOPIC, 1, 0, 0, Long(now), 0)
    try:
        sent = await client.request(broker, Frame(RequestCode.SEND_MESSAGE_V2, ext=send.short_ext(), body=body), CALL_S)
        if sent.code != ResponseCode.SUCCESS:
            return f"a message was not acknowledged: {sent.remark or ResponseCode(sent.code).name}"
        offset = int(sent.ext["queueOffset"])
        flags = PullFlag.SUSPEND | PullFlag.SUBSCRIPTION
        pull = PullHeader(
            CONSUMER, PROBE_TOPIC, 0, Long(offset), 1, flags, Long(0), Long(WAIT_FOR_NEW_MS), Long(0), "*"
        )
        read = await client.request(broker, Frame(RequestCode.PULL_MESSAGE, ext=pull.ext()), CALL_S)
    except (RemotingError, KeyError, ValueError) as error:
        return f"it does not answer: {error}"
    if read.code != ResponseCode.SUCCESS or body not in read.body:
        return f"a message that was acknowledged could not be read: {read.remark or read.code}"
    return None


def not_writable(waits: str, leader: str | None, status: Mapping[str, Any] | None) -> str | None:
    """None if the leader accepts writes; else the reason.

    `waits`: why the control plane waits in this group; empty: it does not. `leader`: the leader's name. `status`: the
    leader's last status.
    """
    if waits:
        return waits
    if leader is None:
        return "no member leads"
    if status is None or not status.get("writable"):
        why = "" if status is None else status.get("reason")
        return f"{leader} takes no writes: {why or 'it has just taken the role'}"
    return None


async def route_and_send(client: RemotingClient, problems: Sequence[str | None], reached: str) -> str | None:
    """None if a NameServer has the right address and a message sent to `reached` was read back; else the reason.

    `problems`: the result of `name_server_knows` for each NameServer.
    """
    if not problems:
        return "there is no NameServer"
    if all(k is not None for k in problems):
        return problems[0]
    return await send_and_read(client, reached)


async def check_group(
    client: RemotingClient, name_servers: Sequence[str], group: str, registered: str, reached: str
) -> str | None:
    """None if clients can use the group; else the reason. `registered`: the master's address on the NameServers;
    `reached`: the same broker as this process reaches it.
    """
    problems = [await name_server_knows(client, s, group, registered) for s in name_servers]
    return await route_and_send(client, problems, reached)
