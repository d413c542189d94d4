"""`gantry migrate`: a running Apache RocketMQ moves to a cluster, with its clients as they are, and back."""

from __future__ import annotations

import contextlib
import json
import shlex
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from gantry_operator.cli.errors import CliError, Exit
from gantry_operator.cli.on_cluster import on_cluster
from gantry_operator.cli.options import (
    ContextOption,
    DirOption,
    NameOption,
    NamespaceOption,
    Output,
    OutputOption,
    on_kubernetes,
)
from gantry_operator.cli.output import note, print_json, print_table, say
from gantry_operator.cli.progress import Progress
from gantry_operator.cluster.amounts import size

if TYPE_CHECKING:
    from gantry_broker.client import Credentials

    from gantry_operator.actions.target import Target
    from gantry_operator.api.cluster import BrokerCluster
    from gantry_operator.api.migration import FromRocketMQ
    from gantry_operator.migration import by_messages, rollback_steps
    from gantry_operator.migration.cutover_edge import Edge, SourcePlace
    from gantry_operator.migration.cutover_steps import Limits, Phase, Record
    from gantry_operator.platforms.local.folder import ClusterFolder

RECORD = "migration.json"
"""In the cluster's folder: the record of the cutover."""
ROLLBACK = "rollback.json"
"""The record of a rollback."""
ROLLBACK_COPY = "rollback-copy.json"
"""What a rollback has copied."""
MESSAGES = "messages.json"
"""The record of a migration by messages."""
MESSAGES_COPY = "messages-copy.json"
"""What it has copied."""


class By(StrEnum):
    """How a migration copies."""

    log = "log"
    messages = "messages"


migrate_app = typer.Typer(
    no_args_is_help=True,
    help="Move from a running Apache RocketMQ 4.9 or 5.x, and back. The manifest has spec.bootstrap.fromRocketMQ.",
    rich_markup_mode="rich",
)
FileArgument = Annotated[Path, typer.Argument(help="A manifest with spec.bootstrap.fromRocketMQ.", show_default=False)]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.add_typer(migrate_app, name="migrate")


def _load(file: Path) -> tuple[BrokerCluster, FromRocketMQ]:
    from gantry_operator.cli.manifest_files import read_manifest

    cluster = read_manifest(file)
    return cluster, _source(cluster, str(file))


def _source(cluster: BrokerCluster, where: str) -> FromRocketMQ:
    source = None if cluster.spec.bootstrap is None else cluster.spec.bootstrap.fromRocketMQ
    if source is None:
        raise CliError(
            f"{where} has no spec.bootstrap.fromRocketMQ: write the addresses of the source's NameServers there",
            Exit.USAGE,
        )
    return source


def _brokers(cluster: BrokerCluster, source: FromRocketMQ) -> list[str]:
    """Return the source's brokerNames."""
    return [source.broker_of(group.name, group.broker_name) for group in cluster.spec.brokerGroups]


def _place(source: FromRocketMQ) -> SourcePlace:
    """Secrets of this machine are folders. Raises CliError for a missing one."""
    from gantry_broker.remoting.tls import TlsOptions

    from gantry_operator.migration.cutover_edge import SourcePlace
    from gantry_operator.platforms.local.folder import secret_folder

    tls = None
    if source.tls is not None:
        tls = TlsOptions(ca_file=secret_folder(source.tls.caSecret) / "ca.crt")
    return SourcePlace(tuple(source.nameServers), _keys(source.accessKeySecret), tls, tuple(source.kvNamespaces))


def _keys(secret: str | None) -> Credentials | None:
    """Return the keys in a Secret, which is a folder on this machine. Raises CliError."""
    from gantry_broker.client import Credentials

    from gantry_operator.platforms.local.folder import secret_folder

    if secret is None:
        return None
    folder = secret_folder(secret)
    try:
        return Credentials((folder / "accessKey").read_text().strip(), (folder / "secretKey").read_text().strip())
    except (OSError, ValueError) as error:
        raise CliError(f"Secret {secret}: {error}: write the files accessKey and secretKey in {folder}") from None


def _folder(directory: Path | None, name: str | None) -> ClusterFolder:
    from gantry_operator.cli.target import find_local

    return find_local(directory, name)


@asynccontextmanager
async def _edge(folder: ClusterFolder) -> AsyncIterator[Edge]:
    from gantry_operator.cluster.member_http import make_client
    from gantry_operator.migration.cutover_edge import Edge, GroupPlace
    from gantry_operator.plan.plan import plan
    from gantry_operator.platforms.local.certificates import read_authorities, scheme
    from gantry_operator.platforms.local.manifest import load_saved
    from gantry_operator.platforms.local.ports import Ports

    cluster = load_saved(folder)
    source = _source(cluster, f"the cluster {cluster.name}")
    ports = Ports.load(folder.ports)
    groups = []
    for group in plan(cluster).groups:
        urls = [f"{scheme(cluster)}://127.0.0.1:{ports[f'{m.name}/http']}" for m in group.members]
        broker = source.broker_of(group.name, cluster.broker_name(group.name))
        groups.append(GroupPlace(group.name, broker, ports.address(f"group/{group.name}"), partial(tuple, urls)))
    async with (
        make_client(folder.token.read, lambda: read_authorities(folder)) as http,
        Edge(_place(source), groups, http) as edge,
    ):
        yield edge


def _read_record(folder: ClusterFolder) -> Record:
    """Read the record of a migration. Raises CliError for an invalid file."""
    from gantry_operator.migration.cutover_steps import Record

    path = folder.root / RECORD
    try:
        return Record.from_json(json.loads(path.read_text()))
    except FileNotFoundError:
        return Record()
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CliError(f"{path} cannot be read: {error!r}") from None


def held_source(folder: ClusterFolder) -> str:
    """Return what a source lacks whose cutover is under way, and who gives it back; empty: nothing. Raises CliError."""
    from gantry_operator.migration.cutover_steps import Phase

    phase = _read_record(folder).phase if (folder.root / RECORD).exists() else Phase.FOLLOWING
    if phase in (Phase.FOLLOWING, Phase.DONE):
        return ""
    command = "cutover" if phase in (Phase.FINISHING, Phase.TAKING) else "abort"
    return (
        f"the cutover from RocketMQ is in phase {phase.value}, and its clients may have no broker: run gantry migrate "
        f"{command} --dir {folder.root}"
    )


def lacking_brokers(folder: ClusterFolder, *, deleted: bool) -> str:
    """Return which of the source's brokers were away when an abort or a rollback gave the others their settings back,
    and the command for them; empty: none. `deleted`: the folder goes, with its manifest. Raises CliError.
    """
    from gantry_operator.migration import rollback_steps
    from gantry_operator.migration.cutover_steps import said_owed, still_owed

    left, event = still_owed(_read_record(folder), {}), "abort"
    if not left:
        left, event = rollback_steps.still_owed(_read_rollback(folder), {}), "rollback"
    return said_owed(left, _release(folder, deleted=deleted), event=event) if left else ""


def _release(folder: ClusterFolder, *, deleted: bool = False) -> str:
    """Say which command gives the source what it lacks without the cluster, and without its folder if that is
    `deleted`. A manifest may have lost its source since.
    """
    from gantry_operator.migration.cutover_steps import RELEASE
    from gantry_operator.platforms.local.folder import secret_folder
    from gantry_operator.platforms.local.manifest import load_saved

    try:
        cluster = load_saved(folder)
        source = _source(cluster, str(folder.manifest))
    except (CliError, OSError, ValueError):
        return RELEASE
    words = [str(folder.manifest)]
    if deleted:
        words = ["--name-servers", ";".join(source.nameServers), "--brokers", ",".join(_brokers(cluster, source))]
        words += [] if source.accessKeySecret is None else ["--secret", source.accessKeySecret]
        words += [] if source.tls is None else ["--ca", str(secret_folder(source.tls.caSecret) / "ca.crt")]
    return f"run gantry migrate release {shlex.join(words)}"


@contextlib.contextmanager
def _alone(folder: ClusterFolder) -> Iterator[None]:
    """Let no other command make steps of a migration meanwhile: each has the record in its memory. Raises CliError."""
    import fcntl

    with (folder.root / "migrate.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise CliError("another gantry migrate command is at work on this cluster: end it first") from None
        yield


def _read_rollback(folder: ClusterFolder) -> rollback_steps.Record:
    """Read the record of a rollback. Raises CliError for an invalid file."""
    from gantry_operator.migration import rollback_steps

    path = folder.root / ROLLBACK
    try:
        return rollback_steps.Record.from_json(json.loads(path.read_text()))
    except FileNotFoundError:
        return rollback_steps.Record()
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CliError(f"{path} cannot be read: {error!r}") from None


async def _save_record(folder: ClusterFolder, record: Record) -> None:
    _save(folder, RECORD, record.to_json())


async def _save_rollback(folder: ClusterFolder, record: rollback_steps.Record) -> None:
    _save(folder, ROLLBACK, record.to_json())


def _save(folder: ClusterFolder, name: str, value: dict[str, Any]) -> None:
    from gantry_operator.registry.file import write_durably

    write_durably(folder.root / name, json.dumps(value))


@migrate_app.command()
def check(file: FileArgument, output: OutputOption = Output.text) -> None:
    """Show what would come along, what changes, what does not, and what stops it. Nothing is changed."""
    from gantry_operator.cli.target import run_async

    cluster, source = _load(file)
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


def _refuse_findings(found: dict[str, list[Any]]) -> None:
    """Raise CliError for what stops a migration."""
    refused = [
        f"group {name}: {f.item}: {f.note}" for name, items in found.items() for f in items if f.kind == "refused"
    ]
    if refused:
        raise CliError("; ".join(refused))


async def _findings(cluster: BrokerCluster, source: FromRocketMQ) -> tuple[dict[str, list[Any]], list[str]]:
    """By group, and the brokers that are left out. Raises CliError."""
    from gantry_broker.broker.migration.errors import MigrationError, SourceBroken

    from gantry_operator.migration import check as checks

    place = _place(source)
    found: dict[str, list[Any]] = {}
    names = set()
    try:
        for group in cluster.spec.brokerGroups:
            broker = source.broker_of(group.name, group.broker_name)
            names.add(broker)
            facts = await checks.ask(place, broker, source.cluster)
            found[group.name] = checks.findings(
                facts, cluster.spec.broker, cluster.spec.security.authentication, dropped=source.dropAccessControl
            )
        left_out = [name for name in await checks.brokers_of(place) if name not in names]
    except (MigrationError, SourceBroken) as error:
        raise CliError(str(error)) from None
    return found, left_out


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
    from gantry_operator.cli.target import run_async
    from gantry_operator.cli.up import up
    from gantry_operator.platforms.local.folder import ClusterFolder, default_folder

    if by is By.messages:
        _start_by_messages(file, timeout, source_servers, source_secret, topics, directory)
        return
    if source_servers or source_secret or topics:
        raise CliError("--from, --source-secret and --topics are for --by messages", Exit.USAGE)
    cluster, source = _load(file)
    _refuse_names(cluster, source)
    folder = default_folder(cluster.name) if directory is None else ClusterFolder(directory.expanduser().resolve())
    # In the middle of a cutover the source was checked, is changed by it, and may be away.
    if not held_source(folder):
        _refuse_findings(run_async(_findings(cluster, source))[0])
    up(file, directory, True, timeout, False, None, wait=False)
    run_async(_until_following(folder, timeout))


def _start_by_messages(
    file: Path, timeout: float, servers: str | None, secret: str | None, topics: str | None, directory: Path | None
) -> None:
    """Start the cluster, and copy until it is ended. Raises CliError."""
    from gantry_operator.cli.manifest_files import read_manifest
    from gantry_operator.cli.target import run_async
    from gantry_operator.cli.up import up
    from gantry_operator.migration import by_messages
    from gantry_operator.migration.cutover_steps import Refused
    from gantry_operator.platforms.local.folder import ClusterFolder, default_folder

    cluster = read_manifest(file)
    if cluster.spec.bootstrap is not None:
        raise CliError(f"{file} has spec.bootstrap: by messages a cluster begins empty, take it out", Exit.USAGE)
    if not servers:
        raise CliError("--by messages needs --from with the addresses of the source's NameServers", Exit.USAGE)
    names = None if topics is None else tuple(_topics(topics))
    _keys(secret)
    folder = default_folder(cluster.name) if directory is None else ClusterFolder(directory.expanduser().resolve())
    wanted = by_messages.Record(servers, secret, names)
    try:
        before = by_messages.Record.load(folder.root / MESSAGES)
        if before is not None and before != wanted:
            raise Refused(
                "the migration is over" if before.done else f"{folder.root / MESSAGES} has another source or other "
                "topics: what was copied belongs to them"
            )  # fmt: skip
        up(file, directory, True, timeout, False, None)
        if secret is not None and cluster.spec.security.authentication != "Enabled":
            note(
                "the source asks for signatures, and the new cluster lets everybody in: write "
                "spec.security.authentication: Enabled before clients get its addresses"
            )
        with _alone(folder):
            wanted.save(folder.root / MESSAGES)
            run_async(_copy_all(folder, wanted, None))
    except Refused as error:
        raise CliError(str(error)) from None


async def _copy_all(folder: ClusterFolder, record: by_messages.Record, timeout: float | None) -> dict[str, int]:
    """Copy by messages until it is cancelled, or up to the end of the source within `timeout` seconds."""
    from gantry_broker.client import Admin

    from gantry_operator.actions.local_target import LocalTarget
    from gantry_operator.migration import by_messages

    topics = None if record.topics is None else list(record.topics)
    async with (
        LocalTarget(folder).clients() as ours,
        Admin(record.name_servers, credentials=_keys(record.secret)) as here,
        Admin(ours.name_servers, credentials=ours.credentials, tls=ours.tls) as there,
    ):
        made = by_messages.TopicsCopy(here, there, topics, folder.root / MESSAGES_COPY)
        with Progress("copying") as progress:

            def shown(copied: int, missing: int | None) -> None:
                progress.say(f"{copied} copied, {missing or 0} in the last round")

            if timeout is None:
                await by_messages.follow(made, shown, lambda error: progress.say(f"waits: {error}"))
            return await by_messages.finish(made, timeout or 0.0, shown)


def _by_messages(folder: ClusterFolder) -> by_messages.Record | None:
    """Return the record of a migration by messages; None: this cluster has none. Raises CliError."""
    from gantry_operator.migration import by_messages
    from gantry_operator.migration.cutover_steps import Refused

    try:
        return by_messages.Record.load(folder.root / MESSAGES)
    except Refused as error:
        raise CliError(str(error)) from None


def _show_messages(folder: ClusterFolder, record: by_messages.Record, output: Output) -> None:
    from gantry_operator.migration.copied import QueueCopy

    try:
        value = json.loads((folder.root / MESSAGES_COPY).read_text())
        queues = {name: [QueueCopy.from_json(q) for q in rows] for name, rows in value["topics"].items()}
    except FileNotFoundError:
        queues = {}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CliError(f"{folder.root / MESSAGES_COPY} cannot be read: {error!r}") from None
    phase = "done" if record.done else "copying"
    if output == Output.json:
        print_json(
            {
                "phase": phase,
                "by": "messages",
                "from": record.name_servers,
                "topics": {
                    name: [
                        {
                            "from": f"{q.broker}/{q.queue}", "to": f"{q.to_broker}/{q.to_queue}", "next": q.next,
                            "toNext": q.to_next, "copied": q.messages, "expired": q.expired,
                        }
                        for q in rows
                    ]
                    for name, rows in queues.items()
                },
            }
        )  # fmt: skip
        return
    say(f"phase: {phase}")
    print_table(
        ["TOPIC", "QUEUES", "COPIED", "EXPIRED"],
        [
            [name, len(rows), sum(q.messages for q in rows), sum(q.expired for q in rows)]
            for name, rows in sorted(queues.items())
        ],
        right=["QUEUES", "COPIED", "EXPIRED"],
    )


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
                async with _edge(folder) as edge:
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
    from gantry_operator.cli.target import run_async
    from gantry_operator.migration import rollback_steps
    from gantry_operator.migration.cutover_steps import Phase, said_owed, still_owed

    if on_kubernetes(context, namespace):
        _show_operators(context, namespace, name, output)
        return
    folder = _folder(directory, name)
    if (messages := _by_messages(folder)) is not None:
        _show_messages(folder, messages, output)
        return
    record, rolled = _read_record(folder), _read_rollback(folder)

    async def ask() -> dict[str, Any]:
        async with _edge(folder) as edge:
            owes = bool(rolled.groups if record.phase is Phase.DONE else record.groups)
            seen = await edge.look(brokers=owes and not held_source(folder))
            copies = {n: await edge.copy_status(g) for n, g in edge.groups.items()}
        return {n: {"seen": seen[n], "copy": copies[n]} for n in seen}

    found = run_async(ask())
    seen = {n: f["seen"] for n, f in found.items()}
    left = still_owed(record, seen)
    left_by_rollback = rollback_steps.still_owed(rolled, seen)
    if output == Output.json:
        print_json(
            {
                "phase": record.phase.value,
                "rollback": rolled.phase.value,
                "groups": {
                    n: {
                        "state": f["seen"].state,
                        "problem": f["seen"].problem,
                        "copyEnd": f["seen"].copy_end,
                        "sourceEnd": f["seen"].source_end,
                        "lag": f["seen"].lag,
                        "sourcePermission": f["seen"].permission,
                        "routed": f["seen"].routed,
                        "lacking": left.get(n) or left_by_rollback.get(n) or [],
                        "copy": f["copy"],
                    }
                    for n, f in found.items()
                },
            }
        )
        return
    say(f"phase: {record.phase.value}")
    if rolled.phase.value != "none":
        say(f"rollback: {rolled.phase.value}")
    _print_copies(
        {
            n: _Copied(f["seen"].state, f["seen"].copy_end, f["seen"].lag, f["seen"].problem, f["copy"] or {})
            for n, f in found.items()
        }
    )
    if left:
        note(said_owed(left, "run gantry migrate abort"))
    if left_by_rollback:
        note(_after_rollback(folder, left_by_rollback))


def _after_rollback(folder: ClusterFolder, left: dict[str, list[str]]) -> str:
    """Name the source's brokers that a rollback could not give back, and the command that does."""
    from gantry_operator.migration.cutover_steps import said_owed

    return said_owed(left, _release(folder), event="rollback")


class _Copied(NamedTuple):
    """What a line of the table says of one group."""

    state: str | None
    end: int | None
    lag: int | None
    problem: str
    copy: dict[str, Any]


def _print_copies(groups: dict[str, _Copied]) -> None:
    rows = []
    for name, group in groups.items():
        rate = group.copy.get("rate")
        rows.append(
            [
                name,
                group.state or "-",
                "-" if group.end is None else size(group.end - (group.copy.get("start") or 0)),
                "-" if group.lag is None else size(group.lag),
                "-" if rate is None else f"{size(rate)}/s",
                group.copy.get("topics") or "-",
                group.copy.get("groups") or "-",
                group.problem or "-",
            ]
        )
    print_table(
        ["GROUP", "STATE", "COPIED", "MISSING", "RATE", "TOPICS", "GROUPS", "PROBLEM"], rows,
        right=["COPIED", "MISSING", "RATE", "TOPICS", "GROUPS"],
    )  # fmt: skip


def _show_operators(context: str | None, namespace: str | None, name: str | None, output: Output) -> None:
    """Show the records and the copies of a cluster on Kubernetes. Raises CliError."""
    from gantry_operator.actions.kubernetes_target import KubernetesTarget
    from gantry_operator.cli.target import run_async
    from gantry_operator.platforms.kubernetes.targets.target import migration_of, rollback_of

    target = KubernetesTarget(context, namespace, name)

    async def ask() -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
        from gantry_operator.cluster.member_http import httpx

        resource = await target.resource()
        found: dict[str, dict[str, Any]] = {}
        async with target.live() as live:
            for member in (await live.facts()).members:
                try:
                    answer = await live.client.get(f"{member.url}/migration", timeout=3.0)
                    if answer.status_code == 200:
                        found.setdefault(member.group, dict(answer.json()))
                except (httpx.HTTPError, ValueError, TypeError):
                    continue
        return resource, found

    resource, copies = run_async(ask())
    phase, rolled = migration_of(resource).phase.value, rollback_of(resource).phase.value
    if output == Output.json:
        print_json({"phase": phase, "rollback": rolled, "groups": copies})
        return
    say(f"phase: {phase}")
    if rolled != "none":
        say(f"rollback: {rolled}")
    _print_copies(
        {
            group: _Copied(str(copy.get("state")), copy.get("end"), copy.get("lag"), str(copy.get("problem", "")), copy)
            for group, copy in copies.items()
        }
    )


def _ask_operator(
    op: str, timeout: float, context: str | None, namespace: str | None, name: str | None, **limits: Any
) -> None:
    """Ask the operator by an annotation. Raises CliError."""
    from gantry_operator.actions.kubernetes_target import KubernetesTarget
    from gantry_operator.cli.target import run_async
    from gantry_operator.platforms.kubernetes.requests.migration_request import new_request

    request = new_request(op, timeout_s=timeout, **limits)
    target = KubernetesTarget(context, namespace, name)
    say(run_async(target.migrate(request, timeout, lambda phase: say(f"phase: {phase}"))))


def _ask_rollback(
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
    from gantry_operator.cli.target import run_async
    from gantry_operator.migration.cutover_steps import Phase
    from gantry_operator.platforms.kubernetes.targets.target import migration_of

    if not back and not dry_run:
        _ask_operator("rollback", timeout, context, namespace, name, lag=limits.lag, settle_s=limits.settle)
        return
    resource = run_async(KubernetesTarget(context, namespace, name).resource())
    record = migration_of(resource)
    if dry_run:
        if record.phase is not Phase.DONE:
            raise CliError("the cutover is not done: before its last steps gantry migrate abort goes back at once")
        _show_rollback(list(record.groups), limits)
        return
    if record.phase is not Phase.DONE:
        raise CliError("no rollback is under way: gantry migrate abort goes back from a cutover")
    _ask_operator("abort", timeout, context, namespace, name)


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
    from gantry_operator.cli.target import run_async
    from gantry_operator.migration import cutover_steps
    from gantry_operator.migration.cutover_edge import drive

    if settle + routes >= timeout and not dry_run:
        raise CliError(
            f"--settle and --routes leave no time of --timeout {timeout:g}: after that a cutover goes back", Exit.USAGE
        )
    limits = cutover_steps.Limits(lag=max_lag << 20, settle=settle, routes=routes)
    if on_kubernetes(context, namespace):
        if dry_run:
            _show_operators_steps(context, namespace, name, limits)
            return
        _ask_operator("cutover", timeout, context, namespace, name, lag=max_lag, settle_s=settle, routes_s=routes)
        return
    folder = _folder(directory, name)
    if (messages := _by_messages(folder)) is not None:
        _finish_messages(folder, messages, dry_run, timeout)
        return

    async def go() -> None:
        record = _read_record(folder)
        async with _edge(folder) as edge:
            if record.phase is cutover_steps.Phase.FOLLOWING and _asks_for_keys_by_default(folder):
                await edge.refuse_without_keys()
            seen = await edge.look()
            begun = cutover_steps.begin(record, seen, limits, time.time())
            if dry_run:
                _show_steps(begun, limits, {n: s.lag or 0 for n, s in seen.items()})
                return
            await _save_record(folder, begun)
            await _copy_kv(folder, edge)
            shown = _Shown()
            began = time.monotonic()
            await drive(edge, begun, limits, partial(_save_record, folder), timeout=timeout, say=shown)
            shown.end(time.monotonic() - began)
        say(
            "Gantry leads. Next: keep the source's brokers while you may want gantry migrate rollback; then stop them "
            "for good"
        )

    try:
        with contextlib.nullcontext() if dry_run else _alone(folder):
            run_async(go())
    except cutover_steps.Refused as error:
        raise CliError(str(error)) from None


def _asks_for_keys_by_default(folder: ClusterFolder) -> bool:
    from gantry_operator.platforms.local.manifest import load_saved
    from gantry_operator.platforms.local.users import authentication

    cluster = load_saved(folder)
    return cluster.spec.security.authentication is None and authentication(cluster) == "Enabled"


def _show_operators_steps(context: str | None, namespace: str | None, name: str | None, limits: Limits) -> None:
    """Show the steps of a cutover on Kubernetes, by what the resource says. Raises CliError."""
    from gantry_operator.actions.kubernetes_target import KubernetesTarget
    from gantry_operator.cli.target import run_async
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
    _show_steps(begun, limits, lags)


async def _copy_kv(folder: ClusterFolder, edge: Edge) -> None:
    """Copy what the source's NameServers have. A failure costs no cutover: clients keep those NameServers."""
    from gantry_broker.client import Admin

    from gantry_operator.actions.local_target import LocalTarget
    from gantry_operator.migration.cutover_edge import FAILURES

    try:
        async with (
            LocalTarget(folder).clients() as ours,
            Admin(ours.name_servers, credentials=ours.credentials, tls=ours.tls) as own,
        ):
            await edge.copy_kv(own)
    except FAILURES as error:
        note(f"the key-value configuration is not copied to the new NameServers: {error}")


class _Shown:
    """Prints each phase once, with its time."""

    def __init__(self) -> None:
        self._phase: Phase | rollback_steps.Phase | None = None
        self._since = time.monotonic()
        self._named: set[str] = set()

    def __call__(self, phase: Phase | rollback_steps.Phase, waits: str) -> None:
        if phase is not self._phase:
            now = time.monotonic()
            if self._phase is not None:
                say(f"{self._phase.value}: {now - self._since:.1f} s")
            self._phase, self._since = phase, now

    def warn(self, problem: str) -> None:
        """Name a problem once."""
        if problem not in self._named:
            self._named.add(problem)
            note(f"{problem}; tried again")

    def end(self, took: float) -> None:
        say(f"done after {took:.1f} s")


def _show_steps(record: Record, limits: Limits, lags: dict[str, int]) -> None:
    groups = ", ".join(record.groups)
    say(f"groups: {groups}; missing now: {', '.join(f'{n} {size(lag)}' for n, lag in lags.items())}")
    print_table(
        ["STEP", "SECONDS", "WHAT HAPPENS", "BACK"],
        [
            *(
                [
                    ["routing", "1 to 5", "routes give Gantry's address, which leads to the source", "abort"],
                    ["routed", f"{limits.routes:g}", "clients learn it", "abort"],
                ]
                if record.carried
                else []
            ),
            ["readers-off", f"{limits.settle:g}", "consumers get nothing, and commit what they have had", "abort"],
            ["writes-off", f"{limits.quiet:g} to {limits.quiet_at_most:g}", "producers are refused; the end arrives",
             "abort"],
            ["finishing", "2 to 5", "each group leads", "no"],
            ["taking", "1 to 30", "the source's NameServers give Gantry's addresses", "no"],
        ],
        right=["SECONDS"],
    )  # fmt: skip
    note("nothing was changed")


@migrate_app.command()
def abort(
    timeout: Annotated[float, typer.Option(help="Seconds until it gives up; it can go on later.")] = 60.0,
    directory: DirOption = None,
    name: NameOption = None,
    context: ContextOption = None,
    namespace: NamespaceOption = None,
) -> None:
    """Give the source its permission back. The copies follow on, so that a cutover can begin again."""
    from gantry_operator.cli.target import run_async
    from gantry_operator.migration import cutover_steps
    from gantry_operator.migration.cutover_edge import drive

    if on_kubernetes(context, namespace):
        _ask_operator("abort", timeout, context, namespace, name)
        return
    folder = _folder(directory, name)

    async def go() -> Record:
        record = _read_record(folder)
        async with _edge(folder) as edge:
            begun = cutover_steps.abort(record, time.time(), await edge.look())
            await _save_record(folder, begun)
            return await drive(edge, begun, cutover_steps.Limits(), partial(_save_record, folder), timeout=timeout)

    try:
        with _alone(folder):
            ended = run_async(go())
    except cutover_steps.Refused as error:
        raise CliError(str(error)) from None
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

    from gantry_operator.cli.target import run_async
    from gantry_operator.migration import releasing
    from gantry_operator.migration.cutover_edge import SourcePlace
    from gantry_operator.migration.cutover_steps import READ, WRITE, Refused

    if (file is None) is (name_servers is None):
        raise CliError("write a manifest, or --name-servers with the addresses of the source's NameServers", Exit.USAGE)
    if permission & (READ | WRITE) != READ | WRITE:
        raise CliError(f"--permission {permission}: clients need 4 (read) and 2 (write): write 6 or 7", Exit.USAGE)
    wanted = _listed(brokers, ",", "--brokers names no broker")
    if file is not None:
        if secret is not None or ca is not None:
            raise CliError("--secret and --ca are for --name-servers: the manifest has its own", Exit.USAGE)
        cluster, source = _load(file)
        place = _place(source)
        wanted = wanted or _brokers(cluster, source)
    else:
        servers = _listed(name_servers, ";", "--name-servers names no NameServer")
        place = SourcePlace(tuple(servers), _keys(secret), None if ca is None else TlsOptions(ca_file=ca))

    async def go() -> list[releasing.Line]:
        found = await releasing.look(place, wanted)
        made = releasing.lines(found)
        if dry_run or not any(line.state == "to release" for line in made):
            return made
        if not yes and not typer.confirm(
            "No cluster of Gantry leads these groups any more, or is about to. What Gantry acknowledged after a "
            "cutover the source lacks. Let the source take messages?"
        ):
            raise CliError("nothing was changed")
        return await releasing.release(place, found, permission)

    try:
        made = run_async(go())
    except Refused as error:
        raise CliError(str(error)) from None
    print_table(["BROKER", "ADDRESS", "STATE", "NOTE"], made)
    if refused := [line for line in made if line.state == "refused"]:
        raise CliError("; ".join(f"{line.broker} {line.address}: {line.note}" for line in refused))
    released = sum(line.state == "released" for line in made)
    what = "1 broker has its settings back" if released == 1 else f"{released} brokers have their settings back"
    say(what if released else "nothing was changed")


def _listed(text: str | None, separator: str, problem: str) -> list[str]:
    """Return the words of an option; without it none. Raises CliError for one without a word."""
    words = [word.strip() for word in (text or "").split(separator) if word.strip()]
    if text is not None and not words:
        raise CliError(problem, Exit.USAGE)
    return words


def _topics(text: str) -> list[str]:
    return _listed(text, ",", "--topics names no topic")


def _show_rollback(groups: Sequence[str], limits: rollback_steps.Limits) -> None:
    silent = f"1 to {limits.silent:g}"
    say(f"groups: {', '.join(groups)}")
    print_table(
        ["STEP", "SECONDS", "WHAT HAPPENS", "BACK"],
        [
            ["copying-back", f"until {limits.lag} messages are missing", "the source gets what was written since",
             "--abort"],
            ["gantry-writes-off", f"1 to {limits.quiet_at_most:g}", "producers are refused; the rest is copied",
             "--abort"],
            ["gantry-readers-off", f"{limits.settle:g}", "consumers get nothing, and commit what they have had",
             "--abort"],
            ["offsets", "1", "the source gets the offsets of all groups", "--abort"],
            ["leaving", silent, "Gantry leaves the source's NameServers", "--abort"],
            ["returning", silent, "the source leads again", "no"],
        ],
        right=["SECONDS"],
    )  # fmt: skip
    note("nothing was changed")


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
    from gantry_operator.actions.local_target import LocalTarget
    from gantry_operator.cli.target import run_async
    from gantry_operator.migration import cutover_steps, rollback_steps
    from gantry_operator.migration.rollback_edge import RollbackEdge, drive

    if back and dry_run:
        raise CliError("--dry-run shows the steps of a rollback, not those of --abort", Exit.USAGE)
    limits = rollback_steps.Limits(lag=max_lag, settle=settle)
    if on_kubernetes(context, namespace):
        _ask_rollback(back, limits, timeout, context, namespace, name, dry_run=dry_run)
        return
    folder = _folder(directory, name)

    async def go() -> rollback_steps.Record | None:
        from gantry_broker.client import Admin

        cut, record = _read_record(folder), _read_rollback(folder)
        async with (
            _edge(folder) as edge,
            LocalTarget(folder).clients() as ours,
            Admin(ours.name_servers, credentials=ours.credentials, tls=ours.tls) as gantry,
        ):
            rolling = RollbackEdge(edge, gantry)
            if back:
                begun = rollback_steps.abort(record, time.time())
            else:
                done = cut.phase is cutover_steps.Phase.DONE
                begun = rollback_steps.begin(record, cut.groups, await rolling.look(), time.time(), cut_over=done)
            if dry_run:
                _show_rollback(list(begun.groups), limits)
                return None
            await _save_rollback(folder, begun)
            async with contextlib.AsyncExitStack() as stack:
                if begun.phase in rollback_steps.COPIES:
                    await stack.enter_async_context(
                        rolling.copying(cut.groups, folder.root / ROLLBACK_COPY, begun.phase)
                    )
                shown, began = _Shown(), time.monotonic()
                save = partial(_save_rollback, folder)
                ended = await drive(rolling, begun, limits, save, timeout=timeout, say=shown, warn=shown.warn)
                shown.end(time.monotonic() - began)
                if rolling.copy is not None:
                    say(f"{rolling.copy.sent()} messages are copied")
                    if expired := rolling.copy.expired():
                        note(f"{expired} messages had expired at Gantry before they were read: the source lacks them")
                return ended

    try:
        with contextlib.nullcontext() if dry_run else _alone(folder):
            ended = run_async(go())
    except cutover_steps.Refused as error:
        raise CliError(str(error)) from None
    if ended is None:
        return
    if ended.phase is rollback_steps.Phase.DONE:
        say("the source leads again. Next: when its clients work, stop the cluster (gantry down)")
        if left := rollback_steps.still_owed(ended, {}):
            note(_after_rollback(folder, left))
    else:
        say("Gantry has its clients; the source stands aside")


def _finish_messages(folder: ClusterFolder, record: by_messages.Record, dry_run: bool, timeout: float) -> None:
    """End a migration by messages. Raises CliError."""
    from gantry_operator.cli.target import run_async
    from gantry_operator.migration import by_messages
    from gantry_operator.migration.cutover_steps import Refused

    if record.done:
        raise CliError("the cutover is done")
    if dry_run:
        say("the rest is copied once the source gets no message any more, and the groups get their offsets")
        note("nothing was changed")
        return
    try:
        with _alone(folder):
            moved = run_async(_copy_all(folder, record, timeout))
            by_messages.done(record).save(folder.root / MESSAGES)
    except Refused as error:
        raise CliError(str(error)) from None
    for group, queues in sorted(moved.items()):
        say(f"group {group}: its offsets in {queues} queues are set")
    say("all is copied. Next: give the consumers the new addresses (gantry status)")


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

    from gantry_broker.broker.migration.errors import MigrationError, SourceBroken

    from gantry_operator.actions.plain_acl import accounts_of
    from gantry_operator.actions.users import import_accounts, importable, known_users
    from gantry_operator.cli.target import run_async
    from gantry_operator.migration import users as users_of

    cluster, source = _load(file)
    brokers = _brokers(cluster, source)
    known: dict[str, str] = {}
    taken: set[str] = set()
    if not dry_run:
        known, taken = run_async(known_users(target, cluster.name))
    try:
        found = run_async(users_of.ask_all(_place(source), brokers, source.cluster))
    except (MigrationError, SourceBroken) as error:
        raise CliError(str(error)) from None
    accounts, nameless = accounts_of(found.users, known, taken)
    accounts, refused = importable(accounts, cluster.name)
    left_out = {**found.left_out, **nameless, **refused}
    found = replace(
        found, users={name: user for name, user in found.users.items() if name not in left_out}, left_out=left_out
    )
    new = [account for account in accounts if account.access_key not in known]
    made = [] if dry_run else run_async(import_accounts(target, new, wait=False))
    rows = users_of.lines(found)
    if as_json:
        print_json({"users": rows, "notes": list(found.notes), "created": made})
        return
    cells = []
    for row in rows:
        is_super = "-" if row["super"] is None else "yes" if row["super"] else "no"
        rules = "-" if row["rules"] is None else row["rules"]
        cells.append([row["user"], "yes" if row["comes"] else "no", is_super, rules, row["note"] or "-"])
    print_table(["USER", "COMES", "SUPER", "RULES", "NOTE"], cells, right=["RULES"])
    for text in found.notes:
        note(f"not taken over: {text}")
    if stayed := sorted(a.name for a in accounts if a.access_key in known):
        note(f"they exist, and stay as they are: {', '.join(stayed)}")
    if cluster.spec.security.authentication != "Enabled" and found.users:
        note("write spec.security.authentication: Enabled: without it the new cluster asks for no signature")
    say("nothing was changed" if dry_run else f"created: {', '.join(made) or 'no user'}")


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
    from gantry_operator.cli.target import run_async
    from gantry_operator.migration.cutover_steps import Refused

    names = _topics(topics)
    try:
        run_async(_copy((source, source_secret), (target, target_secret), names, state, follow, groups))
    except Refused as error:
        raise CliError(str(error)) from None


async def _copy(
    source: tuple[str, str | None],
    target: tuple[str, str | None],
    topics: list[str],
    state: Path,
    follow: bool,
    groups: bool,
) -> None:
    from gantry_broker.client import Admin

    from gantry_operator.migration.copying import Copy

    async with (
        Admin(source[0], credentials=_keys(source[1])) as here,
        Admin(target[0], credentials=_keys(target[1])) as there,
    ):
        made = Copy(here, there, topics, state)
        await made.prepare()
        with Progress("copying") as progress:
            try:
                await made.run(
                    follow=follow, say=lambda copied, missing: progress.say(f"{copied} copied, {missing} missing")
                )
            finally:
                moved = await made.move_groups() if groups else {}
        say(f"{sum(q.messages for found in made.queues.values() for q in found)} messages are copied")
        expired = made.expired()
        known = sum(q.known for found in made.queues.values() for q in found)
        if known:
            note(f"{known} messages are copies of what the target has, and were not sent back")
        if expired:
            note(f"{expired} messages had expired at the source before they were read")
        for group, queues in sorted(moved.items()):
            say(f"group {group}: its offsets in {queues} queues are set")
