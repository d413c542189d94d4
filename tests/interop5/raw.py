"""Requests in protobuf's JSON form for the driver of single calls, and what one client does with them."""

from __future__ import annotations

import base64
import itertools
import time
from typing import Any

from benchmarks.rig.driver import Line, Running
from tests.interop5.clients import Driven
from tests.interop5.systems import System

_IDS = itertools.count(time.time_ns())


def endpoints(address: str) -> dict[str, Any]:
    host, port = address.rsplit(":", 1)
    return {"scheme": "IPv4", "addresses": [{"host": host, "port": int(port)}]}


def message(topic: str, n: int, kind: str = "NORMAL", **properties: Any) -> dict[str, Any]:
    """A message whose body begins with its number; `properties` are fields of SystemProperties."""
    return {
        "topic": {"name": topic},
        "body": base64.b64encode(f"{n} ".encode()).decode(),
        "systemProperties": {
            "messageId": f"01{next(_IDS):032X}", "messageType": kind, "bodyEncoding": "IDENTITY",
            "bornTimestamp": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "bornHost": "here", **properties,
        },
    }  # fmt: skip


def number(received: dict[str, Any]) -> int:
    return int(base64.b64decode(received["body"]).split(b" ")[0])


class RawClient:
    """One client of one proxy; `name` is its client id."""

    def __init__(self, driven: Driven, system: System, name: str, address: str | None = None, **options: Any) -> None:
        self._driven, self._system, self.name = driven, system, name
        self._address = address or system.endpoints
        self._more: dict[str, Any] = {"client": name, "endpoints": self._address, "options": options}

    def ask(self, method: str, request: dict[str, Any], within_s: float = 40, **fields: Any) -> list[Line]:
        """Returns the answers. Raises AssertionError when the call itself fails."""
        result = self._driven.run("call", method=method, request=request, within_s=within_s, **self._more, **fields)
        assert not result.errors, result.errors
        return result.of("answer")

    def settings(self, kind: str, topic: str, group: str = "") -> Running:
        """Opens the telemetry stream and waits for the settings; commands of the server arrive on it, too."""
        settings: dict[str, Any] = {
            "clientType": kind, "accessPoint": endpoints(self._address), "requestTimeout": "3s",
            "userAgent": {"language": "PYTHON", "version": "5.1.2"},
        }  # fmt: skip
        if group:
            entry = {"topic": {"name": topic}, "expression": {"type": "TAG", "expression": "*"}}
            settings["subscription"] = {"group": {"name": group}, "subscriptions": [entry]}
        else:
            settings["publishing"] = {"topics": [{"name": topic}]}
        stream = self._driven.start("telemetry", first={"settings": settings}, **self._more)
        answer = stream.wait_for("settings")
        assert answer["status"]["code"] == "OK", answer
        stream.lines = [answer]
        return stream

    def stop(self, stream: Running) -> None:
        self._driven.stop(stream)

    def heartbeat(self, kind: str, group: str = "") -> str:
        request = {"clientType": kind, **({"group": {"name": group}} if group else {})}
        return str(self.ask("Heartbeat", request)[0]["status"]["code"])

    def send(self, *messages: dict[str, Any]) -> Line:
        answer = self.ask("SendMessage", {"messages": list(messages)})[0]
        assert answer["status"]["code"] == "OK", answer
        return answer

    def receive(
        self, topic: str, group: str, *, batch: int = 16, invisible_s: int | None = 15, poll_s: int = 5,
        queue: int = -1, broker: str | None = None, **fields: Any,
    ) -> list[dict[str, Any]]:  # fmt: skip
        """Returns the received messages. `fields` are further ones of the request."""
        request: dict[str, Any] = {
            "group": {"name": group}, "batchSize": batch, "longPollingTimeout": f"{poll_s}s",
            "messageQueue": {
                "topic": {"name": topic}, "id": queue, "broker": {"name": broker or self._system.target.broker_name},
            },
            "filterExpression": {"type": "TAG", "expression": "*"}, **fields,
        }  # fmt: skip
        if invisible_s is not None:
            request["invisibleDuration"] = f"{invisible_s}s"
        answers = self.ask("ReceiveMessage", request)
        codes = [answer["status"]["code"] for answer in answers if "status" in answer]
        assert set(codes) <= {"OK", "MESSAGE_NOT_FOUND"}, answers
        return [answer["message"] for answer in answers if "message" in answer]

    def receive_all(self, topic: str, group: str, count: int, **fields: Any) -> list[dict[str, Any]]:
        """Receives until there are `count` messages, at most six times."""
        got: list[dict[str, Any]] = []
        for _ in range(6):
            got += self.receive(topic, group, **fields)
            if len(got) >= count:
                break
        return got

    def ack(self, topic: str, group: str, *received: dict[str, Any]) -> list[str]:
        """Returns the code of each entry."""
        entries = [
            {
                "messageId": one["systemProperties"]["messageId"],
                "receiptHandle": one["systemProperties"]["receiptHandle"],
            }
            for one in received
        ]
        answer = self.ask("AckMessage", {"topic": {"name": topic}, "group": {"name": group}, "entries": entries})[0]
        return [entry["status"]["code"] for entry in answer["entries"]]

    def change_invisible(self, topic: str, group: str, received: dict[str, Any], seconds: int) -> str:
        """Returns the new handle, which replaces the old one in the message, too."""
        properties = received["systemProperties"]
        answer = self.ask("ChangeInvisibleDuration", {
            "topic": {"name": topic}, "group": {"name": group}, "receiptHandle": properties["receiptHandle"],
            "messageId": properties["messageId"], "invisibleDuration": f"{seconds}s",
        })[0]  # fmt: skip
        assert answer["status"]["code"] == "OK", answer
        properties["receiptHandle"] = answer["receiptHandle"]
        return str(answer["receiptHandle"])
