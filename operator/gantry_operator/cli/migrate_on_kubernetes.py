"""`gantry migrate` of a cluster on Kubernetes: the operator makes the steps, the command asks for them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gantry_operator.cli.errors import CliError
from gantry_operator.cli.migrate_views import Copied, print_copies, show_rollback, show_steps
from gantry_operator.cli.options import (
    Output,
)
from gantry_operator.cli.output import note, print_json, say
from gantry_operator.cli.target import run_async

if TYPE_CHECKING:
    from gantry_operator.migration import rollback_steps
    from gantry_operator.migration.cutover_steps import Limits


def show_copies(context: str | None, namespace: str | None, name: str | None, output: Output) -> None:
    """Show the records and the copies of a cluster on Kubernetes. Raises CliError."""
    from gantry_operator.actions.kubernetes_target import KubernetesTarget
    from gantry_operator.platforms.kubernetes.targets.target import migration_of, rollback_of

    target = KubernetesTarget(context, namespace, name)

    async def ask() -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
        from gantry_operator.cluster.member_http import httpx

        resource = await target.resource()
        statuses: dict[str, dict[str, Any]] = {}
        async with target.live() as live:
            for member in (await live.facts()).members:
                try:
                    answer = await live.client.get(f"{member.url}/migration", timeout=3.0)
                    if answer.status_code == 200:
                        statuses.setdefault(member.group, dict(answer.json()))
                except (httpx.HTTPError, ValueError, TypeError):
                    continue
        return resource, statuses

    resource, copies = run_async(ask())
    phase, rolled = migration_of(resource).phase.value, rollback_of(resource).phase.value
    conditions = (resource.get("status") or {}).get("conditions") or ()
    progressing = (c for c in conditions if c.get("type") == "Progressing" and c.get("status") == "True")
    changing = [str(condition.get("message")) for condition in progressing]
    if output == Output.json:
        print_json({"phase": phase, "rollback": rolled, "changing": changing, "groups": copies})
        return
    say(f"phase: {phase}")
    if rolled != "none":
        say(f"rollback: {rolled}")
    print_copies(
        {
            group: Copied(str(copy.get("state")), copy.get("end"), copy.get("lag"), str(copy.get("problem", "")), copy)
            for group, copy in copies.items()
        }
    )
    for text in changing:
        note(f"a change of the spec: {text}")


def ask_operator(
    op: str, timeout: float, context: str | None, namespace: str | None, name: str | None, **limits: Any
) -> None:
    """Ask the operator by an annotation. Raises CliError."""
    from gantry_operator.actions.kubernetes_target import KubernetesTarget
    from gantry_operator.platforms.kubernetes.requests.migration_request import new_request

    request = new_request(op, timeout_s=timeout, **limits)
    target = KubernetesTarget(context, namespace, name)
    say(run_async(target.migrate(request, timeout, lambda phase: say(f"phase: {phase}"))))


def ask_rollback(
    back: bool,
    limits: rollback_steps.Limits,
    timeout: float,
    context: str | None,
    namespace: str | None,
    name: str | None,
    *,
    dry_run: bool,
) -> None:
    """Ask the operator for a rollback, or for its abort. Raises CliError."""
    from gantry_operator.actions.kubernetes_target import KubernetesTarget
    from gantry_operator.migration.cutover_steps import Phase
    from gantry_operator.platforms.kubernetes.targets.target import migration_of

    if not back and not dry_run:
        ask_operator("rollback", timeout, context, namespace, name, lag=limits.lag, settle_s=limits.settle)
        return
    resource = run_async(KubernetesTarget(context, namespace, name).resource())
    record = migration_of(resource)
    if dry_run:
        if record.phase is not Phase.DONE:
            raise CliError("the cutover is not done: before its last steps gantry migrate abort goes back at once")
        show_rollback(list(record.groups), limits)
        return
    if record.phase is not Phase.DONE:
        raise CliError("no rollback is under way: gantry migrate abort goes back from a cutover")
    ask_operator("abort", timeout, context, namespace, name)


def show_cutover_steps(context: str | None, namespace: str | None, name: str | None, limits: Limits) -> None:
    """Show the steps of a cutover on Kubernetes, by what the resource says. Raises CliError."""
    from gantry_operator.actions.kubernetes_target import KubernetesTarget
    from gantry_operator.migration.cutover_steps import Group, Phase, Record
    from gantry_operator.platforms.kubernetes.targets.target import migration_of

    resource = run_async(KubernetesTarget(context, namespace, name).resource())
    shown = (resource.get("status") or {}).get("migration") or {}
    rows = {str(row.get("name")): row for row in shown.get("groups") or ()}
    if migration_of(resource).phase is not Phase.FOLLOWING or not rows:
        raise CliError(f"no cutover can begin: {shown.get('message') or 'the operator has not looked at the copies'}")
    lags = {group: row.get("missingBytes") for group, row in rows.items()}
    late = [group for group, lag in lags.items() if lag is None or lag > limits.lag]
    if late:
        raise CliError(f"group {', '.join(late)} is not ready: {shown.get('message')}")
    begun = Record(groups={group: Group() for group in rows}, carried=limits.routes > 0)
    show_steps(begun, limits, lags)
