"""The driver keeps the page of the report in a Secret, for the console."""

from __future__ import annotations

import base64
import json
import os
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from gantry_broker import report_page
from gantry_spark.page import render
from gantry_spark.page_secret import keep_page

from tests.spark.test_page import report


class ApiServer(ThreadingHTTPServer):
    """Answers as the API server does, and keeps what it got."""

    status = 200

    def __init__(self) -> None:
        self.got: list[tuple[str, str, str, Any]] = []
        super().__init__(("127.0.0.1", 0), Handler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    server: ApiServer

    def do_PATCH(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        kind = self.headers["Content-Type"]
        self.server.got.append((self.path, self.headers["Authorization"], kind, body))
        self.send_response(self.server.status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


@pytest.fixture
def server() -> Iterator[ApiServer]:
    with ApiServer() as made:
        thread = threading.Thread(target=made.serve_forever)
        thread.start()
        yield made
        made.shutdown()
        thread.join()


@pytest.fixture
def account(tmp_path: Path) -> Path:
    (tmp_path / "namespace").write_text("mq")
    (tmp_path / "token").write_text("secret\n")
    return tmp_path


def test_the_page_goes_into_the_secret_as_it_is(server: ApiServer, account: Path) -> None:
    page = render(report())
    keep_page("demo-analytics", page, server.url, account)
    ((path, authorization, kind, body),) = server.got
    assert path == "/api/v1/namespaces/mq/secrets/demo-analytics?fieldManager=gantry-report"
    assert (authorization, kind) == ("Bearer secret", "application/merge-patch+json")
    assert list(body) == ["data"]
    assert report_page.unpack(base64.b64decode(body["data"][report_page.KEY])) == page.encode()


def test_a_page_that_is_too_large_leaves_none(
    server: ApiServer, account: Path, caplog: pytest.LogCaptureFixture
) -> None:
    keep_page("demo-analytics", os.urandom(report_page.MAX_PACKED).hex(), server.url, account)
    assert server.got[0][3] == {"data": {report_page.KEY: None}}
    assert "the page is too large for Secret demo-analytics" in caplog.text


def test_a_report_is_good_without_its_page_in_a_secret(
    server: ApiServer, account: Path, caplog: pytest.LogCaptureFixture
) -> None:
    server.status = 403
    keep_page("demo-analytics", "page", server.url, account)
    assert "the page could not be written to Secret demo-analytics: HTTP Error 403" in caplog.text
    keep_page("demo-analytics", "page", server.url, account / "nowhere")
    assert "No such file or directory" in caplog.text
