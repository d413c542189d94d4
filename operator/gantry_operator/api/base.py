"""Common parts of the resource's models: strict fields, and rules for Python and the API server.

A `Rule` states one condition twice: as CEL for the API server and as a Python function for local mode. Both give the
same message, which names the field and the value to write. Tests compare the two.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema, model_validator
from pydantic_core import PydanticCustomError

_QUANTITY = r"^(\d+|\d+\.\d+|\.\d+)(m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei)?$"
_DURATION = r"^(\d+h)?(\d+m)?(\d+s)?(\d+ms)?$"
_WINDOW = r"^\d+[smhd]$"
_VOLUME = r"^\d+(\.\d+)?(Ki|Mi|Gi|Ti|Pi|k|M|G|T|P)?$"
_URL = r"^https?://[^\s/]+[^\s]*$"
_OCTET = r"(25[0-5]|2[0-4]\d|1?\d?\d)"
SOURCE = rf"^({_OCTET}(\.{_OCTET}){{3}}(/(3[0-2]|[12]?\d))?|[0-9a-fA-F]*:[0-9a-fA-F:.]*(/(12[0-8]|1[01]\d|[1-9]?\d))?)$"
ACCESS_KEY = r"^[A-Za-z0-9._-]+$"
BROKER_NAME = r"^[%|a-zA-Z0-9_-]+$"
"""RocketMQ's own rule for the names of topics and groups."""
FORMS = {
    _QUANTITY: "an amount like 250m, 2 or 512Mi",
    _DURATION: "a time span like 500ms, 2s or 1m30s",
    _WINDOW: "a time span in one unit, like 30m, 12h or 7d",
    _VOLUME: "a size like 10Gi",
    _URL: "a URL like http://collector:4318",
    SOURCE: "an address or a network like 10.0.0.0/8",
    BROKER_NAME: "a name of letters, digits, '-', '_', '%' and '|'",
    ACCESS_KEY: "a name of letters, digits, '.', '_' and '-'",
}
"""The expected form of each pattern, in words."""
_DURATION_PART = re.compile(r"(\d+)(ms|h|m|s|d)")
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


class Strict(BaseModel):
    """A part of the spec. Unknown fields are refused."""

    model_config = ConfigDict(extra="forbid")


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
        """The `x-kubernetes-validations` of this model."""
        return [r.schema() for r in cls.rules] + list(cls.transitions)


def immutable(message: str) -> dict[str, Any]:
    """`json_schema_extra` of a field that cannot change once the cluster exists."""
    return {"x-kubernetes-validations": [{"rule": "self == oldSelf", "message": message}]}


def parse_quantity(text: str) -> float:
    """A Kubernetes quantity as a number: "512Mi" is 536870912.0, "250m" is 0.25. Raises ValueError."""
    match = re.fullmatch(r"(\d+|\d+\.\d+|\.\d+)([a-zA-Z]{0,2})", text)
    if match is None or match[2] not in _UNIT_BYTES:
        raise ValueError(f"{text!r} is no quantity; write for example 512Mi, 10Gi or 250m")
    return float(match[1]) * _UNIT_BYTES[match[2]]


def parse_duration(text: str) -> float:
    """Seconds of "2s", "500ms", "1m30s", "7d". Raises ValueError."""
    parts = _DURATION_PART.findall(text)
    if not parts or "".join(n + u for n, u in parts) != text:
        raise ValueError(f"{text!r} is no duration; write for example 2s, 500ms or 1m30s")
    return sum(int(n) * _UNIT_SECONDS[u] for n, u in parts)


def _number_to_text(value: Any) -> Any:
    return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value


Quantity = Annotated[
    str,
    BeforeValidator(_number_to_text),
    Field(pattern=_QUANTITY, max_length=24),
    WithJsonSchema(
        {
            "anyOf": [{"type": "integer"}, {"type": "string"}],
            "pattern": _QUANTITY,
            "maxLength": 24,
            "x-kubernetes-int-or-string": True,
        }
    ),
]
"""An amount as in any pod spec: 250m, 2, 512Mi."""

Duration = Annotated[str, Field(pattern=_DURATION, min_length=2, max_length=32)]
"""A time span: 500ms, 2s, 1m30s."""

Url = Annotated[str, Field(pattern=_URL, min_length=8, max_length=512)]
"""An address on the web: http://collector:4318."""

Window = Annotated[str, Field(pattern=_WINDOW, max_length=16)]
"""A longer time span in one unit: 30m, 12h, 7d."""

VolumeSize = Annotated[str, Field(pattern=_VOLUME, max_length=24)]
"""Bytes of a volume with a unit: 10Gi."""


def more_than_nothing(field: str) -> Rule:
    """The rule for a field of type VolumeSize."""
    return Rule(
        f"!has(self.{field}) || quantity(self.{field}).isGreaterThan(quantity('0'))",
        f"{field} is 0: write a size above 0, for example 10Gi",
        lambda part: parse_quantity(getattr(part, field)) > 0,
        field,
    )
