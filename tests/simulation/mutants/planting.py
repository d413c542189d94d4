"""Changes functions at run time: it replaces an exact text in a module's source by another.

The function around the text is compiled from the changed source and gets that code in place. Every module that has
imported the function runs the mutant, and afterwards the function has its original code again.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import CodeType, FunctionType, ModuleType
from typing import Any


class StaleMutant(Exception):
    """The source does not have the text exactly once, or the function cannot be replaced as the mutant says."""


@dataclass(frozen=True)
class Edit:
    """`before` must be exactly once in the source of `module`, within a function."""

    module: ModuleType
    before: str
    after: str


@dataclass(frozen=True)
class Mutant:
    rule: int
    """Its number in docs/replication.md."""
    name: str
    """The protection that it removes."""
    edits: tuple[Edit, ...]

    def __str__(self) -> str:
        return f"rule_{self.rule:02}_{self.name}"


@contextmanager
def plant(*mutants: Mutant) -> Iterator[None]:
    """Run with the functions that the mutants edit. Raises StaleMutant, and has then changed no function."""
    edits = {edit: mutant for mutant in mutants for edit in mutant.edits}
    modules = dict.fromkeys(edit.module for edit in edits)
    changed = [pair for module in modules for pair in _changed(module, edits)]
    own = [(function, function.__code__) for function, _ in changed]
    for function, code in changed:
        function.__code__ = code
    try:
        yield
    finally:
        for function, code in own:
            function.__code__ = code


def _changed(module: ModuleType, edits: dict[Edit, Mutant]) -> Iterator[tuple[FunctionType, CodeType]]:
    """Each function that the edits of one module change, and its new code."""
    own = text = inspect.getsource(module)
    names: dict[str, Mutant] = {}
    for edit, mutant in edits.items():
        if edit.module is not module:
            continue
        if (count := own.count(edit.before)) != 1:
            raise StaleMutant(
                f"{mutant}: {edit.before!r} is {count} times in {module.__name__}, not once: give the mutant the "
                f"text by which the rule is kept there now"
            )
        names[_function_at(mutant, module, own, own.index(edit.before))] = mutant
        text = text.replace(edit.before, edit.after)
        try:
            code = compile(text, str(module.__file__), "exec", dont_inherit=True)
        except SyntaxError as error:
            raise StaleMutant(f"{mutant}: {module.__name__} with {edit.after!r} is no Python: {error}") from error
    for name, mutant in names.items():
        new = _code_of(code, name)
        function = _function_of(module, name)
        if new is None or new.co_freevars != function.__code__.co_freevars:
            raise StaleMutant(f"{mutant}: {module.__name__}.{name} cannot be replaced by the result of the edit")
        yield function, new


def _function_at(mutant: Mutant, module: ModuleType, source: str, at: int) -> str:
    """The qualified name of the method or function around a place in the source."""
    line = source.count("\n", 0, at) + 1

    def within(body: list[ast.stmt], prefix: str) -> str | None:
        for node in body:
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                continue
            if node.lineno <= line <= (node.end_lineno or 0):
                name = prefix + node.name
                return within(node.body, f"{name}.") if isinstance(node, ast.ClassDef) else name
        return None

    name = within(ast.parse(source).body, "")
    if name is None:
        raise StaleMutant(f"{mutant}: line {line} of {module.__name__} is not within a function")
    return name


def _code_of(code: CodeType, name: str) -> CodeType | None:
    for part in code.co_consts:
        if isinstance(part, CodeType):
            if part.co_qualname == name:
                return part
            if name.startswith(f"{part.co_qualname}."):
                return _code_of(part, name)
    return None


def _function_of(module: ModuleType, name: str) -> FunctionType:
    found: Any = module
    for part in name.split("."):
        found = vars(found)[part]
    if isinstance(found, property):
        found = found.fget
    function = inspect.unwrap(getattr(found, "__func__", found))
    assert isinstance(function, FunctionType), name
    return function
