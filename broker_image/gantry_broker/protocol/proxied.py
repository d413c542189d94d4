"""What a proxy says of its gRPC consumers to brokers: the body of GantryCode.PROXY_CLIENTS."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Self

from gantry_broker.protocol.digits import whole_number
from gantry_broker.protocol.fields import BodyError, Fields

BEAT_S: Final = 20.0
"""Seconds between two announcements of all clients."""
MAX_CLIENTS: Final = 200
"""Clients of one request."""
MAX_TOPICS: Final = 16
"""Topics that are named of one client."""
MAX_EXPRESSION: Final = 200
"""Characters of a filter that are named."""
_TEXTS: Final = {"id": 255, "group": 255, "user": 128, "language": 40, "version": 100, "address": 64}
_V5_0_0: Final = 413
"""The ordinal of `V5_0_0` among RocketMQ's versions: two for each release."""
_LANGUAGES: Final = {"DOT_NET": "DOTNET", "GOLANG": "GO"}
_KNOWN: Final = frozenset({"JAVA", "CPP", "PYTHON", "RUBY", "PHP", "RUST", "DOTNET", "GO"})
"""Names of languages that tools of 4.9.7 know."""


@dataclass(frozen=True, slots=True)
class ProxiedClient:
    """One gRPC consumer. `language` and `version` are what the client says, e.g. GOLANG and 5.1.2."""

    client_id: str
    group: str
    user: str = ""
    language: str = ""
    version: str = ""
    address: str = ""
    push: bool = True
    """A push consumer; otherwise a simple one."""
    topics: Mapping[str, str] = field(default_factory=dict)
    """Topic to filter."""

    def to_json(self) -> dict[str, Any]:
        return {
            "id": self.client_id, "group": self.group, "user": self.user, "language": self.language,
            "version": self.version, "address": self.address, "push": self.push, "topics": dict(self.topics),
        }  # fmt: skip

    @classmethod
    def from_json(cls, value: Any) -> Self:
        """Read the body. Raises BodyError."""
        fields = Fields(value, "client")
        texts = {name: fields.text(name, None if name in ("id", "group") else "") for name in _TEXTS}
        for name, text in texts.items():
            if len(text) > _TEXTS[name] or not text.isprintable():
                raise BodyError(f"the field client.{name} has over {_TEXTS[name]} characters, or control characters")
        topics = fields.map("topics")
        if len(topics) > MAX_TOPICS:
            raise BodyError(f"the field client.topics has {len(topics)} topics, the limit is {MAX_TOPICS}")
        for topic, expression in topics.items():
            if not isinstance(expression, str) or len(expression) > MAX_EXPRESSION or len(str(topic)) > 255:
                raise BodyError("the field client.topics has a topic or a filter that is too long, or no text")
        return cls(
            texts["id"], texts["group"], texts["user"], texts["language"], texts["version"], texts["address"],
            fields.flag("push", True), {str(topic): str(expression) for topic, expression in topics.items()},
        )  # fmt: skip

    def connection(self) -> dict[str, Any]:
        """Return the client as RocketMQ's tools read a connection. Its own words are in `gRPC`, which they ignore."""
        language = _LANGUAGES.get(self.language, self.language)
        return {
            "clientAddr": self.address,
            "clientId": self.client_id,
            "language": language if language in _KNOWN else "OTHER",
            "version": ordinal_of(self.version),
            "gRPC": {"language": self.language, "version": self.version},
        }


def ordinal_of(version: str) -> int:
    """Return the ordinal of a version such as 5.0.8 in RocketMQ's list; what cannot be read counts as 5.0.0."""
    parts = version.split("-")[0].split(".")
    numbers = [whole_number(part, 0, 9) for part in parts]
    if len(numbers) != 3 or numbers[0] != 5 or numbers[1] is None or numbers[2] is None:
        return _V5_0_0
    return _V5_0_0 + 2 * (10 * numbers[1] + numbers[2])


def announcement(clients: Iterable[ProxiedClient], gone: Iterable[ProxiedClient]) -> dict[str, Any]:
    """Return a body. Both together have at most `MAX_CLIENTS`."""
    return {"clients": [one.to_json() for one in clients], "gone": [one.to_json() for one in gone]}


def read_announcement(fields: Fields) -> tuple[list[ProxiedClient], list[ProxiedClient]]:
    """Return the clients that are there, and those that are gone. Raises BodyError."""
    clients, gone = list(fields.items("clients")), list(fields.items("gone"))
    if (count := len(clients) + len(gone)) > MAX_CLIENTS:
        raise BodyError(f"the announcement has {count} clients, the limit is {MAX_CLIENTS}")
    return [ProxiedClient.from_json(one) for one in clients], [ProxiedClient.from_json(one) for one in gone]
