"""The commands and their options. Each calls a module that does the work."""

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
from gantry_operator.cli import completion
from gantry_operator.cli.analytics import register as register_analytics
from gantry_operator.cli.archive import register as register_archive
from gantry_operator.cli.console import register as register_console
from gantry_operator.cli.debug import debug_app
from gantry_operator.cli.errors import CliError, Exit, presented
from gantry_operator.cli.export import register as register_export
from gantry_operator.cli.migrate import register as register_migrate
from gantry_operator.cli.on_cluster import on_cluster
from gantry_operator.cli.options import (
    KUBERNETES,
    ContextOption,
    DirOption,
    NameOption,
    NamespaceOption,
    Output,
    OutputOption,
    on_kubernetes,
)
from gantry_operator.cli.output import give_up_stdout, json_text, note, prepare_streams, say, was_complete
from gantry_operator.cli.restore import register as register_restore
from gantry_operator.cli.tables import register as register_tables
from gantry_operator.cli.topic_app import TopicArgument
from gantry_operator.cli.topic_app import register as register_topics

if TYPE_CHECKING:
    from gantry_operator.actions.target import Target

INTERRUPTED = 130
"""As of shells: 128 and the number of the signal."""
BROKEN_PIPE = 141
EPILOG = (
    "Exit codes: 0 done, 1 failed, 2 wrong usage or manifest, 3 no such cluster, 4 not done in time. "
    "Data goes to stdout, everything else to stderr."
)

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


register_topics(app, EPILOG)
register_archive(app)
register_restore(app, EPILOG)
register_migrate(app)
register_export(app, EPILOG)
register_tables(app)
dlq_app = typer.Typer(
    no_args_is_help=True,
    help="Dead letters: messages that a consumer group failed to consume too often.\n\n"
    "[bold]gantry dlq list[/bold], then [bold]gantry dlq read billing[/bold], and once the consumer is repaired "
    "[bold]gantry dlq resend billing[/bold].",
    rich_markup_mode="rich",
)
app.add_typer(dlq_app, name="dlq")
user_app = typer.Typer(
    no_args_is_help=True,
    help="Users: who may do what. Their keys lie in Secrets, or in files of the cluster's folder.\n\n"
    "[bold]gantry user create orders --allow 'Topic:orders-*:Pub,Sub' --allow 'Group:orders:Sub'[/bold]",
    rich_markup_mode="rich",
)
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
        from gantry_operator.cli.target import find_target

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


@app.command(epilog=EPILOG)
@on_cluster
def status(
    target: Target,
    as_json: bool,
) -> None:
    """Show the cluster: members, leaders, replication progress and recent events."""
    from gantry_operator.cli.show import show_status

    show_status(target, as_json)


@app.command("plan", epilog=EPILOG)
@on_cluster
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


@app.command(epilog=EPILOG)
@on_cluster
def top(
    target: Target,
    as_json: bool,
    interval: Annotated[float, typer.Option(min=0.2, max=60.0, help="Seconds between two figures of a member.")] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="Print it once and end, as without a terminal.")] = False,
) -> None:
    """Watch the cluster: members, rates, lag of consumer groups, events as they come. `q` ends it."""
    from gantry_operator.cli.top import top as run_top

    run_top(target, interval, once, as_json)


@app.command(epilog=EPILOG)
@on_cluster
def switchover(
    target: Target,
    as_json: bool,
    group: Annotated[str, typer.Argument(help="The broker group, as in spec.brokerGroups.", show_default=False)],
    to: Annotated[str | None, typer.Option(help="The next leader, like demo-a-1. Default: the best candidate.")] = None,
) -> None:
    """Hand a group over to another member. Clients see no error.

    If the master does not answer and failover.automatic is false, this promotes the member.
    """
    from gantry_operator.cli.show import switch_over

    switch_over(target, group, to, as_json)


@app.command(epilog=EPILOG)
@on_cluster
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
    from gantry_operator.cli.show import restart_members

    restart_members(target, names or [], as_json)


fence_app = typer.Typer(
    no_args_is_help=True,
    help="Fence a member for a look: its broker is stopped and its files are closed, while its pod, or process, "
    "stays.\n\n[bold]gantry fence on demo-a-1[/bold], then `gantry debug` or `kubectl exec`; [bold]gantry fence off "
    "demo-a-1[/bold] starts it again.",
    rich_markup_mode="rich",
)
app.add_typer(fence_app, name="fence")
MemberArgument = Annotated[str, typer.Argument(help="The member, like demo-a-1.", show_default=False)]


@fence_app.command("on", epilog=EPILOG)
@on_cluster
def fence_on(
    target: Target,
    as_json: bool,
    member: MemberArgument,
    force: Annotated[bool, typer.Option("--force", help="Also where the group takes no messages then.")] = False,
) -> None:
    """Stop the broker of a member. A master hands over first. It stays stopped over restarts of its pod or process."""
    from gantry_operator.cli.show import fence

    fence(target, member, force, as_json)


@fence_app.command("off", epilog=EPILOG)
@on_cluster
def fence_off(
    target: Target,
    as_json: bool,
    member: MemberArgument,
) -> None:
    """Start the broker of a member again. It follows its master and joins the in-sync set."""
    from gantry_operator.cli.show import unfence

    unfence(target, member, as_json)


volume_app = typer.Typer(
    no_args_is_help=True,
    help="The disks of members: volumes of pods, folders on this machine. That of a member that was removed stays "
    "until it is deleted here.",
    rich_markup_mode="rich",
)
app.add_typer(volume_app, name="volume")


@volume_app.command("list", epilog=EPILOG)
@on_cluster
def volume_list(
    target: Target,
    as_json: bool,
    gone: Annotated[bool, typer.Option("--gone", help="Only those of members that are gone.")] = False,
) -> None:
    """List the disks of members, and what uses each."""
    from gantry_operator.cli.volumes import show

    show(target, gone, as_json)


@volume_app.command("delete", epilog=EPILOG)
@on_cluster
def volume_delete(
    target: Target,
    as_json: bool,
    volume: Annotated[str, typer.Argument(help="Its name, or that of the member.", show_default=False)],
    confirm: Annotated[bool, typer.Option("--confirm", help="Delete it. Else it is only shown.")] = False,
) -> None:
    """Delete the disk of a member that is gone, with all messages on it. One that is used is refused."""
    from gantry_operator.cli.volumes import delete

    delete(target, volume, confirm, as_json)


TimeoutOption = Annotated[float, typer.Option(min=1, help="Seconds to wait. What has begun goes on afterwards.")]


@app.command(epilog=EPILOG)
@on_cluster
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
    from gantry_operator.cli.sites import demote as run

    run(target, accept_loss, timeout, as_json)


@app.command(epilog=EPILOG)
@on_cluster
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
    from gantry_operator.cli.sites import promote as run

    run(target, token, accept_loss, timeout, as_json)


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


@app.command(epilog=EPILOG)
@on_cluster
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


@app.command(epilog=EPILOG)
def produce(
    topic: Annotated[
        str,
        typer.Argument(
            help="The topic. The cluster creates a missing topic if it is configured to.",
            show_default=False,
            autocompletion=completion.topics,
        ),
    ],
    lines: Annotated[
        str | None, typer.Argument(metavar="[-]", help="'-': a message for each line of stdin.", show_default=False)
    ] = None,
    count: Annotated[int | None, typer.Option(min=1, help="Send this many messages of --size bytes.")] = None,
    size: Annotated[int, typer.Option(min=1, max=4_194_304, help="Bytes of each, with --count.")] = 100,
    file: Annotated[Path | None, typer.Option("--file", "-f", help="A message for each line of this file.")] = None,
    body: Annotated[
        str | None,
        typer.Option(
            help="Send one message with this text. '' with --keys deletes the key in a compacted topic, and in a table "
            "with --upsert.",
            show_default=False,
        ),
    ] = None,
    prop: Annotated[
        list[str] | None,
        typer.Option("--property", metavar="NAME=VALUE", help="A property of every message; may be repeated."),
    ] = None,
    tags: Annotated[str, typer.Option(help="Tag of every message.")] = "",
    keys: Annotated[str, typer.Option(help="Key of every message; '{n}' is its number.")] = "",
    by_key: Annotated[
        bool,
        typer.Option(
            "--by-key",
            help="Messages of one key go to one queue, in their order. So they always do in a compacted topic.",
        ),
    ] = False,
    in_flight: Annotated[int, typer.Option(min=1, max=4096, help="Maximum of sends without an answer.")] = 32,
    patience: Annotated[
        float,
        typer.Option(
            min=0,
            help="Seconds for which a send without acknowledgement is repeated. After one was given up, "
            "the others are tried once, until something is acknowledged.",
        ),
    ] = 30.0,
    directory: DirOption = None,
    name: NameOption = None,
    context: ContextOption = None,
    namespace: NamespaceOption = None,
    output: OutputOption = Output.text,
) -> None:
    """Send messages and report the number of acknowledgements.

    [bold]gantry produce Orders --count 1000 --size 200[/bold],
    [bold]seq 10 | gantry produce Orders -[/bold]
    """
    from gantry_operator.cli.messages import ProduceOptions, properties_of, run_produce
    from gantry_operator.cli.target import find_target

    sources = (count is not None) + (file is not None) + (lines is not None) + (body is not None)
    if lines not in (None, "-"):
        raise CliError(f"{lines!r} is no source: write --file {lines}, or --body TEXT", Exit.USAGE)
    if sources != 1:
        raise CliError("say what to send: --body TEXT, or --count N, or --file FILE, or '-' for stdin", Exit.USAGE)
    if by_key and not keys:
        raise CliError("--by-key needs the key of the messages: --keys TEXT", Exit.USAGE)
    properties = properties_of(prop or [])
    options = ProduceOptions(topic, count, size, file, tags, keys, in_flight, patience, body, by_key, properties)
    run_produce(find_target(directory, name, context, namespace), options, output == Output.json)


@app.command(epilog=EPILOG)
@on_cluster
def consume(
    target: Target,
    as_json: bool,
    topic: TopicArgument,
    group: Annotated[str, typer.Option("--group", "-g", help="Consumer group. The cluster stores its position.")],
    count: Annotated[int | None, typer.Option(min=1, help="End after this many.")] = None,
    timeout: Annotated[float | None, typer.Option(min=0, help="End after this many seconds without a message.")] = None,
    tags: Annotated[str, typer.Option(help="Only these tags, like 'A || B'.")] = "*",
    from_last: Annotated[bool, typer.Option("--from-last", help="A new group begins with the next message.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Only count.")] = False,
) -> None:
    """Read messages: a line for each on stdout, with -o json an object for each.

    A new group begins with the oldest message. Ctrl-C ends; the next run continues from there.
    """
    from gantry_operator.cli.messages import ConsumeOptions, run_consume

    options = ConsumeOptions(topic, group, count, timeout, tags, from_last, quiet)
    run_consume(target, options, as_json)


@app.command(epilog=EPILOG)
@on_cluster
def messages(
    target: Target,
    as_json: bool,
    topic: TopicArgument,
    tags: Annotated[str, typer.Option(help="Only these tags, like 'A || B'.")] = "",
    key: Annotated[str, typer.Option(help="Only messages with this key, from the index of the brokers.")] = "",
    prop: Annotated[str, typer.Option("--property", help="Only with this property: a name, or NAME=VALUE.")] = "",
    text: Annotated[str, typer.Option(help="Only with this text in the body, in any case.")] = "",
    message_id: Annotated[str, typer.Option("--id", help="The message with this id.")] = "",
    at: Annotated[str, typer.Option("--from", help="From this time on, like 2026-11-25T08:30, in UTC.")] = "",
    before: Annotated[str, typer.Option(help="Older than this place, as the command prints it.")] = "",
    after: Annotated[str, typer.Option(help="Newer than this place.")] = "",
    count: Annotated[int, typer.Option(min=1, max=1000, help="How many, at most.")] = 50,
) -> None:
    """Look at the newest messages of a topic, or search it. No consumer group moves.

    [bold]gantry messages Orders[/bold], [bold]gantry messages Orders --tags fruit --text apples -o json[/bold]
    """
    from gantry_operator.cli.browse import look_of, show

    show(target, look_of(topic, tags, key, prop, text, message_id, at, before, after, count), as_json)


UserArgument = Annotated[str, typer.Argument(help="The user; admin is the super user.", show_default=False)]


@user_app.command("create", epilog=EPILOG)
@on_cluster
def user_create(
    target: Target,
    as_json: bool,
    user: Annotated[str, typer.Argument(help="Its name: lower-case letters, digits, '-', '.'.", show_default=False)],
    access_key: Annotated[
        str | None, typer.Option("--access-key", help="Its name in clients. Default: the user's name.")
    ] = None,
    super_user: Annotated[bool, typer.Option("--super", help="It may do everything.")] = False,
    allow: Annotated[
        list[str] | None,
        typer.Option(help="TYPE:NAME:ACTIONS, such as 'Topic:orders-*:Pub,Sub'; may be repeated.", metavar="RULE"),
    ] = None,
    deny: Annotated[
        list[str] | None, typer.Option(help="The same for what it may not do; may be repeated.", metavar="RULE")
    ] = None,
) -> None:
    """Create a user with a new secret key, and say where the key lies. The key itself is not printed."""
    from gantry_operator.actions.users import NewUser
    from gantry_operator.cli.users import create

    wanted = NewUser(user, access_key, super_user, allow or (), deny or ())
    create(target, wanted, as_json)


@user_app.command("change", epilog=EPILOG)
@on_cluster
def user_change(
    target: Target,
    as_json: bool,
    user: UserArgument,
    super_user: Annotated[
        bool | None, typer.Option("--super/--no-super", help="It may do everything.", show_default=False)
    ] = None,
    allow: Annotated[
        list[str] | None,
        typer.Option(help="In place of all rules that allow; as for create, '' for none.", metavar="RULE"),
    ] = None,
    deny: Annotated[
        list[str] | None, typer.Option(help="In place of all rules that refuse; '' for none.", metavar="RULE")
    ] = None,
) -> None:
    """Change what a user may do. What is not given stays. Its keys stay valid."""
    from gantry_operator.cli.users import change

    allowed, denied = (None if given is None else [rule for rule in given if rule] for given in (allow, deny))
    change(target, user, super_user, allowed, denied, as_json)


@user_app.command("list", epilog=EPILOG)
@on_cluster
def user_list(
    target: Target,
    as_json: bool,
) -> None:
    """List the users, without their keys."""
    from gantry_operator.cli.users import show

    show(target, as_json)


def _about_one_user(name: str, function: str, text: str) -> None:
    """Add a command about one user. `function`: of cli.users, which is imported only when the command runs."""

    @user_app.command(name, epilog=EPILOG, help=text)
    @on_cluster
    def command(
        target: Target,
        as_json: bool,
        user: UserArgument,
    ) -> None:
        from gantry_operator.cli import users

        getattr(users, function)(target, user, as_json)


_about_one_user("delete", "delete", "Delete a user. Its requests are refused within two seconds.")
_about_one_user(
    "rotate",
    "rotate",
    "Make a new secret key. The former one stays valid for the user's spec.rotation.overlap (an hour).",
)
_about_one_user("key", "key", "Print the secret key of a user.")


@user_app.command("import", epilog=EPILOG)
@on_cluster
def user_import(
    target: Target,
    as_json: bool,
    file: Annotated[Path, typer.Argument(help="RocketMQ's plain_acl.yml.", show_default=False)],
) -> None:
    """Create a user for each account of a plain_acl.yml, with its keys and permissions."""
    from gantry_operator.cli.users import import_file

    import_file(target, file, as_json)


DeadGroupArgument = Annotated[
    str, typer.Argument(help="The consumer group.", show_default=False, autocompletion=completion.groups)
]
IdOption = Annotated[
    list[str] | None, typer.Option("--id", help="Only the letter with this id, as read shows it; may be repeated.")
]
OriginOption = Annotated[str | None, typer.Option("--topic", help="Only letters whose original topic is this one.")]


@dlq_app.command("list", epilog=EPILOG)
@on_cluster
def dlq_list(
    target: Target,
    as_json: bool,
) -> None:
    """List the groups with dead letters, and the number of letters that were not sent again."""
    from gantry_operator.cli.dlq import show_groups

    show_groups(target, as_json)


@dlq_app.command("read", epilog=EPILOG)
@on_cluster
def dlq_read(
    target: Target,
    as_json: bool,
    group: DeadGroupArgument,
    ids: IdOption = None,
    topic: OriginOption = None,
    count: Annotated[int | None, typer.Option(min=1, help="End after this many.")] = None,
    waiting: Annotated[bool, typer.Option("--waiting", help="Only letters that were not sent again yet.")] = False,
) -> None:
    """Show a group's dead letters: id, time, topic, tries and body, a line for each; -o json shows all properties.

    Reading changes nothing: the letters stay, and count as waiting until they are sent again.
    """
    from gantry_operator.actions.dead_letters import Choice
    from gantry_operator.cli.dlq import run_read

    choice = Choice(group, tuple(ids or ()), topic, count, waiting)
    run_read(target, choice, as_json)


@dlq_app.command("resend", epilog=EPILOG)
@on_cluster
def dlq_resend(
    target: Target,
    as_json: bool,
    group: DeadGroupArgument,
    ids: IdOption = None,
    topic: OriginOption = None,
    count: Annotated[int | None, typer.Option(min=1, help="End after this many.")] = None,
    every: Annotated[bool, typer.Option("--all", help="Also letters that were sent again before.")] = False,
    to: Annotated[
        str | None,
        typer.Option("--to", help="Send to this topic instead of the group: all groups of the topic get it."),
    ] = None,
    consume: Annotated[
        str | None,
        typer.Option("--consume", help="How the group consumes: pull, or pop (POP, gRPC). Brokers mostly know it."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only report their number.")] = False,
    patience: Annotated[float, typer.Option(min=0, help="Seconds for which a send is repeated.")] = 30.0,
) -> None:
    """Send a group's dead letters again: to this group alone, with all its tries, unless --to names a topic.

    The cluster stores the progress, so the next run sends only newer letters. An interrupted run may repeat some
    letters. The letters themselves stay in the dead-letter topic until they expire.
    """
    from gantry_operator.actions.dead_letters import Choice
    from gantry_operator.cli.dlq import run_resend

    choice = Choice(group, tuple(ids or ()), topic, count, not every and not ids and topic is None and to is None)
    run_resend(target, choice, to, consume, patience, dry_run, as_json)


register_analytics(app)
register_console(app)


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
