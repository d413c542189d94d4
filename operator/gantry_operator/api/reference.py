"""docs/resource-reference.md from the models: `python -m gantry_operator.api.reference [--check] [--root DIR]`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gantry_operator.api.crd import CLUSTER, CONSUMER_GROUP, TOPIC, USER, schema_with_defaults

FILE = Path("docs/resource-reference.md")

INTRO = """<!-- Made by `python -m gantry_operator.api.reference` from the models in operator/gantry_operator/api. -->

# The resources

Each has the `apiVersion` `gantry.dev/v1alpha1` or `gantry.dev/v1beta1`, with the same fields
([gitops.md](gitops.md#versions-of-the-api)).

## BrokerCluster

`kind: BrokerCluster`, short name `bc`, namespaced. The same file is applied to Kubernetes and started on one machine
with `gantry up`. `kubectl explain bc.spec --recursive` shows the same fields.

The smallest one:

```yaml
apiVersion: gantry.dev/v1alpha1
kind: BrokerCluster
metadata:
  name: demo
spec:
  brokerGroups:
    - name: a
      members: 3
```

Annotations that users set on the object:

| annotation | value | effect |
|---|---|---|
| `gantry.dev/paused` | `"true"` | the operator changes none of its objects; failover goes on |
| `gantry.dev/switchover` | `GROUP` or `GROUP=MEMBER` | hands over; the answer: `gantry.dev/switchover-result` |
| `gantry.dev/analyze` | any text | runs the report of `spec.analytics` once, now |
"""

USER_INTRO = """## BrokerUser

`kind: BrokerUser`, short name `bu`, namespaced, beside its cluster. A user that may send to every topic that begins
with `orders-`, and read the topic `prices` as group `orders`:

```yaml
apiVersion: gantry.dev/v1alpha1
kind: BrokerUser
metadata:
  name: orders
spec:
  cluster: demo
  rules:
    - {type: Topic, pattern: Prefix, name: orders-, actions: [Pub]}
    - {type: Topic, name: prices, actions: [Sub]}
    - {type: Group, name: orders, actions: [Sub]}
```

| annotation | value | effect |
|---|---|---|
| `gantry.dev/rotate` | any new text | makes a new secret key; the former one stays valid for `spec.rotation.overlap` |
"""

TOPIC_INTRO = """## BrokerTopic

`kind: BrokerTopic`, short name `bt`, namespaced, beside its cluster. [topics.md](topics.md) says what the operator does
with it. The smallest one:

```yaml
apiVersion: gantry.dev/v1alpha1
kind: BrokerTopic
metadata:
  name: orders
spec:
  cluster: demo
  queuesPerGroup: 8
```
"""

GROUP_INTRO = """## ConsumerGroup

`kind: ConsumerGroup`, short name `cg`, namespaced, beside its cluster. The smallest one:

```yaml
apiVersion: gantry.dev/v1alpha1
kind: ConsumerGroup
metadata:
  name: billing
spec:
  cluster: demo
  retryMax: 16
```

| annotation | value | effect |
|---|---|---|
| `gantry.dev/reset-offsets` | `[TOPIC=]WHEN` | shows in `status.reset` what each queue would skip or repeat |
| `gantry.dev/reset-offsets` | `[TOPIC=]WHEN,confirm` | after that preview: moves the group there |

`WHEN` is `earliest`, `latest`, or a time such as `2026-11-25T10:00:00Z`. Without `TOPIC`, all topics of the group move.
"""


def _type(node: dict[str, Any]) -> str:
    if node.get("x-kubernetes-int-or-string"):
        return "quantity"
    if "enum" in node:
        return " \\| ".join(f"`{v}`" for v in node["enum"])
    kind = str(node.get("type", "object"))
    if kind == "array":
        return f"list of {_type(node['items'])}"
    if kind == "object" and isinstance(node.get("additionalProperties"), dict):
        return f"map to {_type(node['additionalProperties'])}"
    return kind


def _limits(node: dict[str, Any]) -> str:
    low, high = node.get("minimum"), node.get("maximum")
    if low is not None and high is not None:
        return f"{low} to {high}"
    if low is not None:
        return f"from {low}"
    return f"up to {high}" if high is not None else ""


def _default(node: dict[str, Any]) -> str:
    value = node.get("default")
    if value is None or value == "" or isinstance(value, dict | list):
        return ""
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def _rows(node: dict[str, Any], path: str) -> Iterator[str]:
    required = node.get("required", [])
    for name, child in node.get("properties", {}).items():
        where = f"{path}.{name}" if path else name
        text = str(child.get("description", "")).split(" Default: ")[0].replace("|", "\\|")
        if name in required:
            text = f"**Needed.** {text}"
        limits = _limits(child)
        shown = _type(child) + (f", {limits}" if limits else "")
        yield f"| `{where}` | {shown} | {_default(child)} | {text} |"
        if child.get("type") == "array":
            yield from _rows(child["items"], f"{where}[]")
        else:
            yield from _rows(child, where)


def _rules(node: dict[str, Any], path: str) -> Iterator[str]:
    for rule in node.get("x-kubernetes-validations", []):
        yield f"- `{path}{rule.get('fieldPath', '')}`: {rule['message']}"
    for name, child in node.get("properties", {}).items():
        yield from _rules(child, f"{path}.{name}" if path else name)
    if "items" in node:
        yield from _rules(node["items"], f"{path}[]")


def render() -> str:
    """Return the text of the page."""
    pages = [_page(schema_with_defaults(r)) for r in (CLUSTER, USER, TOPIC, CONSUMER_GROUP)]
    intros = (INTRO, USER_INTRO, TOPIC_INTRO, GROUP_INTRO)
    lines = [line for intro, page in zip(intros, pages, strict=True) for line in (intro, *page)]
    return "\n".join(lines)


def _page(root: dict[str, Any]) -> list[str]:
    head = ["| field | type | default | meaning |", "|---|---|---|---|"]
    spec, status = root["properties"]["spec"], root["properties"]["status"]
    lines = ["### spec", "", *head, *_rows(spec, ""), "", "### Rules besides types and limits", ""]
    return [*lines, *dict.fromkeys(_rules(root, "")), "", "### status", "", *head, *_rows(status, ""), ""]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m gantry_operator.api.reference", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if the page is stale")
    parser.add_argument("--root", type=Path, default=Path(), help="root of the repository (default: here)")
    options = parser.parse_args(arguments)
    file, text = options.root / FILE, render()
    if file.is_file() and file.read_text(encoding="utf-8") == text:
        return 0
    if options.check:
        print(f"{FILE} is stale: run `python -m gantry_operator.api.reference`", file=sys.stderr)
        return 1
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")
    print(f"wrote {FILE}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
