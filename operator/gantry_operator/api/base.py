"""Common parts of the resource's models: strict fields, and rules for Python and the API server.

A `Rule` states one condition twice: as CEL for the API server and as a Python function for local mode. Both give the
same message, which names the field and the value to write. Tests compare the two.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema, model_validator
from pydantic_core import PydanticCustomError

QUANTITY = r"^(\d+|\d+\.\d+|\.\d+)(m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei)?$"
_DURATION = r"^(\d+h)?(\d+m)?(\d+s)?(\d+ms)?$"
_WINDOW = r"^\d+[smhd]$"
_VOLUME = r"^\d+(\.\d+)?(Ki|Mi|Gi|Ti|Pi|k|M|G|T|P)?$"
_URL = r"^https?://[^\s/]+[^\s]*$"
_OCTET = r"(25[0-5]|2[0-4]\d|1?\d?\d)"
SOURCE = rf"^({_OCTET}(\.{_OCTET}){{3}}(/(3[0-2]|[12]?\d))?|[0-9a-fA-F]*:[0-9a-fA-F:.]*(/(12[0-8]|1[01]\d|[1-9]?\d))?)$"
ACCESS_KEY = r"^[A-Za-z0-9._-]+$"
GROUP_NAME = r"^[a-z][a-z0-9]*$"
BROKER_NAME = r"^[a-zA-Z0-9][a-zA-Z0-9_-]*$"
HOST = r"^[a-zA-Z0-9.{}_-]+$"
TOPIC = r"^[%|a-zA-Z0-9_-]+$"
RESOURCE = r"^[%|a-zA-Z0-9._-]*$"
OBJECT_NAME = r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"
SECRET_KEY = r"^[-._a-zA-Z0-9]+$"
ADDRESS = r"^[A-Za-z0-9.:\[\]_-]+:[0-9]{1,5}$"
NETWORK = r"^[0-9a-fA-F.:]+/[0-9]{1,3}$"
_AREA = "Africa|America|Antarctica|Arctic|Asia|Atlantic|Australia|Etc|Europe|Indian|Pacific"
ZONE = rf"^(({_AREA})(/[A-Za-z0-9_+-]+)+|[A-Z][A-Za-z0-9+-]*)$"
ARCHIVE_URL = r"^((s3|gs|az)://[^\s/?#@]+(/[^\s?#]*)?|file:///[^\s?#]+)$"
TIME = r"^\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}(\.\d{1,6})?(Z|[+-]\d{2}:\d{2})$"
OWNER = r"^[A-Za-z0-9._-]{1,128}$"
HOURS = r"^([01]\d|2[0-3])(;([01]\d|2[0-3]))*$"
LEVELS = r"^\d+[smhd]( \d+[smhd])*$"


def _cron_field(value: str) -> str:
    piece = rf"([*?]|{value}(-{value})?)(/[1-9]\d?)?"
    return rf"{piece}(,{piece})*"


CRON_FIELDS = {
    "minute": _cron_field(r"[0-5]?\d"),
    "hour": _cron_field(r"([01]?\d|2[0-3])"),
    "day of month": _cron_field(r"(0?[1-9]|[12]\d|3[01])"),
    "month": _cron_field(r"(0?[1-9]|1[0-2]|(?i:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec))"),
    "day of week": _cron_field(r"([0-7]|(?i:sun|mon|tue|wed|thu|fri|sat))"),
}
CRON = rf"^(@(hourly|daily|weekly|monthly|yearly|annually|midnight)|{' +'.join(CRON_FIELDS.values())})$"
"""A schedule with numbers in their ranges. `cron.parse` reads it, and finds what a pattern cannot."""
EVERY = r"^([1-9]\d{0,6}[smhd]|Continuous)$"
TABLE_NAMESPACE = r"^[a-z][a-z0-9_]*$"
LABEL_VALUE = r"^([A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?)?$"
FORMS = {
    QUANTITY: "an amount like 250m, 2 or 512Mi",
    _DURATION: "a time span like 500ms, 2s or 1m30s",
    _WINDOW: "a time span in one unit, like 30m, 12h or 7d",
    _VOLUME: "a size like 10Gi",
    _URL: "a URL like http://collector:4318",
    SOURCE: "an address or a network like 10.0.0.0/8",
    LABEL_VALUE: "letters, digits, '.', '_' and '-', with a letter or digit at both ends",
    ACCESS_KEY: "a name of letters, digits, '.', '_' and '-'",
    GROUP_NAME: "lower-case letters and digits, a letter first",
    BROKER_NAME: "letters, digits, '_' and '-', a letter or digit first",
    HOST: "a host name, in which {cluster}, {namespace}, {group} and {name} are filled in",
    TOPIC: "a name of letters, digits, '%', '|', '_' and '-', as RocketMQ has it",
    RESOURCE: "a name of letters, digits, '%', '|', '.', '_' and '-'",
    OBJECT_NAME: "the name of an object: lower-case letters, digits, '-' and '.'",
    SECRET_KEY: "a key of a Secret: letters, digits, '-', '.' and '_'",
    ADDRESS: "a host and a port like 192.0.2.10:9876",
    NETWORK: "a network like 10.0.0.0/8",
    ARCHIVE_URL: "s3://BUCKET/PREFIX, gs://BUCKET/PREFIX, az://CONTAINER/PREFIX or file:///FOLDER",
    TIME: "a time like 2026-01-31T12:00:00Z",
    OWNER: "letters, digits, '.', '_' and '-'",
    CRON: "five fields (minute, hour, day of month, month, day of week) like 0 3 * * *, or @daily",
    ZONE: "a time zone like Europe/Berlin",
    TABLE_NAMESPACE: "lower-case letters, digits and '_', a letter first",
    EVERY: "a time span in one unit, like 30s, 5m or 1d, or Continuous",
    HOURS: "hours of two digits like 04, separated by ';'",
    LEVELS: "time spans like 1s 5s 10s 30s 1m",
}
"""The expected form of each pattern, in words."""
_DURATION_PART = re.compile(r"([0-9]+)(ms|h|m|s|d)")
_UNIT_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_UNIT_BYTES = {
    "": 1.0, "m": 0.001, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18,
    "Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40, "Pi": 2.0**50, "Ei": 2.0**60,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule over the fields of one model. `field` is where the message is shown, relative to the model."""

    cel: str
    message: str
    check: Callable[[Any], bool]
    field: str = ""

    def schema(self) -> dict[str, str]:
        out = {"rule": self.cel, "message": self.message}
        if self.field:
            out["fieldPath"] = f".{self.field}"
        return out


class Observed(BaseModel):
    """A part of a status. Fields that another version of the operator has written are ignored."""

    model_config = ConfigDict(extra="ignore", defer_build=True)

    def to_object(self) -> dict[str, Any]:
        """As JSON for the Kubernetes API, without absent fields."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)


class AnyCondition(Observed):
    """One aspect of the state, as in every Kubernetes object. A kind of resource narrows `type`."""

    type: str
    status: Literal["True", "False", "Unknown"] = Field(description="Whether the condition is true.")
    reason: str = Field(description="One word, for programs.")
    message: str = Field("", description="The state and the remedy, in words for users.")
    lastTransitionTime: str = Field(description="Time of the last change of status.")
    observedGeneration: int | None = Field(None, description="Generation of the spec that this describes.")


class Strict(BaseModel):
    """A part of the spec. Unknown fields are refused, and values of another type, as the API server does: neither
    true nor "1" is a whole number.
    """

    model_config = ConfigDict(extra="forbid", strict=True, defer_build=True)


class Model(Strict):
    """A part of the spec with rules, which are checked once the fields are valid."""

    rules: ClassVar[tuple[Rule, ...]] = ()
    transitions: ClassVar[tuple[dict[str, str], ...]] = ()
    """CEL rules that compare with `oldSelf`: only the API server knows the former value."""

    @model_validator(mode="after")
    def _keep_rules(self) -> Self:
        for rule in self.rules:
            if not rule.check(self):
                raise PydanticCustomError("rule", "{message}", {"message": rule.message, "field": rule.field})
        return self

    @classmethod
    def schema_rules(cls) -> list[dict[str, str]]:
        """Return the `x-kubernetes-validations` of this model."""
        return [r.schema() for r in cls.rules] + list(cls.transitions)


def present(path: str) -> str:
    """CEL: whether a path such as self.security.tls is there, with all its parts."""
    parts = path.split(".")
    return " && ".join(f"has({'.'.join(parts[:n])})" for n in range(2, len(parts) + 1))


def either(path: str, default: str | int | bool) -> str:
    """CEL: the value at a path, or the default if it is absent. The API server stores no defaults, so every optional
    field may be absent.
    """
    literal = repr(default) if isinstance(default, str) else str(default).lower()
    return f"({present(path)} ? {path} : {literal})"


def fixed(path: str, default: str | int | bool, message: str) -> dict[str, str]:
    """Return a transition rule of the spec: the value at a path (as self.mode) is fixed once the cluster exists."""
    return {
        "rule": f"{either(path, default)} == {either(f'oldSelf{path[4:]}', default)}",
        "message": message,
        "fieldPath": path[4:],
    }


def between(field: str, low: str, high: str) -> str:
    """CEL: a time span lies between two others, if it is written and is one."""
    value = f"self.{field}"
    return (
        f"!has({value}) || !{value}.matches({_raw(_DURATION)}) || "
        f"(duration({value}) >= duration('{low}') && duration({value}) <= duration('{high}'))"
    )


def form_rule(pattern: str, value: str = "self") -> dict[str, str] | None:
    """Return the rule in place of a pattern, whose refusal the API server words as the bare regular expression. None:
    the pattern has no words, or the rule costs the API server too much.
    """
    if pattern not in FORMS or pattern == SOURCE:
        return None
    return {"rule": f"{value}.matches({_raw(pattern)})", "message": f"it is not usable: write {FORMS[pattern]}"}


def _raw(pattern: str) -> str:
    return f"r'{pattern}'"


def parse_quantity(text: str) -> float:
    """Return a Kubernetes quantity as a number: "512Mi" is 536870912.0, "250m" is 0.25. Raises ValueError."""
    match = re.fullmatch(r"([0-9]+|[0-9]+\.[0-9]+|\.[0-9]+)([a-zA-Z]{0,2})", text)
    if match is None or match[2] not in _UNIT_BYTES:
        raise ValueError(f"{text!r} is no quantity; write for example 512Mi, 10Gi or 250m")
    return float(match[1]) * _UNIT_BYTES[match[2]]


def parse_duration(text: str) -> float:
    """Seconds of "2s", "500ms", "1m30s", "7d". Raises ValueError."""
    parts = _DURATION_PART.findall(text)
    if not parts or "".join(n + u for n, u in parts) != text:
        raise ValueError(f"{text!r} is no duration; write for example 2s, 500ms or 1m30s")
    return sum(int(n) * _UNIT_SECONDS[u] for n, u in parts)


def is_amount(text: str) -> bool:
    return re.fullmatch(QUANTITY, text, re.ASCII) is not None


def _number_to_text(value: Any) -> Any:
    return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value


def _ascii(text: str) -> str:
    """Refuse others: patterns of the API server mean ASCII digits by `\\d`, pydantic's those of all scripts."""
    if not text.isascii():
        raise ValueError(f"{text[:40]!r} has characters outside ASCII: write the digits 0 to 9")
    return text


Quantity = Annotated[
    str,
    BeforeValidator(_number_to_text),
    AfterValidator(_ascii),
    Field(pattern=QUANTITY, max_length=24),
    WithJsonSchema(
        {
            "anyOf": [{"type": "integer"}, {"type": "string"}],
            "pattern": QUANTITY,
            "maxLength": 24,
            "x-kubernetes-int-or-string": True,
        }
    ),
]
"""An amount as in any pod spec: 250m, 2, 512Mi."""

Duration = Annotated[str, Field(pattern=_DURATION, min_length=2, max_length=32), AfterValidator(_ascii)]
"""A time span: 500ms, 2s, 1m30s."""

Url = Annotated[str, Field(pattern=_URL, min_length=8, max_length=512)]
"""An address on the web: http://collector:4318."""

Window = Annotated[str, Field(pattern=_WINDOW, max_length=16), AfterValidator(_ascii)]
"""A longer time span in one unit: 30m, 12h, 7d."""

VolumeSize = Annotated[str, Field(pattern=_VOLUME, max_length=24), AfterValidator(_ascii)]
"""Bytes of a volume with a unit: 10Gi."""


def more_than_nothing(field: str) -> Rule:
    """Return the rule for a field of type VolumeSize."""
    return Rule(
        f"!has(self.{field}) || !isQuantity(self.{field}) || quantity(self.{field}).isGreaterThan(quantity('0'))",
        f"{field} is 0: write a size above 0, for example 10Gi",
        lambda part: parse_quantity(getattr(part, field)) > 0,
        field,
    )
