"""Requests about the whole broker: configuration, runtime info, statistics."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final, Protocol

import orjson

from gantry_broker.broker.errors import RequestRejected
from gantry_broker.broker.handlers.requests import ok
from gantry_broker.broker.metadata.live_settings import BadSetting, text
from gantry_broker.broker.metadata.tables import route_permission
from gantry_broker.protocol.codes import MQ_VERSION, TRACE_TOPIC, ResponseCode
from gantry_broker.protocol.frame import Frame
from gantry_broker.protocol.headers import StatsDataHeader

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gantry_broker.broker.clock import Clock
    from gantry_broker.broker.disk_watch import DiskWatch
    from gantry_broker.broker.latencies import Latencies
    from gantry_broker.broker.metadata.changes import MetadataChanges
    from gantry_broker.broker.metadata.live_settings import LiveSettings
    from gantry_broker.broker.metadata.tables import Metadata
    from gantry_broker.broker.pull.checks import Pull
    from gantry_broker.broker.pull.held import HeldPulls
    from gantry_broker.broker.role import RoleState
    from gantry_broker.broker.stats import MessageCounts, Stats
    from gantry_broker.config import BrokerConfig
    from gantry_broker.remoting.connection import Connection
    from gantry_broker.replication.service import ReplicationService
    from gantry_broker.settings import BrokerSettings
    from gantry_broker.store.store import MessageStore

VERSION_TEXT: Final = "V4_9_7"
_CONSTANT: Final[dict[str, Any]] = {
    "startAcceptSendRequestTimeStamp": 0, "getMissTps": "0.0 0.0 0.0", "putMessageEntireTimeMax": 0,
    "putMessageFailedTimes": 0, "putLatency99": "0.00", "putLatency999": "0.00", "getMessageEntireTimeMax": 0,
    "msgPutTotalTodayMorning": 0, "msgPutTotalYesterdayMorning": 0, "msgGetTotalTodayMorning": 0,
    "msgGetTotalYesterdayMorning": 0, "sendThreadPoolQueueSize": 0, "sendThreadPoolQueueCapacity": 10_000,
    "sendThreadPoolQueueHeadWaitTimeMills": 0, "pullThreadPoolQueueHeadWaitTimeMills": 0,
    "queryThreadPoolQueueSize": 0, "queryThreadPoolQueueCapacity": 20_000,
    "queryThreadPoolQueueHeadWaitTimeMills": 0, "litePullThreadPoolQueueSize": 0,
    "litePullThreadPoolQueueCapacity": 100_000, "litePullThreadPoolQueueHeadWaitTimeMills": 0,
    "ackThreadPoolQueueSize": 0, "ackThreadPoolQueueCapacity": 100_000, "ackThreadPoolQueueHeadWaitTimeMills": 0,
    "timerReadBehind": 0, "timerOffsetBehind": 0, "timerCongestNum": 0, "timerEnqueueTps": "0.0",
    "timerDequeueTps": "0.0", "EndTransactionQueueSize": 0, "EndTransactionThreadPoolQueueCapacity": 100_000,
    "pageCacheLockTimeMills": 0, "dispatchMaxBuffer": 0, "remainTransientStoreBufferNumbs": 2_147_483_647,
}  # fmt: skip
"""What `runtime_info` says of queues of thread pools, and of times of RocketMQ's store: Gantry has neither."""
_PUT_TIMES: Final = (
    "<=0ms", "0~10ms", "10~50ms", "50~100ms", "100~200ms", "200~500ms", "500ms~1s", "1~2s", "2~3s", "3~4s", "4~5s",
    "5~10s", "10s~",
)  # fmt: skip


class Parts(Protocol):
    """What these functions use of a member."""

    config: BrokerConfig
    settings: BrokerSettings
    clock: Clock
    started_ms: int
    store: MessageStore
    delay_levels: Sequence[int]
    replication: ReplicationService
    role: RoleState
    meta: Metadata
    changes: MetadataChanges
    live_settings: LiveSettings
    held: HeldPulls[Pull]
    stats: Stats
    counts: MessageCounts
    latencies: Latencies
    disk: DiskWatch
    http_port: Callable[[], int]


async def update_config(broker: Parts, conn: Connection, frame: Frame) -> Frame:
    """Change settings of the group by `name=value` lines, until the resource overrules them (`live_settings`)."""
    try:
        change = broker.live_settings.change(frame.body)
    except BadSetting as error:
        raise RequestRejected(ResponseCode.SYSTEM_ERROR, str(error)) from None
    await broker.changes.append_and_wait(change)
    return ok(frame)


def get_config(broker: Parts, conn: Connection, frame: Frame) -> Frame:
    config = broker.config
    values: dict[str, Any] = {
        "brokerClusterName": config.cluster,
        "brokerName": config.group,
        "brokerId": broker.role.broker_id,
        "brokerIP1": broker.role.address.rpartition(":")[0],
        "listenPort": broker.role.address.rpartition(":")[2],
        "namesrvAddr": ";".join(config.name_servers),
        "brokerRole": f"{config.replication.upper()}_MASTER" if broker.role.leading else "SLAVE",
        "flushDiskType": "SYNC_FLUSH" if config.flush == "Sync" else "ASYNC_FLUSH",
        "storePathRootDir": config.data_dir,
        "storePathCommitLog": config.data_dir / "commitlog",
        # `exportConfigs` and `exportMetrics` read these keys; none of them can be set here.
        "clientCallbackExecutorThreads": os.cpu_count(),
        "filterServerNums": 0,
        "msgTraceTopicName": TRACE_TOPIC,
        "traceOn": True,
        "useTLS": False,
        **broker.settings.model_dump(),
    }
    lines = [f"{name}={text(value)}" for name, value in values.items()]
    version = orjson.dumps(broker.meta.working.topic_version.to_json()).decode()
    return ok(frame, {"version": version}, "\n".join(lines).encode() + b"\n")


def runtime_info(broker: Parts, conn: Connection, frame: Frame) -> Frame:
    """Return the keys that `brokerStatus`, `clusterList`, `exportMetrics` and rocketmq-exporter read (`KVTable` of
    4.9.7 and 5.5.0). Gantry has no thread pools, so nothing waits in their queues.
    """
    store, stats, settings = broker.store, broker.stats, broker.settings
    unix, now = broker.clock.unix_ms(), broker.clock.now_ms()
    usage = broker.disk.usage
    # Source: `UtilAll.getDiskPartitionSpaceUsedPercent` gives -1 for what is not known.
    ratio = -1 if usage is None else round(usage.ratio, 2)
    room = "not known" if usage is None else f"Total : {readable(usage.total)}, Free : {readable(usage.free)}."
    cluster = broker.config.cluster
    put_tps = stats.tps("BROKER_PUT_NUMS", cluster, now)
    get_tps = stats.tps("BROKER_GET_NUMS", cluster, now)
    put_total, get_total = stats.total("BROKER_PUT_NUMS", cluster), stats.total("BROKER_GET_NUMS", cluster)
    seconds = (unix - broker.started_ms) // 1000
    days, hours, minutes = seconds // 86_400, seconds // 3_600 % 24, seconds // 60 % 60
    table: dict[str, Any] = {
        **_CONSTANT,
        "brokerVersion": MQ_VERSION,
        "brokerVersionDesc": VERSION_TEXT,
        "bootTimestamp": broker.started_ms,
        "runtime": f"[ {days} days, {hours} hours, {minutes} minutes, {seconds % 60} seconds ]",
        "putTps": f"{put_tps} {put_tps} {put_tps}",
        "getTotalTps": f"{get_tps} {get_tps} {get_tps}",
        "getFoundTps": f"{get_tps} {get_tps} {get_tps}",
        "getTransferedTps": f"{get_tps} {get_tps} {get_tps}",  # the key of 4.9.7
        "getTransferredTps": f"{get_tps} {get_tps} {get_tps}",  # the key of 5.x
        "putMessageTimesTotal": broker.counts.put_count,
        "putMessageSizeTotal": sum(stats.rows("TOPIC_PUT_SIZE").values()),
        "putMessageAverageSize": round(
            sum(stats.rows("TOPIC_PUT_SIZE").values()) / broker.counts.put_count if broker.counts.put_count else 0.0, 2
        ),
        "putMessageDistributeTime": _put_times(broker),
        "msgPutTotalTodayNow": put_total,
        "msgGetTotalTodayNow": get_total,
        "pullThreadPoolQueueSize": len(broker.held),
        "pullThreadPoolQueueCapacity": broker.held.limit,
        "brokerActive": "true" if broker.role.leading else "false",
        "dispatchBehindBytes": store.log.end - store.state.confirmed,
        "remainHowManyDataToFlush": readable(store.log.end - store.state.flushed),
        "earliestMessageTimeStamp": _earliest(broker),
        "commitLogMinOffset": store.log.start,
        "commitLogMaxOffset": store.state.confirmed,
        "commitLogDirCapacity": room,
        "commitLogDiskRatio": ratio,
        f"commitLogDiskRatio_{broker.config.data_dir / 'commitlog'}": ratio,
        "consumeQueueDiskRatio": ratio,
        "gantryGroup": broker.config.group,
        "gantryRole": broker.replication.role.value,
        "gantryEpoch": broker.replication.epoch,
        "gantryMember": broker.config.member,
        "gantryHttp": f"{broker.config.member_address.rpartition(':')[0]}:{broker.http_port()}",
        "gantryPid": os.getpid(),
    }
    for level in range(1, len(broker.delay_levels) + 1):
        high = store.reader.max_offset("SCHEDULE_TOPIC_XXXX", level - 1)
        if high:
            table[f"scheduleMessageOffset_{level}"] = f"{broker.meta.working.delay.get(level, 0)},{high}"
    table["gantryPermission"] = route_permission(settings.brokerPermission, broker.meta.working.marks)
    return ok(frame, body=orjson.dumps({"table": {key: str(table[key]) for key in sorted(table)}}))


def _put_times(broker: Parts) -> str:
    """Return how many messages of producers took how long to append, in the form of `StoreStatsService`."""
    broker.latencies.sends.settle()
    counts = zip(_PUT_TIMES, broker.latencies.put_ms.counts, strict=True)
    return "".join(f"[{name}]:{count} " for name, count in counts)


def readable(count: int) -> str:
    """Format bytes as `brokerStatus` shows them: "602 B", "9.5 KiB" (`MixAll.humanReadableByteCount` of 4.9.7)."""
    if count < 1024:
        return f"{count} B"
    power = min((count.bit_length() - 1) // 10, 6)
    return f"{count / 1024**power:.1f} {' KMGTPE'[power]}iB"


def _earliest(broker: Parts) -> int:
    """Return the store time of the log's first record; -1: there is none."""
    first = next(broker.store.reader.walk(broker.store.log.start, broker.store.state.confirmed), None)
    return -1 if first is None else first.store_ms


def stats_data(broker: Parts, conn: Connection, frame: Frame) -> Frame:
    header = StatsDataHeader.parse(frame)
    report = broker.stats.report(header.statsName, header.statsKey, broker.clock.now_ms())
    if report is None:
        raise RequestRejected(
            ResponseCode.SYSTEM_ERROR,
            f"The stats <{header.statsName[:80]}> <{header.statsKey[:255]}> not exist",
        )
    return ok(frame, body=orjson.dumps(report))
