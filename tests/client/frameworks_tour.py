"""`python -m tests.client.frameworks_tour NAME_SERVERS taskiq|celery`: the real frameworks against any brokers."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

VISIBLE_S = 3.0


def taskiq_tour(name_servers: str) -> None:
    from gantry_broker.client.taskiq import RocketMQBroker, RocketMQResults
    from taskiq.api import run_receiver_task
    from taskiq.exceptions import SendTaskError

    mark = uuid4().hex[:8]

    def broker() -> RocketMQBroker:
        made = RocketMQBroker(name_servers, f"tasks-{mark}", f"workers-{mark}", invisible_s=VISIBLE_S)
        return made.with_result_backend(RocketMQResults(name_servers, f"results-{mark}"))  # type: ignore[return-value]

    async def tour() -> None:
        sender, worker = broker(), broker()
        runs: list[str] = []

        async def add(a: int, b: int) -> int:
            return a + b

        async def fail() -> int:
            raise ValueError("no such order")

        async def slow(seconds: float) -> str:
            runs.append("slow")
            await asyncio.sleep(seconds)
            return "done"

        for one in (sender, worker):
            for name, work in {"add": add, "fail": fail, "slow": slow}.items():
                one.register_task(work, task_name=name)
        worker.is_worker_process = True
        await sender.startup()
        running = asyncio.create_task(run_receiver_task(worker, run_startup=True))
        try:

            async def result(name: str, *args: Any, **labels: Any) -> Any:
                task = sender.find_task(name)
                assert task is not None
                sent = await task.kicker().with_labels(**labels).kiq(*args)
                return await sent.wait_result(check_interval=0.05, timeout=30)

            assert (await result("add", 2, 3)).return_value == 5
            refused = await result("fail")
            assert "no such order" in repr(refused.error), refused
            begun = time.monotonic()
            assert (await result("add", 4, 4, delay=2)).return_value == 8
            assert time.monotonic() - begun > 1.5, "a delayed task started at once"
            results = await asyncio.gather(*(result("add", n, n) for n in range(50)))
            assert [one.return_value for one in results] == [2 * n for n in range(50)]
            assert (await result("slow", 2.5 * VISIBLE_S)).return_value == "done"
            assert runs == ["slow"], "a task that runs for longer than its invisible time started twice"
            with pytest.raises(SendTaskError) as refusal:
                await result("add", 1, 1, delay="soon")
            assert "write the seconds until the task starts" in str(refusal.value.__cause__)
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            await worker.shutdown()
            await sender.shutdown()

    asyncio.run(tour())


CELERY_APP = """
import os, time
import gantry_broker.client.celery
from celery import Celery

app = Celery("tour", broker=os.environ["TOUR_BROKER"], backend="file://" + os.environ["TOUR_RESULTS"])
app.conf.update(
    task_acks_late=True, task_reject_on_worker_lost=True, worker_prefetch_multiplier=4,
    task_default_queue=os.environ["TOUR_QUEUE"], broker_transport_options={"visibility_timeout": 3},
)

@app.task
def add(a, b):
    return a + b

@app.task
def slow(path, seconds):
    with open(path, "a") as out:
        out.write("run\\n")
    time.sleep(seconds)
    return "done"
"""


def celery_tour(name_servers: str) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "tour_app.py").write_text(CELERY_APP)
        (folder / "results").mkdir()
        os.environ |= {
            "TOUR_BROKER": f"rocketmq://{name_servers.replace(',', ';').split(';')[0]}",
            "TOUR_RESULTS": str(folder / "results"),
            "TOUR_QUEUE": f"celery.{uuid4().hex[:8]}",
        }
        os.environ["PYTHONPATH"] = os.pathsep.join([name, *sys.path])
        spec = importlib.util.spec_from_file_location("tour_app", folder / "tour_app.py")
        assert spec is not None
        assert spec.loader is not None
        tour_app: Any = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(tour_app)

        log = (folder / "worker.log").open("ab")

        def worker() -> subprocess.Popen[bytes]:
            command = [sys.executable, "-m", "celery", "-A", "tour_app", "worker", "-l", "INFO", "-c", "2"]
            return subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)

        def killed(process: subprocess.Popen[bytes]) -> None:
            os.killpg(process.pid, 9)
            process.wait()

        running = worker()
        try:
            assert tour_app.add.delay(2, 3).get(timeout=60) == 5
            begun = time.monotonic()
            assert tour_app.add.apply_async((4, 4), countdown=2).get(timeout=30) == 8
            assert time.monotonic() - begun > 1.5, "a task with a countdown started at once"
            sent = [tour_app.add.delay(n, n) for n in range(50)]
            assert [one.get(timeout=30) for one in sent] == [2 * n for n in range(50)]
            runs = folder / "runs"
            assert tour_app.slow.delay(str(runs), 2.5 * VISIBLE_S).get(timeout=30) == "done"
            assert runs.read_text() == "run\n", "a task that runs for longer than the visibility started twice"
            left = tour_app.slow.delay(str(runs), 2)
            while runs.read_text() != "run\nrun\n":
                time.sleep(0.05)
            killed(running)
            running = worker()
            assert left.get(timeout=60) == "done"
            assert runs.read_text() == "run\nrun\nrun\n", "the task of the dead worker did not start again"
            with tour_app.app.connection_for_read() as connection:
                channel = connection.default_channel
                assert channel.queue_declare(tour_app.app.conf.task_default_queue, passive=True).message_count == 0
        except BaseException:
            sys.stderr.write((folder / "worker.log").read_text()[-5000:])
            raise
        finally:
            killed(running)
            log.close()


if __name__ == "__main__":
    {"taskiq": taskiq_tour, "celery": celery_tour}[sys.argv[2]](sys.argv[1])
    print("the tour is complete")
