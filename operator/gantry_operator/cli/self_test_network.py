"""`gantry self-test --cluster NAME`: the network between the members of a cluster, as they see it themselves."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Final

from gantry_broker.contracts.models import MemberStatus
from pydantic import ValidationError

from gantry_operator.actions.target import Target
from gantry_operator.cli.errors import CliError
from gantry_operator.cli.output import note, print_json, print_table
from gantry_operator.cli.target import run_async
from gantry_operator.cluster import failures
from gantry_operator.cluster.live import MemberPlace
from gantry_operator.cluster.member_http import httpx
from gantry_operator.cluster.network import Link, links, verdict

ANSWER_S: Final = 5.0


async def look(target: Target) -> tuple[Sequence[MemberPlace], Mapping[str, MemberStatus | str]]:
    """Return the members, and what each says of itself, or why it does not."""
    async with target.live() as source:
        places = (await source.facts()).members
        said = await asyncio.gather(*(_status(source.client, place) for place in places))
    return places, {place.name: one for place, one in zip(places, said, strict=True)}


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


def run(target: Target, limit_ms: float, as_json: bool) -> None:
    """Ask all members and print. Raises CliError where a member does not reach another."""
    found = links(*run_async(look(target)), limit_ms)
    said = verdict(found)
    if as_json:
        print_json({"verdict": said, "limitMs": limit_ms, "links": [asdict(link) for link in found]})
    else:
        print_table(("FROM", "TO", "VERDICT", "ROUND TRIP", "MEANING"), [_row(link) for link in found])
        note(said)
    if any(link.level == "bad" for link in found):
        raise CliError(said)


def _row(link: Link) -> tuple[str, ...]:
    rtt = "" if link.rtt_ms is None else f"{link.rtt_ms:.2f} ms"
    return link.one, link.other, link.level, rtt, link.words
