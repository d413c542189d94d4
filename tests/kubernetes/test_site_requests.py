"""Requests of `gantry demote` and `gantry promote` in an annotation: their form, and that each is answered once."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest
from gantry_operator.cluster.second_site import Refused
from gantry_operator.platforms.kubernetes.requests.site_request import (
    SITE,
    SITE_RESULT,
    SiteRequest,
    new_request,
    parse_request,
)
from gantry_operator.platforms.kubernetes.requests.site_requests import SiteRequests


def test_a_request_is_read_as_it_was_written() -> None:
    text = new_request("promote", "abc", accept_loss=False, timeout_s=30)
    assert parse_request(text) == SiteRequest("promote", "abc", False, 30.0)
    text = new_request("demote", "", accept_loss=True, timeout_s=0.2)
    assert parse_request(text) == SiteRequest("demote", "", True, 1.0)
    assert parse_request("demote") == SiteRequest("demote")


@pytest.mark.parametrize(
    "text",
    ["", "explode", "promote token=", "demote timeout=0", "demote timeout=٣", "promote timeout=99999999", "demote x"],
)  # fmt: skip
def test_what_is_no_request_says_what_to_write(text: str) -> None:
    with pytest.raises(ValueError, match="write "):
        parse_request(text)


class Resource:
    def __init__(self, **annotations: str) -> None:
        self.annotations: dict[str, str | None] = dict(annotations)
        self.obj = {"metadata": {"namespace": "n", "name": "x"}}
        self.version = 1

    def annotation(self, name: str) -> str | None:
        return self.annotations.get(name)

    async def annotate(self, changes: dict[str, str | None]) -> int:
        self.annotations.update(changes)
        return self.version + 1


class Sites:
    def __init__(self) -> None:
        self.asked: list[Any] = []

    async def demote(self, *, accept_loss: bool, timeout_s: float) -> str:
        self.asked.append(("demote", accept_loss))
        return "the-token"

    async def promote(self, token: str, *, accept_loss: bool, timeout_s: float) -> str:
        self.asked.append(("promote", token, accept_loss))
        raise Refused("another token")


async def test_a_request_under_a_refused_spec_gets_its_reason() -> None:
    resource, sites, ended = Resource(**{SITE: "demote #1"}), Sites(), asyncio.Event()
    refused: list[str | None] = [None]
    requests = SiteRequests(cast(Any, resource), cast(Any, sites), ended.set, lambda: refused[0])
    requests.look()
    assert requests._task is None, "the spec was not looked at yet"
    refused[0] = "spec.mode is wrong"
    requests.look()
    await asyncio.wait_for(ended.wait(), 5)
    said = "demote #1 failed: the spec is refused, so the groups are not known: spec.mode is wrong"
    assert resource.annotations == {SITE: None, SITE_RESULT: said}
    assert not sites.asked
    await requests.close()


async def test_each_request_is_answered_once() -> None:
    resource, sites, ended = Resource(**{SITE: "demote #1"}), Sites(), asyncio.Event()
    requests = SiteRequests(cast(Any, resource), cast(Any, sites), ended.set)
    requests.look()
    requests.look()
    await asyncio.wait_for(ended.wait(), 5)
    assert resource.annotations == {SITE: None, SITE_RESULT: "demote #1 done: the-token"}
    resource.annotations[SITE] = "demote #1"  # An event from before the answer.
    requests.look()
    assert sites.asked == [("demote", False)]
    ended.clear()
    resource.version = 3  # The same text once more, without an id of its own.
    requests.look()
    await asyncio.wait_for(ended.wait(), 5)
    assert sites.asked == [("demote", False)] * 2
    for text, said in (("promote token=x #2", "failed: another token"), ("sing #3", "failed: 'sing #3': write demote")):
        ended.clear()
        resource.version += 2
        resource.annotations[SITE] = text
        requests.look()
        await asyncio.wait_for(ended.wait(), 5)
        assert str(resource.annotations[SITE_RESULT]).startswith(f"{text} {said}")
    await requests.close()
