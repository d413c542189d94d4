"""The form that changes a topic, a consumer group or a user: shown, refused and written alike."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from fastapi import APIRouter, Request
from fastapi.responses import Response

from gantry_operator.actions.target import Target
from gantry_operator.console import operations as do
from gantry_operator.console.requests import Change, ClusterRequest, Form, Here, after_change, one, page

Settings = Mapping[str, Any]
"""What an action returns of the present state, with `digest`."""


@dataclass(frozen=True, slots=True)
class Editing:
    """What differs between the forms."""

    kind: str
    """The word of the command: `gantry KIND change`. The template is KIND_edit.html."""
    section: str
    """The part of the menu that it belongs to."""
    settings: Callable[[Target, str], Awaitable[Settings]]
    texts: Callable[[Settings], Mapping[str, str]]
    """What the form shows: by field."""
    changes: Callable[[Form, Settings], dict[str, Any]]
    """The fields of a spec that the form changes. Raises ValueError that names a bad field."""
    change: Callable[[Target, str, dict[str, Any], str], Awaitable[str]]
    """Carries changes out. The last text is the digest that the person saw. Returns a sentence."""
    options: Callable[[Mapping[str, Any]], Sequence[str]]
    """The options of the command for changes."""
    extra: Callable[[Settings], Mapping[str, Any]] = lambda found: {}
    """More values of the template."""
    described: bool = True
    """It has a page of its own, which the browser returns to; else to the list."""

    def path(self, place: ClusterRequest, name: str) -> str:
        base = f"{place.snapshot.key.path}/{self.kind}s"
        return f"{base}/{quote(name, safe='')}" if self.described else base

    async def show(
        self, request: Request, place: ClusterRequest, name: str, form: Form, refused: str = "", code: int = 200
    ) -> Response:
        """Show the form: as it was typed, else as it is now."""
        async with do.one_line_errors():
            settings = await self.settings(place.source.target, name)
        typed = {field: one(form, field) if field in form else text for field, text in self.texts(settings).items()}
        return page(
            request, place, f"{self.kind}_edit.html", self.section, subject=name, kind=self.kind, typed=typed,
            resource=settings.get("resource", ""), digest=one(form, "digest") or settings["digest"], refused=refused,
            code=code, chooser=" ".join(place.source.command), **self.extra(settings),
        )  # fmt: skip

    async def write(self, request: Request, place: ClusterRequest, name: str, form: Form) -> Response:
        try:
            async with do.one_line_errors():
                changes = self.changes(form, await self.settings(place.source.target, name))
                if changes:
                    outcome = await self.change(place.source.target, name, changes, one(form, "digest"))
                else:
                    outcome = f"{name} is as it was: nothing was changed"
        except (ValueError, do.OperationError) as error:
            code = 400 if isinstance(error, ValueError) else 502
            # What others have changed is shown beside what was typed, and may be overwritten then.
            again = {field: value for field, value in form.items() if field != "digest"}
            return await self.show(request, place, name, again, str(error), code)
        command = do.gantry(place.source, self.kind, "change", name, *self.options(changes))
        return after_change(place, self.section, outcome, command, self.path(place, name))

    def add_to(self, router: APIRouter) -> None:
        """Add the two routes of the form."""

        async def show(request: Request, place: Here, subject: str) -> Response:
            return await self.show(request, place, subject, {})

        async def write(request: Request, change: Change, subject: str) -> Response:
            return await self.write(request, change[0], subject, change[1])

        path = f"/{self.kind}s/{{subject}}/edit"
        router.add_api_route(path, show, methods=["GET"])
        router.add_api_route(path, write, methods=["POST"])
