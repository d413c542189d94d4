"""Where each consume queue begins and ends (`config/queueEnds.json`), as of a checkpoint.

The files of a queue do not say how long they should be: without this list, a file that was cut or lost looks like a
queue with fewer messages, and the next ones would get their queue offsets again.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import orjson

from gantry_broker.protocol import plausible
from gantry_broker.store.files import atomic_write
from gantry_broker.store.sealed import seal, unseal

NAME: Final = "queueEnds.json"
"""In config/."""
_log = logging.getLogger(__name__)


class QueueEnds(NamedTuple):
    """All queues of a store whose files have the entries of all records below `offset`, durably."""

    offset: int
    """Of the log."""
    start: int
    """Of the log at that time: retention removes files of queues later."""
    file_size: int
    """Bytes of a queue's file."""
    queues: Mapping[tuple[str, int], tuple[int, int]]
    """The first queue offset with an entry, and the one after the last, by topic and queue."""
    steps: Sequence[tuple[int, int]] = ()
    """Where store times go back (`ClockSteps.saved`). Empty, as `last_ms` is 0, in files of earlier versions."""
    last_ms: int = 0
    """Store time of the last record below `offset`."""

    @classmethod
    def load(cls, path: Path) -> QueueEnds | None:
        """Read the file; None when it is missing or invalid. Raises OSError."""
        try:
            data = orjson.loads(unseal(path.read_bytes()))
            ends: dict[tuple[str, int], tuple[int, int]] = {}
            for topic, queues in data["queues"].items():
                for number, first, end in queues:
                    low, high = plausible.offset("first", first), plausible.offset("end", end)
                    if type(number) is not int or not 0 <= number < 1 << 31 or low > high:
                        raise ValueError(f"queue {number!r} of {topic}: {first!r} to {end!r}")
                    ends[topic, number] = (low, high)
            size = plausible.number("fileSize", data["fileSize"], 1, 1 << 31)
            steps = [(plausible.offset("step", at), plausible.offset("step", ms)) for at, ms in data.get("steps", ())]
            return cls(
                plausible.offset("offset", data["offset"]),
                plausible.offset("start", data["start"]),
                size,
                ends,
                steps,
                plausible.offset("lastMs", data.get("lastMs", 0)),
            )
        except FileNotFoundError:
            return None
        except (KeyError, TypeError, AttributeError, ValueError, plausible.Implausible) as error:
            _log.warning("%s is invalid: %s; all consume queues are built from the log instead", path, error)
            return None

    def save(self, path: Path) -> None:
        """Replace the file durably. Raises OSError."""
        topics: dict[str, list[tuple[int, int, int]]] = {}
        for (topic, number), (first, end) in self.queues.items():
            topics.setdefault(topic, []).append((number, first, end))
        content = {
            "offset": self.offset,
            "start": self.start,
            "fileSize": self.file_size,
            "queues": topics,
            "steps": self.steps,
            "lastMs": self.last_ms,
        }
        atomic_write(path, seal(orjson.dumps(content)))
