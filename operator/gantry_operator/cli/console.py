"""`gantry console`: the pages of `gantry_operator.console` for the clusters of this machine."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Annotated

import typer

from gantry_operator.cli.errors import CliError, Exit
from gantry_operator.cli.options import DirOption, NameOption
from gantry_operator.cli.output import note
from gantry_operator.cli.target import find_local

PORT = 8765


def console(
    directory: DirOption = None,
    name: NameOption = None,
    port: Annotated[
        int | None, typer.Option(min=1, max=65535, help=f"Its port. Default: {PORT}, or a free one if it is taken.")
    ] = None,
    browser: Annotated[bool, typer.Option(help="Open it in a browser.")] = True,
) -> None:
    """Show clusters of this machine in a browser: members, topics, consumer groups, messages, dead letters.

    It listens on 127.0.0.1 only. The printed link works once; Enter prints another one. Ctrl-C ends it, and the
    clusters go on.
    """
    import asyncio
    import webbrowser

    from gantry_operator.console.serve import serve

    sources = _sources(directory, name)
    bound = _bind(port)

    def started(link: str) -> None:
        typer.echo(link)
        if browser and os.isatty(1):
            webbrowser.open(link)

    note("The console of this machine; Enter prints another link, Ctrl-C ends it")
    present = _present if directory is None and name is None else None
    asyncio.run(serve(sources, bound, started, present))


def _present():  # type: ignore[no-untyped-def]
    """Return what makes the source of each cluster that runs, by its key."""
    from functools import partial

    from gantry_operator.console.snapshot import ClusterKey
    from gantry_operator.console.sources import LOCAL, LocalSource
    from gantry_operator.platforms.local.folder import known_clusters

    return {
        ClusterKey(LOCAL, name): partial(LocalSource, folder, name, ("--cluster", name))
        for name, folder in known_clusters()
    }


def _sources(directory: Path | None, name: str | None):  # type: ignore[no-untyped-def]
    """Return the chosen cluster, else all that were started. Raises CliError."""
    from gantry_operator.console.sources import LocalSource
    from gantry_operator.platforms.local.folder import known_clusters, read_json

    if directory is None and name is None:
        running = dict(known_clusters())
        if not running:
            raise CliError("no local cluster is running; start one with: gantry up", Exit.NO_CLUSTER)
        return [LocalSource(folder, cluster, ("--cluster", cluster)) for cluster, folder in running.items()]
    folder = find_local(directory, name)
    cluster = str((read_json(folder.manifest) or {}).get("metadata", {}).get("name", folder.root.name))
    chosen = ("--dir", str(folder.root)) if directory is not None else ("--cluster", cluster)
    return [LocalSource(folder, cluster, chosen)]


def _bind(port: int | None) -> socket.socket:
    """Bind the port of the console. Raises CliError when the port is taken."""
    from gantry_operator.console.serve import HOST

    ports = [PORT, 0] if port is None else [port]
    for number in ports:
        bound = socket.socket()
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            bound.bind((HOST, number))
        except OSError as error:
            bound.close()
            if number == ports[-1]:
                raise CliError(f"--port {number} of {HOST} cannot be used: {error.strerror}", Exit.USAGE) from None
        else:
            return bound
    raise AssertionError("unreachable")
