"""Validated access to the JSON of bodies: every fault is a BodyError that names the field."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from gantry_broker.protocol import fastjson
from gantry_broker.protocol.digits import MAX_INT, MAX_LONG, MIN_INT, MIN_LONG, whole_number
from gantry_broker.protocol.fastjson import MessageQueue


class BodyError(ValueError):
    """A body of a request or an answer is malformed."""


class Fields:
    """Validated access to a JSON object: each getter returns the field or its default, or raises BodyError."""

    __slots__ = ("_map", "_stored", "_where")

    def __init__(self, value: Any, where: str, *, stored: bool = False) -> None:
        """Take an object. `stored`: it is from the log or a file, where former releases kept numbers of any size. One
        outside its range counts as the nearest one inside.
        """
        self._stored = stored
        if not isinstance(value, Mapping):
            raise BodyError(f"{where} is a JSON {type(value).__name__}; an object is expected")
        self._map = value
        self._where = where

    def names(self) -> set[str]:
        """Return the names of all fields."""
        return {str(name) for name in self._map}

    def text(self, name: str, default: str | None = None) -> str:
        value = self._map.get(name)
        if value is None:
            if default is None:
                raise BodyError(f"the field {self._where}.{name} is absent; a text is expected")
            return default
        if not isinstance(value, str):
            raise BodyError(f"the field {self._where}.{name} is {short(value)}; a text is expected")
        return value

    def number(self, name: str, default: int | None = None, low: int = MIN_INT, high: int = MAX_INT) -> int:
        """Return a whole number in [low, high], by default in the range of Java's int. It may be a string."""
        value = self._map.get(name)
        if value is None:
            if default is None:
                raise BodyError(f"the field {self._where}.{name} is absent; a whole number is expected")
            return default
        return self._whole(name, value, low, high)

    def long(self, name: str, default: int | None = None, low: int = MIN_LONG) -> int:
        """Return a whole number of `low` or more in the range of Java's long."""
        return self.number(name, default, low, MAX_LONG)

    def numbers(self, name: str, low: int = MIN_INT, high: int = MAX_INT) -> list[int]:
        """Return whole numbers in [low, high], each of which may be a string."""
        return [self._whole(name, value, low, high) for value in self.items(name)]

    def _whole(self, name: str, value: Any, low: int, high: int) -> int:
        if type(value) is int:
            if low <= value <= high:
                return value
            if self._stored:
                return min(max(value, low), high)
        elif isinstance(value, str) and (number := whole_number(value, low, high)) is not None:
            return number
        raise BodyError(
            f"the field {self._where}.{name} is {short(value)}; a whole number from {low} to {high} is expected"
        )

    def one_of(self, name: str, default: str, names: Iterable[str]) -> str:
        """One of some names; Java knows no others."""
        value = self.text(name, default)
        if value not in names:
            if self._stored:
                return default
            raise BodyError(f"the field {self._where}.{name} is {short(value)}; {' or '.join(names)} is expected")
        return value

    def attributes(self, name: str) -> dict[str, str]:
        """Texts by name. A number counts as its digits."""
        texts = {}
        for key, value in self.map(name).items():
            if not isinstance(key, str) or not isinstance(value, str | int):
                if self._stored:
                    continue
                raise BodyError(f"the field {self._where}.{name} has {short(key)}: {short(value)}; texts are expected")
            texts[key] = str(value)
        return texts

    def real(self, name: str, default: float = 0.0) -> float:
        value = self._map.get(name)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise BodyError(f"the field {self._where}.{name} is {short(value)}; a number is expected")
        return float(value)

    def flag(self, name: str, default: bool = False) -> bool:
        value = self._map.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise BodyError(f"the field {self._where}.{name} is {short(value)}; true or false is expected")
        return value

    def items(self, name: str) -> Iterable[Any]:
        value = self._map.get(name)
        if value is None:
            return ()
        if not isinstance(value, (list, tuple)):
            raise BodyError(f"the field {self._where}.{name} is {short(value)}; an array is expected")
        return value

    def map(self, name: str) -> Mapping[Any, Any]:
        value = self._map.get(name)
        if value is None:
            return {}
        if not isinstance(value, Mapping):
            raise BodyError(f"the field {self._where}.{name} is {short(value)}; an object is expected")
        return value

    def texts(self, name: str) -> list[str]:
        values = list(self.items(name))
        for value in values:
            if not isinstance(value, str):
                raise BodyError(f"an entry of {self._where}.{name} is {short(value)}; texts are expected")
        return values


def short(value: Any) -> str:
    return repr(value)[:80]


def parse(body: bytes, where: str, dialect: int = fastjson.MAX_DIALECT_BYTES) -> Fields:
    """Parse a body that is an object, at most `dialect` bytes of it in fastjson's dialect. Raises BodyError."""
    try:
        return Fields(fastjson.loads(body, dialect), where)
    except fastjson.JsonError as error:
        raise BodyError(f"{where}: {error}") from None


def queue_from_json(value: Any) -> MessageQueue:
    """Read a message queue that is a value (not a key). Raises BodyError."""
    fields = Fields(value, "messageQueue")
    return MessageQueue(fields.text("topic"), fields.text("brokerName"), fields.number("queueId"))


def queue_to_json(queue: MessageQueue) -> dict[str, Any]:
    return {"brokerName": queue.broker, "queueId": queue.queue_id, "topic": queue.topic}
