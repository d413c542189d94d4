"""`gantry migrate start --by messages`, its end, and `gantry migrate copy`."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from gantry_operator.cli.errors import CliError, Exit
from gantry_operator.cli.migrate_local import (
    alone,
    keys_of,
)
from gantry_operator.cli.options import (
    Output,
)
from gantry_operator.cli.output import note, print_json, print_table, say
from gantry_operator.cli.progress import Progress
from gantry_operator.cli.target import run_async

if TYPE_CHECKING:
    from gantry_operator.migration import by_messages
    from gantry_operator.platforms.local.folder import ClusterFolder

MESSAGES = "messages.json"
"""The record of a migration by messages."""
MESSAGES_COPY = "messages-copy.json"
"""What it has copied."""


def start_by_messages(
    file: Path, timeout: float, servers: str | None, secret: str | None, topics: str | None, directory: Path | None
) -> None:
    """Start the cluster, and copy until it is ended. Raises CliError."""
    from gantry_operator.cli.manifest_files import read_manifest
    from gantry_operator.cli.up import up
    from gantry_operator.migration import by_messages
    from gantry_operator.migration.cutover_steps import Refused
    from gantry_operator.platforms.local.folder import ClusterFolder, default_folder

    cluster = read_manifest(file)
    if cluster.spec.bootstrap is not None:
        raise CliError(f"{file} has spec.bootstrap: by messages a cluster begins empty, take it out", Exit.USAGE)
    if not servers:
        raise CliError("--by messages needs --from with the addresses of the source's NameServers", Exit.USAGE)
    names = None if topics is None else tuple(topics_of(topics))
    keys_of(secret)
    folder = default_folder(cluster.name) if directory is None else ClusterFolder(directory.expanduser().resolve())
    record = by_messages.Record(servers, secret, names)
    try:
        before = by_messages.Record.load(folder.root / MESSAGES)
        if before is not None and (before.done or before.topics != record.topics):
            raise Refused(
                "the migration is over" if before.done else f"{folder.root / MESSAGES} has other topics: what was "
                "copied belongs to them"
            )  # fmt: skip
        up(file, directory, True, timeout, False, None)
        if secret is not None and cluster.spec.security.authentication != "Enabled":
            note(
                "the source asks for signatures, and the new cluster lets everybody in: write "
                "spec.security.authentication: Enabled before clients get its addresses"
            )
        with alone(folder):
            if before is not None and before.name_servers != record.name_servers:
                run_async(_compare(folder, record))
            record.save(folder.root / MESSAGES)
            run_async(_copy_all(folder, record, None))
    except Refused as error:
        raise CliError(str(error)) from None


@asynccontextmanager
async def _open_copies(folder: ClusterFolder, record: by_messages.Record) -> AsyncIterator[by_messages.TopicsCopy]:
    from gantry_broker.client import Admin

    from gantry_operator.actions.local_target import LocalTarget
    from gantry_operator.migration import by_messages

    topics = None if record.topics is None else list(record.topics)
    async with (
        LocalTarget(folder).clients() as ours,
        Admin(record.name_servers, credentials=keys_of(record.secret)) as here,
        Admin(ours.name_servers, credentials=ours.credentials, tls=ours.tls) as there,
    ):
        yield by_messages.TopicsCopy(here, there, topics, folder.root / MESSAGES_COPY)


async def _compare(folder: ClusterFolder, record: by_messages.Record) -> None:
    """Compare the source at other addresses with what was copied. Raises Refused, errors of clients."""
    async with _open_copies(folder, record) as copies:
        await copies.compare()


async def _copy_all(folder: ClusterFolder, record: by_messages.Record, timeout: float | None) -> dict[str, int]:
    """Copy by messages until it is cancelled, or up to the end of the source within `timeout` seconds."""
    from gantry_operator.migration import by_messages

    async with _open_copies(folder, record) as copies:
        with Progress("copying") as progress:

            def shown(copied: int, missing: int | None) -> None:
                progress.say(f"{copied} copied, {missing or 0} in the last round")

            if timeout is None:
                await by_messages.follow(copies, shown, lambda error: progress.say(f"waits: {error}"))
            return await by_messages.finish(copies, timeout or 0.0, shown)


def messages_record(folder: ClusterFolder) -> by_messages.Record | None:
    """Return the record of a migration by messages; None: this cluster has none. Raises CliError."""
    from gantry_operator.migration import by_messages
    from gantry_operator.migration.cutover_steps import Refused

    try:
        return by_messages.Record.load(folder.root / MESSAGES)
    except Refused as error:
        raise CliError(str(error)) from None


def show_messages(folder: ClusterFolder, record: by_messages.Record, output: Output) -> None:
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


def finish_messages(folder: ClusterFolder, record: by_messages.Record, dry_run: bool, timeout: float) -> None:
    """End a migration by messages. Raises CliError."""
    from gantry_operator.migration import by_messages

    if record.done:
        raise CliError("the cutover is done")
    if dry_run:
        say("the rest is copied once the source gets no message any more, and the groups get their offsets")
        note("nothing was changed")
        return
    with alone(folder):
        moved = run_async(_copy_all(folder, record, timeout))
        by_messages.done(record).save(folder.root / MESSAGES)
    for group, queues in sorted(moved.items()):
        say(f"group {group}: its offsets in {queues} queues are set")
    say("all is copied. Next: give the consumers the new addresses (gantry status)")


async def copy_topics(
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
        Admin(source[0], credentials=keys_of(source[1])) as here,
        Admin(target[0], credentials=keys_of(target[1])) as there,
    ):
        topics_copy = Copy(here, there, topics, state)
        await topics_copy.prepare()
        with Progress("copying") as progress:
            try:
                await topics_copy.run(
                    follow=follow, say=lambda copied, missing: progress.say(f"{copied} copied, {missing} missing")
                )
            finally:
                moved = await topics_copy.move_groups() if groups else {}
        say(f"{sum(q.messages for queues_of in topics_copy.queues.values() for q in queues_of)} messages are copied")
        expired = topics_copy.expired()
        had = sum(q.known for queues_of in topics_copy.queues.values() for q in queues_of)
        if had:
            note(f"{had} messages are copies of what the target has, and were not sent back")
        if expired:
            note(f"{expired} messages had expired at the source before they were read")
        for group, queues in sorted(moved.items()):
            say(f"group {group}: its offsets in {queues} queues are set")


def listed(text: str | None, separator: str, problem: str) -> list[str]:
    """Return the words of an option; without it none. Raises CliError for one without a word."""
    words = [word.strip() for word in (text or "").split(separator) if word.strip()]
    if text is not None and not words:
        raise CliError(problem, Exit.USAGE)
    return words


def topics_of(text: str) -> list[str]:
    return listed(text, ",", "--topics names no topic")
