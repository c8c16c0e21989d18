"""`levada policy`: list, show and set policies, built-in or from packages."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from inspect import Parameter
from typing import Annotated, Any

import typer

from levada.cli.confirm import confirm, is_interactive
from levada.cli.connection import Server, StateDir, connect
from levada.cli.installed import Installed, installed
from levada.cli.output import Format, TextOrJson, bold, columns, data, data_json, line_width, message
from levada.errors import BadInput, LevadaError, Refused
from levada.policies.catalog import POLICIES, RECOMMENDED, Option, PolicyInfo
from levada.policies.registry import alpha_of, lookup

#: Field of a case for each of a policy's `Needs`.
_FIELD_OF_NEED = {"RATE": "speedup", "REMAINING": "remaining_s", "PROGRESS": "steps_left", "DEADLINE": "deadline_s"}


def _complete(incomplete: str) -> list[str]:
    return [record.name for record in POLICIES if record.name.startswith(incomplete)]


def register(app: typer.Typer) -> None:
    """Add the group `policy`."""
    group = typer.Typer(help="List, show and set scheduling policies.", rich_markup_mode=None)
    group.command("ls")(ls)
    group.command("describe")(describe)
    group.command("get")(get)
    group.command("set")(choose)
    app.add_typer(group, name="policy")


def ls(
    output: Annotated[Format, typer.Option("--output", "-o", help="Output format.")] = Format.TABLE,
    server: Server = None,
    state: StateDir = None,
) -> None:
    """List policies; mark the active and the recommended one."""
    # Levada's own policies are entry points, too; built-in names take precedence.
    others = [entry for entry in installed() if lookup(entry.name) is None]
    match output:
        case Format.JSON:
            data_json([*map(as_json, POLICIES), *map(installed_as_json, others)])
        case Format.NAME:
            data("\n".join([*(record.name for record in POLICIES), *(entry.name for entry in others)]))
        case Format.TABLE:
            marks = {RECOMMENDED: " (recommended)"}
            if active := _active(server, state):
                marks[active] = " (active, recommended)" if active == RECOMMENDED else " (active)"
            rows = [(r.name, ", ".join(r.aliases) or "-", ", ".join(r.needs) or "-", r.summary) for r in POLICIES]
            rows += [
                (o.name, "-", "?", f"From package {o.package}; see `levada policy describe {o.name}`") for o in others
            ]
            rows = [(row[0] + marks.get(row[0], ""), *row[1:]) for row in rows]
            data(_table(rows))


def _table(rows: Sequence[tuple[str, ...]]) -> str:
    """Format policies as a table, or with the summary below the name on a narrow terminal."""
    table = columns(("NAME", "ALIASES", "NEEDS", "SUMMARY"), rows)
    width = line_width()
    if width is None or max(map(len, table.splitlines())) <= width:
        return table
    lines = []
    for name, _, _, summary in rows:
        lines += [bold(name), *textwrap.wrap(summary, width, initial_indent="    ", subsequent_indent="    ")]
    return "\n".join(lines)


def _active(server: str | None, state: str | None) -> str | None:
    """Return the policy of the server; None if no server answers within 2 s."""
    try:
        with connect(server, state, timeout_s=2.0, patience_s=0.0, quiet=True) as client:
            return str(client.policy()["name"])
    except LevadaError:
        if server is not None or state is not None:
            raise
        return None


def describe(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME",
            help="Name or alias of the policy, or path/to/file.py:Class.",
            autocompletion=_complete,
            show_default=False,
        ),
    ],
    output: Annotated[TextOrJson, typer.Option("--output", "-o", help="Output format.")] = TextOrJson.TEXT,
) -> None:
    """Show one policy: summary, needs and options."""
    record = _with_alpha(lookup(name), name) or _of_user(name)
    if output is TextOrJson.JSON:
        data_json(as_json(record))
    else:
        data(as_text(record))


def get(
    output: Annotated[TextOrJson, typer.Option("--output", "-o", help="Output format.")] = TextOrJson.TEXT,
    server: Server = None,
    state: StateDir = None,
) -> None:
    """Show the policy of the server and its options."""
    with connect(server, state) as client:
        _print_policy(client.policy(), output)


def choose(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME", help="Name or alias of the policy.", autocompletion=_complete, show_default=False
        ),
    ],
    option: Annotated[
        list[str] | None,
        typer.Option("--option", "-O", metavar="NAME=VALUE", help="Set an option of the policy; may be repeated."),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    output: Annotated[TextOrJson, typer.Option("--output", "-o", help="Output format.")] = TextOrJson.TEXT,
    server: Server = None,
    state: StateDir = None,
) -> None:
    """Change the policy of the server.

    Prints the running jobs that would be stopped or shrunk; on a terminal, asks for confirmation first.
    """
    options = dict(_option(text) for text in option or ())
    with connect(server, state) as client:
        if not yes and is_interactive() and (warnings := client.set_policy(name, options, dry_run=True)["warnings"]):
            if not confirm("\n".join(f"levada: {warning}" for warning in warnings), f"Change the policy to {name}?"):
                raise Refused("the policy was not changed")
            _print_policy(client.set_policy(name, options), output)
            return
        changed = client.set_policy(name, options)
    for warning in changed.get("warnings") or ():
        message(f"levada: {warning}")
    _print_policy(changed, output)


def _option(text: str) -> tuple[str, Any]:
    import json

    name, separator, value = text.partition("=")
    if not separator:
        raise BadInput.one(f"--option: {text}: must be NAME=VALUE")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


def _print_policy(policy: Mapping[str, Any], output: TextOrJson) -> None:
    if output is TextOrJson.JSON:
        data_json(policy)
        return
    options = "".join(f" {name}={value}" for name, value in policy["options"].items())
    data(policy["name"] + options)


def _with_alpha(record: PolicyInfo | None, name: str) -> PolicyInfo | None:
    """Return the record with the default alpha of a name like `allox_alpha=0.5`."""
    alpha = alpha_of(name)
    if record is None or alpha is None:
        return record
    options = tuple(o._replace(default=alpha) if o.name == "alpha" else o for o in record.options)
    return record._replace(name=name, options=options)


def _of_user(name: str) -> PolicyInfo:
    """Return the record of a policy that is not built in; raises BadInput."""
    # Output of a user's policy must not mix with ours on stdout.
    with redirect_stdout(sys.stderr):
        from levada.plugins import find_class, options_of

        cls: Any = find_class(name)
    entry = next((entry for entry in installed() if entry.name == name), None)
    text = (cls.__doc__ or getattr(sys.modules.get(cls.__module__), "__doc__", None) or "-").strip()
    file = getattr(sys.modules.get(cls.__module__), "__file__", None) or cls.__module__
    options = [Option(one.name, _default(one.default), "", "-") for one in options_of(cls) or ()]
    return PolicyInfo(
        name=cls.name if entry is None else name,
        aliases=(),
        target=name if entry is None else entry.target,
        summary=text.splitlines()[0].rstrip("."),
        needs=tuple(_FIELD_OF_NEED[need.name or ""] for need in cls.needs),
        source=file if entry is None else f"{entry.package} ({file})",
        options=tuple(options),
    )


def _default(value: Any) -> float | int | bool | str:
    """Return the default of an option in printable form; "required" without one."""
    if value is Parameter.empty:
        return "required"
    return value if isinstance(value, float | int | bool | str) else repr(value)


def as_text(record: PolicyInfo) -> str:
    """Format a policy as text."""
    lines = [
        f"Name:     {record.name}",
        f"Aliases:  {', '.join(record.aliases) or '-'}",
        f"Summary:  {record.summary}",
        f"Needs:    {', '.join(record.needs) or '-'}",
        f"Source:   {record.source}",
        f"Class:    {record.target}",
    ]
    if record.shares:
        lines.insert(3, f"Goal:     {_goal(record)}")
    if not record.options:
        return "\n".join([*lines, "Options:  -"])
    rows = [
        (o.name, f"{o.default:g}" if isinstance(o.default, float) else str(o.default), o.unit or "-", o.meaning)
        for o in record.options
    ]
    table = columns(("OPTION", "DEFAULT", "UNIT", "MEANING"), rows)
    return "\n".join([*lines, "Options:", *("  " + line for line in table.splitlines())])


def _goal(record: PolicyInfo) -> str:
    """Return name and meaning of the objective of a share policy, as `levada allocate` prints them."""
    from importlib import import_module

    from levada.allocate.objectives import NO_OBJECTIVE, meaning

    module, _, cls = record.target.partition(":")
    name = getattr(import_module(module), cls).objective or NO_OBJECTIVE
    return f"{name}: {meaning(name)}"


def as_json(record: PolicyInfo) -> dict[str, Any]:
    """Return a policy as printed by `-o json`."""
    return {**record._asdict(), "options": [option._asdict() for option in record.options]}


def installed_as_json(policy: Installed) -> dict[str, Any]:
    """Return a policy of another package for `ls -o json`; fields that only its code knows are null."""
    known = {"name": policy.name, "aliases": [], "target": policy.target, "source": policy.package}
    return {field: known.get(field) for field in PolicyInfo._fields}
