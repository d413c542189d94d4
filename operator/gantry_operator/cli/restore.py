"""`gantry restore`: a new cluster from an archive, or one of its topics into a running cluster."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gantry_operator.cli.archive import (
    CredentialsOption,
    EndpointOption,
    KeyOption,
    RegionOption,
    archive_of,
    groups_of,
    one_line_errors,
    place_of,
    time_text,
)
from gantry_operator.cli.errors import CliError, Exit
from gantry_operator.cli.options import ContextOption, DirOption, NameOption, NamespaceOption, Output, OutputOption
from gantry_operator.cli.output import note, print_json, print_table, say
from gantry_operator.cli.progress import Progress
from gantry_operator.cli.target import find_target, run_async
from gantry_operator.cluster.amounts import size

if TYPE_CHECKING:
    from gantry_broker.archive.chain import Archive, GroupArchive
    from gantry_broker.archive.inspection import GroupContents
    from gantry_broker.archive.manifest import State
    from gantry_broker.archive.restore import Target as RestoreTarget

    from gantry_operator.actions.target import Target
    from gantry_operator.api.archive import FromArchive
    from gantry_operator.api.cluster import BrokerCluster
    from gantry_operator.migration.from_archive import Goal, TopicRestore

BYTES_S = 50e6
"""Bytes a second that a restore is expected to fetch, for the expected time."""
TOPIC = "One topic into a running cluster"
NOT_RESTORED = "users and their keys are not in an archive"


def restore(
    source: Annotated[
        str | None,
        typer.Argument(
            metavar="FILE|URL",
            help="A manifest with spec.bootstrap.fromArchive. With --topic: the URL of an archive; default: that of "
            "the cluster.",
            show_default=False,
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be there.")] = False,
    timeout: Annotated[float, typer.Option(help="Seconds to wait until the new cluster is ready.")] = 3600.0,
    topic: Annotated[
        str | None, typer.Option(help="Restore only this topic.", rich_help_panel=TOPIC, show_default=False)
    ] = None,
    new_name: Annotated[
        str | None,
        typer.Option("--as", help="Its name in the running cluster.", rich_help_panel=TOPIC, show_default=False),
    ] = None,
    moment: Annotated[
        str | None,
        typer.Option(
            "--time",
            help="Leave out what was stored later, for example 2026-01-31T12:00:00Z.",
            rich_help_panel=TOPIC,
            show_default=False,
        ),
    ] = None,
    state: Annotated[
        Path | None,
        typer.Option(
            help="Folder with what was restored, so that the same command goes on. Default: one of this user.",
            rich_help_panel=TOPIC,
            show_default=False,
        ),
    ] = None,
    endpoint: EndpointOption = None,
    region: RegionOption = None,
    credentials: CredentialsOption = None,
    key_file: KeyOption = None,
    directory: DirOption = None,
    name: NameOption = None,
    context: ContextOption = None,
    namespace: NamespaceOption = None,
    output: OutputOption = Output.text,
) -> None:
    """Make a cluster of this machine from an archive (on Kubernetes: kubectl apply the same manifest), or with --topic
    and --as write one topic of an archive to a running cluster.
    """
    if topic is None:
        if new_name or moment or state or endpoint or region or name or context or namespace:
            raise CliError("--as, --time, --state and what names a running cluster are for --topic", Exit.USAGE)
        if source is None:
            raise CliError("name a manifest with spec.bootstrap.fromArchive, or a topic with --topic", Exit.USAGE)
        _restore_cluster(Path(source), dry_run, timeout, directory, credentials, key_file, output)
        return
    if new_name is None:
        raise CliError("--topic needs --as with the topic's new name", Exit.USAGE)
    archive, url = archive_of(source, endpoint, region, credentials, key_file, directory, name, context, namespace)
    target = find_target(directory, name, context, namespace)
    _restore_topic(archive, url, target, topic, new_name, moment, state, output, dry_run=dry_run)


def _restore_cluster(
    file: Path,
    dry_run: bool,
    timeout: float,
    directory: Path | None,
    credentials: Path | None,
    key_file: Path | None,
    output: Output,
) -> None:
    from gantry_broker.archive.inspection import contents
    from gantry_broker.archive.restore import outline

    from gantry_operator.cli.manifest_files import read_manifest
    from gantry_operator.platforms.local.folder import ClusterFolder, default_folder

    cluster = read_manifest(file)
    source = None if cluster.spec.bootstrap is None else cluster.spec.bootstrap.fromArchive
    if source is None:
        raise CliError(f"{file} has no spec.bootstrap.fromArchive: write the url of an archive there", Exit.USAGE)
    if not dry_run:
        from gantry_operator.cli.up import up

        folder = default_folder(cluster.name) if directory is None else ClusterFolder(directory.expanduser().resolve())
        if not folder.manifest.exists():  # One that was begun goes on, whatever the archive has removed since.
            with one_line_errors():
                for _, state, target in _sources(place_of(source, credentials, key_file), cluster, source):
                    outline(state, target)
        up(file, directory, True, timeout, False, None)
        note(NOT_RESTORED)
        return
    archive = place_of(source, credentials, key_file)
    rows: list[GroupContents] = []
    with one_line_errors():
        for group, state, target in _sources(archive, cluster, source):
            with Progress(f"reading the index of group {group.name}"):
                rows.append(contents(group, state, target))
            if target.time_ms is not None and target.time_ms > state.last_ms:
                until = time_text(state.last_ms)
                note(f"group {group.name}: the time is after the last archived record, which is of {until}")
        left_out = sorted(set(archive.groups()) - {r.group for r in rows})
    _show_contents(rows, output)
    if left_out:
        note(f"groups of the archive that the manifest leaves out: {', '.join(left_out)}")
    note(NOT_RESTORED)


def _sources(
    archive: Archive, cluster: BrokerCluster, source: FromArchive
) -> Iterator[tuple[GroupArchive, State, RestoreTarget]]:
    """Yield each group of the manifest with its archive. Raises CliError, ArchiveError."""
    from gantry_broker.archive.restore import Target as RestoreTarget

    identity = archive.identity()
    names = groups_of(archive, None)
    if identity is not None and source.cluster not in (None, identity.cluster):
        raise CliError(f"{source.url} is the archive of cluster {identity.cluster}, not of {source.cluster}")
    for spec_group in cluster.spec.brokerGroups:
        if spec_group.name not in names:
            raise CliError(f"the archive has no group {spec_group.name}; its groups: {', '.join(names)}")
        group = archive.group(spec_group.name)
        yield group, group.load(), RestoreTarget(source.offset, source.time_ms)


def _show_contents(rows: list[GroupContents], output: Output) -> None:
    if output == Output.json:
        print_json(
            [
                {
                    "group": r.group,
                    "start": r.start,
                    "end": r.end,
                    "until": time_text(r.last_ms),
                    "download": r.download,
                    "topics": [{"name": t.name, "queues": t.queues, "messages": t.messages} for t in r.topics],
                }
                for r in rows
            ]
        )
        return
    for r in rows:
        messages = sum(t.messages for t in r.topics)
        say(
            f"group {r.group}: the log up to offset {r.end} ({time_text(r.last_ms)}), {len(r.topics)} topics, "
            f"{messages} messages, {size(r.download)} to fetch, about {max(r.download / BYTES_S, 1):.0f} s"
        )
        print_table(
            ["TOPIC", "QUEUES", "MESSAGES"],
            [[t.name, t.queues, t.messages] for t in r.topics],
            right=["QUEUES", "MESSAGES"],
        )


def _restore_topic(
    archive: Archive,
    url: str,
    target: Target,
    topic: str,
    new_name: str,
    moment: str | None,
    state: Path | None,
    output: Output,
    *,
    dry_run: bool,
) -> None:
    """Write the topic to the running cluster. Raises CliError."""
    from gantry_operator.migration import from_archive
    from gantry_operator.migration.cutover_steps import Refused
    from gantry_operator.platforms.local.folder import state_home

    try:
        with one_line_errors():
            from_archive.check_names(topic, new_name)
            identity = archive.identity()
            owner = "" if identity is None else identity.uid
            goal = from_archive.Goal(url, owner, topic, new_name, _time_ms(moment))
            metadata = run_async(target.resource())["metadata"]
            cluster = ".".join(filter(None, (metadata.get("namespace"), metadata["name"])))
            folder = state or state_home() / "restores" / cluster / new_name
            folder.mkdir(parents=True, exist_ok=True)
            if dry_run:
                _show_topic(archive, goal, folder, output)
                return
            done = run_async(_copy_topic(archive, goal, folder, target))
    except Refused as error:
        raise CliError(str(error)) from None
    except OSError as error:
        from gantry_operator.registry.disk_errors import in_words

        raise CliError(f"{in_words(error)}: the same command goes on") from None
    shutil.rmtree(folder / from_archive.INDEX, ignore_errors=True)
    result = from_archive.summary(done)
    if output == Output.json:
        print_json(result)
        return
    say(f"topic {new_name}: {result['messages']} messages in {len(result['queues'])} queues, as {topic} had them")
    note("offsets of consumer groups, and delayed messages that were not due, are not restored with a topic")


def _show_topic(archive: Archive, goal: Goal, folder: Path, output: Output) -> None:
    from gantry_operator.migration import from_archive

    with Progress("reading the index of the archive"):
        topics = from_archive.open_topics(archive, from_archive.begin(archive, goal, folder), folder)
    rows = [(archived.group, archived.numbers(), archived.messages) for archived in topics]
    for archived in topics:
        archived.close()
    if output == Output.json:
        print_json([{"group": group, "queues": queues, "messages": count} for group, queues, count in rows])
        return
    print_table(["GROUP", "QUEUES", "MESSAGES"], [list(row) for row in rows], right=["QUEUES", "MESSAGES"])


async def _copy_topic(archive: Archive, requested: Goal, folder: Path, target: Target) -> TopicRestore:
    from gantry_broker.archive.threads import in_daemon_thread
    from gantry_broker.client import Admin

    from gantry_operator.migration import from_archive

    topics = []
    try:
        with Progress("reading the index of the archive"):
            goal = await in_daemon_thread(lambda: from_archive.begin(archive, requested, folder))
            topics = await in_daemon_thread(lambda: from_archive.open_topics(archive, goal, folder))
        async with (
            target.clients() as place,
            Admin(place.name_servers, credentials=place.credentials, tls=place.tls) as admin,
        ):
            await from_archive.check_target(admin, goal, folder)
            brokers = {group: broker for broker, group in place.groups.items()}
            source = from_archive.ArchivedQueues(from_archive.by_broker(topics, brokers))
            count = [0]
            total = sum(archived.messages for archived in topics)
            with Progress("restoring", unit="messages", poll=lambda: (count[0], total)) as progress:

                def shown(written: int, waits: str) -> None:
                    count[0] = written
                    progress.say(waits)

                return await from_archive.copy_topic(source, admin, goal, folder, shown)
    finally:
        for archived in topics:
            archived.close()


def _time_ms(text: str | None) -> int | None:
    """Return a time in Unix milliseconds. Raises CliError."""
    from gantry_operator.api.archive import moment_ms

    try:
        return None if text is None else moment_ms(text)
    except ValueError as error:
        raise CliError(f"--time: {error}", Exit.USAGE) from None
