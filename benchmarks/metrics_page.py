"""Measures a page of metrics: `python benchmarks/metrics_page.py --topics 1000 --groups 1000`.

It starts one broker, creates topics with one message in each queue, and consumer groups that each lag in one topic.
Then it reads `/metrics` again and again, while a second connection asks for an offset without pause.

One line of JSON: bytes and series of a page; the broker's CPU time for one page in milliseconds, median; how long a
page holds the event loop at a time, in milliseconds (`rig/held_broker.py`): by the delay of a timer, which also counts
the time that other programs had the core, and by CPU time; and the longest answer of the other connection during a
page in milliseconds. Each has median and maximum, beside those without pages.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import re
import statistics
import tempfile
import threading
import time
from pathlib import Path

import httpx
from gantry_broker.protocol.codes import RequestCode
from rig import gantry, held_broker
from rig.processes import usage
from rig.wire import Wire

QUEUES = 4


def fill(address: str, topics: int, groups: int) -> None:
    """Creates the topics with a message in each queue, and the groups' offsets."""
    with Wire(address) as wire:
        for number in range(topics):
            name = f"topic-{number}"
            wire.call(
                RequestCode.UPDATE_AND_CREATE_TOPIC,
                {"topic": name, "defaultTopic": "TBW102", "readQueueNums": str(QUEUES), "writeQueueNums": str(QUEUES),
                 "perm": "6", "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false"},
            )  # fmt: skip
            for queue in range(QUEUES):
                wire.call(
                    RequestCode.SEND_MESSAGE,
                    {"producerGroup": "p", "topic": name, "defaultTopic": "TBW102", "defaultTopicQueueNums": "4",
                     "queueId": str(queue), "sysFlag": "0", "bornTimestamp": "1", "flag": "0", "properties": "",
                     "reconsumeTimes": "0", "unitMode": "false", "batch": "false"},
                    b"x",
                )  # fmt: skip
        for number in range(groups):
            for queue in range(QUEUES):
                wire.call(
                    RequestCode.UPDATE_CONSUMER_OFFSET,
                    {"consumerGroup": f"group-{number}", "topic": f"topic-{number % topics}", "queueId": str(queue),
                     "commitOffset": "0"},
                )  # fmt: skip


class Asker:
    """Asks for an offset without pause, and keeps the longest answer."""

    def __init__(self, address: str) -> None:
        self._wire = Wire(address)
        self._ended = False
        self.longest_s = 0.0
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._ended:
            begun = time.perf_counter()
            self._wire.call(RequestCode.GET_MAX_OFFSET, {"topic": "topic-0", "queueId": "0"})
            self.longest_s = max(self.longest_s, time.perf_counter() - begun)
            time.sleep(0.0005)

    def take(self) -> float:
        """Returns the longest answer since the last call, in milliseconds."""
        longest, self.longest_s = self.longest_s, 0.0
        return longest * 1000

    def close(self) -> None:
        self._ended = True
        self._thread.join()
        self._wire.socket.close()


def summary(page: list[float], none: list[float]) -> dict[str, float]:
    found = {
        "pageMedian": statistics.median(page),
        "pageMax": max(page),
        "noPageMedian": statistics.median(none),
        "noPageMax": max(none),
    }
    return {name: round(value, 1) for name, value in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--topics", type=int, default=1000)
    parser.add_argument("--groups", type=int, default=1000)
    parser.add_argument("--pages", type=int, default=10)
    args = parser.parse_args()
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        file = Path(folder) / "holds"
        holds = held_broker.new_file(file)
        program = (held_broker.__file__, str(file))
        target = stack.enter_context(gantry.single(Path(folder), {"maxTopics": args.topics + 100}, broker=program))
        pid = target.broker_pids[0]
        http_port = json.loads((Path(folder) / "broker.json").read_text())["http_port"]
        fill(target.broker_address, args.topics, args.groups)
        with httpx.Client(base_url=f"http://127.0.0.1:{http_port}", timeout=60) as client:
            text = client.get("/metrics").text
            cpu, held, idle_held = [], [], []
            for _ in range(args.pages):
                time.sleep(3)  # a page earlier than its share of the time allows would be the last one
                before = usage(pid).cpu_s
                holds.take()
                time.sleep(1)
                idle_held.append(holds.take())
                idle = usage(pid).cpu_s - before
                before = usage(pid).cpu_s
                text = client.get("/metrics").text
                time.sleep(1)
                held.append(holds.take())
                cpu.append((usage(pid).cpu_s - before - idle) * 1000)
            asker = Asker(target.broker_address)
            busy, calm = [], []
            for _ in range(args.pages):
                time.sleep(3)
                asker.take()
                client.get("/metrics")
                busy.append(asker.take())
                time.sleep(0.3)
                calm.append(asker.take())
            asker.close()
    print(
        json.dumps(
            {
                "topics": args.topics,
                "groups": args.groups,
                "bytes": len(text),
                "series": len(re.findall("^[a-z]", text, re.MULTILINE)),
                "lagSeries": len(re.findall("^rocketmq_consumer_lag_messages{", text, re.MULTILINE)),
                "cpuMs": round(statistics.median(cpu), 1),
                "holdByDelayMs": summary([h[0] for h in held], [h[0] for h in idle_held]),
                "holdByCpuMs": summary([h[1] for h in held], [h[1] for h in idle_held]),
                "longestAnswerMs": summary(busy, calm),
            }
        )
    )


if __name__ == "__main__":
    main()
