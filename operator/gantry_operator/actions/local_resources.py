"""The topics and consumer groups of a cluster of this machine as resources, for `gantry topic`, `group` and `up`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pydantic import ValidationError

from gantry_operator.actions.errors import ActionError, Cause
from gantry_operator.actions.managed import merged
from gantry_operator.actions.target import Remarks
from gantry_operator.platforms.local import control
from gantry_operator.platforms.local.folder import ClusterFolder

if TYPE_CHECKING:
    from gantry_operator.api.consumer_group import ConsumerGroup
    from gantry_operator.api.topic import BrokerTopic
    from gantry_operator.platforms.local.topics import Kind

LIST_S: Final = 1.0
"""Seconds to wait for the supervisor's answer. The folder has the same, and the models to read it take time to load."""


class LocalResources:
    """The resources of one cluster."""

    namespace = "default"

    def __init__(self, folder: ClusterFolder, cluster: str, remarks: Remarks) -> None:
        self.cluster = cluster
        self._folder = folder
        self._remarks = remarks

    @property
    def waits_for(self) -> str:
        """Who carries out a change; empty: no one does now."""
        return "" if control.supervisor_of(self._folder) is None else "gantry up"

    async def list(self, kind: Kind) -> list[dict[str, Any]]:
        """With their status."""
        try:
            return list((await control.ask(self._folder, "resources", LIST_S, kind=kind))["resources"])
        except control.ControlError:  # None answers, it is of another version, or it cannot read them, either.
            pass
        from gantry_operator.platforms.local import topics

        with readable(self._folder.resources):
            return topics.described(self._folder, kind)

    async def create(self, resource: BrokerTopic | ConsumerGroup) -> None:
        from gantry_operator.platforms.local import topics

        with readable(self._folder.resources), topics.changed_resources(self._folder) as resources:
            former = resources.of(resource.kind).get(resource.name)
            if former is not None and former.metadata.deletionTimestamp is None:
                raise ActionError(f"{resource.kind} {resource.name} exists already: delete it, or change your manifest")
            if resources.keep(resource):
                self._remarks.note(taken_back(resource))

    async def change(self, kind: Kind, name: str, changes: Mapping[str, Any]) -> int:
        """Change fields of the spec (a merge patch). Returns the new generation. Raises ActionError."""
        from gantry_operator.api.manifest import problems_of
        from gantry_operator.platforms.local import topics

        with readable(self._folder.resources), topics.changed_resources(self._folder) as resources:
            former = resources.of(kind).get(name)
            if former is None:
                raise ActionError(f"there is no {kind} {name}")
            if former.metadata.deletionTimestamp is not None:
                raise ActionError(f"{kind} {name} is being deleted")
            spec = merged(former.spec.model_dump(mode="json", exclude_none=True), changes)
            try:
                changed = type(former).make(name, spec.pop("cluster"), former.metadata.namespace, **spec)
            except ValidationError as error:
                reasons = "; ".join(map(str, problems_of(error.errors(), type(former))))
                raise ActionError(reasons, Cause.BAD_INPUT) from None
            resources.keep(changed)
            return int(changed.metadata.generation or 1)

    async def delete(self, kind: Kind, name: str) -> None:
        from gantry_operator.platforms.local import topics

        with readable(self._folder.resources), topics.changed_resources(self._folder) as resources:
            resources.delete(kind, name)


@contextmanager
def readable(path: Path) -> Iterator[None]:
    """Turn a file that cannot be read into one sentence. Raises ActionError."""
    try:
        yield
    except ValidationError:
        raise ActionError(f"{path} cannot be read: it is damaged, or of another version of gantry") from None


def keep_local(
    folder: ClusterFolder, wanted_topics: Sequence[BrokerTopic], wanted_groups: Sequence[ConsumerGroup]
) -> list[str]:  # fmt: skip
    """Add or change the resources of a manifest. Returns a sentence for each deletion that this takes back.

    Raises ActionError.
    """
    from gantry_operator.platforms.local import topics

    with readable(folder.resources), topics.changed_resources(folder) as resources:
        given: list[BrokerTopic | ConsumerGroup] = [*wanted_topics, *wanted_groups]
        return [taken_back(resource) for resource in given if resources.keep(resource)]


def taken_back(resource: BrokerTopic | ConsumerGroup) -> str:
    return (
        f"{resource.kind} {resource.name} was being deleted; it is written again, so it stays, with what the brokers "
        "still have of it"
    )
