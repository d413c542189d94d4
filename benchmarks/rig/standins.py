"""Stand-ins for pods without nodes: pods of StatefulSets that are ready at once, with minimal brokers and NameServers.

Each listens on its pod's own address. The status lines have a real broker's fields, and its interval.
"""

from __future__ import annotations

import asyncio
import copy
import itertools
import time
import uuid
from collections.abc import AsyncIterator
from typing import Any

from aiohttp import web
from gantry_broker.contracts.models import (
    AssignmentAnswer,
    AssignmentModel,
    DiskStatus,
    FollowerStatus,
    LeaderLink,
    MemberRef,
    MemberStatus,
)
from gantry_broker.protocol import fastjson
from gantry_broker.protocol.bodies import BrokerData, ClusterInfo, SubscriptionGroup, TopicConfig
from gantry_broker.protocol.codes import MASTER_ID, RequestCode, ResponseCode
from gantry_broker.protocol.frame import Frame
from gantry_broker.remoting.connection import Connection
from gantry_broker.remoting.server import RemotingServer
from gantry_operator.platforms.kubernetes import names
from gantry_operator.platforms.kubernetes.api.client import POD, STATEFUL_SET, ApiError, KubeApi

LINE_S = 1.0
"""The interval of `gantry_broker.broker.http.status_streams`."""
LOG_BYTES = 10_000
REVISION = "stand-in-1"


class Member:
    """A broker's stand-in: it accepts every assignment and is in sync at once."""

    def __init__(self, pod: dict[str, Any]) -> None:
        meta = pod["metadata"]
        self.cluster, self.group = meta["labels"][names.CLUSTER_LABEL], meta["labels"][names.GROUP_LABEL]
        self.name = meta["name"]
        self.ref = MemberRef(member=int(self.name.rsplit("-", 1)[1]), incarnation=uuid.uuid4().hex)
        self.assignment: AssignmentModel | None = None
        self.changed = asyncio.Event()

    def assign(self, assignment: AssignmentModel) -> AssignmentAnswer:
        self.assignment = assignment
        self.changed.set()
        return AssignmentAnswer(accepted=True, epoch=assignment.leadership.epoch, version=assignment.leadership.version)

    def status(self) -> MemberStatus:
        leadership = None if self.assignment is None else self.assignment.leadership
        leads = leadership is not None and leadership.master == self.ref
        others = [] if leadership is None else [m for m in leadership.in_sync if m != self.ref]
        end = 0 if leadership is None else LOG_BYTES
        link = LeaderLink()
        if leadership is not None and not leads:
            link = LeaderLink(member=leadership.master, state="connected", last_answer_ms=300)
        followers = [FollowerStatus(member=m, acked=end, last_fetch_ms=300, in_sync=True) for m in others]
        return MemberStatus(
            cluster=self.cluster, group=self.group, name=self.name, member=self.ref,
            broker_id=0 if leads else self.ref.member + 1,
            role="Waiting" if leadership is None else "Master" if leads else "Slave",
            epoch=0 if leadership is None else leadership.epoch,
            version=0 if leadership is None else leadership.version,
            last_epoch=0 if leadership is None else leadership.epoch, end=end, flushed=end, confirmed=end,
            in_sync=[] if leadership is None else leadership.in_sync, followers=followers if leads else [],
            leader_link=link,
            writable=leads, disk=DiskStatus(total_bytes=10**10, free_bytes=10**10), connections=3,
            address=f"{self.name}:{names.BROKER_PORT}", pid=1, started_ms=1,
        )  # fmt: skip

    async def lines(self) -> AsyncIterator[bytes]:
        while True:
            self.changed.clear()
            yield self.status().model_dump_json().encode() + b"\n"
            try:
                async with asyncio.timeout(LINE_S):
                    await self.changed.wait()
            except TimeoutError:
                pass


class Deaf:
    """A connection handler without state."""

    def on_open(self, conn: Connection) -> None:
        """Ignores the connection."""

    def on_close(self, conn: Connection) -> None:
        """Ignores the connection."""


class Topics:
    """Topics and consumer groups of all brokers, as one table: kept in memory, and answered by GET /v1/tables."""

    def __init__(self) -> None:
        self.topics: dict[str, TopicConfig] = {}
        self.groups: dict[str, SubscriptionGroup] = {}

    def put_topic(self, ext: dict[str, str]) -> None:
        name, write = ext["topic"], int(ext["writeQueueNums"])
        self.topics[name] = TopicConfig(name, int(ext["readQueueNums"]), write, int(ext["perm"]))

    def put_group(self, body: bytes) -> None:
        group = SubscriptionGroup.from_json(fastjson.loads(body))
        self.groups[group.name] = group

    def tables(self, group: str) -> dict[str, Any]:
        topics = {
            name: {
                "perm": c.perm, "write_queues": c.write_queues, "config": c.to_json(), "system": False, "in": 0,
                "bytes_in": 0, "queues": [[0, 0] for _ in range(c.read_queues)],
            }
            for name, c in self.topics.items()
        }  # fmt: skip
        return {
            "now_ms": 0, "started_ms": 1, "group": group, "settled": True, "topics": topics,
            "groups": {n: {"system": False, "config": g.to_json()} for n, g in self.groups.items()},
            "lags": [], "lags_without_age": 0, "consumers": {}, "producers": {},
        }  # fmt: skip


class Masters(Deaf):
    """The client port of all brokers: returns each connection's last message, and keeps topics and groups."""

    def __init__(self, topics: Topics) -> None:
        self._topics = topics

    def on_frames(self, conn: Connection, frames: list[Frame]) -> None:
        for frame in frames:
            if frame.code == RequestCode.SEND_MESSAGE_V2:
                conn.attrs["last"] = frame.body
                fields = {"msgId": "0", "queueId": "0", "queueOffset": "0"}
                conn.send(Frame.response_to(frame, ResponseCode.SUCCESS, None, fields))
            elif frame.code == RequestCode.PULL_MESSAGE:
                conn.send(Frame.response_to(frame, ResponseCode.SUCCESS, None, {}, conn.attrs["last"]))
            elif frame.code == RequestCode.UPDATE_AND_CREATE_TOPIC:
                self._topics.put_topic(frame.ext)
                conn.send(Frame.response_to(frame, ResponseCode.SUCCESS))
            elif frame.code == RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP:
                self._topics.put_group(frame.body)
                conn.send(Frame.response_to(frame, ResponseCode.SUCCESS))
            else:
                conn.send(Frame.response_to(frame, ResponseCode.REQUEST_CODE_NOT_SUPPORTED, str(frame.code)))


class NameServer(Deaf):
    """A NameServer that knows its cluster's masters by their Services."""

    def __init__(self, namespace: str, cluster: str, groups: list[str]) -> None:
        brokers = {}
        for group in groups:
            host = names.service_host(names.master_service(cluster, group), namespace)
            brokers[group] = BrokerData(cluster, group, {MASTER_ID: f"{host}:{names.BROKER_PORT}"})
        self._answer = fastjson.dumps(ClusterInfo(brokers, {cluster: groups}).to_json())

    def on_frames(self, conn: Connection, frames: list[Frame]) -> None:
        for frame in frames:
            conn.send(Frame.response_to(frame, ResponseCode.SUCCESS, None, {}, self._answer))


class StandIns:
    """All stand-ins. `run` never returns; cancel it."""

    def __init__(self, api: KubeApi, groups: list[str]) -> None:
        """`groups`: names of the broker groups, the same in every cluster."""
        self._api = api
        self._groups = groups
        self._members: dict[str, Member] = {}
        self._servers: dict[str, RemotingServer] = {}
        self._addresses = (f"10.244.{i >> 8}.{i & 255}" for i in itertools.count(10))
        self._made: set[tuple[str, str]] = set()
        self._topics = Topics()
        self.tables = 0
        """Answers about topics so far."""

    async def run(self) -> None:
        app = web.Application()
        app.add_routes([web.get("/v1/status/stream", self._stream), web.put("/v1/assignment", self._assignment)])
        app.add_routes([web.get("/v1/tables", self._tables)])
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "0.0.0.0", names.BROKER_HTTP_PORT).start()
        masters = RemotingServer(Masters(self._topics), "0.0.0.0", names.BROKER_PORT)
        await masters.start()
        try:
            async with asyncio.TaskGroup() as group:
                found, since = await self._api.list(STATEFUL_SET, None)
                assert not found
                async for event, obj in self._api.watch(STATEFUL_SET, None, "", since, 3600, 600):
                    if event in ("ADDED", "MODIFIED"):
                        group.create_task(self._control(obj))
        finally:
            await asyncio.gather(*(s.close() for s in [masters, *self._servers.values()]))
            await runner.cleanup()

    # ---- StatefulSet controller and kubelet

    async def _control(self, stateful_set: dict[str, Any]) -> None:
        meta, spec = stateful_set["metadata"], stateful_set["spec"]
        if (stateful_set.get("status") or {}).get("observedGeneration") == meta["generation"]:
            return
        for number in range(spec["replicas"]):
            key = (meta["namespace"], f"{meta['name']}-{number}")
            if key not in self._made:
                self._made.add(key)
                await self._run_pod(pod_of(stateful_set, number))
        count = spec["replicas"]
        status = {
            "observedGeneration": meta["generation"], "replicas": count, "readyReplicas": count,
            "currentReplicas": count, "updatedReplicas": count, "availableReplicas": count,
            "currentRevision": REVISION, "updateRevision": REVISION,
        }  # fmt: skip
        await self._api.merge(STATEFUL_SET, meta["namespace"], meta["name"], {"status": status}, "status")

    async def _run_pod(self, pod: dict[str, Any]) -> None:
        meta, labels = pod["metadata"], pod["metadata"]["labels"]
        address = next(self._addresses)
        if labels[names.COMPONENT_LABEL] == names.BROKER:
            self._members[address] = Member(pod)
        else:
            await self._serve_names(address, meta["namespace"], labels[names.CLUSTER_LABEL])
        try:
            await self._api.create(pod)
        except ApiError as error:
            raise RuntimeError(f"pod {meta['name']}: {error}") from error
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        ready = {"ready": True, "started": True, "restartCount": 0, "state": {"running": {"startedAt": now}}}
        container = {"name": pod["spec"]["containers"][0]["name"], "image": "stand-in", "imageID": "stand-in"}
        good = ("PodScheduled", "Initialized", "ContainersReady", "Ready")
        status = {
            "phase": "Running", "podIP": address, "podIPs": [{"ip": address}], "hostIP": "10.250.0.11",
            "conditions": [{"type": t, "status": "True", "lastTransitionTime": now} for t in good],
            "containerStatuses": [container | ready],
        }  # fmt: skip
        await self._api.merge(POD, meta["namespace"], meta["name"], {"status": status}, "status")

    async def _serve_names(self, address: str, namespace: str, cluster: str) -> None:
        server = RemotingServer(NameServer(namespace, cluster, self._groups), address, names.NAME_SERVER_PORT)
        await server.start()
        self._servers[address] = server

    # ---- brokers

    def _asked(self, request: web.Request) -> Member:
        assert request.transport is not None
        return self._members[request.transport.get_extra_info("sockname")[0]]

    async def _assignment(self, request: web.Request) -> web.Response:
        assignment = AssignmentModel.model_validate_json(await request.read())
        return web.Response(
            text=self._asked(request).assign(assignment).model_dump_json(), content_type="application/json"
        )

    async def _tables(self, request: web.Request) -> web.Response:
        self.tables += 1
        text = fastjson.dumps(self._topics.tables(self._asked(request).group))
        return web.Response(body=text, content_type="application/json")

    async def _stream(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/x-ndjson"})
        await response.prepare(request)
        async for line in self._asked(request).lines():
            await response.write(line)
        return response


def pod_of(stateful_set: dict[str, Any], number: int) -> dict[str, Any]:
    """Returns the pod of a StatefulSet, on a node that does not exist."""
    meta, spec = stateful_set["metadata"], stateful_set["spec"]
    name = f"{meta['name']}-{number}"
    template = copy.deepcopy(spec["template"])
    labels = template["metadata"]["labels"] | {
        "controller-revision-hash": REVISION,
        "statefulset.kubernetes.io/pod-name": name,
    }
    owner = {
        "apiVersion": "apps/v1", "kind": "StatefulSet", "name": meta["name"], "uid": meta["uid"], "controller": True,
        "blockOwnerDeletion": True,
    }  # fmt: skip
    claims = [
        {"name": c["metadata"]["name"], "persistentVolumeClaim": {"claimName": f"{c['metadata']['name']}-{name}"}}
        for c in spec.get("volumeClaimTemplates") or []
    ]
    template["spec"]["volumes"] = [*(template["spec"].get("volumes") or []), *claims]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name, "namespace": meta["namespace"], "labels": labels, "ownerReferences": [owner],
            "annotations": template["metadata"].get("annotations") or {},
        },
        "spec": template["spec"] | {"nodeName": f"node{number % 3}", "hostname": name, "subdomain": meta["name"]},
    }  # fmt: skip
