"""`levada metrics`: metrics of the server, and a dashboard and alerts for them."""

from __future__ import annotations

from typing import Annotated

import typer

from levada.cli.lists import ListFormat, NoHeaders, Output, show
from levada.cli.output import data
from levada.errors import LevadaError

Out = Annotated[str | None, typer.Option("--out", metavar="FILE", help="Write to FILE instead of standard output.")]


def register(app: typer.Typer) -> None:
    """Add the group `metrics`."""
    group = typer.Typer(help="List metrics; print a Grafana dashboard and alerting rules.", rich_markup_mode=None)
    group.command("ls")(ls)
    group.command("dashboard")(dashboard)
    group.command("alerts")(alerts)
    app.add_typer(group, name="metrics")


def ls(output: Output = ListFormat.TABLE, no_headers: NoHeaders = False) -> None:
    """List the metrics of the server at /metrics."""
    from levada.server.metric_defs import FAMILIES

    items = [
        {"name": family.name, "type": family.kind.value, "labels": list(family.labels), "help": family.help}
        for family in FAMILIES.values()
    ]
    rows = [
        (family.name, family.kind.value, ",".join(family.labels) or "-", family.help) for family in FAMILIES.values()
    ]
    header = ("NAME", "TYPE", "LABELS", "HELP")
    show(items, output, lambda wide: (header, rows), spare=("TYPE", "LABELS"), no_headers=no_headers)


def dashboard(out: Out = None) -> None:
    """Print a Grafana dashboard of all metrics as JSON."""
    import json

    from levada.server.dashboard import dashboard as build_dashboard

    _write(json.dumps(build_dashboard(), indent=2), out)


def alerts(out: Out = None) -> None:
    """Print alerting rules for Prometheus as YAML."""
    import yaml

    from levada.server.alerts import rules

    _write(yaml.safe_dump(rules(), sort_keys=False, width=120).rstrip("\n"), out)


def _write(text: str, out: str | None) -> None:
    if out is None:
        data(text)
        return
    try:
        with open(out, "w", encoding="utf-8") as file:
            file.write(text + "\n")
    except OSError as error:
        raise LevadaError(f"cannot write {out}: {error.strerror}") from None
    data(out)
