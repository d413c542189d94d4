"""Grafana's JSON of a dashboard. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from helm.dashboards.model import Board, Panel, Placed, Query, Variable, Words, placed, selected
from helm.dashboards.style import GRAFANA_UNIT, SERIES

SOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}
TAG: Final = "gantry"
Json = dict[str, Any]


def dashboard(board: Board) -> Json:
    """Return the dashboard as Grafana imports it."""
    return {
        "uid": board.uid,
        "title": board.title,
        "description": board.text,
        "tags": [TAG],
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "timezone": "browser",
        "timepicker": {},
        "annotations": {"list": []},
        "links": [
            {
                "type": "dashboards", "title": "Gantry", "tags": [TAG], "asDropdown": True, "includeVars": True,
                "keepTime": True, "icon": "external link", "targetBlank": False, "tooltip": "", "url": "",
            }
        ],
        "templating": {"list": [_source(), *map(_variable, board.variables)]},
        "panels": [_placed(number, what) for number, what in enumerate(placed(board), 1)],
    }  # fmt: skip


def _source() -> Json:
    return {
        "name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus", "refresh": 1,
        "regex": "", "hide": 0, "includeAll": False, "multi": False, "options": [],
        "current": {"text": "default", "value": "default"},
    }  # fmt: skip


def _variable(variable: Variable) -> Json:
    query = f"label_values({selected(variable.metric)}, {variable.name})"
    return {
        "name": variable.name, "label": variable.title, "type": "query", "datasource": SOURCE, "definition": query,
        "query": {"query": query, "refId": variable.name}, "refresh": 2, "regex": "", "sort": 1, "hide": 0,
        # `.*` also matches series without the label, such as those of a Prometheus outside Kubernetes.
        "includeAll": True, "allValue": ".*", "multi": True, "options": [],
        "current": {"text": ["All"], "value": ["$__all"], "selected": True},
    }  # fmt: skip


def _placed(number: int, at: Placed) -> Json:
    place = {"x": at.x, "y": at.y, "w": at.w, "h": at.h}
    if isinstance(at.what, str):
        return {"id": number, "type": "row", "title": at.what, "collapsed": False, "gridPos": place, "panels": []}
    return {"id": number, "gridPos": place} | _panel(at.what)


def _panel(panel: Panel) -> Json:
    make = {"stat": _stat, "graph": _graph, "table": _table, "bars": _bars}[panel.kind]
    # The latest values only; a graph has all of its time range.
    instant = panel.kind != "graph"
    return {
        "title": panel.title,
        "description": panel.text,
        "datasource": SOURCE,
        "targets": [
            {
                "refId": ref(number), "datasource": SOURCE, "expr": selected(query.expr), "legendFormat": query.name,
                "instant": instant, "range": not instant, "editorMode": "code",
                "format": "table" if panel.kind == "table" else "time_series",
            }
            for number, query in enumerate(panel.queries)
        ],
    } | make(panel)  # fmt: skip


def ref(number: int) -> str:
    """Return Grafana's name of a panel's query."""
    return chr(ord("A") + number)


def _steps(steps: Sequence[tuple[float | None, str]]) -> Json:
    return {"mode": "absolute", "steps": [{"value": value, "color": colour} for value, colour in steps]}


def _mappings(words: Words) -> list[Json]:
    return [
        {"type": "value", "options": {"Infinity" if value == "inf" else f"{value:g}": {"text": word}}}
        for value, word in words.items()
    ]


def _defaults(panel: Panel, **more: Any) -> Json:
    found: Json = {
        "unit": GRAFANA_UNIT[panel.unit],
        "mappings": _mappings(panel.words),
        "thresholds": _steps(panel.steps),
    }
    if panel.decimals is not None:
        found["decimals"] = panel.decimals
    if panel.empty:
        found["noValue"] = panel.empty
    return found | more


def _stat(panel: Panel) -> Json:
    return {
        "type": "stat",
        "fieldConfig": {"defaults": _defaults(panel, color={"mode": "thresholds"}), "overrides": []},
        "options": {
            "colorMode": "value", "graphMode": "none", "justifyMode": "center", "orientation": "auto",
            "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False}, "textMode": "value",
            "wideLayout": True,
        },
    }  # fmt: skip


def _graph(panel: Panel) -> Json:
    custom = {
        "drawStyle": "line", "lineInterpolation": "linear", "lineWidth": 1, "fillOpacity": fill(panel),
        "gradientMode": "none", "showPoints": "never", "spanNulls": False, "axisPlacement": "auto", "axisLabel": "",
        "axisColorMode": "text", "axisBorderShow": False, "barAlignment": 0, "pointSize": 4,
        "scaleDistribution": {"type": "linear"}, "thresholdsStyle": {"mode": "off"},
        "stacking": {"mode": "normal" if panel.stacked else "none", "group": "A"},
        "hideFrom": {"legend": False, "tooltip": False, "viz": False},
    }  # fmt: skip
    overrides = [
        {
            "matcher": {"id": "byFrameRefID", "options": ref(number)},
            "properties": [{"id": "color", "value": {"mode": "fixed", "fixedColor": query.colour}}],
        }
        for number, query in enumerate(panel.queries)
        if query.colour is not None
    ]
    return {
        "type": "timeseries",
        "fieldConfig": {
            "defaults": _defaults(panel, custom=custom, color={"mode": "palette-classic-by-name"}, min=0),
            "overrides": overrides,
        },
        "options": {
            "legend": {"showLegend": True, "displayMode": "list", "placement": "bottom", "calcs": []},
            "tooltip": {"mode": "multi", "sort": "desc"},
        },
    }


def fill(panel: Panel) -> int:
    """Percent of colour below a line: a little where lines do not hide each other."""
    return 40 if panel.stacked else 6 if panel.queries[0].colour else 0


def _bars(panel: Panel) -> Json:
    color = {"mode": "fixed", "fixedColor": panel.queries[0].colour or SERIES[0]}
    return {
        "type": "bargauge",
        "fieldConfig": {"defaults": _defaults(panel, color=color, min=0), "overrides": []},
        "options": {
            "displayMode": "basic", "orientation": "horizontal", "valueMode": "text", "namePlacement": "auto",
            "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False}, "showUnfilled": False,
            "sizing": "auto", "minVizHeight": 12, "minVizWidth": 8, "maxVizHeight": 28,
            "legend": {"showLegend": False, "displayMode": "list", "placement": "bottom", "calcs": []},
        },
    }  # fmt: skip


def _table(panel: Panel) -> Json:
    columns = {f"Value #{ref(n)}" if len(panel.queries) > 1 else "Value": q for n, q in enumerate(panel.queries)}
    order = [*panel.labels, *columns]
    return {
        "type": "table",
        "transformations": [
            {"id": "merge", "options": {}},
            {
                "id": "organize",
                "options": {
                    "excludeByName": {"Time": True},
                    "indexByName": {name: number for number, name in enumerate(order)},
                    "renameByName": {**panel.labels, **{name: query.name for name, query in columns.items()}},
                },
            },
        ],
        "fieldConfig": {
            "defaults": _defaults(panel, custom={"align": "auto", "filterable": False}),
            "overrides": [_column(query) for query in columns.values()],
        },
        "options": {
            "showHeader": True,
            "cellHeight": "sm",
            "footer": {"show": False, "reducer": ["sum"], "fields": ""},
        },
    }


def _column(query: Query) -> Json:
    properties: list[Json] = [{"id": "unit", "value": GRAFANA_UNIT[query.unit or "short"]}]
    if query.words:
        properties.append({"id": "mappings", "value": _mappings(query.words)})
    if query.steps:
        properties += [
            {"id": "thresholds", "value": _steps(query.steps)},
            {"id": "color", "value": {"mode": "thresholds"}},
            {"id": "custom.cellOptions", "value": {"type": "color-text"}},
        ]
    return {"matcher": {"id": "byName", "options": query.name}, "properties": properties}
