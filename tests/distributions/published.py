"""`python -m tests.distributions.published [FOLDER] [--only NAME]`: the packages as a user gets them.

Builds wheels and source archives, or takes those of FOLDER, and shows them to `twine check --strict`. Then it installs
each distribution, alone and with each extra, into an environment of its own, and uses it once: from wheels, and from
source archives too for the client and for a cluster on one machine. It prints packages and megabytes of each. Needs a
package index, Java for Spark, and some minutes.
"""

from __future__ import annotations

import argparse
import json
import os
import runpy
import subprocess
import sys
import tempfile
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gantry_broker.testing import LocalBroker, broker

from distributions.build import ROOT, build

INSTALL_S: Final = 1200
USE_S: Final = 240
ABSENT: Final = "fastapi, pydantic, typer, rich, uvloop, httpx"
SEND: Final = f"""
import importlib.util, sys
from gantry_broker.client.sync import Producer, SimpleConsumer
if sys.argv[1] == "alone":
    found = [name for name in {ABSENT.split(", ")!r} if importlib.util.find_spec(name)]
    assert not found, found
for address in sys.argv[2:]:
    with Producer(address) as producer, SimpleConsumer(address, "billing") as consumer:
        producer.send("Orders", b"two apples", keys="4711", tags="fruit")
        consumer.subscribe("Orders")
        got = consumer.receive(wait_s=20)
        assert [message.body for message in got] == [b"two apples"], got
        consumer.ack(got[0])
"""
COMPRESS: Final = """
import sys
from gantry_broker.client import Compression
from gantry_broker.client.sync import Producer, SimpleConsumer
for kind in (Compression.LZ4, Compression.ZSTD):
    with Producer(sys.argv[1], compression=kind) as producer, SimpleConsumer(sys.argv[1], "billing") as consumer:
        producer.send("Orders", b"apples" * 10_000)
        consumer.subscribe("Orders")
        got = consumer.receive(wait_s=20)
        assert [len(message.body) for message in got] == [60_000], got
        consumer.ack_all(got)
"""
TASKIQ: Final = """
import asyncio, sys
from gantry_broker.client.taskiq import RocketMQBroker, RocketMQResults
from taskiq.api import run_receiver_task

def made():
    one = RocketMQBroker(sys.argv[1], topic="tasks").with_result_backend(RocketMQResults(sys.argv[1]))
    async def add(a: int, b: int) -> int:
        return a + b
    one.register_task(add, task_name="add")
    return one

async def main():
    sender, worker = made(), made()
    worker.is_worker_process = True
    await sender.startup()
    running = asyncio.create_task(run_receiver_task(worker, run_startup=True))
    sent = await sender.find_task("add").kiq(1, 2)
    found = await sent.wait_result(check_interval=0.05, timeout=60)
    assert found.return_value == 3, found
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await sender.shutdown()

asyncio.run(main())
"""
KOMBU: Final = """
import sys
import gantry_broker.client.celery
import kombu
with kombu.Connection("rocketmq://" + sys.argv[1]) as connection:
    with connection.SimpleQueue("fruit") as queue:
        queue.put({"apples": 2})
        got = queue.get(timeout=60)
        assert got.payload == {"apples": 2}
        got.ack()
"""
SPANS: Final = """
import sys
from gantry_broker.client.sync import Producer
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
kept = InMemorySpanExporter()
provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(kept))
with Producer(sys.argv[1], tracer_provider=provider) as producer:
    producer.send("Orders", b"two apples")
assert [span.name for span in kept.get_finished_spans()] == ["send Orders"]
"""
TESTS: Final = """
def test_a_broker(gantry_broker):
    from gantry_broker.client.sync import Producer
    topic = gantry_broker.create_topic()
    with Producer(gantry_broker.name_servers) as producer:
        producer.send(topic, b"two apples")
    assert gantry_broker.count(topic) == 1
"""
OPERATOR: Final = """
import kubernetes, kopf
import gantry_operator.platforms.kubernetes.operator
"""
PRODUCE: Final = "gantry produce Orders --count 20 --cluster demo"
CLUSTER: Final = ("gantry --version", "gantry up --detach --timeout 120", PRODUCE)
DOWN: Final = "gantry down --cluster demo --delete-data"


@dataclass(frozen=True)
class Use:
    """What is installed, and what is done with it: a program in Python, or commands of a shell."""

    wanted: str
    program: str = ""
    arguments: tuple[str, ...] = ()
    """Of the program. `REMOTING` and `GRPC` become addresses."""
    commands: tuple[str, ...] = ()
    more: tuple[str, ...] = ()
    """Other packages that the documentation names beside it."""
    source: tuple[str, ...] = ()
    """Distributions that are built from their source archives. pip takes wheels otherwise."""


USES: Final = {
    "client": Use("gantry-mq-client", SEND, ("alone", "REMOTING")),
    "client-source": Use("gantry-mq-client", SEND, ("alone", "REMOTING"), source=("gantry-mq-client",)),
    "client-grpc": Use("gantry-mq-client[grpc]", SEND, ("both", "REMOTING", "GRPC")),
    "client-compression": Use("gantry-mq-client[compression]", COMPRESS, ("REMOTING",)),
    "client-taskiq": Use("gantry-mq-client[taskiq]", TASKIQ, ("REMOTING",)),
    "client-celery": Use("gantry-mq-client[celery]", KOMBU, ("REMOTING",), more=("celery",)),
    "local": Use(
        "gantry-mq[local]",
        commands=(*CLUSTER, "gantry consume Orders --group billing --count 20 --quiet", "gantry status", DOWN),
    ),
    "local-source": Use(
        "gantry-mq[local]", commands=(*CLUSTER, "gantry status", DOWN), source=("gantry-mq", "gantry-mq-client")
    ),
    "opentelemetry": Use("gantry-mq[opentelemetry]", SPANS, ("REMOTING",)),
    "operator": Use("gantry-mq[operator]", OPERATOR, commands=("kubectl-gantry --help",)),
    "test": Use("gantry-mq[test]", commands=("pytest -q test_orders.py",)),
    "spark": Use("gantry-mq[spark]", commands=(*CLUSTER, "gantry analyze demo -o json", DOWN)),
    "tables": Use(
        "gantry-mq[spark,tables]",
        commands=(
            *CLUSTER, "gantry table run Orders", "gantry table list",
            "gantry table query 'select count(*) from Orders'", DOWN,
        ),
    ),
}  # fmt: skip


def check(files: list[Path]) -> None:
    """Raises CalledProcessError for a file whose metadata or description an index would refuse."""
    tools = runpy.run_path(str(ROOT / ".ci/supply_chain.py"))["tools"]()
    subprocess.run([tools / "twine", "check", "--strict", *files], check=True)


@contextmanager
def installed(use: Use, folder: Path, files: Path) -> Iterator[Path]:
    """An environment with a distribution, and the folder of its programs."""
    venv.create(folder, with_pip=True)
    programs = folder / "bin"
    pip = [programs / "python", "-m", "pip", "--disable-pip-version-check", "--no-input", "--quiet"]
    from_source = [f"--no-binary={name}" for name in use.source]
    subprocess.run(
        [*pip, "install", "--find-links", files, *from_source, use.wanted, *use.more],
        check=True, timeout=INSTALL_S, cwd=folder,
    )  # fmt: skip
    yield programs


def size(programs: Path) -> str:
    """Packages beside pip, and the megabytes of all of them."""
    listed = subprocess.run(
        [programs / "python", "-m", "pip", "--disable-pip-version-check", "list", "--format", "json"],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    names = {one["name"] for one in json.loads(listed.stdout)} - {"pip", "setuptools", "wheel"}
    (packages,) = (programs.parent / "lib").glob("python3*/site-packages")
    own = ("pip", "setuptools", "pkg_resources", "_distutils_hack", "wheel")
    counted = sum(
        path.stat().st_size
        for path in packages.rglob("*")
        if path.is_file() and path.suffix != ".pyc" and path.relative_to(packages).parts[0].partition("-")[0] not in own
    )
    return f"{len(names):>3} packages {counted / 1e6:>6.1f} MB"


def use_once(use: Use, programs: Path, work: Path, mq: LocalBroker) -> None:
    """Raises CalledProcessError or TimeoutExpired, with what the program said on stderr."""
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")} | {
        "PATH": f"{programs}:{os.environ['PATH']}",
        "XDG_STATE_HOME": str(work / "state"),
    }
    (work / "test_orders.py").write_text(TESTS)
    addresses = {"REMOTING": mq.name_servers, "GRPC": f"grpc://{mq.grpc}"}
    if use.program:
        (work / "program.py").write_text(use.program)
        words = [addresses.get(word, word) for word in use.arguments]
        subprocess.run(
            [programs / "python", "program.py", *words], check=True, cwd=work, env=environment, timeout=USE_S
        )
    try:
        for command in use.commands:
            subprocess.run(
                command, shell=True, check=True, cwd=work, env=environment, timeout=USE_S, stdout=subprocess.DEVNULL
            )
    except subprocess.SubprocessError:
        subprocess.run(DOWN, shell=True, check=False, cwd=work, env=environment, timeout=USE_S)
        raise


def main(folder: Path | None, only: list[str]) -> int:
    broken: list[str] = []
    with tempfile.TemporaryDirectory() as made, broker(grpc=True) as mq:
        files = folder.resolve() if folder else Path(made) / "dist"
        check([*files.glob("gantry*.whl"), *files.glob("gantry*.tar.gz")] if folder else build(files))
        for name in only or USES:
            use = USES[name]
            work = Path(made) / name
            with installed(use, work / "env", files) as programs:
                said = "ok"
                try:
                    use_once(use, programs, work, mq)
                except (subprocess.SubprocessError, OSError) as error:
                    broken.append(name)
                    said = f"FAILED: {error}"
                print(
                    f"{use.wanted + (', from source' if use.source else ''):<34} {size(programs)}  {said}", flush=True
                )
    return 1 if broken else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--only", action="append", choices=list(USES), default=[])
    arguments = parser.parse_args()
    sys.exit(main(arguments.folder, arguments.only))
