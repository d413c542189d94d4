from typing import Any


def render(report: dict[str, Any]) -> str:
    return ""
