"""The commands of `gantry` and their options; those of a group, as `gantry topic`, are in `*_commands.py` or in the
module of the group. Each calls a module that does the work.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer.main import get_command_name
from typer.models import CommandInfo

from gantry_operator.actions.errors import ActionError
from gantry_operator.cli.analytics import register as register_analytics
from gantry_operator.cli.archive import archive_app
from gantry_operator.cli.console import console
from gantry_operator.cli.debug import debug_app
from gantry_operator.cli.dlq_commands import dlq_app
from gantry_operator.cli.errors import CliError, Exit, presented
from gantry_operator.cli.export import export
from gantry_operator.cli.group_commands import group_app
from gantry_operator.cli.message_commands import register as register_messages
from gantry_operator.cli.migrate import migrate_app
from gantry_operator.cli.on_cluster import cluster_command
from gantry_operator.cli.options import (
    EPILOG,
    KUBERNETES,
    ContextOption,
    DirOption,
    NameOption,
    NamespaceOption,
    Output,
    OutputOption,
    command_group,
    on_kubernetes,
)
from gantry_operator.cli.output import give_up_stdout, json_text, note, prepare_streams, print_json, say, was_complete
from gantry_operator.cli.progress import Progress
from gantry_operator.cli.restore import restore
from gantry_operator.cli.tables import table_app
from gantry_operator.cli.target import find_target, run_async
from gantry_operator.cli.topic_commands import topic_app
from gantry_operator.cli.user_commands import user_app
from gantry_operator.cli.volumes import volume_app

if TYPE_CHECKING:
    from gantry_operator.actions.target import Target

INTERRUPTED = 130
"""As of shells: 128 and the number of the signal."""
BROKEN_PIPE = 141
app = typer.Typer(
    name="gantry",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=EPILOG,
    help="RocketMQ-protocol broker clusters on this machine or on Kubernetes.\n\n"
    "Begin with: [bold]gantry up --detach[/bold]; `gantry examples` has more manifests.",
    rich_markup_mode="rich",
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from gantry_broker.version import VERSION

        say(f"gantry {VERSION}")
        raise typer.Exit


@app.callback()
def common(
    wanted: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


app.add_typer(topic_app, name="topic")
app.add_typer(group_app, name="group")
app.add_typer(archive_app, name="archive")
app.command("restore", epilog=EPILOG)(restore)
app.add_typer(migrate_app, name="migrate")
app.command("export", epilog=EPILOG)(export)
app.add_typer(table_app, name="table")
app.add_typer(dlq_app, name="dlq")
app.add_typer(user_app, name="user")
app.add_typer(debug_app, name="debug")


@app.command(epilog=EPILOG)
def up(
    file: Annotated[
        Path | None,
        typer.Argument(
            help="A BrokerCluster manifest, as for kubectl apply. Without it: the cluster of --dir as it was, or the "
            "quickstart, a cluster called demo.",
            show_default=False,
        ),
    ] = None,
    directory: Annotated[
        Path | None, typer.Option("--dir", help="Folder for all files of the cluster. Default: your state folder.")
    ] = None,
    detach: Annotated[bool, typer.Option("--detach", "-d", help="Return once it is ready.")] = False,
    timeout: Annotated[float, typer.Option(help="Seconds to wait for it with --detach.")] = 60.0,
    tls: Annotated[
        bool,
        typer.Option(
            "--tls", help="Clients need TLS: sets spec.security.tls.mode to Required. Prints the file of the authority."
        ),
    ] = False,
    proxy: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=64,
            help="How many proxies serve gRPC clients, whatever the manifest says. Default: spec.proxy.replicas, or 1.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Run a cluster on this machine, restart its processes, and fail over when a master dies.

    Brokers continue when this command ends or is killed. Run it again to adopt them, also with a changed manifest:
    members are then replaced one at a time, without loss. `gantry down` stops everything.
    """
    from gantry_operator.cli.up import up as run_up

    run_up(file, directory, detach, timeout, tls, proxy)


@app.command("examples", epilog=EPILOG)
def list_examples(
    name: Annotated[str | None, typer.Argument(help="Print the manifest of this example.", show_default=False)] = None,
    output: OutputOption = Output.text,
) -> None:
    """List examples of manifests, or print one: [bold]gantry examples durable > my.yaml[/bold]."""
    from gantry_operator.cli.examples import show_examples

    show_examples(name, output == Output.json)


@app.command("self-test", epilog=EPILOG)
def self_test(
    directory: Annotated[
        Path, typer.Option("--dir", help="A folder on the disk that is to hold the messages.", show_default=False)
    ] = Path(),
    limit: Annotated[
        float, typer.Option("--limit", help="With a cluster: milliseconds; a longer round trip is slow.", min=0.01)
    ] = 10.0,
    name: NameOption = None,
    context: ContextOption = None,
    namespace: NamespaceOption = None,
    output: OutputOption = Output.text,
) -> None:
    """Measure what this machine can do for a cluster: fsync, throughput, clock, ports, limits. With a verdict.

    Takes a few seconds, and writes 64 MiB to a file that it removes. With --cluster, --context or --namespace: the
    network between the members of that cluster, and to its NameServers, as each member sees it.
    """
    if name is not None or on_kubernetes(context, namespace):
        from gantry_operator.cli.self_test_network import run as run_network

        run_network(find_target(None, name, context, namespace), limit, output == Output.json)
        return
    from gantry_operator.cli.self_test import run as run_test

    run_test(directory.resolve(), output == Output.json)


@app.command(epilog=EPILOG)
def version(output: OutputOption = Output.text) -> None:
    """Print the version of gantry, and which body of its core runs: Rust, or Python at a higher cost."""
    import gantry_core
    from gantry_broker.version import VERSION

    if output is Output.json:
        say(json_text({"version": VERSION, "core": gantry_core.NAME, "whyPython": gantry_core.WHY_PYTHON}))
        return
    why = f" ({gantry_core.WHY_PYTHON})" if gantry_core.WHY_PYTHON else ""
    say(f"gantry {VERSION}, core: {gantry_core.NAME}{why}")


@cluster_command(app)
def status(target: Target, as_json: bool) -> None:
    """Show the cluster: members, leaders, replication progress and recent events."""
    resource = run_async(target.resource())
    if as_json:
        print_json(resource)
        return
    from gantry_operator.cli.next_steps import next_steps
    from gantry_operator.cli.show import show_resource

    show_resource(resource, next_steps(resource, target.where))


@cluster_command(app, "plan")
def plan_command(
    target: Target,
    as_json: bool,
    file: Annotated[
        Path | None,
        typer.Argument(help="The changed manifest. Without it: the cluster as it is.", show_default=False),
    ] = None,
    image: Annotated[
        str, typer.Option("--image", help="As if the operator's chart had this image.broker (Kubernetes).")
    ] = "",
) -> None:
    """Show what a manifest or another image would change, and which members would be replaced. Changes nothing."""
    from gantry_operator.cli.plan import show_plan

    show_plan(target, file, image, as_json)


@cluster_command(app)
def top(
    target: Target,
    as_json: bool,
    interval: Annotated[float, typer.Option(min=0.2, max=60.0, help="Seconds between two figures of a member.")] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="Print it once and end, as without a terminal.")] = False,
) -> None:
    """Watch the cluster: members, rates, lag of consumer groups, events as they come. `q` ends it."""
    from gantry_operator.cli.top import top as run_top

    run_top(target, interval, once, as_json)


@cluster_command(app)
def switchover(
    target: Target,
    as_json: bool,
    group: Annotated[str, typer.Argument(help="The broker group, as in spec.brokerGroups.", show_default=False)],
    to: Annotated[str | None, typer.Option(help="The next leader, like demo-a-1. Default: the best candidate.")] = None,
) -> None:
    """Hand a group over to another member. Clients see no error.

    If the master does not answer and failover.automatic is false, this promotes the member.
    """
    with Progress(f"handing over group {group}"):
        done = run_async(target.switchover(group, to))
    print_json({"done": done}) if as_json else say(done)


@cluster_command(app)
def restart(
    target: Target,
    as_json: bool,
    names: Annotated[
        list[str] | None,
        typer.Argument(help="Members like demo-a-1, or broker groups. Default: all members.", show_default=False),
    ] = None,
) -> None:
    """Restart members, one at a time: slaves first, while all are in sync; a master hands over before.

    It waits for no maintenance window. `gantry status` shows the steps.
    """
    members = run_async(target.restart(names or []))
    if as_json:
        print_json({"members": members})
    else:
        say(f"{', '.join(members)}: restarted one after the other; gantry status shows the steps")


fence_app = command_group(
    "Fence a member for a look: its broker is stopped and its files are closed, while its pod, or process, "
    "stays.\n\n[bold]gantry fence on demo-a-1[/bold], then `gantry debug` or `kubectl exec`; [bold]gantry fence off "
    "demo-a-1[/bold] starts it again."
)
app.add_typer(fence_app, name="fence")
app.add_typer(volume_app, name="volume")
MemberArgument = Annotated[str, typer.Argument(help="The member, like demo-a-1.", show_default=False)]


@cluster_command(fence_app, "on")
def fence_on(
    target: Target,
    as_json: bool,
    member: MemberArgument,
    force: Annotated[bool, typer.Option("--force", help="Also where the group takes no messages then.")] = False,
) -> None:
    """Stop the broker of a member. A master hands over first. It stays stopped over restarts of its pod or process."""
    from gantry_operator.actions.fencing import fence_member

    done = run_async(fence_member(target, member, force=force))
    print_json({"member": member, "fenced": True}) if as_json else say(done)


@cluster_command(fence_app, "off")
def fence_off(target: Target, as_json: bool, member: MemberArgument) -> None:
    """Start the broker of a member again. It follows its master and joins the in-sync set."""
    from gantry_operator.actions.fencing import unfence_member

    done = run_async(unfence_member(target, member))
    print_json({"member": member, "fenced": False}) if as_json else say(done)


TimeoutOption = Annotated[float, typer.Option(min=1, help="Seconds to wait. What has begun goes on afterwards.")]


@cluster_command(app)
def demote(
    target: Target,
    as_json: bool,
    accept_loss: Annotated[
        bool, typer.Option("--accept-loss", help="Give up what a cluster took after another one was promoted.")
    ] = False,
    timeout: TimeoutOption = 120.0,
) -> None:
    """Hand a cluster's archive over to a standby at another site, and become the standby.

    Writes end, the last byte goes to the archive. The token that it prints is for `gantry promote` at the other site.
    """
    with Progress("ending writes, archiving the last byte"):
        token = run_async(target.demote(accept_loss, timeout))
    if as_json:
        print_json({"token": token})
    elif token:
        say(f"the cluster is a standby now; at the other site: gantry promote --token {token}")
    else:
        say("the cluster is a standby now: it follows the archive of the one that was promoted")


@cluster_command(app)
def promote(
    target: Target,
    as_json: bool,
    token: Annotated[str, typer.Option(help="What `gantry demote` printed there.", show_default=False)] = "",
    accept_loss: Annotated[
        bool, typer.Option("--accept-loss", help="The other site is lost: do without what it had not archived.")
    ] = False,
    timeout: TimeoutOption = 120.0,
) -> None:
    """Make a standby (spec.bootstrap.follow) the cluster that takes writes and owns the archive."""
    if token and accept_loss:
        raise CliError("--token and --accept-loss are both there: write one of them", Exit.USAGE)
    with Progress("taking the archive over"):
        run_async(target.promote(token, accept_loss, timeout))
    if as_json:
        print_json({"promoted": True})
    else:
        say("the cluster takes writes now, and owns the archive")


@app.command(epilog=EPILOG)
def down(
    directory: DirOption = None,
    name: NameOption = None,
    delete_data: Annotated[
        bool, typer.Option("--delete-data", help="Also delete the messages and all other files of the cluster.")
    ] = False,
) -> None:
    """Stop a local cluster cleanly. Its messages are kept for the next `gantry up`."""
    from gantry_operator.cli.down import down as run_down

    run_down(directory, name, delete_data)


@cluster_command(app)
def rebalance(
    target: Target,
    as_json: bool,
    topics: Annotated[list[str] | None, typer.Argument(help="The topics.", show_default=False)] = None,
    all_topics: Annotated[bool, typer.Option("--all", "-a", help="All topics, without the system's.")] = False,
    queues: Annotated[
        int | None,
        typer.Option(
            "--queues", "-q", min=1, max=1024, help="Queues in each broker group. Default: as many in total as now."
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would change.")] = False,
    timeout: Annotated[
        float, typer.Option(min=0, help="Seconds to wait until consumers have read queues that are taken away.")
    ] = 120.0,
) -> None:
    """Spread the queues of topics evenly over the broker groups.

    It adds queues first. Surplus queues take no more messages, and go when every consumer group has read them. No
    message moves, and no send fails.
    """
    from gantry_operator.cli.rebalance import rebalance as run

    run(target, topics or [], all_topics, queues, dry_run, timeout, as_json)


register_messages(app)
register_analytics(app)
app.command()(console)


def run() -> None:
    """Parse and run a command. Turns an error into one line and an exit code."""
    if Path(sys.argv[0]).name.startswith("kubectl-"):
        os.environ.setdefault(KUBERNETES, "1")
    prepare_streams()
    _leave_out_others(_words())
    code = _carry_out() or (int(Exit.OK) if was_complete() else int(Exit.FAILED))
    try:
        sys.stdout.flush()
    except OSError as error:
        give_up_stdout()
        if isinstance(error, BrokenPipeError):
            code = code or BROKEN_PIPE
        else:
            note(f"error: the output cannot be written: {error.strerror}")
            code = code or int(Exit.FAILED)
    sys.exit(code)


def _words() -> list[str]:
    """Return the words after `gantry`; where a shell completes, those of its line if the first one is whole."""
    name = Path(sys.argv[0]).name.replace("-", "_").upper()
    if f"_{name}_COMPLETE" not in os.environ:
        return sys.argv[1:]
    line = os.environ.get("COMP_WORDS") or os.environ.get("_TYPER_COMPLETE_ARGS") or ""
    words = line.split()[1:]
    return words if len(words) > 1 or line.endswith(" ") else []


def _leave_out_others(words: Sequence[str]) -> None:
    """Keep only the command that the first word names: typer inspects every command that an application has.

    Any other word stays with all of them, for help and for the error that names what there is.
    """
    commands = [c for c in app.registered_commands if words and _name_of(c) == words[0]]
    groups = [g for g in app.registered_groups if words and g.name == words[0]]
    if commands or groups:
        app.registered_commands, app.registered_groups = commands, groups


def _name_of(command: CommandInfo) -> str:
    return command.name or get_command_name(getattr(command.callback, "__name__", ""))


def _carry_out() -> int:
    """Run the command. Returns the exit code."""
    try:
        app()
    except (CliError, ActionError) as error:
        shown = presented(error) if isinstance(error, ActionError) else error
        note(f"error: {shown}")
        return int(shown.code)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        return BROKEN_PIPE
    except OSError as error:
        from gantry_operator.registry.disk_errors import in_words

        full = error.filename is None and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EIO)
        note(f"error: {f'the output cannot be written: {error.strerror}' if full else in_words(error)}")
        if full:
            give_up_stdout()
        return int(Exit.FAILED)
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    return 0
