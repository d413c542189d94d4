"""Commands about one cluster: they share the options that choose it."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, get_type_hints

from gantry_operator.cli.options import ContextOption, DirOption, NameOption, NamespaceOption, Output, OutputOption
from gantry_operator.cli.target import find_target

_CHOICE: dict[str, tuple[Any, Any]] = {
    "directory": (DirOption, None),
    "name": (NameOption, None),
    "context": (ContextOption, None),
    "namespace": (NamespaceOption, None),
    "output": (OutputOption, Output.text),
}


def on_cluster(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options that choose a cluster, and `--output`. The command gets `target` and `as_json`."""
    given = ("target", "as_json")
    written = {name: text for name, text in command.__annotations__.items() if name not in given}
    hints = get_type_hints(SimpleNamespace(__annotations__=written), command.__globals__, include_extras=True)

    @functools.wraps(command)
    def run(**options: Any) -> None:
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
