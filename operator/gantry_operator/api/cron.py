"""Cron schedules as Kubernetes reads them: validation with clear messages, and the next run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from gantry_broker.protocol.digits import whole_number
from pydantic import ValidationInfo
from pydantic_core import PydanticCustomError

_NICKNAMES: Final = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
_MONTHS: Final = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_DAYS: Final = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_FIELDS: Final = (
    ("minute", 0, 59, ()),
    ("hour", 0, 23, ()),
    ("day of month", 1, 31, ()),
    ("month", 1, 12, _MONTHS),
    ("day of week", 0, 7, _DAYS),
)
_LOOK_AHEAD: Final = timedelta(days=5 * 366)


class ScheduleError(ValueError):
    """A schedule or a time zone that cannot be read. The message names the part and what to write instead."""


@dataclass(frozen=True)
class Schedule:
    """The matching values by field. Day 0 is Sunday, day 6 Saturday."""

    minutes: frozenset[int]
    hours: frozenset[int]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]
    any_day: bool
    any_weekday: bool

    def on(self, day: datetime) -> bool:
        """Whether it runs on that day. If both kinds of days are restricted, one match is enough, as in every cron."""
        if day.month not in self.months:
            return False
        by_date = day.day in self.days
        by_week = (day.weekday() + 1) % 7 in self.weekdays
        if self.any_day or self.any_weekday:
            return by_date and by_week
        return by_date or by_week


def parse(text: str) -> Schedule:
    """Parse five fields or a nickname such as @daily. Raises ScheduleError."""
    expanded = _NICKNAMES.get(text.strip().lower(), text)
    if expanded.startswith("@"):
        raise ScheduleError(f"schedule {text!r}: there is no such nickname; write one of {', '.join(_NICKNAMES)}")
    fields = expanded.split()
    if len(fields) != len(_FIELDS):
        raise ScheduleError(
            f"schedule {text!r} has {len(fields)} fields; write five: minute, hour, day of month, month, day of week, "
            f"for example '0 3 * * *' for every day at 3"
        )
    values = [_field(text, given, *kind) for given, kind in zip(fields, _FIELDS, strict=True)]
    weekdays = frozenset(v % 7 for v in values[4])
    anywhere = ("*", "?")
    return Schedule(
        values[0], values[1], values[2], values[3], weekdays, fields[2][0] in anywhere, fields[4][0] in anywhere
    )


def _field(schedule: str, text: str, name: str, low: int, high: int, names: tuple[str, ...]) -> frozenset[int]:
    found: set[int] = set()
    for piece in text.split(","):
        span, slash, step_text = piece.partition("/")
        try:
            step = whole_number(step_text, 1) if slash else 1
            if step is None:
                raise ValueError
            if span in ("*", "?"):
                first, last = low, high
            else:
                begin, dash, end = span.partition("-")
                first = _number(begin, names, low)
                last = _number(end, names, low) if dash else (high if slash else first)
            if not low <= first <= last <= high:
                raise ValueError
        except ValueError:
            raise ScheduleError(
                f"schedule {schedule!r}: {piece!r} is no {name}; write numbers from {low} to {high}, *, ranges such as "
                f"{low}-{high}, steps such as */5, and lists of these with commas"
            ) from None
        found |= set(range(first, last + 1, step))
    return frozenset(found)


def _number(text: str, names: tuple[str, ...], low: int) -> int:
    """A number or a name; names count from the field's lowest value. Raises ValueError."""
    lowered = text.lower()
    if lowered in names:
        return names.index(lowered) + low
    number = whole_number(text)
    if number is None:
        raise ValueError(text)
    return number


def zone(name: str | None) -> ZoneInfo:
    """The time zone of a schedule; UTC without a name. Raises ScheduleError."""
    try:
        return ZoneInfo(name or "UTC")
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise ScheduleError(f"timeZone {name!r} is unknown; write one such as Europe/Berlin, or leave it out") from None


def next_run(text: str, time_zone: str | None, after: datetime) -> datetime | None:
    """The first time after `after` (with a time zone) at which a schedule is due, in UTC; None: never.

    Raises ScheduleError.
    """
    schedule = parse(text)
    local = after.astimezone(zone(time_zone))
    for day in _days(local):
        if not schedule.on(day):
            continue
        for hour in sorted(schedule.hours):
            for minute in sorted(schedule.minutes):
                due = day.replace(hour=hour, minute=minute).astimezone(UTC)
                if due > after.astimezone(UTC):
                    return due
    return None


def refuse_never(text: str) -> None:
    """Raises ScheduleError for a schedule that cannot be read, or that has no day, such as February 30."""
    if next_run(text, None, datetime(2024, 1, 1, tzinfo=UTC)) is None:
        raise ScheduleError("there is no such day: write a day that the month has, for example 0 3 28 2 *")


def can_be_due(value: str | None, info: ValidationInfo) -> str | None:
    """Find what the API server's pattern for the fields `schedule` and `timeZone` cannot: February 30, or a zone that
    does not exist.
    """
    try:
        if info.field_name == "timeZone":
            zone(value)
        elif value is not None:
            refuse_never(value)
    except ScheduleError as error:
        raise PydanticCustomError("rule", "{message}", {"message": str(error), "field": ""}) from None
    return value


def _days(start: datetime) -> Iterator[datetime]:
    day = start.replace(hour=0, minute=0, second=0, microsecond=0)
    end = day + _LOOK_AHEAD
    while day <= end:
        yield day
        day += timedelta(days=1)
