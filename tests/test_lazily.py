"""The client's package imports a part when it is asked for, and has every name that it promises."""

from __future__ import annotations

import importlib
import pkgutil

import pytest
from gantry_broker import client


def test_the_package_has_every_name_that_it_promises() -> None:
    for module in pkgutil.iter_modules(client.__path__):
        if module.name not in ("celery", "taskiq"):
            importlib.import_module(f"gantry_broker.client.{module.name}")
    for name in client.__all__:
        assert type(getattr(client, name)).__name__ != "module", f"{name} is a module"
    with pytest.raises(AttributeError, match="no_such_name"):
        client.no_such_name  # noqa: B018
