"""Options of `gantry topic create` and `change`, as fields of a BrokerTopic."""

from __future__ import annotations

from typing import Any

import pytest
from gantry_operator.cli.errors import CliError
from gantry_operator.cli.topic_commands import settings_of


@pytest.mark.parametrize(
    ("attribute", "settings"),
    [
        ("cleanup.policy=COMPACTION", {"cleanupPolicy": "Compact"}),
        ("cleanup.policy=DELETE", {"cleanupPolicy": "Delete"}),
        ("a.b=c", {"config": {"a.b": "c"}}),
        ("a.b=", {"config": {"a.b": None}}),
    ],
)
def test_attributes_of_a_topic(attribute: str, settings: dict[str, Any]) -> None:
    assert settings_of(None, None, None, None, None, [attribute]) == settings


@pytest.mark.parametrize(
    ("attribute", "error"),
    [
        ("cleanup.policy=compact", "write cleanup.policy=COMPACTION or DELETE"),
        ("message.type=FIFO", "write --type FIFO"),
        ("retention.ms=60000", "write --retention 7d"),
        ("delete.retention.ms=60000", "write `gantry topic compact TOPIC --tombstones 24h`"),
        ("a", "write name=value"),
    ],
)
def test_an_attribute_with_an_option_names_it(attribute: str, error: str) -> None:
    with pytest.raises(CliError, match=f"--attribute '{attribute}': {error}"):
        settings_of(None, None, None, None, None, [attribute])
