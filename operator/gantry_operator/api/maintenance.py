"""`spec.maintenanceWindow`: when members may be replaced for changes that are not urgent."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field, field_validator

from gantry_operator.api import cron
from gantry_operator.api.base import CRON, ZONE, Duration, Model, Rule, between, parse_duration


class MaintenanceWindow(Model):
    """Times in which members may be replaced because of a change of the spec or of the image.

    A member that does not work is replaced at any time, and failovers wait for nothing.
    """

    schedule: str = Field(
        description="Beginning of each window as in a CronJob: minute, hour, day of month, month, day of week; or "
        "@daily.",
        pattern=CRON,
        max_length=128,
    )
    duration: Duration = Field("2h", description="Length of each window, 5m to 168h. A change that has begun goes on.")
    timeZone: str | None = Field(
        None, description="Time zone of the schedule, for example Europe/Berlin. Default: UTC.", max_length=64,
        pattern=ZONE,
    )  # fmt: skip

    _can_be_due = field_validator("schedule", "timeZone")(cron.can_be_due)

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            between("duration", "5m", "168h"),
            "duration is out of range: write 5m to 168h",
            lambda w: 300 <= parse_duration(w.duration) <= 168 * 3600,
            "duration",
        ),
    )
