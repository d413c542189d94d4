"""Routes that show what a member holds, and take configurations: tables, drain, configurations, bytes of the log."""

from __future__ import annotations

import asyncio
from typing import Annotated, Protocol

import orjson
from fastapi import FastAPI, Query, Response
from fastapi.responses import StreamingResponse

from gantry_broker.broker.http.configs import Parts as ConfigParts
from gantry_broker.broker.http.configs import add_configs, all_configs, mark
from gantry_broker.broker.http.drain import DrainReports
from gantry_broker.broker.http.drain import Parts as DrainParts
from gantry_broker.broker.http.logbytes import Parts as LogParts
from gantry_broker.broker.http.logbytes import log_bytes, log_info
from gantry_broker.broker.http.rocketmq_metrics import StoreTimes
from gantry_broker.broker.http.tables import Parts as TableParts
from gantry_broker.broker.http.tables import broker_tables
from gantry_broker.broker.http.undelivered import Parts as UndeliveredParts
from gantry_broker.broker.http.undelivered import UndeliveredMessages
from gantry_broker.contracts.models import ConfigsAnswer, ConfigsRequest, DrainReport, GroupMarks, MarksRequest
from gantry_broker.http.query import WholeNumber
from gantry_broker.protocol import plausible


class Parts(TableParts, DrainParts, UndeliveredParts, ConfigParts, LogParts, Protocol):
    """What these routes use of a member: what each of their modules names."""


def add_state_routes(app: FastAPI, broker: Parts) -> None:
    """Add what reads tables and the log, and what extends tables to a new group."""
    table_times = StoreTimes()
    drain_reports = DrainReports(broker)
    undelivered_messages = UndeliveredMessages(broker)

    @app.get("/v1/tables")
    async def tables(ages: bool = True, undelivered: Annotated[list[str] | None, Query()] = None) -> Response:
        """Topics, groups, offsets and clients. Every member answers; only the master knows all clients and ages.

        `undelivered`: topics of which it also looks for messages that are not delivered yet.
        """
        waiting = await undelivered_messages.of(undelivered or ())  # Before the ends of the queues.
        tables = await broker_tables(broker, table_times, ages=ages) | {"undelivered": waiting}
        return Response(await asyncio.to_thread(orjson.dumps, tables), media_type="application/json")

    @app.get("/v1/drain")
    async def drain() -> DrainReport:
        """Return what the group still holds for its consumers. Only the master's report is a proof."""
        return await drain_reports.report()

    @app.get("/v1/configs")
    async def configs() -> Response:
        """Return the configurations of all topics and consumer groups, without the broker's own."""
        return Response(await all_configs(broker), media_type="application/json")

    @app.post("/v1/configs")
    async def new_configs(order: ConfigsRequest) -> ConfigsAnswer:
        return await add_configs(broker, order)

    @app.put("/v1/marks")
    async def marks(order: MarksRequest) -> GroupMarks:
        return await mark(broker, order)

    @app.get("/v1/log")
    async def log_segments() -> Response:
        return Response(log_info(broker).model_dump_json(), media_type="application/json")

    @app.get("/v1/log/bytes")
    async def log_part(
        start: Annotated[
            WholeNumber, Query(alias="from", ge=0, le=plausible.MAX_OFFSET, description="Offset of the first byte.")
        ],
        to: Annotated[WholeNumber, Query(ge=0, le=plausible.MAX_OFFSET, description="Offset after the last byte.")],
        rate: Annotated[WholeNumber, Query(ge=0, description="Bytes per second at most; 0: no limit.")] = 0,
    ) -> StreamingResponse:
        return log_bytes(broker, start, to, rate)
