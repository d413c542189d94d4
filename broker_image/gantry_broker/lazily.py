"""Packages that import a part when a name of it is asked for, so that a command imports what it uses."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazily(package: str, parts: Mapping[str, str]) -> Callable[[str], Any]:
    """Return the `__getattr__` of a package: `parts` has modules, each with the names that it gives, between blanks.

    No name may be that of a module of the package: once the module is imported, the package has it under that name.
    """
    module_of = {name: module for module, names in parts.items() for name in names.split()}

    def find(name: str) -> Any:
        module = module_of.get(name)
        if module is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(module), name)
        setattr(sys.modules[package], name, value)
        return value

    return find
