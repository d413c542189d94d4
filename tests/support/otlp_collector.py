"""A collector of OpenTelemetry's metrics: an HTTP server that decodes what exporters send."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import KeyValue


def texts(attributes: Any) -> dict[str, str]:
    pairs: list[KeyValue] = list(attributes)
    return {pair.key: pair.value.string_value for pair in pairs}


class Collector:
    """Takes pushes at `endpoint`; each is a request of the protocol."""

    def __init__(self, status: int = 200) -> None:
        self.status = status
        """The status of its answers."""
        self.paths: list[str] = []
        self.pushes: list[ExportMetricsServiceRequest] = []
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                collector.paths.append(self.path)
                collector.pushes.append(ExportMetricsServiceRequest.FromString(body))
                self.send_response(collector.status)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.endpoint = f"http://127.0.0.1:{self._server.server_port}"

    def metrics(self) -> dict[str, Any]:
        """The metrics of the last push, by name."""
        scopes = self.pushes[-1].resource_metrics[0].scope_metrics
        return {metric.name: metric for scope in scopes for metric in scope.metrics}

    def resource(self) -> dict[str, str]:
        return texts(self.pushes[-1].resource_metrics[0].resource.attributes)

    @contextmanager
    def running(self) -> Iterator[Collector]:
        thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield self
        finally:
            self._server.shutdown()
            thread.join()
            self._server.server_close()
