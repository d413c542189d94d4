"""Plays a story of all `mqadmin` 4.9.7 sub-commands on a system of its own, and reduces each output to its shape.

A shape is the set of the lines, with numbers, times, ids and addresses as words. `tests/data/mqadmin/4.9.7.json` holds
those of Apache RocketMQ; `python -m tests.interop.mqadmin_shapes` plays the story there and records them again.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

if not __package__:  # Run as a script: start it again as a module, so that it finds the package `tests`.
    os.execl(sys.executable, sys.executable, "-m", "tests.interop.mqadmin_shapes", *sys.argv[1:])

from benchmarks.rig.driver import Driver
from benchmarks.rig.processes import until
from benchmarks.rig.target import Target

RECORDED = Path(__file__).resolve().parents[1] / "data" / "mqadmin" / "4.9.7.json"

LEFT_OUT = {
    "clusterRT": "prints until it is stopped; it is played in a process of its own",
    "startMonitoring": "prints until it is stopped, and only faults",
    **dict.fromkeys(
        ("updateAclConfig", "deleteAclConfig", "updateGlobalWhiteAddr", "clusterAclConfigVersion", "getAclConfig"),
        "access control needs signatures; `test_access.py` plays it",
    ),
}
"""Sub-commands of 4.9.7 outside the story, and the reason."""

DIFFERENT = {
    "updateBrokerConfig -c $cluster -k nonsense -v 71": "settings that do not exist are refused here, ignored there",
    "getBrokerConfig -b $broker": "each has its own settings",
    "getBrokerConfig -c $cluster": "each has its own settings",
    "getNamesrvConfig": "each has its own settings",
    "updateNamesrvConfig -k clusterTest -v false": "clusterTest is no setting here, and unknown settings are refused",
}
"""Command lines with intended differences: Gantry's must print something."""

LISTS = {"consumerProgress", "topicList", "topicList -c", "statsAll", "statsAll -a", "producer -b $broker"}
LISTS |= {"brokerConsumeStats -b $broker", "exportMetadata -c $cluster -f $folder"}
"""Command lines that list everything: only their headings and the lines of the story count."""


def story() -> list[str]:
    """The command lines, in order; words that begin with $ are placeholders."""
    return """
updateTopic -t $T2 -b $broker -r 4 -w 4 -o true
updateSubGroup -g $G2 -b $broker -r 3 -s false
updateSubGroup -g $G4 -c $cluster
updateBrokerConfig -b $broker -k fileReservedTime -v 71
updateBrokerConfig -c $cluster -k nonsense -v 71
updateTopicPerm -t $T2 -b $broker -p 4
updateTopicPerm -t $T2 -c $cluster -p 6
topicRoute -t $T
topicRoute -t $T -l
topicStatus -t $T
topicClusterList -t $T
brokerStatus -b $broker
brokerStatus -c $cluster
queryMsgById -i $offsetMsgId
queryMsgByKey -t $T -k k7
queryMsgByUniqueKey -t $T -i $msgId
queryMsgByOffset -t $T -b $name -i $queue -o $offset
queryMsgById -i $offsetMsgId -g $G -d $client
queryMsgTraceById -i $msgId -t $none
printMsg -t $T -b 2000-01-01#00:00:00:000
printMsgByQueue -t $T -a $name -i 0 -p true -f true
sendMsgStatus -b $name -s 100 -c 3
brokerConsumeStats -b $broker
producerConnection -g $PG2 -t $T3
consumerConnection -g $G
getConsumerConfig -g $G
consumerProgress
consumerProgress -g $G
consumerProgress -g $G -s true
consumerStatus -g $G
consumerStatus -g $G -s
producer -b $broker
cloneGroupOffset -s $G -d $G3 -t $T -o false
clusterList
clusterList -m
topicList
topicList -c
updateKvConfig -s NSX -k a -v b
deleteKvConfig -s NSX -k a
resetOffsetByTime -g $G -t $T -s -1
resetOffsetByTime -g $G2 -t $T -s 0 -f true
resetOffsetByTime -g $G3 -t $T -s 0 -f true
skipAccumulatedMessage -g $G -t $T
skipAccumulatedMessage -g $G2 -t $T
updateOrderConf -t $T -v $name:4 -m put
updateOrderConf -t $T -m get
updateOrderConf -t $T -m delete
cleanExpiredCQ -b $broker
cleanExpiredCQ -c $cluster
deleteExpiredCommitLog -b $broker
deleteExpiredCommitLog -c $cluster
cleanUnusedTopic -b $broker
cleanUnusedTopic -c $cluster
statsAll
statsAll -a
statsAll -t $T
allocateMQ -t $T -i 1.1.1.1,2.2.2.2
checkMsgSendRT -t $T -a 3 -s 64
getNamesrvConfig
updateNamesrvConfig -k clusterTest -v false
getBrokerConfig -b $broker
getBrokerConfig -c $cluster
queryCq -t $T -q 0 -i 0 -c 5 -b $broker
queryCq -t $T -q 0 -i 0 -c 5 -g $G
sendMessage -t $T -p hello -k kk -c tag
consumeMessage -t $T -g $CG -c 5
consumeMessage -t $T -b $name -i 0 -o 0 -c 3
exportMetadata -c $cluster -f $folder
exportConfigs -c $cluster -f $folder
exportMetrics -c $cluster -f $folder
wipeWritePerm -b $name
addWritePerm -b $name
deleteSubGroup -g $G2 -c $cluster
deleteSubGroup -g $none -b $broker
deleteTopic -t $T2 -c $cluster
deleteTopic -t $none -c $cluster
topicStatus -t $none
consumerProgress -g $none
topicRoute -t $none
consumerConnection -g $none
producerConnection -g $none -t $T
queryMsgById -i nonsense
brokerStatus -b 127.0.0.1:1
""".strip().splitlines()


def play(target: Target, driver: Driver, folder: Path) -> dict[str, list[str]]:
    """Plays the story against a system: command line to shape. Groups and topics have unique names."""
    words = {f"${name}": f"mq{name}" for name in ("T", "T2", "T3", "G", "G2", "G3", "G4", "PG2", "CG", "none")}
    words |= {"$cluster": target.cluster, "$broker": target.broker_address, "$name": target.broker_name}
    words["$folder"] = str(folder)
    for topic in ("$T", "$T3"):
        driver.mqadmin("updateTopic", "-t", words[topic], "-c", target.cluster, "-r", 4, "-w", 4)
    driver.mqadmin("updateSubGroup", "-g", words["$G"], "-c", target.cluster)
    sent = driver.run(
        "produce", topic=words["$T"], run="r", count=40, keys="k", tags="a", shards=4, threads=4, each=True
    ).of("sent")
    words |= {f"${name}": str(sent[7][name]) for name in ("msgId", "offsetMsgId", "queue", "offset")}
    consumer = driver.start("consume", topic=words["$T"], group=words["$G"], run="r", count=41, timeout_s=600)
    producer = driver.start("transactions", topic=words["$T3"], group=words["$PG2"], run="t", count=1, stay_s=600)
    consumer.wait_for("started")

    def progress(wanted: Callable[[str], bool]) -> Callable[[], bool]:
        return lambda: wanted(driver.mqadmin("consumerProgress", "-g", words["$G"]))

    # The client commits offsets every 5 s.
    until("the consumer commits", progress(lambda text: "\nDiff Total: 0" in text and "%RETRY%" in text), 40)
    found = re.search(r"^(\S+@\S+)", driver.mqadmin("consumerConnection", "-g", words["$G"]), re.MULTILINE)
    assert found, "consumerConnection shows no client"
    words["$client"] = found[1]
    shapes = {}
    names = {value: key for key, value in words.items() if key != "$folder" and value.startswith("mq")}
    names |= {target.broker_address: "BROKER", target.namesrv: "NAMESRV"}
    for line in story():
        output = driver.mqadmin(*(words.get(word, word.replace("$name", words["$name"])) for word in line.split()))
        if line.endswith("-f $folder"):
            output += "".join(path.read_text() for path in sorted(folder.rglob("*.json")))
            for path in folder.rglob("*.json"):
                path.unlink()
        shapes[line] = shape(output, names, str(folder))
        if line in LISTS:
            shapes[line] = [text for text in shapes[line] if "$" in text or text.startswith("#")]
    driver.run("stop")
    producer.finish()
    driver.run("produce", topic=words["$T"], run="r", first=40, count=1, group="last")
    consumer.finish()
    return shapes


_RULES: tuple[tuple[str, str], ...] = (
    (r"body=\[[\d, -]*\]", "body=BYTES"),
    (r" BODY: .*", " BODY: TEXT"),
    (r"\bA?SYNC_MASTER\b", "MASTER"),
    (r"KEYS=\w+", "KEYS=KEY"),
    (r"Keys: +\[\w+\]", "Keys: [KEY]"),
    (r"\d{4}-\d\d-\d\d[ #]\d\d:\d\d:\d\d[,:]?\d*", "DATE"),
    (r"/?\b\d+\.\d+\.\d+\.\d+:\d+\b", "ADDRESS"),
    (r"\b\d+\.\d+\.\d+\.\d+@\w+", "CLIENT"),
    (r"\b\d+\.\d+\.\d+\.\d+\b", "HOST"),
    (r"\b[0-9A-F]{24,}\b", "ID"),
    (r"commitLogDiskRatio_[^\s:]+", "PATH"),
    (r"(?<![\w:/])/(?:[\w.-]+/)+[\w.-]*", "PATH"),
    (r"\[ \d+ days, \d+ hours, \d+ minutes, \d+ seconds \]", "DURATION"),
    (r"\b\d+(?:\.\d+)? (?:[KMGT]i)?B\b", "SIZE"),
    (r"-?\b\d+(?:\.\d+)?(?:E-?\d+)?(?:ms|%)?\b", "N"),
    (r"N(?:,N)+", "N"),
)
_OF_5 = r"getTransferredTps|brokerActive|(ack|litePull)ThreadPoolQueue\w+|timer\w+"  # keys that 4.9.7 does not have
_OWN = re.compile(rf"(BROKER )?((gantry|scheduleMessageOffset_)\w+|{_OF_5}) *:")
"""Runtime values that only Gantry has, and those that appear after the first use of a delay level."""
_RATES = re.compile(r"\b((?:put|get)\w*Tps|putMessageDistributeTime|earliestMessageTimeStamp)( *:).*")


def shape(output: str, names: dict[str, str], folder: str) -> list[str]:
    """Returns the distinct lines of an output, reduced and sorted. A stack trace counts as its first line."""
    found = set()
    for raw in output.splitlines():
        line = raw.replace(folder, "FOLDER")
        if re.match(r"\s+at |\s+\.\.\. \d+ more|Caused by: .*(?<!\S)at ", line) or "rmq_sys_GANTRY" in line:
            continue
        for value, name in sorted(names.items(), key=lambda item: -len(item[0])):
            line = re.sub(rf"(?<![\w]){re.escape(value)}(?![\w])", name, line)
        line = _RATES.sub(r"\1\2 RATE", line)
        for pattern, word in _RULES:
            line = re.sub(pattern, word, line)
        line = " ".join(line.split())
        if line and not _OWN.match(line):
            found.add(line)
    return sorted(found)


def main() -> None:
    from benchmarks.rig import rocketmq
    from tests.interop.conftest import SETTINGS

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with (
            rocketmq.rocketmq(folder / "rmq", {key: str(value) for key, value in SETTINGS.items()}) as target,
            contextlib.closing(Driver(target, "49", "JSON", folder / "driver.log")) as driver,
        ):
            shapes: dict[str, Any] = play(target, driver, folder / "export")
    RECORDED.parent.mkdir(parents=True, exist_ok=True)
    RECORDED.write_text(json.dumps(shapes, indent=1) + "\n")
    print(f"{len(shapes)} command lines")


if __name__ == "__main__":
    main()
