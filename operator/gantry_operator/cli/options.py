"""Common options: the choice of the cluster and the output format."""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any, get_type_hints

import typer

KUBERNETES: str = "GANTRY_KUBERNETES"
"""Environment variable of `kubectl gantry`: commands are about clusters on Kubernetes, whatever the options are."""
CLUSTER = "Which cluster"


class Output(StrEnum):
    """`-o`"""

    text = "text"
    json = "json"


DirOption = Annotated[
    Path | None,
    typer.Option("--dir", help="Folder of a local cluster. Default: the cluster that you started.",
                 rich_help_panel=CLUSTER),
]  # fmt: skip
NameOption = Annotated[
    str | None,
    typer.Option("--cluster", "-c", help="Name of the cluster, if there are several.", rich_help_panel=CLUSTER),
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


_CHOICE: dict[str, tuple[Any, Any]] = {
    "directory": (DirOption, None),
    "name": (NameOption, None),
    "context": (ContextOption, None),
    "namespace": (NamespaceOption, None),
    "output": (OutputOption, Output.text),
}


def on_cluster(command: Callable[..., None]) -> Callable[..., None]:
    """A command about one cluster: adds the options that choose it, and `--output`. The command gets the cluster as
    `target`, and `as_json`.
    """
    given = ("target", "as_json")
    written = {name: text for name, text in command.__annotations__.items() if name not in given}
    hints = get_type_hints(SimpleNamespace(__annotations__=written), command.__globals__, include_extras=True)

    @functools.wraps(command)
    def run(**options: Any) -> None:
        from gantry_operator.cli.target import find_target

        directory, name, context, namespace, output = (options.pop(choice) for choice in _CHOICE)
        target = find_target(directory, name, context, namespace)
        command(target=target, as_json=output == Output.json, **options)

    own = [
        parameter.replace(annotation=hints[name])
        for name, parameter in inspect.signature(command).parameters.items()
        if name not in given
    ]
    more = [
        inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=default, annotation=annotation)
        for name, (annotation, default) in _CHOICE.items()
    ]
    run.__signature__ = inspect.Signature([*own, *more])  # type: ignore[attr-defined]
    run.__annotations__ = {p.name: p.annotation for p in (*own, *more)}
    return run


def on_kubernetes(context: str | None, namespace: str | None) -> bool:
    """Whether a command is about a cluster on Kubernetes."""
    return context is not None or namespace is not None or bool(os.environ.get(KUBERNETES))
