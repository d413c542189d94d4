"""Common options: the choice of the cluster and the output format."""

from __future__ import annotations

import os
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

KUBERNETES: str = "GANTRY_KUBERNETES"
"""Environment variable of `kubectl gantry`: commands are about clusters on Kubernetes, whatever the options are."""
CLUSTER = "Which cluster"
EPILOG = (
    "Exit codes: 0 done, 1 failed, 2 wrong usage or manifest, 3 no such cluster, 4 not done in time. "
    "Data goes to stdout, everything else to stderr."
)
"""The last lines of each command's help."""


def clusters(incomplete: str) -> list[str]:
    """Clusters that were started on this machine, for a shell that completes their names."""
    from gantry_operator.platforms.local.folder import known_clusters

    return [name for name, _ in known_clusters() if name.startswith(incomplete)]


def command_group(text: str) -> typer.Typer:
    """Return an application for the commands of a group. `text`: its help."""
    return typer.Typer(no_args_is_help=True, help=text, rich_markup_mode="rich")


class Output(StrEnum):
    """The option `-o`."""

    text = "text"
    json = "json"


DirOption = Annotated[
    Path | None,
    typer.Option("--dir", help="Folder of a local cluster. Default: the cluster that you started.",
                 rich_help_panel=CLUSTER),
]  # fmt: skip
NameOption = Annotated[
    str | None,
    typer.Option(
        "--cluster",
        "-c",
        help="Name of the cluster, if there are several.",
        rich_help_panel=CLUSTER,
        autocompletion=clusters,
    ),
]
ContextOption = Annotated[
    str | None,
    typer.Option("--context", help="A kubectl context: the cluster is on Kubernetes.", rich_help_panel=CLUSTER),
]
NamespaceOption = Annotated[
    str | None,
    typer.Option("--namespace", "-n", help="A namespace: the cluster is on Kubernetes.", rich_help_panel=CLUSTER),
]
OutputOption = Annotated[Output, typer.Option("--output", "-o", help="json: for programs.")]


def on_kubernetes(context: str | None, namespace: str | None) -> bool:
    """Whether a command is about a cluster on Kubernetes."""
    return context is not None or namespace is not None or bool(os.environ.get(KUBERNETES))
