"""`gantry archive`: what an archive holds, and a check of it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gantry_operator.cli.errors import CliError, Exit
from gantry_operator.cli.on_cluster import sharing
from gantry_operator.cli.options import (
    ContextOption,
    DirOption,
    NameOption,
    NamespaceOption,
    Output,
    OutputOption,
    command_group,
)
from gantry_operator.cli.output import note, print_json, print_table, say
from gantry_operator.cli.progress import Progress
from gantry_operator.cli.target import find_target, run_async
from gantry_operator.cluster.amounts import size

if TYPE_CHECKING:
    from gantry_broker.archive.chain import Archive
    from gantry_broker.archive.inspection import Verified

    from gantry_operator.api.archive import ArchivePlace

PLACE = "Where the archive lies"

archive_app = command_group(
    "The archive of a cluster: a copy of its logs in object storage.\n\n"
    "Without a URL it is the archive of a cluster (spec.archive). Credentials come from --credentials, or from the "
    "environment, such as AWS_ACCESS_KEY_ID."
)
UrlArgument = Annotated[
    str | None,
    typer.Argument(metavar="URL", help="s3://BUCKET/PREFIX, gs://..., az://..., file:///FOLDER.", show_default=False),
]
EndpointOption = Annotated[
    str | None, typer.Option(help="URL of a server that speaks the protocol of S3.", rich_help_panel=PLACE)
]
RegionOption = Annotated[str | None, typer.Option(help="Region of the bucket.", rich_help_panel=PLACE)]
CredentialsOption = Annotated[
    Path | None,
    typer.Option(help="A folder with a file for each credential, as a Secret has keys.", rich_help_panel=PLACE),
]
KeyOption = Annotated[
    Path | None, typer.Option("--key-file", help="The key of the encryption, in Base64.", rich_help_panel=PLACE)
]
GroupOption = Annotated[str | None, typer.Option("--group", "-g", help="One broker group. Default: all.")]


@contextmanager
def one_line_errors() -> Iterator[None]:
    """Raise an archive's errors as CliError."""
    from gantry_broker.archive.errors import ArchiveError

    try:
        yield
    except ArchiveError as error:
        raise CliError(str(error)) from None


def place_of(spec: ArchivePlace, credentials: Path | None, key_file: Path | None) -> Archive:
    """Open the archive of a manifest. Its Secrets are folders of this machine, unless options name others."""
    from gantry_operator.api.archive import ENCRYPTION_KEY
    from gantry_operator.platforms.local.folder import secret_folder

    if credentials is None and spec.credentialsSecret is not None:
        folder = secret_folder(spec.credentialsSecret)
        credentials = folder if folder.is_dir() else None
        if credentials is None:
            note(f"credentials: {folder} is not there, so the environment's are used")
    if key_file is None and spec.encryption is not None:
        key_file = secret_folder(spec.encryption.secretName) / ENCRYPTION_KEY
    return open_place(spec.url, spec.endpoint, spec.region, credentials, key_file)


def open_place(
    url: str, endpoint: str | None, region: str | None, credentials: Path | None, key_file: Path | None
) -> Archive:
    """Open an archive. Raises CliError for a place that cannot be."""
    from gantry_broker.archive.opening import open_archive
    from gantry_broker.config import ArchivePlace as Place

    with one_line_errors():
        return open_archive(
            Place(url=url, endpoint=endpoint, region=region, credentials=credentials, key_file=key_file)
        )


def archive_of(
    url: UrlArgument = None,
    endpoint: EndpointOption = None,
    region: RegionOption = None,
    credentials: CredentialsOption = None,
    key_file: KeyOption = None,
    directory: DirOption = None,
    name: NameOption = None,
    context: ContextOption = None,
    namespace: NamespaceOption = None,
) -> tuple[Archive, str]:
    """Open the archive at a URL, or that of a cluster; return it with its URL."""
    if url is not None:
        return open_place(url, endpoint, region, credentials, key_file), url
    from gantry_operator.api.manifest import parse_manifest

    resource = run_async(find_target(directory, name, context, namespace).resource())
    spec = parse_manifest({k: v for k, v in resource.items() if k != "status"}).spec.archive
    if spec is None:
        raise CliError(
            f"cluster {resource['metadata']['name']} has no archive: write spec.archive, or give a URL", Exit.USAGE
        )
    return place_of(spec, credentials, key_file), spec.url


_with_archive = sharing(archive_of, "archive")
"""Gives a command the options of `archive_of`; its parameter `archive` gets the open archive."""


def groups_of(archive: Archive, group: str | None) -> list[str]:
    names = archive.groups()
    if group is not None and group not in names:
        raise CliError(f"the archive has no group {group}; its groups: {', '.join(names) or 'none'}", Exit.USAGE)
    if not names:
        raise CliError("there is no archive at this place: nothing was uploaded yet, or the URL is another one")
    return names if group is None else [group]


@archive_app.command("status")
@_with_archive
def status(archive: Archive, group: GroupOption = None, output: OutputOption = Output.text) -> None:
    """Show from when to when one can restore, and how large the archive is."""
    with one_line_errors():
        identity = archive.identity()
        states = {n: archive.group(n).load() for n in groups_of(archive, group)}
    rows = [
        {
            "group": n,
            "recoverableFrom": time_text(s.first_ms),
            "until": time_text(s.last_ms),
            "start": s.readable_from,
            "end": s.end,
            "bytes": s.size,
            "objects": len(s.parts),
            "gaps": [list(g) for g in s.gaps],
            "damaged": sorted(s.damaged),
            "written": time_text(s.at_ms),
        }
        for n, s in states.items()
    ]
    if output == Output.json:
        owner = None if identity is None else {"cluster": identity.cluster, "uid": identity.uid}
        print_json({"owner": owner, "groups": rows})
        return
    if identity is not None:
        say(f"archive of cluster {identity.cluster} ({identity.uid})\n")
    print_table(
        ["GROUP", "RECOVERABLE FROM", "UNTIL", "END", "SIZE", "OBJECTS", "GAPS", "DAMAGED"],
        [
            [
                r["group"],
                r["recoverableFrom"],
                r["until"],
                r["end"],
                size(s.size),
                r["objects"],
                len(s.gaps),
                len(s.damaged),
            ]
            for r, s in zip(rows, states.values(), strict=True)
        ],
        right=["END", "OBJECTS", "GAPS", "DAMAGED"],
    )


@archive_app.command("list")
@_with_archive
def list_parts(archive: Archive, group: GroupOption = None, output: OutputOption = Output.text) -> None:
    """List the objects with records: their range of the log, and the times of their records."""
    with one_line_errors():
        states = {n: archive.group(n).load() for n in groups_of(archive, group)}
    if output == Output.json:
        print_json(
            [{"group": n, **p._asdict(), "damaged": p.name in s.damaged} for n, s in states.items() for p in s.parts]
        )
        return
    print_table(
        ["GROUP", "START", "END", "EPOCH", "RECORDS", "SIZE", "FROM", "UNTIL", ""],
        [
            [
                n,
                p.start,
                p.end,
                p.epoch,
                p.records,
                size(p.size),
                time_text(p.first_ms),
                time_text(p.last_ms),
                "damaged" if p.name in s.damaged else "",
            ]
            for n, s in states.items()
            for p in s.parts
        ],
        right=["START", "END", "EPOCH", "RECORDS"],
    )


@archive_app.command("verify")
@_with_archive
def verify(
    archive: Archive,
    group: GroupOption = None,
    record: Annotated[
        bool, typer.Option("--record", help="Write the result into the archive: the cluster's status shows it.")
    ] = False,
    output: OutputOption = Output.text,
) -> None:
    """Read everything back and check it. Exit code 1: something is damaged or missing."""
    from gantry_broker.archive.inspection import verify as verify_group
    from gantry_broker.archive.verifying import AGAIN_S, result_of

    results = []
    with one_line_errors():
        for n in groups_of(archive, group):
            archived = archive.group(n)
            state = archived.load()
            with Progress(f"reading group {n}", state.size, unit="bytes") as progress:
                results.append(verify_group(archived, state, progress.advance, AGAIN_S))
            if record:
                archived.note_verification(result_of(state, results[-1], archived.clock_ms()))
    if output == Output.json:
        print_json([_verified(r) for r in results])
    else:
        for r in results:
            say(f"group {r.group}: {r.parts} objects, {size(r.bytes)}, {r.records} records" + (
                ": every byte is as it was written" if not r.faults else ""
            ))  # fmt: skip
            for fault in r.faults:
                say(f"  damaged: {fault}")
    if any(r.faults for r in results):
        raise CliError("the archive is damaged")


@archive_app.command("prune")
@_with_archive
def prune(
    archive: Archive,
    older_than: Annotated[str, typer.Option(help="Age of the youngest record of what goes: 30d, 12h.")],
    group: GroupOption = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Remove whole segments that are older, for ever. spec.archive.retention does the same by itself."""
    from gantry_broker.archive.inspection import prune as prune_group
    from gantry_broker.archive.upload import expired_below

    from gantry_operator.api.base import parse_duration

    try:
        age_ms = int(parse_duration(older_than) * 1000)
    except ValueError as error:
        raise CliError(f"--older-than: {error}", Exit.USAGE) from None
    now = time.time_ns() // 1_000_000
    with one_line_errors():
        for n in groups_of(archive, group):
            archived = archive.group(n)
            state = archived.load()
            start = expired_below(state, age_ms, min(now, archived.clock_ms()))
            gone = [p for p in state.parts if p.end <= start]
            if not gone:
                say(f"group {n}: no whole segment is older than {older_than}")
                continue
            amount = size(sum(p.size for p in gone))
            text = f"group {n}: {len(gone)} objects with {amount}, up to {time_text(gone[-1].last_ms)}"
            if not yes:
                typer.confirm(f"{text}: remove for ever?", abort=True)
            prune_group(archive, archived, state, age_ms, now)
            say(f"{text}: removed")


def _verified(result: Verified) -> dict[str, Any]:
    return {field: getattr(result, field) for field in ("group", "parts", "bytes", "records", "faults")}


def time_text(ms: int) -> str:
    """Return a time for people, or a dash for 0."""
    if not ms:
        return "-"
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
