"""A Grafana dashboard with a panel for every metric."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from levada.server.families import FAMILIES, SERVER_INFO, Family, Kind

Json = dict[str, Any]

#: The newest of Grafana's classic form, which every version imports; older ones read what they know.
_SCHEMA_VERSION = 42
_SOURCE = {"type": "prometheus", "uid": "${datasource}"}
#: Grafana's grid is 24 wide; two panels stand side by side.
_WIDTH, _HEIGHT, _COLUMNS = 12, 8, 2
_QUANTILES = (0.5, 0.9, 0.99)

#: Rows in their order, by the noun in a metric's name; a noun that is new gets a row of its own at the end.
_ROWS = {
    "server": "Server",
    "job": "Jobs",
    "queue": "Queues",
    "gpu": "GPUs and nodes",
    "node": "GPUs and nodes",
    "decision": "Decisions",
    "engine": "Decisions",
    "event": "Events",
    "http": "HTTP",
}
#: Grafana's units by how a metric's name ends: of a value, and of a value per second. Seconds per second have none:
#: they are how many were busy.
_UNITS = {
    "_seconds": ("s", "short"),
    "_bytes": ("bytes", "Bps"),
    "_ratio": ("percentunit", "percentunit"),
    "_requests": ("short", "reqps"),
}
_OTHER_UNIT = ("short", "cps")


def dashboard(families: Iterable[Family] = FAMILIES.values()) -> Json:
    """The dashboard as Grafana imports it."""
    return {
        "uid": "levada",
        "title": "Levada",
        "description": "The server, its jobs, queues, GPUs and decisions. Made by `levada metrics dashboard`.",
        "tags": ["levada"],
        "schemaVersion": _SCHEMA_VERSION,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "timezone": "browser",
        "templating": {"list": [_source_variable(), _instance_variable()]},
        "annotations": {"list": []},
        "links": [],
        "panels": _panels(families),
    }


def _source_variable() -> Json:
    return {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus", "current": {}}


def _instance_variable() -> Json:
    query = f"label_values({SERVER_INFO.name}, instance)"
    return {
        "name": "instance",
        "label": "Server",
        "type": "query",
        "datasource": _SOURCE,
        "query": {"query": query, "refId": "instance"},
        "definition": query,
        "refresh": 2,
        "multi": True,
        "includeAll": True,
        "current": {"text": ["All"], "value": ["$__all"]},
    }


def row_of(family: Family) -> str:
    """The title of the row that a metric belongs to: `levada_jobs_finished_total` to Jobs."""
    noun = family.name.removeprefix("levada_").split("_")[0]
    noun = noun.removesuffix("s")
    return _ROWS.get(noun, f"{noun.capitalize()}s")


def _panels(families: Iterable[Family]) -> list[Json]:
    rows: dict[str, list[Family]] = {title: [] for title in _ROWS.values()}
    for family in families:
        rows.setdefault(row_of(family), []).append(family)
    panels: list[Json] = []
    top = 0
    for title, members in rows.items():
        if not members:
            continue
        where = {"x": 0, "y": top, "w": _WIDTH * _COLUMNS, "h": 1}
        panels.append({"id": len(panels) + 1, "type": "row", "title": title, "collapsed": False, "panels": []})
        panels[-1]["gridPos"] = where
        top += 1
        for place, family in enumerate(members):
            line, column = divmod(place, _COLUMNS)
            where = {"x": column * _WIDTH, "y": top + line * _HEIGHT, "w": _WIDTH, "h": _HEIGHT}
            panels.append({"id": len(panels) + 1, "gridPos": where, **_panel(family)})
        top += -(-len(members) // _COLUMNS) * _HEIGHT
    return panels


def _panel(family: Family) -> Json:
    names = ", ".join(f"`{name}`" for name in family.series)
    shown = _table() if _is_info(family) else _graph(family)
    targets = [
        {"refId": "ABC"[number], "datasource": _SOURCE, "expr": query, "legendFormat": legend, **_form(family)}
        for number, (query, legend) in enumerate(queries(family))
    ]
    title = family.help.removesuffix(".")
    return {
        "title": f"{title}, per second" if family.kind is Kind.COUNTER else title,
        "description": f"{family.help} ({family.kind}: {names})",
        "datasource": _SOURCE,
        "targets": targets,
        **shown,
    }


def queries(family: Family) -> list[tuple[str, str]]:
    """What a panel asks for, each with the legend of its lines."""
    # A metric without labels is told apart by server, which Prometheus adds.
    labels = family.labels or ("instance",)
    by, legend = ", ".join(labels), " ".join(f"{{{{{label}}}}}" for label in labels)
    here = '{instance=~"$instance"}'
    match family.kind:
        case Kind.GAUGE if _is_info(family):
            # With all its labels: Prometheus may have renamed one (`job` is `exported_job` unless honor_labels is set).
            return [(f"{family.name}{here}", "")]
        case Kind.GAUGE:
            # Times of several servers have no sum.
            whole = "max" if family.name.endswith("_seconds") else "sum"
            return [(f"{whole} by ({by}) ({family.name}{here})", legend)]
        case Kind.COUNTER:
            return [(f"sum by ({by}) (rate({family.name}{here}[$__rate_interval]))", legend)]
        case Kind.HISTOGRAM:
            # What takes hours happens seldom: in minutes there would be nothing to take a quantile of.
            window = "$__rate_interval" if family.buckets[-1] < 3600 else "1h"
            rates = f"sum by (le, {by}) (rate({family.name}_bucket{here}[{window}]))"
            return [(f"histogram_quantile({q}, {rates})", f"p{q * 100:.0f} {legend}") for q in _QUANTILES]


def _is_info(family: Family) -> bool:
    """Whether its labels are all it tells."""
    return family.name.endswith("_info")


def _form(family: Family) -> Json:
    return {"instant": True, "format": "table"} if _is_info(family) else {"range": True}


def unit(family: Family) -> str:
    """Grafana's name of the unit, from how the metric's name ends."""
    base = family.name.removesuffix("_total")
    value, per_second = next((units for end, units in _UNITS.items() if base.endswith(end)), _OTHER_UNIT)
    return per_second if family.kind is Kind.COUNTER else value


def _graph(family: Family) -> Json:
    return {
        "type": "timeseries",
        "fieldConfig": {"defaults": {"unit": unit(family), "min": 0}, "overrides": []},
        "options": {
            "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
            "tooltip": {"mode": "multi", "sort": "desc"},
        },
    }


def _table() -> Json:
    hidden = {"Time": True, "Value": True, "__name__": True}
    return {
        "type": "table",
        "fieldConfig": {"defaults": {}, "overrides": []},
        "options": {"showHeader": True},
        "transformations": [{"id": "organize", "options": {"excludeByName": hidden}}],
    }
