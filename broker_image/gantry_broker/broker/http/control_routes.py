"""Routes by which the control plane directs a member: assignments, handovers, sites, members, the access table."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TYPE_CHECKING, Protocol, TypeVar

import orjson
from fastapi import FastAPI, HTTPException, Request, Response
from pydantic import ValidationError

from gantry_broker.access.table import AccessAnswer, Changes, faults
from gantry_broker.archive.errors import ArchiveError, Fenced
from gantry_broker.broker.sites import NotStandby
from gantry_broker.contracts.models import (
    AssignmentAnswer,
    AssignmentModel,
    CloseAnswer,
    CloseRequest,
    HandoverAnswer,
    HandoverRequest,
    RemovalAnswer,
    RemovalRequest,
    SiteLook,
    SiteRequest,
    SiteStatus,
    TakeAnswer,
    TakeRequest,
)
from gantry_broker.protocol import plausible

if TYPE_CHECKING:
    from gantry_broker.broker.access_control import AccessControl
    from gantry_broker.broker.metadata.changes import MetadataChanges
    from gantry_broker.broker.sites import Sites
    from gantry_broker.replication.service import ReplicationService

T = TypeVar("T")


class Parts(Protocol):
    """What the control plane changes of a member."""

    access: AccessControl
    changes: MetadataChanges
    replication: ReplicationService
    sites: Sites


def add_control_routes(app: FastAPI, broker: Parts) -> None:
    """Add what changes a member, and what it has to say of these changes."""
    _add_site_routes(app, broker)

    @app.put("/v1/assignment")
    async def assignment(assignment: AssignmentModel) -> AssignmentAnswer:
        try:
            return await broker.replication.assign(assignment.value())
        except OSError as error:
            raise HTTPException(500, f"the assignment cannot be written: {error}") from None

    @app.post("/v1/handover")
    async def handover(order: HandoverRequest) -> HandoverAnswer:
        broker.changes.flush_offsets()  # The new leader continues at the consumers' offsets.
        return await broker.replication.handover(order.target.value(), order.epoch, order.version, order.timeout_ms)

    @app.post("/v1/members/remove")
    async def remove_member(order: RemovalRequest) -> RemovalAnswer:
        reason = await broker.replication.remove_member(order.member)
        return RemovalAnswer(removed=not reason, reason=reason)

    @app.put("/v1/access")
    async def access_table(request: Request) -> AccessAnswer:
        """Take the access table; a version that is not higher is ignored. A refusal names fields, never values."""
        try:
            return AccessAnswer(version=await broker.access.put(await request.body()))
        except ValidationError as error:
            raise HTTPException(422, faults(error)[: plausible.MAX_TEXT]) from None
        except ValueError as error:
            raise HTTPException(422, str(error)[: plausible.MAX_TEXT]) from None
        except OSError as error:
            raise HTTPException(500, f"the table is in force, but cannot be written: {error}") from None

    @app.get("/v1/access/changes")
    async def access_changes() -> Changes:
        """Return what mqadmin changed at this member, with secret keys, for the control plane; the oldest of much."""
        return broker.access.next_waiting()

    @app.get("/v1/audit")
    async def audit() -> Response:
        """Return the last lines of this member's audit log, oldest first. The whole of it is in the process's log."""
        lines = list(broker.access.gate.audit.recent)
        return Response(orjson.dumps({"lines": lines}), media_type="application/json")


def _add_site_routes(app: FastAPI, broker: Parts) -> None:
    """Add what changes the cluster's part in a pair of sites."""

    @app.put("/v1/site")
    async def site(order: SiteRequest) -> SiteStatus:
        try:
            return broker.sites.put(order)
        except OSError as error:
            raise HTTPException(500, f"it cannot be written: {error}") from None

    @app.get("/v1/site/archive")
    async def site_archive() -> SiteLook:
        return await _of_archive(broker.sites.look())

    @app.post("/v1/site/close")
    async def close_archive(order: CloseRequest) -> CloseAnswer:
        return broker.sites.close_archive(order.token)

    @app.post("/v1/site/take")
    async def take_archive(order: TakeRequest) -> TakeAnswer:
        return await _of_archive(broker.sites.take(order))


async def _of_archive(call: Awaitable[T]) -> T:
    """Return the answer of the archive. Raises HTTPException with what it refuses."""
    try:
        return await call
    except (Fenced, NotStandby) as error:
        raise HTTPException(409, str(error)) from None
    except ArchiveError as error:
        raise HTTPException(502, str(error)) from None
