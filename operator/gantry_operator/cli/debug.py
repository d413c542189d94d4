"""`gantry debug`: a store or a member in words. It reads files only: beside a running broker, or on a copy."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gantry_operator.cli.errors import CliError, Exit
from gantry_operator.cli.on_cluster import sharing
from gantry_operator.cli.options import DirOption, NameOption, Output, OutputOption, command_group
from gantry_operator.cli.output import json_text, note, print_json, say
from gantry_operator.cli.target import find_local

if TYPE_CHECKING:
    from gantry_broker.store.describe import Start, StoreFiles

STATUS_S = 3.0

debug_app = command_group(
    "Print a store or a member in words. It reads files only and changes nothing.\n\n"
    "WHAT is a member of a local cluster (demo-a-0) or the path of a store: a folder with commitlog/ in it, also a "
    "copy, and also one of RocketMQ. Copy the store of a pod with [bold]kubectl cp[/bold]."
)
WhatArgument = Annotated[
    str, typer.Argument(metavar="WHAT", help="A member, or the path of a store.", show_default=False)
]


@dataclass(frozen=True, slots=True)
class StoreLocation:
    """A store, and the files of its process when it is a member of a local cluster."""

    store: Path
    config: Path | None = None
    token: Path | None = None


def find_place(what: str, directory: Path | None, name: str | None) -> StoreLocation:
    """Return a path when it has a slash or is a folder here, else a member of a local cluster. Raises CliError."""
    path = Path(what).expanduser()
    if "/" in what or (path.is_dir() and directory is None and name is None):
        if not path.is_dir():
            raise CliError(f"{what} is no folder; write the path of a store, or the name of a member", Exit.USAGE)
        return StoreLocation(path)
    folder = find_local(directory, name)
    config = folder.config(what)
    if not config.exists() or not folder.data(what).is_dir():
        members = ", ".join(sorted(p.stem for p in folder.configs.glob("*.json") if folder.data(p.stem).is_dir()))
        raise CliError(
            f"the cluster has no member {what!r}; its members are {members or 'not started yet'}", Exit.USAGE
        )
    return StoreLocation(folder.data(what), config, folder.token_file)


def _chosen(
    what: WhatArgument, directory: DirOption = None, name: NameOption = None, output: OutputOption = Output.text
) -> tuple[StoreLocation, bool]:
    return find_place(what, directory, name), output == Output.json


_of_store = sharing(_chosen, "place", "as_json")
"""Gives a command the options that choose a store, and `--output`."""


@contextmanager
def one_line_errors() -> Iterator[None]:
    """Show one line about a store that cannot be read. Raises CliError."""
    from gantry_broker.replication.identity import StateError
    from gantry_broker.store.errors import StoreError

    try:
        yield
    except (StoreError, StateError) as error:
        raise CliError(str(error)) from None
    except BrokenPipeError:
        raise
    except OSError as error:
        raise CliError(str(error)) from None


def print_facts(facts: list[tuple[str, str]]) -> None:
    """Labels and texts in two columns."""
    from gantry_broker.protocol.printable import printable

    width = max((len(label) for label, _ in facts), default=0) + 1
    for label, text in facts:
        say(f"{label + ':':<{width}} {printable(text)}")


@debug_app.command("log")
@_of_store
def log(
    place: StoreLocation,
    as_json: bool,
    start: Annotated[
        int | None, typer.Option("--from", min=0, help="First offset. Default: the beginning of the log.")
    ] = None,
    count: Annotated[int | None, typer.Option(min=1, help="End after this many records.")] = None,
    topic: Annotated[str | None, typer.Option(help="Only records of this topic, or that wait for it.")] = None,
) -> None:
    """Print the records of the commit log, one line each, and what lies between them.

    Control records are decoded. A stretch without a valid record is one line: damaged, blank (zeros), missing (no
    file) or filler (the rest of a full segment). With -o json each line is an object.
    """
    from gantry_broker.store.describe import HEADINGS, StoreFiles, Stretch, is_about, walk

    with one_line_errors():
        files = StoreFiles.load(place.store)
        if not files.bases:
            note("the log is empty")
            return
        with files.open_log() as opened:
            begin, stop = files.start if start is None else start, files.bases[-1] + files.segment_size
            if not files.bases[0] <= begin < stop:
                raise CliError(f"--from {begin} is outside of the log, whose files have {files.bases[0]} to {stop}")
            boundary = opened.next_boundary(begin)
            if start is not None and boundary.offset != begin and not boundary.blank:
                note(f"no record begins at {begin}; the next one begins at {boundary.offset}")
                begin = boundary.offset
            entries = (
                entry
                for entry in walk(opened, begin)
                if topic is None
                or (entry.kind in ("damaged", "missing") if isinstance(entry, Stretch) else is_about(entry, topic))
            )
            if not as_json:
                say(HEADINGS)
            left = count
            for entry in entries:
                sys.stdout.write((json_text(_entry_json(entry)) if as_json else _line(entry)) + "\n")
                if left is not None and not isinstance(entry, Stretch):
                    left -= 1
                    if left == 0:
                        break
    if files.holder:
        note(f"process {files.holder} has the store open: the last records may be incomplete, and not confirmed yet")


def _control(entry: Any) -> str | None:
    from gantry_broker.broker.describe import describe_tables
    from gantry_broker.protocol.printable import printable
    from gantry_broker.replication.describe import describe_control

    description = describe_control(entry.topic, entry.body) or describe_tables(entry.body)
    return printable(description or "a body that this version does not know")


def _line(entry: Any) -> str:
    from gantry_broker.store.describe import Stretch, describe_record, describe_stretch

    if isinstance(entry, Stretch):
        return describe_stretch(entry)
    line = describe_record(entry)
    return f"{line}  {_control(entry)}" if entry.kind == "control" else line


def _entry_json(entry: Any) -> dict[str, Any]:
    from gantry_broker.store.describe import Stretch, record_to_json, stretch_to_json

    if isinstance(entry, Stretch):
        return stretch_to_json(entry)
    out = record_to_json(entry)
    return out | {"control": _control(entry)} if entry.kind == "control" else out


def _load_store(place: StoreLocation) -> tuple[StoreFiles, Start]:
    """Return the files of a store, and the plan of a start from them. Raises CliError."""
    from gantry_broker.store.describe import StoreFiles, plan_start

    with one_line_errors():
        files = StoreFiles.load(place.store)
        return files, plan_start(files)


@debug_app.command("epochs")
@_of_store
def epochs(place: StoreLocation, as_json: bool) -> None:
    """Print the leader epochs of the log, oldest first, with their ranges."""
    from gantry_broker.store.describe import describe_epochs, epochs_to_json

    files, planned = _load_store(place)
    if as_json:
        print_json(epochs_to_json(files, planned))
    else:
        say("\n".join(describe_epochs(files, planned)))


@debug_app.command("checkpoint")
@_of_store
def checkpoint(place: StoreLocation, as_json: bool) -> None:
    """Print the recovery point, RocketMQ's checkpoint and the abort file, and what a start would do.

    It reads the log from where a start would.
    """
    from gantry_broker.store.describe import checkpoint_to_json, describe_checkpoint

    files, planned = _load_store(place)
    if as_json:
        print_json(checkpoint_to_json(files, planned))
    else:
        print_facts(describe_checkpoint(files, planned))


@debug_app.command("member")
@_of_store
def member(place: StoreLocation, as_json: bool) -> None:
    """Print what a member remembers of its role, and the status of a running member of a local cluster."""
    from gantry_broker.replication.describe import (
        MEMBERS,
        REPLICA,
        describe_member_changes,
        describe_replica,
        read_state,
    )

    replica, members = place.store / "config" / REPLICA, place.store / "config" / MEMBERS
    with one_line_errors():
        state, changes = read_state(replica), read_state(members)
        facts = describe_replica(state, replica) + describe_member_changes(changes, members)
        status, why_not = _status(place)
    if as_json:
        print_json({"path": str(place.store), "replica": state, "memberChanges": changes, "status": status})
        return
    print_facts([("store", str(place.store)), *facts])
    if status is not None:
        say("\nstatus of the running process:")
        print_facts([(f"  {key}", _text(value)) for key, value in status.items()])
    elif why_not:
        say(f"\n{why_not}")


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _status(place: StoreLocation) -> tuple[dict[str, Any] | None, str]:
    """Return the status of a member that runs, or why there is none. Raises OSError, CliError."""
    if place.config is None or place.token is None:
        return None, ""
    from gantry_broker.config import BrokerConfig
    from gantry_broker.contracts.token_file import TokenFile
    from pydantic import ValidationError

    try:
        config = BrokerConfig.load(place.config)
    except ValidationError as error:
        raise CliError(f"{place.config} is the configuration of another version: {error}") from None
    internal = config.internal_tls
    url = f"http{'' if internal is None else 's'}://127.0.0.1:{config.http_port}"
    trusted = b"" if internal is None else internal.ca_file.read_bytes()
    return _ask(url, TokenFile(place.token), trusted)


def _ask(url: str, token: Any, trusted: bytes) -> tuple[dict[str, Any] | None, str]:
    import asyncio

    from gantry_operator.cluster.failures import in_words
    from gantry_operator.cluster.member_http import httpx, make_client

    async def ask() -> tuple[dict[str, Any] | None, str]:
        async with make_client(token.read, lambda: trusted) as client:
            try:
                answer = await client.get(f"{url}/v1/status", timeout=STATUS_S)
                answer.raise_for_status()
                status = answer.json()
            except (httpx.HTTPError, ValueError) as error:
                return None, f"no status: {in_words(error)}; the member does not run or does not answer"
        return (status, "") if isinstance(status, dict) else (None, "no status: the answer is no object")

    return asyncio.run(ask())
