"""An export of a cluster: which member each group's copy comes from, and the bytes of one that runs."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gantry_broker.broker.migration.exporting import Exported, LogFiles, Progress, convert, copy_files
from gantry_broker.contracts.models import LogInfo
from gantry_broker.settings import BrokerSettings
from gantry_broker.store.describe import StoreFiles, plan_start
from pydantic import ValidationError

from gantry_operator.cluster.member_http import httpx
from gantry_operator.migration.cutover_steps import Refused

ANSWER_S: Final = 5.0
PIECE: Final = 64 << 20
"""Bytes of the log that one request asks for."""


@dataclass(frozen=True, slots=True)
class Names:
    """What RocketMQ calls a group, and the settings of its members."""

    cluster: str
    broker: str
    settings: BrokerSettings


def of_files(store: Path, to: Path, names: Names, progress: Progress = lambda done, total: None) -> Exported:
    """Export the store of a member that is down. Blocks. Raises StoreError, MigrationError, OSError."""
    copy_files(store, to, progress)
    return convert(to, names.settings, cluster=names.cluster, broker=names.broker)


def best(stores: Sequence[Path]) -> Path:
    """Return the store that a failover would choose: that of the newest epoch, with the longest log. Raises Refused,
    StoreError, OSError.
    """
    intact = []
    for store in stores:
        if (store / "commitlog").is_dir():
            start = plan_start(StoreFiles.load(store))
            if start.damage is None and start.scanned.end:
                epoch = start.epochs[-1].epoch if start.epochs else 0
                intact.append((epoch, start.scanned.end, store))
    if not intact:
        raise Refused("no member of the group has an intact log")
    return max(intact)[2]


async def leader_of(http: httpx.AsyncClient, urls: Sequence[str]) -> tuple[str, LogInfo]:
    """Return the member with the most confirmed bytes, and what it has. Raises Refused when none answers."""
    answers: list[tuple[int, str, LogInfo]] = []
    problems = []
    for url in urls:
        try:
            answer = await http.get(f"{url}/v1/log", timeout=ANSWER_S)
            answer.raise_for_status()
            info = LogInfo.model_validate_json(answer.content)
        except (httpx.HTTPError, ValidationError) as error:
            problems.append(f"{url}: {error!r}")
        else:
            answers.append((info.confirmed, url, info))
    if not answers:
        raise Refused(f"no member answers: {'; '.join(problems)}")
    _, url, info = max(answers, key=lambda item: item[0])
    return url, info


async def of_member(
    http: httpx.AsyncClient,
    url: str,
    info: LogInfo,
    to: Path,
    names: Names,
    progress: Progress = lambda done, total: None,
) -> Exported:
    """Export the confirmed records of a member that runs, up to now. Raises Refused when it does not give them all,
    StoreError, MigrationError, OSError.
    """
    log = LogFiles(to, info.segment_bytes, info.start)
    try:
        while log.end < info.confirmed:
            params = {"from": log.end, "to": min(log.end + PIECE, info.confirmed)}
            before = log.end
            async with http.stream("GET", f"{url}/v1/log/bytes", params=params, timeout=ANSWER_S) as answer:
                if answer.status_code != 200:
                    refusal = (await answer.aread())[:300].decode(errors="replace")
                    raise Refused(f"{url} does not give its log from {log.end} on: {answer.status_code} {refusal}")
                async for piece in answer.aiter_bytes():
                    await asyncio.to_thread(log.write, piece)
                    progress(log.end - info.start, info.confirmed - info.start)
            if log.end == before:
                raise Refused(f"{url} gives no bytes of its log from {log.end} on")
    except httpx.HTTPError as error:
        raise Refused(f"{url} broke off at offset {log.end}: {error!r}") from error
    finally:
        await asyncio.to_thread(log.close)
    return await asyncio.to_thread(convert, to, names.settings, cluster=names.cluster, broker=names.broker)
