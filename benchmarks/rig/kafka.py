"""Apache Kafka from Maven Central as one process on 127.0.0.1, and Spark's connector for it."""

from __future__ import annotations

import base64
import contextlib
import socket
import subprocess
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path

from . import jars
from .processes import Started, error_line, free_port, until

KAFKA = "org.apache.kafka:kafka_2.13:4.1.1"
CONNECTOR = "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0"
"""The newest one that is published. It runs in PySpark 4.3."""
OF_CONNECTOR = ("spark-sql-kafka", "spark-token-provider-kafka", "kafka-clients", "commons-pool2")
"""Its jars that Spark itself lacks."""
START_S = 60.0


def connector() -> list[Path]:
    """Returns the connector's jars. Raises JavaMissing."""
    return [jar for jar in jars.fetch("spark-kafka", [CONNECTOR]) if jar.name.startswith(OF_CONNECTOR)]


@contextlib.contextmanager
def kafka(folder: Path, classes: Sequence[Path] = (), heap: str = "512m") -> Iterator[tuple[str, Started]]:
    """Starts a broker that is its own controller. Yields its address and its process. Raises JavaMissing.

    `classes`: the jars of another version.
    """
    folder.mkdir(parents=True)
    path = ":".join(map(str, classes or jars.fetch("kafka", [KAFKA])))
    port, controller = free_port(), free_port()
    config = folder / "server.properties"
    config.write_text(
        f"process.roles=broker,controller\nnode.id=1\ncontroller.quorum.voters=1@127.0.0.1:{controller}\n"
        f"listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}\n"
        f"advertised.listeners=PLAINTEXT://127.0.0.1:{port}\ncontroller.listener.names=CONTROLLER\n"
        f"log.dirs={folder}/log\noffsets.topic.replication.factor=1\ntransaction.state.log.replication.factor=1\n"
        "transaction.state.log.min.isr=1\nnum.partitions=4\n"
    )
    java = ["java", f"-Xmx{heap}", "-cp", path]
    name = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
    # One word: a name may begin with a dash.
    command = [*java, "kafka.tools.StorageTool", "format", f"--cluster-id={name}", "--config", str(config)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=START_S, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"Kafka's folder cannot be made: {error_line(done.stdout + done.stderr)}")
    with Started([*java, "kafka.Kafka", str(config)], folder / "kafka.log") as process:
        until("Kafka", lambda: _listens(port), START_S, [process])
        yield f"127.0.0.1:{port}", process


def _listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True
