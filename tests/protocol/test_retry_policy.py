"""`groupRetryPolicy` as `mqadmin updateSubGroup -p` sends it, and the pauses that RocketMQ computes from it."""

from __future__ import annotations

from typing import Any

import pytest
from gantry_broker.protocol.bodies import SubscriptionGroup
from gantry_broker.protocol.fields import BodyError
from gantry_broker.protocol.retry_policy import EXPONENTIAL, Exponential, RetryPolicy

FORMS: list[dict[str, Any]] = [
    {"type": "CUSTOMIZED"},
    {"type": "CUSTOMIZED", "customizedRetryPolicy": {"next": [1000, 5000, 10000]}},
    {"type": "EXPONENTIAL", "exponentialRetryPolicy": {"initial": 5000, "max": 7200000, "multiplier": 2}},
    {
        "type": "EXPONENTIAL",
        "exponentialRetryPolicy": {"initial": 1, "max": 2, "multiplier": 3},
        "customizedRetryPolicy": {"next": [0]},
    },
]


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_a_group_keeps_its_policy(form: dict[str, Any]) -> None:
    group = SubscriptionGroup.from_json({"groupName": "g", "groupRetryPolicy": form})
    assert group.to_json()["groupRetryPolicy"] == form
    assert SubscriptionGroup.from_json(group.to_json()) == group


def test_a_group_without_a_policy_has_that_of_delay_levels() -> None:
    policy = SubscriptionGroup.from_json({"groupName": "g"}).retry_policy
    assert policy == SubscriptionGroup.from_json({"groupName": "g", "groupRetryPolicy": None}).retry_policy
    # As CustomizedRetryPolicyTest and ExponentialRetryPolicyTest of RocketMQ 5.5.0.
    assert [policy.pause_ms(times) for times in (-1, 0, 1, 15, 16, 100)] == [
        10_000, 10_000, 30_000, 7_200_000, 7_200_000, 7_200_000,
    ]  # fmt: skip


def test_pauses() -> None:
    policy = RetryPolicy(EXPONENTIAL)
    assert [policy.pause_ms(times) for times in (-1, 0, 1, 10, 32, 1_000)] == [
        5_000, 5_000, 10_000, 5_120_000, 7_200_000, 7_200_000,
    ]  # fmt: skip
    assert RetryPolicy(EXPONENTIAL, Exponential(7, 10**9, 1_000)).pause_ms(33) == 10**9
    assert RetryPolicy(steps_ms=(1, 2)).pause_ms(0) == 2


@pytest.mark.parametrize(
    ("form", "words"),
    [
        (7, "groupRetryPolicy is 7; an object"),
        ({"type": "LINEAR"}, "groupRetryPolicy.type is 'LINEAR'; CUSTOMIZED or EXPONENTIAL"),
        ({"customizedRetryPolicy": {"next": []}}, "next has 0 pauses; 1 to 1000"),
        ({"customizedRetryPolicy": {"next": [1] * 1_001}}, "next has 1001 pauses; 1 to 1000"),
        ({"customizedRetryPolicy": {"next": [-1]}}, "customizedRetryPolicy.next is -1; a whole number from 0"),
        ({"customizedRetryPolicy": {"next": [1.5]}}, "next is 1.5; a whole number"),
        (
            {"exponentialRetryPolicy": {"multiplier": 0}},
            "exponentialRetryPolicy.multiplier is 0; a whole number from 1",
        ),
        ({"exponentialRetryPolicy": {"max": 2**62}}, "exponentialRetryPolicy.max is 4611686018427387904"),
    ],
)
def test_a_bad_policy_names_its_field(form: object, words: str) -> None:
    with pytest.raises(BodyError) as caught:
        SubscriptionGroup.from_json({"groupName": "g", "groupRetryPolicy": form})
    assert words in str(caught.value)
