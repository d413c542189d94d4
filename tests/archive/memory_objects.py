"""An object store in memory that fails as real ones do: by plan, from a seed."""

from __future__ import annotations

import random
from collections.abc import Iterator

from gantry_broker.archive.errors import Damaged, Missing, Unavailable
from gantry_broker.archive.objects import ListedObject


class MemoryObjects:
    """Objects by name. `fail` is the share of calls that fail, `lie` of writes that are only said to be done, `lost` of
    writes that are done while their answer is lost; `lag` of the newest objects are missing in listings, and those
    of the last `lag_ms`.
    """

    def __init__(self, seed: int = 0, *, fail: float = 0.0, lie: float = 0.0, lost: float = 0.0, lag: int = 0) -> None:
        self.objects: dict[str, bytes] = {}
        self.fail, self.lie, self.lost, self.lag = fail, lie, lost, lag
        self.lag_ms = 0
        self.away = False
        self.now_ms = 0
        self.modified: dict[str, int] = {}
        self.overwritten: list[str] = []
        self._random = random.Random(seed)

    def create(self, name: str, data: bytes) -> bool:
        self._may_fail(name)
        if name in self.objects:
            return False
        if self._random.random() < self.lie:
            return True
        self.objects[name] = bytes(data)
        self.modified[name] = self.now_ms
        if self._random.random() < self.lost:
            raise Unavailable(f"the answer to a write of {name} is lost")
        return True

    def get(self, name: str, most: int = 1 << 30) -> bytes:
        self._may_fail(name)
        if name not in self.objects:
            raise Missing(name)
        if len(self.objects[name]) > most:
            raise Damaged(f"{name} is larger than {most} bytes")
        return self.objects[name]

    def get_range(self, name: str, at: int, size: int) -> bytes:
        return self.get(name)[at : at + size]

    def size(self, name: str) -> int:
        return len(self.get(name))

    def modified_ms(self, name: str) -> int:
        self.get(name)
        return self.modified[name]

    def list(self, prefix: str, after: str = "") -> Iterator[ListedObject]:
        self._may_fail(prefix)
        names = list(self.objects)
        if self.lag:
            names = names[: -self.lag]
        for name in sorted(names):
            is_new = self.lag_ms and self.modified[name] > self.now_ms - self.lag_ms
            if name.startswith(prefix) and name > after and not is_new:
                yield ListedObject(name, len(self.objects[name]), self.modified[name])

    def delete(self, name: str) -> None:
        self._may_fail(name)
        self.objects.pop(name, None)

    def _may_fail(self, name: str) -> None:
        if self.away or self._random.random() < self.fail:
            raise Unavailable(f"the store does not answer ({name})")
