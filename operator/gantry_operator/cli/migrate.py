"""`gantry migrate`: a running Apache RocketMQ moves to a cluster, with its clients as they are, and back."""

from __future__ import annotations

import contextlib
import time
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gantry_operator.cli.errors import CliError, Exit
from gantry_operator.cli.migrate_by_messages import (
    copy_topics,
    finish_messages,
    listed,
    messages_record,
    show_messages,
    start_by_messages,
    topics_of,
)
from gantry_operator.cli.migrate_local import (
    ROLLBACK_COPY,
    after_rollback,
    alone,
    brokers_of,
    changing_of,
    held_source,
    keys_of,
    load,
    open_edge,
    place_of,
    read_record,
    read_rollback,
    save_record,
    save_rollback,
)
from gantry_operator.cli.migrate_on_kubernetes import ask_operator, ask_rollback, show_copies, show_cutover_steps
from gantry_operator.cli.migrate_views import Copied, Phases, print_copies, show_rollback, show_steps
from gantry_operator.cli.on_cluster import on_cluster
from gantry_operator.cli.options import (
    ContextOption,
    DirOption,
    NameOption,
    NamespaceOption,
    Output,
    OutputOption,
    command_group,
    on_kubernetes,
)
from gantry_operator.cli.output import note, print_json, print_table, say
from gantry_operator.cli.progress import Progress
from gantry_operator.cli.target import find_local, run_async
from gantry_operator.cluster.amounts import size

if TYPE_CHECKING:
    from gantry_operator.actions.target import Target
    from gantry_operator.api.cluster import BrokerCluster
    from gantry_operator.api.migration import FromRocketMQ
    from gantry_operator.migration import releasing, rollback_steps
    from gantry_operator.migration.cutover_edge import Edge, SourcePlace
    from gantry_operator.migration.cutover_steps import Limits, Record, Seen
    from gantry_operator.platforms.local.folder import ClusterFolder


class By(StrEnum):
    """How a migration copies."""

    log = "log"
    messages = "messages"


migrate_app = command_group(
    "Move from a running Apache RocketMQ 4.9 or 5.x, and back. The manifest has spec.bootstrap.fromRocketMQ."
)
FileArgument = Annotated[Path, typer.Argument(help="A manifest with spec.bootstrap.fromRocketMQ.", show_default=False)]


@migrate_app.command()
def check(file: FileArgument, output: OutputOption = Output.text) -> None:
    """Show what would come along, what changes, what does not, and what stops it. Nothing is changed."""
    cluster, source = load(file)
    _refuse_names(cluster, source)
    found, left_out = run_async(_findings(cluster, source))
    if output == Output.json:
        print_json({name: [f._asdict() for f in items] for name, items in found.items()} | {"leftOut": left_out})
    else:
        for name, items in found.items():
            say(f"group {name}")
            print_table(["", "ITEM", "AMOUNT", "NOTE"], items, right=["AMOUNT"])
        if left_out:
            note(f"brokers of the source that the manifest leaves out: {', '.join(left_out)}")
    _refuse_findings(found)


def _refuse_findings(findings: dict[str, list[Any]]) -> None:
    """Raise CliError for what stops a migration."""
    refused = [
        f"group {name}: {f.item}: {f.note}" for name, items in findings.items() for f in items if f.kind == "refused"
    ]
    if refused:
        raise CliError("; ".join(refused))


async def _findings(cluster: BrokerCluster, source: FromRocketMQ) -> tuple[dict[str, list[Any]], list[str]]:
    """By group, and the brokers that are left out. Raises MigrationError."""
    from gantry_operator.migration import check as checks

    place = place_of(source)
    by_group: dict[str, list[Any]] = {}
    names = set()
    for group in cluster.spec.brokerGroups:
        broker = source.broker_of(group.name, group.broker_name)
        names.add(broker)
        facts = await checks.ask(place, broker, source.cluster)
        by_group[group.name] = checks.findings(
            facts, cluster.spec.broker, cluster.spec.security.authentication, dropped=source.dropAccessControl
        )
    return by_group, [name for name in await checks.brokers_of(place) if name not in names]


@migrate_app.command()
def start(
    file: FileArgument,
    timeout: Annotated[float, typer.Option(help="Seconds to wait until the copies follow.")] = 60.0,
    by: Annotated[
        By, typer.Option(help="log: the source's log, byte for byte. messages: where that cannot be had.")
    ] = By.log,
    source_servers: Annotated[
        str | None, typer.Option("--from", help="By messages: NameServers of the source, separated by ';'.")
    ] = None,
    source_secret: Annotated[
        str | None, typer.Option(help="By messages: Secret with accessKey and secretKey for the source.")
    ] = None,
    topics: Annotated[str | None, typer.Option(help="By messages: topics, separated by ','. Default: all.")] = None,
    directory: DirOption = None,
) -> None:
    """Start a cluster that follows the source. The source and its clients go on as before.

    By messages the command copies until it is ended; the same command goes on where it was.
    """
    from gantry_operator.cli.up import up
    from gantry_operator.platforms.local.folder import ClusterFolder, default_folder

    if by is By.messages:
        start_by_messages(file, timeout, source_servers, source_secret, topics, directory)
        return
    if source_servers or source_secret or topics:
        raise CliError("--from, --source-secret and --topics are for --by messages", Exit.USAGE)
    cluster, source = load(file)
    _refuse_names(cluster, source)
    folder = default_folder(cluster.name) if directory is None else ClusterFolder(directory.expanduser().resolve())
    # In the middle of a cutover the source was checked, is changed by it, and may be away.
    if not held_source(folder):
        _refuse_findings(run_async(_findings(cluster, source))[0])
    up(file, directory, True, timeout, False, None, wait=False)
    run_async(_until_following(folder, timeout))


def _refuse_names(cluster: BrokerCluster, source: FromRocketMQ) -> None:
    """Clients keep the names that they know, in routes, offsets and message queues. Raises CliError."""
    for group in cluster.spec.brokerGroups:
        broker = source.broker_of(group.name, group.broker_name)
        if broker != group.broker_name:
            raise CliError(
                f"brokerGroups {group.name}: clients know the broker as {broker!r}: write brokerName: {broker}",
                Exit.USAGE,
            )
    if source.cluster is not None and source.cluster != cluster.broker_cluster_name:
        raise CliError(
            f"clients know the cluster as {source.cluster!r}: write spec.brokerClusterName: {source.cluster}",
            Exit.USAGE,
        )


async def _until_following(folder: ClusterFolder, timeout: float) -> None:
    import asyncio

    from gantry_operator.platforms.local.ports import NoPort

    deadline = time.monotonic() + timeout
    missing = "the members have not started"
    with Progress("starting") as progress:
        while time.monotonic() < deadline:
            try:
                async with open_edge(folder) as edge:
                    seen = await edge.look()
            except NoPort:
                missing = "the members have not started"
            except (OSError, CliError, LookupError) as error:
                missing = str(error)
            else:
                waiting = {name: s for name, s in seen.items() if s.state not in ("following", "leads")}
                broken = [f"group {name}: {s.problem}" for name, s in waiting.items() if s.state == "broken"]
                if broken:
                    raise CliError("; ".join(broken))
                if not waiting:
                    break
                missing = "; ".join(f"group {name}: {s.problem or s.state}" for name, s in waiting.items())
            progress.say(missing)
            await asyncio.sleep(0.3)
        else:
            raise CliError(
                f"not following after {timeout:g} s: {missing}. It keeps trying: see `gantry migrate status`",
                Exit.NOT_IN_TIME,
            )
    for name, group in seen.items():
        say(f"group {name} follows the source; {size(group.lag or 0)} are missing")
    say("next: gantry migrate status, then gantry migrate cutover")


@migrate_app.command()
def status(
    directory: DirOption = None,
    name: NameOption = None,
    context: ContextOption = None,
    namespace: NamespaceOption = None,
    output: OutputOption = Output.text,
) -> None:
    """Show how far the copies are."""
    from gantry_operator.migration import rollback_steps
    from gantry_operator.migration.cutover_steps import Phase, said_owed, still_owed

    if on_kubernetes(context, namespace):
        show_copies(context, namespace, name, output)
        return
    folder = find_local(directory, name)
    if (messages := messages_record(folder)) is not None:
        show_messages(folder, messages, output)
        return
    record, rolled = read_record(folder), read_rollback(folder)

    async def ask() -> tuple[dict[str, Seen], dict[str, Any]]:
        async with open_edge(folder) as edge:
            owes = bool(rolled.groups if record.phase is Phase.DONE else record.groups)
            seen = await edge.look(brokers=owes and not held_source(folder))
            return seen, {n: await edge.copy_status(g) for n, g in edge.groups.items()}

    seen, copies = run_async(ask())
    changing = run_async(changing_of(folder))
    left = still_owed(record, seen)
    left_by_rollback = rollback_steps.still_owed(rolled, seen)
    if output == Output.json:
        lacking = {n: left.get(n) or left_by_rollback.get(n) or [] for n in seen}
        groups = {n: _group_json(s, lacking[n], copies[n]) for n, s in seen.items()}
        phases = {"phase": record.phase.value, "rollback": rolled.phase.value}
        print_json({**phases, "changing": changing, "groups": groups})
        return
    say(f"phase: {record.phase.value}")
    if rolled.phase.value != "none":
        say(f"rollback: {rolled.phase.value}")
    print_copies({n: Copied(s.state, s.copy_end, s.lag, s.problem, copies[n] or {}) for n, s in seen.items()})
    for text in changing:
        note(f"a change of the manifest: {text}")
    if left:
        note(said_owed(left, "run gantry migrate abort"))
    if left_by_rollback:
        note(after_rollback(folder, left_by_rollback))


def _group_json(seen: Seen, lacking: list[str], copy: Any) -> dict[str, Any]:
    return {
        "state": seen.state, "problem": seen.problem, "copyEnd": seen.copy_end, "sourceEnd": seen.source_end,
        "lag": seen.lag, "sourcePermission": seen.permission, "routed": seen.routed, "lacking": lacking, "copy": copy,
    }  # fmt: skip


@migrate_app.command()
def cutover(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say the steps and their times.")] = False,
    max_lag: Annotated[int, typer.Option(help="MiB that a copy may lack at the begin.")] = 64,
    settle: Annotated[float, typer.Option(help="Seconds for consumers to commit what they have had.")] = 6.0,
    routes: Annotated[
        float,
        typer.Option(help="Seconds for clients to learn Gantry's address before writes pause; 0: they learn it after."),
    ] = 32.0,
    timeout: Annotated[float, typer.Option(help="Seconds until it gives up, and goes back where it can.")] = 120.0,
    directory: DirOption = None,
    name: NameOption = None,
    context: ContextOption = None,
    namespace: NamespaceOption = None,
) -> None:
    """Let Gantry take over from the source. Broken off, the same command goes on. Too late, it goes back.

    On Kubernetes the operator makes the steps.
    """
    from gantry_operator.migration.cutover_steps import Limits

    if settle + routes >= timeout and not dry_run:
        raise CliError(
            f"--settle and --routes leave no time of --timeout {timeout:g}: after that a cutover goes back", Exit.USAGE
        )
    limits = Limits(lag=max_lag << 20, settle=settle, routes=routes)
    if on_kubernetes(context, namespace):
        if dry_run:
            show_cutover_steps(context, namespace, name, limits)
            return
        ask_operator("cutover", timeout, context, namespace, name, lag=max_lag, settle_s=settle, routes_s=routes)
        return
    folder = find_local(directory, name)
    if (messages := messages_record(folder)) is not None:
        finish_messages(folder, messages, dry_run, timeout)
        return

    with contextlib.nullcontext() if dry_run else alone(folder):
        run_async(_cut_over(folder, limits, timeout, dry_run))


async def _cut_over(folder: ClusterFolder, limits: Limits, timeout: float, dry_run: bool) -> None:
    """Begin the cutover, or go on with it. Raises Refused, CliError, OSError."""
    from gantry_operator.migration import cutover_steps
    from gantry_operator.migration.cutover_edge import drive

    record = read_record(folder)
    async with open_edge(folder) as edge:
        if record.phase is cutover_steps.Phase.FOLLOWING and _asks_for_keys_by_default(folder):
            await edge.refuse_without_keys()
        seen = await edge.look()
        begun = cutover_steps.begin(record, seen, limits, time.time())
        if dry_run:
            show_steps(begun, limits, {n: s.lag or 0 for n, s in seen.items()})
            return
        await save_record(folder, begun)
        await _copy_kv(folder, edge)
        shown = Phases()
        began = time.monotonic()
        await drive(edge, begun, limits, partial(save_record, folder), timeout=timeout, say=shown)
        shown.end(time.monotonic() - began)
        await _copy_kv(folder, edge, leads=True)
    say(
        "Gantry leads. Next: keep the source's brokers while you may want gantry migrate rollback; then stop them "
        "for good"
    )


def _asks_for_keys_by_default(folder: ClusterFolder) -> bool:
    from gantry_operator.platforms.local.manifest import load_saved
    from gantry_operator.platforms.local.users import authentication

    cluster = load_saved(folder)
    return cluster.spec.security.authentication is None and authentication(cluster) == "Enabled"


async def _copy_kv(folder: ClusterFolder, edge: Edge, *, leads: bool = False) -> None:
    """Copy what the source's NameServers have, before a cutover and, as Gantry `leads`, behind it. A failure costs no
    cutover: clients keep those NameServers.
    """
    from gantry_broker.client import Admin

    from gantry_operator.actions.local_target import LocalTarget
    from gantry_operator.migration.cutover_edge import FAILURES
    from gantry_operator.migration.cutover_steps import Refused
    from gantry_operator.migration.source_config import NotYet, at_the_end

    try:
        async with (
            LocalTarget(folder).clients() as ours,
            Admin(ours.name_servers, credentials=ours.credentials, tls=ours.tls) as own,
        ):
            if leads:
                await at_the_end(partial(edge.copy_kv, own))
            else:
                with contextlib.suppress(NotYet):
                    await edge.copy_kv(own)
    except (Refused, *FAILURES) as error:
        note(f"the key-value configuration is not copied to the new NameServers: {error}")


@migrate_app.command()
def abort(
    timeout: Annotated[float, typer.Option(help="Seconds until it gives up; it can go on later.")] = 60.0,
    directory: DirOption = None,
    name: NameOption = None,
    context: ContextOption = None,
    namespace: NamespaceOption = None,
) -> None:
    """Give the source its permission back. The copies follow on, so that a cutover can begin again."""
    from gantry_operator.migration import cutover_steps
    from gantry_operator.migration.cutover_edge import drive

    if on_kubernetes(context, namespace):
        ask_operator("abort", timeout, context, namespace, name)
        return
    folder = find_local(directory, name)

    async def go() -> Record:
        record = read_record(folder)
        async with open_edge(folder) as edge:
            begun = cutover_steps.abort(record, time.time(), await edge.look())
            await save_record(folder, begun)
            return await drive(edge, begun, cutover_steps.Limits(), partial(save_record, folder), timeout=timeout)

    with alone(folder):
        ended = run_async(go())
    say("the source has its permission back")
    if left := cutover_steps.still_owed(ended, {}):
        note(cutover_steps.said_owed(left, "run gantry migrate abort"))


@migrate_app.command()
def release(
    file: Annotated[
        Path | None,
        typer.Argument(help="A manifest with spec.bootstrap.fromRocketMQ: its source.", show_default=False),
    ] = None,
    name_servers: Annotated[
        str | None, typer.Option(help="Instead: NameServers of the source, separated by ';'.", show_default=False)
    ] = None,
    secret: Annotated[
        str | None, typer.Option(help="With --name-servers: Secret with accessKey and secretKey.", show_default=False)
    ] = None,
    ca: Annotated[
        Path | None, typer.Option(help="With --name-servers: PEM file of the source's authority.", show_default=False)
    ] = None,
    brokers: Annotated[str | None, typer.Option(help="brokerNames, separated by ','. Default: all.")] = None,
    permission: Annotated[int, typer.Option(min=6, max=15, help="The brokerPermission that they get.")] = 6,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what they lack.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Give brokers of RocketMQ back what a cutover took, where the cluster and its record are gone.

    It needs nothing but the source. A group that Gantry leads is left as it is.
    """
    from gantry_broker.remoting.tls import TlsOptions

    from gantry_operator.migration.cutover_edge import SourcePlace
    from gantry_operator.migration.cutover_steps import READ, WRITE

    if (file is None) is (name_servers is None):
        raise CliError("write a manifest, or --name-servers with the addresses of the source's NameServers", Exit.USAGE)
    if permission & (READ | WRITE) != READ | WRITE:
        raise CliError(f"--permission {permission}: clients need 4 (read) and 2 (write): write 6 or 7", Exit.USAGE)
    names = listed(brokers, ",", "--brokers names no broker")
    if file is not None:
        if secret is not None or ca is not None:
            raise CliError("--secret and --ca are for --name-servers: the manifest has its own", Exit.USAGE)
        cluster, source = load(file)
        place = place_of(source)
        names = names or brokers_of(cluster, source)
    else:
        servers = listed(name_servers, ";", "--name-servers names no NameServer")
        place = SourcePlace(tuple(servers), keys_of(secret), None if ca is None else TlsOptions(ca_file=ca))

    lines = run_async(_release(place, names, permission, dry_run, yes))
    print_table(["BROKER", "ADDRESS", "STATE", "NOTE"], lines)
    if refused := [line for line in lines if line.state == "refused"]:
        raise CliError("; ".join(f"{line.broker} {line.address}: {line.note}" for line in refused))
    released = sum(line.state == "released" for line in lines)
    what = "1 broker has its settings back" if released == 1 else f"{released} brokers have their settings back"
    say(what if released else "nothing was changed")


async def _release(
    place: SourcePlace, names: list[str], permission: int, dry_run: bool, yes: bool
) -> list[releasing.Line]:
    """Release what a person wants released, and return what was found. Raises Refused, CliError."""
    from gantry_operator.migration import releasing

    brokers = await releasing.look(place, names)
    lines = releasing.lines(brokers)
    if dry_run or not any(line.state == "to release" for line in lines):
        return lines
    if not yes and not typer.confirm(
        "No cluster of Gantry leads these groups any more, or is about to. What Gantry acknowledged after a "
        "cutover the source lacks. Let the source take messages?"
    ):
        raise CliError("nothing was changed")
    return await releasing.release(place, brokers, permission)


@migrate_app.command()
def rollback(
    back: Annotated[
        bool, typer.Option("--abort", help="Go back to Gantry: the former brokers stand aside again.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say the steps and their times.")] = False,
    max_lag: Annotated[int, typer.Option(help="Messages that the copy may lack when Gantry ends writes.")] = 1_000,
    settle: Annotated[float, typer.Option(help="Seconds for consumers to commit what they have had.")] = 6.0,
    timeout: Annotated[
        float, typer.Option(help="Seconds without progress until it gives up, and goes back where clients wait.")
    ] = 120.0,
    directory: DirOption = None,
    name: NameOption = None,
    context: ContextOption = None,
    namespace: NamespaceOption = None,
) -> None:
    """Return to the source after a cutover: it gets what was written since, by messages, and clients go back to it.

    Producers and consumers go on until the last seconds. Broken off, the same command goes on. On Kubernetes the
    operator makes the steps.
    """
    from gantry_operator.migration import rollback_steps

    if back and dry_run:
        raise CliError("--dry-run shows the steps of a rollback, not those of --abort", Exit.USAGE)
    limits = rollback_steps.Limits(lag=max_lag, settle=settle)
    if on_kubernetes(context, namespace):
        ask_rollback(back, limits, timeout, context, namespace, name, dry_run=dry_run)
        return
    folder = find_local(directory, name)

    with contextlib.nullcontext() if dry_run else alone(folder):
        ended = run_async(_roll_back(folder, back, limits, timeout, dry_run))
    if ended is None:
        return
    if ended.phase is rollback_steps.Phase.DONE:
        say("the source leads again. Next: when its clients work, stop the cluster (gantry down)")
        if left := rollback_steps.still_owed(ended, {}):
            note(after_rollback(folder, left))
    else:
        say("Gantry has its clients; the source stands aside")


async def _roll_back(
    folder: ClusterFolder, back: bool, limits: rollback_steps.Limits, timeout: float, dry_run: bool
) -> rollback_steps.Record | None:
    """Begin the rollback, go on with it, or with `back` go back to Gantry; None: nothing was changed. Raises Refused,
    CliError, OSError, errors of clients.
    """
    from gantry_broker.client import Admin

    from gantry_operator.actions.local_target import LocalTarget
    from gantry_operator.migration import cutover_steps, rollback_steps
    from gantry_operator.migration.rollback_edge import RollbackEdge, drive

    cut, record = read_record(folder), read_rollback(folder)
    async with (
        open_edge(folder) as edge,
        LocalTarget(folder).clients() as ours,
        Admin(ours.name_servers, credentials=ours.credentials, tls=ours.tls) as gantry,
    ):
        rolling = RollbackEdge(edge, gantry, cut.groups)
        if back:
            begun = rollback_steps.abort(record, time.time())
        else:
            done = cut.phase is cutover_steps.Phase.DONE
            begun = rollback_steps.begin(record, cut.groups, await rolling.look(), time.time(), cut_over=done)
        if dry_run:
            show_rollback(list(begun.groups), limits)
            return None
        await save_rollback(folder, begun)
        async with contextlib.AsyncExitStack() as stack:
            if begun.phase in rollback_steps.COPIES:
                await stack.enter_async_context(rolling.copying(folder.root / ROLLBACK_COPY, begun.phase))
            shown, began = Phases(), time.monotonic()
            save = partial(save_rollback, folder)
            ended = await drive(rolling, begun, limits, save, timeout=timeout, say=shown, warn=shown.warn)
            shown.end(time.monotonic() - began)
            if rolling.copy is not None:
                say(f"{rolling.copy.sent()} messages are copied")
                if expired := rolling.copy.expired():
                    note(f"{expired} messages had expired at Gantry before they were read: the source lacks them")
            return ended


@migrate_app.command()
@on_cluster
def users(
    target: Target,
    as_json: bool,
    file: FileArgument,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say which users would come.")] = False,
) -> None:
    """Create the source's users in the cluster, with their keys and rules. Users that exist stay as they are.

    It prints no key. What has no counterpart is listed.
    """
    from dataclasses import replace

    from gantry_operator.actions.plain_acl import accounts_of
    from gantry_operator.actions.users import import_accounts, importable, known_users
    from gantry_operator.migration import users as users_of

    cluster, source = load(file)
    brokers = brokers_of(cluster, source)
    existing: dict[str, str] = {}
    taken: set[str] = set()
    if not dry_run:
        existing, taken = run_async(known_users(target, cluster.name))
    source_users = run_async(users_of.ask_all(place_of(source), brokers, source.cluster))
    accounts, nameless = accounts_of(source_users.users, existing, taken)
    accounts, refused = importable(accounts, cluster.name)
    left_out = {**source_users.left_out, **nameless, **refused}
    source_users = replace(
        source_users,
        users={name: user for name, user in source_users.users.items() if name not in left_out},
        left_out=left_out,
    )
    new = [account for account in accounts if account.access_key not in existing]
    created = [] if dry_run else run_async(import_accounts(target, new, wait=False))
    rows = users_of.lines(source_users)
    if as_json:
        print_json({"users": rows, "notes": list(source_users.notes), "created": created})
        return
    cells = []
    for row in rows:
        is_super = "-" if row["super"] is None else "yes" if row["super"] else "no"
        rules = "-" if row["rules"] is None else row["rules"]
        cells.append([row["user"], "yes" if row["comes"] else "no", is_super, rules, row["note"] or "-"])
    print_table(["USER", "COMES", "SUPER", "RULES", "NOTE"], cells, right=["RULES"])
    for text in source_users.notes:
        note(f"not taken over: {text}")
    if stayed := sorted(a.name for a in accounts if a.access_key in existing):
        note(f"they exist, and stay as they are: {', '.join(stayed)}")
    if cluster.spec.security.authentication != "Enabled" and source_users.users:
        note("write spec.security.authentication: Enabled: without it the new cluster asks for no signature")
    say("nothing was changed" if dry_run else f"created: {', '.join(created) or 'no user'}")


@migrate_app.command()
def copy(
    source: Annotated[str, typer.Option("--from", help="NameServers of the source, separated by ';'.")],
    target: Annotated[str, typer.Option("--to", help="NameServers of the target, separated by ';'.")],
    topics: Annotated[str, typer.Option(help="Topics, separated by ','.")],
    state: Annotated[Path, typer.Option(help="The file with what was copied; the same file goes on.")],
    follow: Annotated[bool, typer.Option("--follow", help="Go on with new messages until it is ended.")] = False,
    groups: Annotated[bool, typer.Option(help="Set the offsets of the consumer groups at the target, too.")] = True,
    source_secret: Annotated[
        str | None, typer.Option(help="Secret with accessKey and secretKey for the source.", show_default=False)
    ] = None,
    target_secret: Annotated[
        str | None, typer.Option(help="Secret with accessKey and secretKey for the target.", show_default=False)
    ] = None,
) -> None:
    """Copy topics by messages, from RocketMQ to Gantry, back, or between any two clusters."""
    run_async(copy_topics((source, source_secret), (target, target_secret), topics_of(topics), state, follow, groups))
