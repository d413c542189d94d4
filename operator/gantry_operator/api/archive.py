"""`spec.archive` and `spec.bootstrap`: a copy of the logs in object storage, and a cluster that begins with one."""

from __future__ import annotations

import re
from datetime import datetime
from typing import ClassVar, Final, Literal

from gantry_broker.archive.errors import ArchiveError
from gantry_broker.archive.objects import check_url
from pydantic import Field, field_validator
from pydantic_core import PydanticCustomError

from gantry_operator.api import cron
from gantry_operator.api.base import (
    ARCHIVE_URL,
    CRON,
    OBJECT_NAME,
    OWNER,
    TIME,
    ZONE,
    Duration,
    Model,
    Rule,
    Url,
    VolumeSize,
    Window,
    between,
    more_than_nothing,
    parse_duration,
)
from gantry_operator.api.migration import FromRocketMQ

ENCRYPTION_KEY = "encryptionKey"
"""The key of a Secret that has the encryption's key."""


def moment_ms(text: str) -> int:
    """Return a time in Unix milliseconds. Raises ValueError with what to write."""
    example = "write for example 2026-01-31T12:00:00Z"
    if re.fullmatch(TIME, text) is None:
        raise ValueError(f"{text!r} is no time with a zone: {example}")
    try:
        return int(datetime.fromisoformat(text).timestamp() * 1000)
    except ValueError as error:
        raise ValueError(f"it is no time ({error}): {example}") from None


class Encryption(Model):
    """Client-side encryption: the object store sees neither messages nor the key."""

    secretName: str = Field(
        description="Secret whose key encryptionKey has 32 random bytes in Base64. It cannot be changed for an archive "
        "that exists. Without it the archive cannot be read.",
        min_length=1,
        max_length=253,
        pattern=OBJECT_NAME,
    )


class ArchivePlace(Model):
    """Where an archive lies, and how to reach it."""

    url: str = Field(
        description="s3://BUCKET/PREFIX, gs://BUCKET/PREFIX, az://CONTAINER/PREFIX, or file:///FOLDER for a folder "
        "that all brokers share.",
        pattern=ARCHIVE_URL,
        min_length=6,
        max_length=1024,
    )
    endpoint: Url | None = Field(
        None, description="URL of a server that speaks the protocol of S3. Default: the cloud's own."
    )
    region: str | None = Field(
        None, description="Region of the bucket. Default: us-east-1.", min_length=1, max_length=64
    )
    credentialsSecret: str | None = Field(
        None,
        description="Secret with accessKeyId and secretAccessKey (s3), serviceAccountKey (gs), or accountName and "
        "accountKey (az). Default: the identity of the pods (serviceAccountAnnotations); on one machine the "
        "environment, such as AWS_ACCESS_KEY_ID.",
        min_length=1,
        max_length=253,
        pattern=OBJECT_NAME,
    )
    encryption: Encryption | None = Field(None, description="Client-side encryption. Default: none.")

    @field_validator("url")
    @classmethod
    def _can_be(cls, url: str) -> str:
        try:
            check_url(url)
        except ArchiveError as error:
            raise PydanticCustomError("rule", "{message}", {"message": str(error), "field": ""}) from None
        return url


class Verification(Model):
    """All of the archive is read back on a schedule, beside the brokers: by a Job, or by a process of this machine."""

    schedule: str = Field(
        "0 3 * * 0",
        description="Schedule as in a CronJob: minute, hour, day of month, month, day of week; or @weekly.",
        pattern=CRON,
        max_length=128,
    )
    timeZone: str | None = Field(
        None,
        description="Time zone of the schedule, for example Europe/Berlin. Default: the control plane's.",
        max_length=64,
        pattern=ZONE,
    )
    rate: VolumeSize = Field("64Mi", description="Bytes a second that are read at most.")

    _can_be_due = field_validator("schedule", "timeZone")(cron.can_be_due)

    rules: ClassVar[tuple[Rule, ...]] = (more_than_nothing("rate"),)


class Archive(ArchivePlace):
    """A copy of each group's confirmed log in object storage: for restores, long retention and analytics."""

    owner: str | None = Field(
        None,
        description="Unique id of the cluster that the archive belongs to. Default: the resource's uid, so a cluster "
        "that is made again with its volumes needs the former one here to go on.",
        min_length=1,
        max_length=128,
        pattern=OWNER,
    )
    interval: Duration = Field(
        "60s", description="How much may be missing: confirmed records are uploaded after so long at the latest."
    )
    retention: Window | None = Field(
        None, description="The recovery window: how far back one can restore, at least. Default: for ever."
    )
    compression: Literal["Zstd", "None"] = Field("Zstd", description="Compression of the objects.")
    rateLimit: VolumeSize | None = Field(
        None, description="Bytes a second that each group uploads at most, for example 50Mi. Default: no limit."
    )
    maxLocalLag: VolumeSize = Field(
        "10Gi",
        description="Brokers keep expired records until they are archived, up to so many bytes. Beyond that they go "
        "unarchived, with an event and a condition.",
    )
    readCache: VolumeSize = Field(
        "1Gi",
        description="Messages that the disk of a broker no longer has are read from the archive. Each broker keeps so "
        "many bytes of it on its disk for readers. 0: such messages are not read.",
    )
    readRate: VolumeSize = Field("64Mi", description="Bytes a second that each broker fetches for readers at most.")
    verify: Verification | None = Field(
        None, description="When all of the archive is read back and checked. Default: only by gantry archive verify."
    )

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            between("interval", "1s", "24h"),
            "interval is out of range: write 1s to 24h",
            lambda a: 1 <= parse_duration(a.interval) <= 86_400,
            "interval",
        ),
        more_than_nothing("readRate"),
    )


class FromArchive(ArchivePlace):
    """The archive of another cluster, up to a moment. Groups are found by their names."""

    cluster: str | None = Field(
        None,
        description="Name of the archived cluster: another one is refused. Default: any.",
        min_length=1,
        max_length=63,
    )
    time: str | None = Field(
        None,
        description="Records stored after this time are left out, for example 2026-01-31T12:00:00Z. Default: all.",
        pattern=TIME,
        max_length=40,
    )
    offset: int | None = Field(
        None,
        ge=0,
        le=2**63 - 1,
        description="The log ends at or before this offset in bytes; for a cluster of one group.",
    )

    @field_validator("time")
    @classmethod
    def _is_a_time(cls, text: str | None) -> str | None:
        if text is not None:
            try:
                moment_ms(text)
            except ValueError as error:
                message = str(error)
                raise PydanticCustomError("rule", "{message}", {"message": message, "field": ""}) from None
        return text

    @property
    def time_ms(self) -> int | None:
        """The time in Unix milliseconds."""
        return None if self.time is None else moment_ms(self.time)

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "!has(self.time) || !has(self.offset)",
            "time and offset are both there: write one of them",
            lambda f: f.time is None or f.offset is None,
            "offset",
        ),
    )


class Follow(ArchivePlace):
    """The archive that another cluster writes. Groups are found by their names."""


class Bootstrap(Model):
    """What the cluster's empty disks begin with."""

    fromArchive: FromArchive | None = Field(
        None,
        description="The logs of an archive: topics, consumer groups, offsets, delayed messages and messages as they "
        "were at a moment. Users and their keys are not in it.",
    )
    fromRocketMQ: FromRocketMQ | None = Field(
        None, description="A running Apache RocketMQ: its log and the state beside it, until a cutover."
    )
    follow: Follow | None = Field(
        None,
        description="The cluster begins as a standby: its members copy the archive continuously, serve reads and "
        "refuse writes, until `gantry promote`. Afterwards this field changes nothing. archive.url is the same one: a "
        "promoted cluster goes on with the archive.",
    )

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "!has(self.fromArchive) || !has(self.fromRocketMQ)",
            "fromArchive and fromRocketMQ are both there: write one of them",
            lambda b: b.fromArchive is None or b.fromRocketMQ is None,
            "fromRocketMQ",
        ),
        Rule(
            "!has(self.follow) || !(has(self.fromArchive) || has(self.fromRocketMQ))",
            "follow is there beside fromArchive or fromRocketMQ: write one of them",
            lambda b: b.follow is None or (b.fromArchive is None and b.fromRocketMQ is None),
            "follow",
        ),
    )


BOOTSTRAP_IS_FIXED: Final = (
    "disks that get empty later would be filled with records that the others do not have; write it as before, "
    "leave it out once the cluster has begun, or make another cluster"
)
_FIXED: Final = {
    "fromArchive": ("url", "cluster", "time", "offset"),
    "fromRocketMQ": ("cluster", "brokers"),
    "follow": ("url",),
}
"""By field of `Bootstrap`: what says with which records a disk begins. How these are reached may change."""


def _stays(kind: str) -> str:
    """CEL: this field of `spec.bootstrap` is absent, or has the same records as before."""
    new, old = (f"{root}.bootstrap.{kind}" for root in ("self", "oldSelf"))
    same = "".join(
        f" && has({new}.{f}) == has({old}.{f}) && (!has({new}.{f}) || {new}.{f} == {old}.{f})" for f in _FIXED[kind]
    )
    return f"(!has({new}) || (has(oldSelf.bootstrap) && has({old}){same}))"


def fixed_bootstrap() -> dict[str, str]:
    """Return the transition rule of the spec: `bootstrap` may go, but not come or change once the cluster exists."""
    return {
        "rule": f"!has(self.bootstrap) || ({' && '.join(map(_stays, _FIXED))})",
        "message": f"bootstrap cannot be added or changed on a cluster that exists: {BOOTSTRAP_IS_FIXED}",
        "fieldPath": ".bootstrap",
    }


def changed_bootstrap(old: Bootstrap | None, new: Bootstrap | None) -> str:
    """Return the rule of `fixed_bootstrap` in words: what is refused, such as "bootstrap.follow was added"; empty:
    nothing.
    """
    for kind, fields in _FIXED.items():
        before, after = (None if b is None else getattr(b, kind) for b in (old, new))
        if after is None:
            continue
        if before is None:
            return f"bootstrap.{kind} was added"
        for field in fields:
            if (was := getattr(before, field)) != (now := getattr(after, field)):
                return f"bootstrap.{kind}.{field} is {now}, was {was}"
    return ""
