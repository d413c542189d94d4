"""Kafka's own `ProducerPerformance` and `ConsumerPerformance`, each as one process with one client."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from . import jars

VERSION = "3.9.1"
JARS = (f"org.apache.kafka:kafka_2.13:{VERSION}", f"org.apache.kafka:kafka-tools:{VERSION}")
PARTITIONS = 4
_HEAD = 70
"""Bytes of a batch beside its records, rounded up."""
_RECORD = 14
"""Bytes of a record beside its body, rounded up."""
_RATE = re.compile(r"([0-9]+) records sent, ([0-9.]+) records/sec")


def classes() -> list[Path]:
    """Returns Kafka's jars. Raises JavaMissing."""
    return jars.fetch(f"kafka-{VERSION}", JARS)


class Tools:
    """Programs of one broker. Each ends within `limit_s`, or raises RuntimeError."""

    def __init__(self, address: str, limit_s: float) -> None:
        self._address = address
        self._limit_s = limit_s
        self._java = ["java", "-Xmx1g", "-cp", ":".join(map(str, classes()))]

    def _run(self, main: str, *words: str) -> str:
        command = [*self._java, f"org.apache.kafka.tools.{main}", *words]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=self._limit_s, check=False)
        except subprocess.TimeoutExpired:
            raise RuntimeError(f"{main} took more than {self._limit_s:g} s") from None
        if done.returncode != 0:
            raise RuntimeError(f"{main}: {(done.stdout + done.stderr)[-600:]}")
        return done.stdout

    def create(self, topic: str) -> None:
        words = ("--create", "--topic", topic, "--partitions", str(PARTITIONS), "--replication-factor", "1")
        self._run("TopicCommand", "--bootstrap-server", self._address, *words)

    def send(self, topic: str, batch: int, size: int, count: int) -> float:
        """Sends with acks=1 and batches of at most `batch` messages; returns messages a second."""
        text = self._run(
            "ProducerPerformance", "--topic", topic, "--num-records", str(count), "--record-size", str(size),
            "--throughput", "-1", "--producer-props", f"bootstrap.servers={self._address}", "acks=1", "linger.ms=5",
            f"batch.size={_HEAD + batch * (size + _RECORD)}", f"buffer.memory={64 << 20}",
        )  # fmt: skip
        found = _RATE.findall(text)
        if not found or int(found[-1][0]) != count:
            raise RuntimeError(f"ProducerPerformance sent not all messages: {text[-600:]}")
        return float(found[-1][1])

    def drain(self, topic: str, batch: int, size: int, count: int, folder: Path) -> float:
        """Reads the messages, about `batch` of a partition at a time; returns messages a second."""
        config = folder / "consumer.properties"
        most = _HEAD + batch * (size + _RECORD)
        config.write_text(f"max.poll.records={batch}\nmax.partition.fetch.bytes={most}\nauto.offset.reset=earliest\n")
        text = self._run(
            "ConsumerPerformance", "--bootstrap-server", self._address, "--topic", topic, "--messages", str(count),
            "--hide-header", "--timeout", "20000", "--consumer.config", str(config),
        )  # fmt: skip
        columns = [word.strip() for word in text.strip().splitlines()[-1].split(",")]
        if len(columns) < 10 or int(columns[4]) < count:
            raise RuntimeError(f"ConsumerPerformance read not all messages: {text[-600:]}")
        return float(columns[9])
