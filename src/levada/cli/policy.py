"""`levada policy ls|describe`: which policies there are, from the static table."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from levada.cli.output import Format, TextOrJson, columns, data, data_json
from levada.errors import BadInput
from levada.policies.table import POLICIES, Record, lookup, unknown


def register(app: typer.Typer) -> None:
    """Adds the group `policy`."""
    group = typer.Typer(help="Look at the scheduling policies.", rich_markup_mode=None)
    group.command("ls")(ls)
    group.command("describe")(describe)
    app.add_typer(group, name="policy")


def ls(output: Annotated[Format, typer.Option("--output", "-o", help="How to print it.")] = Format.TABLE) -> None:
    """List the policies."""
    match output:
        case Format.JSON:
            data_json([as_json(record) for record in POLICIES])
        case Format.NAME:
            data("\n".join(record.name for record in POLICIES))
        case Format.TABLE:
            rows = [(r.name, ", ".join(r.aliases) or "-", ", ".join(r.needs) or "-", r.summary) for r in POLICIES]
            data(columns(("NAME", "ALIASES", "NEEDS", "SUMMARY"), rows))


def describe(
    name: Annotated[str, typer.Argument(help="A policy's name or alias.", show_default=False)],
    output: Annotated[TextOrJson, typer.Option("--output", "-o", help="How to print it.")] = TextOrJson.TEXT,
) -> None:
    """Show one policy: what it does, what it needs, its options and where it comes from."""
    record = lookup(name)
    if record is None:
        raise BadInput.one(unknown(name))
    if output is TextOrJson.JSON:
        data_json(as_json(record))
    else:
        data(as_text(record))


def as_text(record: Record) -> str:
    """The policy as a page for people."""
    lines = [
        f"Name:     {record.name}",
        f"Aliases:  {', '.join(record.aliases) or '-'}",
        f"Summary:  {record.summary}",
        f"Needs:    {', '.join(record.needs) or '-'}",
        f"Source:   {record.source}",
        f"Class:    {record.target}",
    ]
    if not record.options:
        return "\n".join([*lines, "Options:  -"])
    rows = [
        (o.name, f"{o.default:g}" if isinstance(o.default, float) else str(o.default), o.unit or "-", o.meaning)
        for o in record.options
    ]
    table = columns(("OPTION", "DEFAULT", "UNIT", "MEANING"), rows)
    return "\n".join([*lines, "Options:", *("  " + line for line in table.splitlines())])


def as_json(record: Record) -> dict[str, Any]:
    """The policy as `-o json` prints it."""
    return {**record._asdict(), "options": [option._asdict() for option in record.options]}
