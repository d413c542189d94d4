"""`gantry user`: the users of a cluster, on this machine and on Kubernetes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gantry_operator.access.wanted import ACCESS_KEY, SECRET_KEY
from gantry_operator.actions.plain_acl import PlainAclError, read_accounts
from gantry_operator.actions.target import Target
from gantry_operator.actions.users import (
    NewUser,
    change_user,
    create_user,
    delete_user,
    import_accounts,
    key_of,
    list_users,
    rotate_key,
)
from gantry_operator.cli.errors import CliError, Exit
from gantry_operator.cli.output import note, print_json, print_table, say
from gantry_operator.cli.target import run_async


def create(target: Target, wanted: NewUser, as_json: bool) -> None:
    """Create a user and say where its key lies. Raises CliError."""
    place = run_async(create_user(target, wanted))
    if as_json:
        print_json({"user": wanted.name, "key": place})
        return
    say(f"{wanted.name}: its keys are in {place}")
    note(f"Show the secret key: gantry user key {wanted.name}")


def change(
    target: Target,
    name: str,
    super_user: bool | None,
    allow: Sequence[str] | None,
    deny: Sequence[str] | None,
    as_json: bool,
) -> None:
    """Change what a user may do. Raises CliError."""
    said = run_async(change_user(target, name, super_user=super_user, allow=allow, deny=deny))
    print_json({"changed": name}) if as_json else say(said)


def show(target: Target, as_json: bool) -> None:
    """List the users. Raises CliError."""
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


def delete(target: Target, name: str, as_json: bool) -> None:
    """Delete a user. Raises CliError."""
    said = run_async(delete_user(target, name))
    print_json({"deleted": name}) if as_json else say(said)


def rotate(target: Target, name: str, as_json: bool) -> None:
    """Ask for a new key. Raises CliError."""
    place = run_async(rotate_key(target, name))
    if as_json:
        print_json({"rotated": name, "key": place})
    else:
        say(f"{name}: a new secret key is in {place}; the former one stays valid for the overlap")


def key(target: Target, name: str, as_json: bool) -> None:
    """Print the secret key of a user. Raises CliError."""
    access, secret = run_async(key_of(target, name))
    if as_json:
        print_json({ACCESS_KEY: access, SECRET_KEY: secret})
    else:
        print(secret)


def import_file(target: Target, file: Path, as_json: bool) -> None:
    """Create the users of a plain_acl.yml. Raises CliError."""
    try:
        accounts, notes = read_accounts(file)
    except PlainAclError as error:
        raise CliError(str(error), Exit.USAGE) from None
    for text in notes:
        note(text)
    names = run_async(import_accounts(target, accounts))
    print_json({"imported": names}) if as_json else say(f"imported: {', '.join(names) or 'no account'}")
