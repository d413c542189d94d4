"""Numbers in texts of strangers: digits of other scripts, signs, spaces and underscores are no numbers."""

from __future__ import annotations

import pytest
from gantry_broker.http.query import WholeNumber
from gantry_broker.settings import BrokerSettings
from pydantic import TypeAdapter, ValidationError

ODD = ["1_000", "+5", " 5", "5 ", "5.0", "1e3", "\u0665", "\u00b2", "5\n", "", "-0", "0x5", "9" * 50]


@pytest.mark.parametrize("text", ODD)
def test_a_query_has_none_of_them(text: str) -> None:
    with pytest.raises(ValidationError):
        TypeAdapter(WholeNumber).validate_python(text)


@pytest.mark.parametrize("text", ODD)
@pytest.mark.parametrize("name", [n for n, f in BrokerSettings.model_fields.items() if f.annotation is int])
def test_a_setting_has_none_of_them(name: str, text: str) -> None:
    with pytest.raises(ValidationError):
        BrokerSettings.model_validate({name: text})


def test_plain_ones_are_read() -> None:
    assert TypeAdapter(WholeNumber).validate_python("0005") == 5
    assert BrokerSettings.model_validate({"maxTopics": "1000"}).maxTopics == 1_000
    assert BrokerSettings.model_validate({"maxTopics": 1_000, "deleteWhen": "04"}).maxTopics == 1_000
