"""Commands that share options: those that choose one cluster, and others."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, get_type_hints

import typer

from gantry_operator.cli.options import (
    EPILOG,
    ContextOption,
    DirOption,
    NameOption,
    NamespaceOption,
    Output,
    OutputOption,
)
from gantry_operator.cli.target import find_target

if TYPE_CHECKING:
    from gantry_operator.actions.target import Target

Command = Callable[..., None]


def sharing(supply: Callable[..., Sequence[Any]], *given: str) -> Callable[[Command], Command]:
    """Return a decorator that adds the options of `supply` behind those of a command. The command's parameters `given`
    get what `supply` makes of them.
    """
    shared = _options(supply, ())

    def decorate(command: Command) -> Command:
        @functools.wraps(command)
        def run(**options: Any) -> None:
            supplied = supply(**{option.name: options.pop(option.name) for option in shared})
            command(**dict(zip(given, supplied, strict=False)), **options)

        run.__signature__ = inspect.Signature([*_options(command, given), *shared])  # type: ignore[attr-defined]
        run.__annotations__ = {option.name: option.annotation for option in run.__signature__.parameters.values()}  # type: ignore[attr-defined]
        return run

    return decorate


def _options(function: Callable[..., Any], left_out: Sequence[str]) -> list[inspect.Parameter]:
    parameters = [p for name, p in inspect.signature(function).parameters.items() if name not in left_out]
    written = SimpleNamespace(__annotations__={p.name: p.annotation for p in parameters})
    hints = get_type_hints(written, function.__globals__, include_extras=True)
    return [p.replace(annotation=hints[p.name], kind=inspect.Parameter.KEYWORD_ONLY) for p in parameters]


def _cluster(
    directory: DirOption = None,
    name: NameOption = None,
    context: ContextOption = None,
    namespace: NamespaceOption = None,
    output: OutputOption = Output.text,
) -> tuple[Target, bool]:
    return find_target(directory, name, context, namespace), output == Output.json


on_cluster = sharing(_cluster, "target", "as_json")
"""Adds the options that choose a cluster, and `--output`. The command gets `target` and `as_json`."""


def cluster_command(app: typer.Typer, name: str | None = None) -> Callable[[Command], Command]:
    """Return a decorator that adds a command about one cluster to an application."""
    return lambda command: app.command(name, epilog=EPILOG)(on_cluster(command))
