"""The pauses before a consumer group gets a message again: `groupRetryPolicy` of its configuration (5.x)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Self

from gantry_broker.protocol.digits import MAX_LONG, MIN_LONG
from gantry_broker.protocol.fields import BodyError, Fields, short

CUSTOMIZED: Final = "CUSTOMIZED"
EXPONENTIAL: Final = "EXPONENTIAL"
STEPS_S: Final = (1, 5, 10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1_200, 1_800, 3_600, 7_200)
"""Pauses of a group that names none."""
MAX_STEPS: Final = 1_000
MAX_PAUSE_MS: Final = 40 * 86_400_000
"""As long as a message can be delayed."""
MAX_MULTIPLIER: Final = 1_000
_MOST_TIMES: Final = 32
_FIRST_STEP: Final = 2
"""The step of a message that was delivered once: as the delay levels of retries, which begin with the third."""


@dataclass(frozen=True, slots=True)
class Exponential:
    """A first pause in ms, the factor of each further one, and the longest."""

    initial_ms: int = 5_000
    max_ms: int = 7_200_000
    multiplier: int = 2


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """A policy has the values of one type; those of the other are kept too, as RocketMQ keeps them."""

    type: str = CUSTOMIZED
    exponential: Exponential | None = None
    steps_ms: tuple[int, ...] | None = None

    @classmethod
    def from_json(cls, value: Any, where: str = "groupRetryPolicy") -> Self:
        """Read the policy. Raises BodyError."""
        fields = Fields(value, where)
        kind = fields.text("type", CUSTOMIZED)
        if kind not in (CUSTOMIZED, EXPONENTIAL):
            raise BodyError(f"the field {where}.type is {short(kind)}; {CUSTOMIZED} or {EXPONENTIAL} is expected")
        exponential = steps = None
        if "exponentialRetryPolicy" in fields.names():
            inner = f"{where}.exponentialRetryPolicy"
            given = Fields(fields.map("exponentialRetryPolicy"), inner)
            default = Exponential()
            exponential = Exponential(
                _within(inner, "initial", given.long("initial", default.initial_ms), MAX_PAUSE_MS),
                _within(inner, "max", given.long("max", default.max_ms), MAX_PAUSE_MS),
                _within(inner, "multiplier", given.long("multiplier", default.multiplier), MAX_MULTIPLIER, 1),
            )
        if "customizedRetryPolicy" in fields.names():
            inner = f"{where}.customizedRetryPolicy"
            given = Fields(fields.map("customizedRetryPolicy"), inner)
            if "next" in given.names():
                numbers = given.numbers("next", MIN_LONG, MAX_LONG)
                if not 1 <= len(numbers) <= MAX_STEPS:
                    raise BodyError(
                        f"the field {inner}.next has {len(numbers)} pauses; 1 to {MAX_STEPS} of them are expected"
                    )
                steps = tuple(_within(inner, "next", number, MAX_PAUSE_MS) for number in numbers)
        return cls(kind, exponential, steps)

    def to_json(self) -> dict[str, Any]:
        value: dict[str, Any] = {"type": self.type}
        if self.exponential is not None:
            value["exponentialRetryPolicy"] = {
                "initial": self.exponential.initial_ms,
                "max": self.exponential.max_ms,
                "multiplier": self.exponential.multiplier,
            }
        if self.steps_ms is not None:
            value["customizedRetryPolicy"] = {"next": list(self.steps_ms)}
        return value

    @property
    def backoff(self) -> Exponential | tuple[int, ...]:
        """The values of its type."""
        if self.type == EXPONENTIAL:
            return self.exponential or Exponential()
        return self.steps_ms or tuple(seconds * 1_000 for seconds in STEPS_S)

    def pause_ms(self, reconsume_times: int) -> int:
        """Return the pause before the next delivery of a message that was retried so often."""
        times = max(reconsume_times, 0)
        backoff = self.backoff
        if isinstance(backoff, Exponential):
            factor: int = backoff.multiplier ** min(times, _MOST_TIMES)
            return min(backoff.max_ms, backoff.initial_ms * factor)
        return backoff[min(times + _FIRST_STEP, len(backoff) - 1)]


DEFAULT: Final = RetryPolicy()
"""Of a group that names none."""


def _within(where: str, name: str, value: int, most: int, least: int = 0) -> int:
    if not least <= value <= most:
        raise BodyError(f"the field {where}.{name} is {value}; a whole number from {least} to {most} is expected")
    return value
