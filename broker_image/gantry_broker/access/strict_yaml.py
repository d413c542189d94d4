"""YAML in which each key of a mapping is written once. PyYAML alone takes the last one silently."""

from __future__ import annotations

from typing import Any


class NotYaml(ValueError):
    """The text is not YAML, or a key is written twice. The message never quotes a value: it may be a secret."""


def load_all(text: str) -> list[Any]:
    """Return the documents of a text. Raises NotYaml."""
    import yaml  # Imported here: brokers do not need it, and their image does not have it.

    class Loader(yaml.SafeLoader):
        """Refuses a key that is written twice. `<<` may be: it merges."""

        def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
            lines: dict[tuple[str, str], int] = {}
            for key, _ in node.value if isinstance(node, yaml.MappingNode) else ():
                if not isinstance(key, yaml.ScalarNode) or key.tag == "tag:yaml.org,2002:merge":
                    continue
                line, name = key.start_mark.line + 1, (key.tag, key.value)
                if name in lines:
                    where = f"lines {lines[name]} and {line}" if lines[name] != line else f"line {line}"
                    raise NotYaml(f"{key.value[:80]} is written twice, in {where}: write it once")
                lines[name] = line
            mapping: dict[Any, Any] = super().construct_mapping(node, deep)
            return mapping

    try:
        return list(yaml.load_all(text, Loader))
    except yaml.MarkedYAMLError as error:
        where = f" in line {error.problem_mark.line + 1}" if error.problem_mark else ""
        raise NotYaml(f"it is not YAML{where}: {error.problem}") from None
    except (yaml.YAMLError, RecursionError) as error:
        raise NotYaml(f"it is not YAML: {type(error).__name__}") from None
    except (ValueError, OverflowError) as error:  # For example a date that no calendar has.
        raise error if isinstance(error, NotYaml) else NotYaml(f"it is not YAML: {error}") from None
