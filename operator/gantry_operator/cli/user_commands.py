"""The commands `gantry user` and their options. `users.py` carries them out."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gantry_operator.cli.on_cluster import on_cluster
from gantry_operator.cli.options import (
    EPILOG,
)

if TYPE_CHECKING:
    from gantry_operator.actions.target import Target

user_app = typer.Typer(
    no_args_is_help=True,
    help="Users: who may do what. Their keys lie in Secrets, or in files of the cluster's folder.\n\n"
    "[bold]gantry user create orders --allow 'Topic:orders-*:Pub,Sub' --allow 'Group:orders:Sub'[/bold]",
    rich_markup_mode="rich",
)
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
