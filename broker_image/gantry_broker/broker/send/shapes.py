"""The properties of plain messages, checked once for all that differ in nothing but their unique key. Pure.

A producer sends the same properties again and again: its tags, WAIT, the names of its own. What the broker finds out
about them, and stores of them, depends on the unique key in one place only.
"""

from __future__ import annotations

from typing import Final

from gantry_broker.protocol.codes import Prop
from gantry_broker.protocol.message import NAME_VALUE_SEPARATOR

UNIQUE: Final = f"{Prop.UNIQ_CLIENT_MESSAGE_ID_KEYIDX}{NAME_VALUE_SEPARATOR}"
MOST: Final = 256
"""Shapes that are kept; the oldest one goes first."""
MOST_CHARACTERS: Final = 1_024
"""Characters of the longest shape that is kept."""
A_SECOND: Final = 64
"""New shapes that are learnt in a second. Producers whose properties are never the same cost no more than that."""

Shape = tuple[str, str, int]
"""The stored properties before the value of the unique key, those after it, and the tag code."""


class Shapes:
    """What plain messages' properties become, by the text before the unique key and the text after its value.

    `known[before, after]` is looked up with `before, _, rest = text.partition(UNIQUE)` and
    `unique, _, after = rest.partition("\\x02")`; it counts for a unique key that is not empty.
    """

    def __init__(self) -> None:
        self.known: dict[tuple[str, str], Shape] = {}
        self._second = 0
        self._learnt = 0

    def learn(self, text: str, unique: str, stored: str, tags_code: int, now_ms: int) -> None:
        """Note the properties of one plain message without KEYS. `stored`: as the log gets them."""
        before, _, rest = text.partition(UNIQUE)
        uniq, _, after = rest.partition("\x02")
        # A property may occur twice, and its name may be the end of another one's.
        once = not before or before[-1] == "\x02"
        if not once or uniq != unique or not unique or UNIQUE in after or len(text) > MOST_CHARACTERS:
            return
        if now_ms // 1000 != self._second:
            self._second, self._learnt = now_ms // 1000, 0
        if self._learnt >= A_SECOND:
            return
        self._learnt += 1
        if len(self.known) >= MOST:
            del self.known[next(iter(self.known))]
        start, _, end = stored.partition(UNIQUE + unique)
        self.known[before, after] = (start + UNIQUE, end, tags_code)
