"""The plug-ins for k9s run commands that exist, with options that these have, and ask before a change."""

from __future__ import annotations

import re
import shlex

import typer
import yaml
from gantry_operator.cli.app import app

from distributions.build import ROOT

GIVEN = {"$CONTEXT", "$NAMESPACE", "$NAME"}
READING = {"status", "top", "group list"}


def test_each_plug_in_is_a_command_of_gantry() -> None:
    plugins = yaml.safe_load((ROOT / "distributions/k9s.yaml").read_text())["plugins"]
    keys = [plugin["shortCut"] for plugin in plugins.values()]
    assert len(set(keys)) == len(keys) == 4
    for name, plugin in plugins.items():
        assert (plugin["scopes"], plugin["command"], plugin["args"][0]) == (["brokerclusters"], "sh", "-c"), name
        words = shlex.split(re.split(r" 2>&1| \|", plugin["args"][1])[0])
        assert words[0] == "gantry"
        first = next(at for at, word in enumerate(words) if word.startswith("--"))
        command = typer.main.get_command(app)
        for word in words[1:first]:
            command = command.commands[word]  # type: ignore[attr-defined]
        options = {option for parameter in command.params for option in parameter.opts}
        assert set(words[first::2]) <= options, name
        assert set(words[first + 1 :: 2]) == GIVEN, name
        assert plugin.get("confirm", False) == (" ".join(words[1:first]) not in READING), name
