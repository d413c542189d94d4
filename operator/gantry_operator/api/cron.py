"""Cron schedules as Kubernetes reads them: validation with clear messages, and the next run by `cronsim`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from cronsim import CronSim, CronSimError
from pydantic import ValidationInfo
from pydantic_core import PydanticCustomError

from gantry_operator.api.base import CRON_FIELDS

_NICKNAMES: Final = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}


_ANY_TIME: Final = datetime(2024, 1, 1, tzinfo=UTC)


class ScheduleError(ValueError):
    """A schedule or a time zone that cannot be read. The message names the part and what to write instead."""


def parse(text: str) -> str:
    """Return five valid fields, also for a nickname such as @daily. Raises ScheduleError.

    `cronsim` takes more (seconds, L, #), which a CronJob refuses; so each field must have its pattern, too.
    """
    expanded = _NICKNAMES.get(text.strip().lower(), text).replace("?", "*")
    if expanded.startswith("@"):
        raise ScheduleError(f"schedule {text!r}: there is no such nickname; write one of {', '.join(_NICKNAMES)}")
    fields = expanded.split()
    if len(fields) != len(CRON_FIELDS):
        raise ScheduleError(
            f"schedule {text!r} has {len(fields)} fields; write five: minute, hour, day of month, month, day of week, "
            f"for example '0 3 * * *' for every day at 3"
        )
    for place, (field, (name, pattern)) in enumerate(zip(fields, CRON_FIELDS.items(), strict=True)):
        alone = ["*"] * place + [field] + ["*"] * (len(fields) - 1 - place)
        if re.fullmatch(pattern, field, re.ASCII) is None or _simulation(alone, _ANY_TIME) is None:
            raise ScheduleError(
                f"schedule {text!r}: {field!r} is no {name}; write numbers, *, ranges such as 1-5, steps such as */5, "
                f"and lists of these with commas"
            )
    return " ".join(fields)


def _simulation(fields: Sequence[str], after: datetime) -> CronSim | None:
    try:
        return CronSim(" ".join(fields), after)
    except CronSimError:
        return None


def zone(name: str | None) -> ZoneInfo:
    """Return the time zone of a schedule; UTC without a name. Raises ScheduleError."""
    try:
        return ZoneInfo(name or "UTC")
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise ScheduleError(f"timeZone {name!r} is unknown; write one such as Europe/Berlin, or leave it out") from None


def next_run(text: str, time_zone: str | None, after: datetime) -> datetime | None:
    """Return the first time after `after` (with a time zone) at which a schedule is due, in UTC; None: never.

    Raises ScheduleError.
    """
    runs = _simulation(parse(text).split(), after.astimezone(zone(time_zone)))
    due = None if runs is None else next(runs, None)  # None: valid fields of a day that no year has.
    return None if due is None else due.astimezone(UTC)


def refuse_never(text: str) -> None:
    """Check that a schedule comes at some time. Raises ScheduleError for a schedule that cannot be read, or that has no
    day, such as February 30.
    """
    if next_run(text, None, _ANY_TIME) is None:
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
