"""`gantry user`: the users of a cluster, on this machine and on Kubernetes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gantry_operator.cli.errors import CliError, Exit
from gantry_operator.cli.on_cluster import cluster_command
from gantry_operator.cli.options import command_group
from gantry_operator.cli.output import note, print_json, print_table, say
from gantry_operator.cli.target import run_async

if TYPE_CHECKING:
    from gantry_operator.actions.target import Target

user_app = command_group(
    "Users: who may do what. Their keys lie in Secrets, or in files of the cluster's folder.\n\n"
    "[bold]gantry user create orders --allow 'Topic:orders-*:Pub,Sub' --allow 'Group:orders:Sub'[/bold]"
)
UserArgument = Annotated[str, typer.Argument(help="The user; admin is the super user.", show_default=False)]


@cluster_command(user_app, "create")
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
    from gantry_operator.actions.users import NewUser, create_user

    place = run_async(create_user(target, NewUser(user, access_key, super_user, allow or (), deny or ())))
    if as_json:
        print_json({"user": user, "key": place})
        return
    say(f"{user}: its keys are in {place}")
    note(f"Show the secret key: gantry user key {user}")


@cluster_command(user_app, "change")
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
    from gantry_operator.actions.users import change_user

    allowed, denied = (None if given is None else [rule for rule in given if rule] for given in (allow, deny))
    done = run_async(change_user(target, user, super_user=super_user, allow=allowed, deny=denied))
    print_json({"changed": user}) if as_json else say(done)


@cluster_command(user_app, "list")
def user_list(target: Target, as_json: bool) -> None:
    """List the users, without their keys."""
    from gantry_operator.actions.users import list_users

    rows = run_async(list_users(target))
    if as_json:
        print_json(rows)
        return
    if not rows:
        note("no user was created; the super user admin exists: gantry user key admin")
        return
    cells = []
    for row in rows:
        status = row.get("status") or {}
        ready: dict[str, Any] = next((c for c in status.get("conditions") or [] if c["type"] == "Ready"), {})
        shown = "yes" if ready.get("status") == "True" else "no"
        cells.append((
            row["metadata"]["name"], status.get("accessKey") or row["metadata"]["name"],
            "yes" if row["spec"].get("superUser") else "no", shown, str(status.get("keys", 0)),
            str(ready.get("message") or ""),
        ))  # fmt: skip
    print_table(("USER", "ACCESS KEY", "SUPER", "READY", "KEYS", "MESSAGE"), cells)


@cluster_command(user_app, "delete")
def user_delete(target: Target, as_json: bool, user: UserArgument) -> None:
    """Delete a user. Its requests are refused within two seconds."""
    from gantry_operator.actions.users import delete_user

    done = run_async(delete_user(target, user))
    print_json({"deleted": user}) if as_json else say(done)


@cluster_command(user_app, "rotate")
def user_rotate(target: Target, as_json: bool, user: UserArgument) -> None:
    """Make a new secret key. The former one stays valid for the user's spec.rotation.overlap (an hour)."""
    from gantry_operator.actions.users import rotate_key

    place = run_async(rotate_key(target, user))
    if as_json:
        print_json({"rotated": user, "key": place})
    else:
        say(f"{user}: a new secret key is in {place}; the former one stays valid for the overlap")


@cluster_command(user_app, "key")
def user_key(target: Target, as_json: bool, user: UserArgument) -> None:
    """Print the secret key of a user."""
    from gantry_operator.access.wanted import ACCESS_KEY, SECRET_KEY
    from gantry_operator.actions.users import key_of

    access, secret = run_async(key_of(target, user))
    if as_json:
        print_json({ACCESS_KEY: access, SECRET_KEY: secret})
    else:
        print(secret)


@cluster_command(user_app, "import")
def user_import(
    target: Target,
    as_json: bool,
    file: Annotated[Path, typer.Argument(help="RocketMQ's plain_acl.yml.", show_default=False)],
) -> None:
    """Create a user for each account of a plain_acl.yml, with its keys and permissions."""
    from gantry_operator.actions.plain_acl import PlainAclError, read_accounts
    from gantry_operator.actions.users import import_accounts

    try:
        accounts, notes = read_accounts(file)
    except PlainAclError as error:
        raise CliError(str(error), Exit.USAGE) from None
    for text in notes:
        note(text)
    names = run_async(import_accounts(target, accounts))
    print_json({"imported": names}) if as_json else say(f"imported: {', '.join(names) or 'no account'}")
