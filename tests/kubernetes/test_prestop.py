"""The stop of a pod waits for the handover, and for nothing else."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from gantry_broker.http import prestop


class Broker:
    """Answers GET /v1/status as a broker with a token does."""

    def __init__(self) -> None:
        self.status: dict[str, Any] = {"role": "Slave"}
        self.authorizations: list[str | None] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.authorizations.append(self.headers.get("Authorization"))
                body = json.dumps(outer.status).encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                """Keeps the test's output clean."""

        self.server = HTTPServer(("127.0.0.1", 0), Handler)


@pytest.fixture
def broker() -> Iterator[Broker]:
    broker = Broker()
    thread = threading.Thread(target=broker.server.serve_forever, args=(0.02,))
    thread.start()
    yield broker
    broker.server.shutdown()
    thread.join()
    broker.server.server_close()


def config(tmp_path: Path, port: int) -> str:
    (tmp_path / "token").write_text("s3cret\n")
    file = tmp_path / "demo-a-0.json"
    file.write_text(json.dumps({"http_port": port, "token_file": str(tmp_path / "token")}))
    return str(file)


def master(fetched_ms: int = 20, in_sync: bool = True) -> dict[str, Any]:
    return {"role": "Master", "followers": [{"in_sync": in_sync, "last_fetch_ms": fetched_ms}]}


def run(file: str, *more: str) -> float:
    begun = time.monotonic()
    assert prestop.main(["--config", file, "--linger", "0.2", *more]) == 0
    return time.monotonic() - begun


@pytest.mark.parametrize("status", [{"role": "Slave"}, {"role": "Waiting"}, master(9_000), master(in_sync=False)])
def test_a_member_without_a_candidate_does_not_wait(broker: Broker, tmp_path: Path, status: dict[str, Any]) -> None:
    broker.status = status
    assert run(config(tmp_path, broker.server.server_port)) < 0.2
    assert set(broker.authorizations) == {"Bearer s3cret"}


def test_a_broker_that_does_not_answer_is_not_waited_for(tmp_path: Path) -> None:
    assert run(config(tmp_path, 1)) < 0.2


def test_a_master_waits_until_it_has_handed_over_and_then_lingers(broker: Broker, tmp_path: Path) -> None:
    broker.status = master()
    timer = threading.Timer(0.5, lambda: broker.status.update(role="Slave"))
    timer.start()
    took = run(config(tmp_path, broker.server.server_port))
    timer.join()
    assert 0.65 < took < 3


def test_it_gives_up_in_time(broker: Broker, tmp_path: Path) -> None:
    broker.status = master()
    assert 0.4 < run(config(tmp_path, broker.server.server_port), "--timeout", "0.4") < 3
