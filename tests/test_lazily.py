"""Packages that import a part when it is asked for have every name that they promise, as one module gives it."""

from __future__ import annotations

import importlib
import pkgutil

import pytest


@pytest.mark.parametrize("package", ["gantry_broker.client", "gantry_operator.certificates"])
def test_a_package_has_every_name_that_it_promises(package: str) -> None:
    found = importlib.import_module(package)
    for module in pkgutil.iter_modules(found.__path__):
        if module.name not in ("celery", "taskiq"):
            importlib.import_module(f"{package}.{module.name}")
    for name in found.__all__:
        assert type(getattr(found, name)).__name__ != "module", f"{package}.{name} is a module"
    with pytest.raises(AttributeError, match="no_such_name"):
        found.no_such_name  # noqa: B018
