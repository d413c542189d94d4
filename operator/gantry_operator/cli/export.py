"""`gantry export`: the store of each group becomes one that Apache RocketMQ opens."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gantry_operator.cli.errors import CliError, Exit
from gantry_operator.cli.options import ContextOption, DirOption, NameOption, NamespaceOption, Output, OutputOption
from gantry_operator.cli.output import note, print_json, print_table
from gantry_operator.cli.progress import Progress
from gantry_operator.cli.target import find_target, run_async
from gantry_operator.cluster.amounts import size

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gantry_broker.broker.migration.exporting import Exported
    from gantry_broker.settings import BrokerSettings

    from gantry_operator.api.cluster import BrokerCluster
    from gantry_operator.migration.exporting import Names

FROM = "A store without its cluster"


def export(
    to: Annotated[Path, typer.Option("--to", help="A new folder: each group gets one in it.", show_default=False)],
    group: Annotated[str | None, typer.Option("--group", "-g", help="One broker group. Default: all.")] = None,
    source: Annotated[
        str | None,
        typer.Option(
            "--from",
            help="The folder of a store that no process has open, or the URL of a running member's HTTP interface.",
            show_default=False,
            rich_help_panel=FROM,
        ),
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option(
            "--file", "-f", help="The manifest of the cluster of --from.", show_default=False, rich_help_panel=FROM
        ),
    ] = None,
    token_file: Annotated[
        Path | None, typer.Option(help="The cluster's token, for a URL.", show_default=False, rich_help_panel=FROM)
    ] = None,
    directory: DirOption = None,
    name: NameOption = None,
    context: ContextOption = None,
    namespace: NamespaceOption = None,
    output: OutputOption = Output.text,
) -> None:
    """Write stores that Apache RocketMQ 4.9 and 5.x open: the way out, or a second copy for it.

    Of a cluster that runs it takes the confirmed records up to now; producers and consumers go on. Of one of this
    machine that is down it takes the files of the best member of each group. The cluster itself is not changed. Each
    folder has a broker.conf with the settings that RocketMQ needs to open it.
    """
    with _one_line_errors():
        if source is not None:
            exported = _from_store(source, file, group, token_file, to)
        else:
            exported = _from_cluster(to, group, directory, name, context, namespace)
    _show(exported, to, output == Output.json)


def _show(exported: dict[str, Exported], to: Path, as_json: bool) -> None:
    if as_json:
        print_json(
            {
                name: {
                    "folder": str(to / name), "start": one.start, "end": one.end, "topics": one.topics,
                    "groups": one.groups, "delayed": one.delayed, "timers": one.timers, "settings": one.settings,
                }
                for name, one in exported.items()
            }
        )  # fmt: skip
        return
    print_table(
        ["GROUP", "LOG", "TOPICS", "GROUPS", "DELAYED", "TIMERS", "FOLDER"],
        [
            [name, size(one.end - one.start), one.topics, one.groups, one.delayed, one.timers, str(to / name)]
            for name, one in exported.items()
        ],
        right=["LOG", "TOPICS", "GROUPS", "DELAYED", "TIMERS"],
    )
    timers = sum(one.timers for one in exported.values())
    if timers:
        note(f"{timers} timer messages wait: RocketMQ 5.x delivers them, 4.9 never does")
    note("next: a broker of RocketMQ has each folder as its storePathRootDir, and the lines of its broker.conf")


@contextmanager
def _one_line_errors() -> Iterator[None]:
    from gantry_broker.broker.migration.errors import MigrationError
    from gantry_broker.store.errors import StoreError

    from gantry_operator.migration.cutover_steps import Refused

    try:
        yield
    except (Refused, MigrationError, StoreError) as error:
        raise CliError(str(error)) from None
    except OSError as error:
        from gantry_operator.registry.disk_errors import in_words

        raise CliError(in_words(error)) from None


def _names(cluster: BrokerCluster, group: str) -> Names:
    from gantry_operator.migration.exporting import Names

    return Names(cluster.broker_cluster_name, cluster.broker_name(group), _settings(cluster))


def _settings(cluster: BrokerCluster) -> BrokerSettings:
    return cluster.spec.broker


def _chosen(cluster: BrokerCluster, group: str | None) -> list[str]:
    """Choose the groups. Raises CliError for a group that the cluster does not have."""
    names = [one.name for one in cluster.spec.brokerGroups]
    if group is not None and group not in names:
        raise CliError(f"the cluster has no group {group!r}: it has {', '.join(names)}", Exit.USAGE)
    return names if group is None else [group]


def _from_store(
    source: str, file: Path | None, group: str | None, token_file: Path | None, to: Path
) -> dict[str, Exported]:
    from gantry_operator.cli.manifest_files import read_manifest
    from gantry_operator.migration import exporting

    if file is None:
        raise CliError("--from needs --file, the manifest of its cluster: it has the names and settings", Exit.USAGE)
    cluster = read_manifest(file)
    chosen = _chosen(cluster, group)
    if len(chosen) != 1:
        raise CliError(f"--from is the store of one group: add --group, one of {', '.join(chosen)}", Exit.USAGE)
    names = _names(cluster, chosen[0])
    if not source.startswith(("http://", "https://")):
        with Progress(f"copying {chosen[0]}", unit="bytes") as progress:
            return {chosen[0]: exporting.of_files(Path(source).expanduser(), to / chosen[0], names, _shown(progress))}

    token = token_file.read_text().strip() if token_file is not None else None

    async def fetch() -> Exported:
        from gantry_operator.cluster.member_http import make_client

        async with make_client(lambda: token) as http:
            url, info = await exporting.leader_of(http, [source.rstrip("/")])
            if info.group != names.broker:
                raise CliError(f"{source} is a member of {info.group}, not of {names.broker}", Exit.USAGE)
            with Progress(f"copying {chosen[0]}", unit="bytes") as progress:
                return await exporting.of_member(http, url, info, to / chosen[0], names, _shown(progress))

    return {chosen[0]: run_async(fetch())}


class _shown:
    """Tells a `Progress` how many bytes are done."""

    def __init__(self, progress: Progress) -> None:
        self._progress, self._done = progress, 0

    def __call__(self, done: int, total: int) -> None:
        self._progress.say(f"of {size(total)}")
        self._progress.advance(done - self._done)
        self._done = done


def _from_cluster(
    to: Path,
    group: str | None,
    directory: Path | None,
    name: str | None,
    context: str | None,
    namespace: str | None,
) -> dict[str, Exported]:
    from gantry_operator.actions.local_target import LocalTarget
    from gantry_operator.api.manifest import parse_manifest

    target = find_target(directory, name, context, namespace)
    if isinstance(target, LocalTarget):
        from gantry_operator.platforms.local.addresses import why_nothing_runs
        from gantry_operator.platforms.local.manifest import load_saved

        cluster = load_saved(target.folder)
        if why_nothing_runs(target.folder, cluster):
            return _from_files(target, cluster, group, to)

    async def fetch() -> dict[str, Exported]:
        from gantry_operator.migration import exporting

        exported = {}
        resource = await target.resource()
        cluster = parse_manifest({k: v for k, v in resource.items() if k != "status"})
        async with target.live() as live:
            members = (await live.facts()).members
            for chosen in _chosen(cluster, group):
                urls = [member.url for member in members if member.group == chosen]
                url, info = await exporting.leader_of(live.client, urls)
                with Progress(f"copying {chosen}", unit="bytes") as progress:
                    exported[chosen] = await exporting.of_member(
                        live.client, url, info, to / chosen, _names(cluster, chosen), _shown(progress)
                    )
        return exported

    return run_async(fetch())


def _from_files(target: object, cluster: BrokerCluster, group: str | None, to: Path) -> dict[str, Exported]:
    from gantry_operator.actions.local_target import LocalTarget
    from gantry_operator.migration import exporting
    from gantry_operator.plan.plan import plan

    assert isinstance(target, LocalTarget)
    exported = {}
    for chosen in _chosen(cluster, group):
        members = next(one.members for one in plan(cluster).groups if one.name == chosen)
        store = exporting.best([target.folder.data(member.name) for member in members])
        with Progress(f"copying {chosen}", unit="bytes") as progress:
            exported[chosen] = exporting.of_files(store, to / chosen, _names(cluster, chosen), _shown(progress))
    return exported
