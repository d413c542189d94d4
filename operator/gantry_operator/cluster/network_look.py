"""Asks the members of a cluster for the network between them."""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager
from typing import Final

from gantry_broker.contracts.models import MemberStatus
from pydantic import ValidationError

from gantry_operator.cluster import failures
from gantry_operator.cluster.live import MemberPlace
from gantry_operator.cluster.live_watch import Source
from gantry_operator.cluster.member_http import httpx
from gantry_operator.cluster.network import Link, links

ANSWER_S: Final = 5.0


async def look(live: AbstractAsyncContextManager[Source], limit_ms: float) -> list[Link]:
    """Return the links, by what each member says of itself, or why it does not."""
    async with live as source:
        places = (await source.facts()).members
        statuses = await asyncio.gather(*(_status(source.client, place) for place in places))
    return links(places, {place.name: one for place, one in zip(places, statuses, strict=True)}, limit_ms)


async def _status(client: httpx.AsyncClient, place: MemberPlace) -> MemberStatus | str:
    try:
        answer = await client.get(f"{place.url}/v1/status", timeout=ANSWER_S)
        answer.raise_for_status()
        return MemberStatus.model_validate_json(answer.content)
    except httpx.HTTPStatusError as error:
        return f"it answers with {error.response.status_code}"
    except httpx.HTTPError as error:
        return failures.in_words(error)
    except ValidationError:
        return "its answer is none of a member"
