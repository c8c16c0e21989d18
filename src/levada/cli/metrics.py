"""`levada metrics`: what the server tells Prometheus, and a dashboard and alerts made from it."""

from __future__ import annotations

from typing import Annotated

import typer

from levada.cli.lists import ListFormat, NoHeaders, Output, show
from levada.cli.output import data
from levada.errors import LevadaError

Out = Annotated[str | None, typer.Option("--out", metavar="FILE", help="Write it there instead of printing it.")]


def register(app: typer.Typer) -> None:
    """Adds the group `metrics`."""
    group = typer.Typer(help="List the metrics; make a dashboard and alerts from them.", rich_markup_mode=None)
    group.command("ls")(ls)
    group.command("dashboard")(dashboard)
    group.command("alerts")(alerts)
    app.add_typer(group, name="metrics")


def ls(output: Output = ListFormat.TABLE, no_headers: NoHeaders = False) -> None:
    """List what the server tells at /metrics."""
    from levada.server.families import FAMILIES

    items = [
        {"name": family.name, "type": family.kind.value, "labels": list(family.labels), "help": family.help}
        for family in FAMILIES.values()
    ]
    rows = [(each.name, each.kind.value, ",".join(each.labels) or "-", each.help) for each in FAMILIES.values()]
    header = ("NAME", "TYPE", "LABELS", "HELP")
    show(items, output, lambda wide: (header, rows), spare=("TYPE", "LABELS"), no_headers=no_headers)


def dashboard(out: Out = None) -> None:
    """Print a dashboard of all metrics as JSON, for Grafana to import."""
    import json

    from levada.server.dashboard import dashboard as made

    _give(json.dumps(made(), indent=2), out)


def alerts(out: Out = None) -> None:
    """Print alerting rules as YAML, for Prometheus."""
    import yaml

    from levada.server.alerts import rules

    _give(yaml.safe_dump(rules(), sort_keys=False, width=120).rstrip("\n"), out)


def _give(text: str, out: str | None) -> None:
    if out is None:
        data(text)
        return
    try:
        with open(out, "w", encoding="utf-8") as file:
            file.write(text + "\n")
    except OSError as error:
        raise LevadaError(f"cannot write {out}: {error.strerror}") from None
    data(out)
