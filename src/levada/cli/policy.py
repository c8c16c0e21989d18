"""`levada policy`: which policies there are, from the static table and of installed packages, and which one decides."""

from __future__ import annotations

import sys
from contextlib import redirect_stdout
from inspect import Parameter
from typing import Annotated, Any

import typer

from levada.cli.confirm import confirm, is_asked
from levada.cli.connection import Server, State, connect
from levada.cli.installed import Installed, installed
from levada.cli.output import Format, TextOrJson, chatter, columns, data, data_json
from levada.errors import BadInput, Refused
from levada.policies.record import Option, Record
from levada.policies.table import POLICIES, alpha_of, lookup

#: What a case gives for each of a policy's `Needs`.
_FIELD_OF_NEED = {"RATE": "speedup", "REMAINING": "remaining_s", "PROGRESS": "steps_left", "DEADLINE": "deadline_s"}


def _complete(incomplete: str) -> list[str]:
    return [record.name for record in POLICIES if record.name.startswith(incomplete)]


def register(app: typer.Typer) -> None:
    """Adds the group `policy`."""
    group = typer.Typer(help="Look at the scheduling policies, and choose one.", rich_markup_mode=None)
    group.command("ls")(ls)
    group.command("describe")(describe)
    group.command("get")(get)
    group.command("set")(choose)
    app.add_typer(group, name="policy")


def ls(output: Annotated[Format, typer.Option("--output", "-o", help="How to print it.")] = Format.TABLE) -> None:
    """List the policies."""
    # Levada's own are installed as well, and a name of the table always means the table's.
    others = [each for each in installed() if lookup(each.name) is None]
    match output:
        case Format.JSON:
            data_json([*map(as_json, POLICIES), *map(announced_as_json, others)])
        case Format.NAME:
            data("\n".join([*(record.name for record in POLICIES), *(each.name for each in others)]))
        case Format.TABLE:
            rows = [(r.name, ", ".join(r.aliases) or "-", ", ".join(r.needs) or "-", r.summary) for r in POLICIES]
            rows += [(o.name, "-", "?", f"Of the package {o.package}: levada policy describe {o.name}") for o in others]
            data(columns(("NAME", "ALIASES", "NEEDS", "SUMMARY"), rows, spare=("ALIASES", "NEEDS")))


def describe(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME",
            help="A policy's name or alias, or path/to/file.py:Class.",
            autocompletion=_complete,
            show_default=False,
        ),
    ],
    output: Annotated[TextOrJson, typer.Option("--output", "-o", help="How to print it.")] = TextOrJson.TEXT,
) -> None:
    """Show one policy: what it does, what it needs, its options and where it comes from."""
    record = _with_alpha(lookup(name), name) or _of_user(name)
    if output is TextOrJson.JSON:
        data_json(as_json(record))
    else:
        data(as_text(record))


def get(
    output: Annotated[TextOrJson, typer.Option("--output", "-o", help="How to print it.")] = TextOrJson.TEXT,
    server: Server = None,
    state: State = None,
) -> None:
    """Show the policy that decides on the server, with its options."""
    with connect(server, state) as client:
        _tell(client.policy(), output)


def choose(
    name: Annotated[
        str,
        typer.Argument(metavar="NAME", help="A policy's name or alias.", autocompletion=_complete, show_default=False),
    ],
    option: Annotated[
        list[str] | None, typer.Option("--option", "-O", metavar="NAME=VALUE", help="A setting of it; may be repeated.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask, whatever running jobs lose by it.")] = False,
    output: Annotated[TextOrJson, typer.Option("--output", "-o", help="How to print it.")] = TextOrJson.TEXT,
    server: Server = None,
    state: State = None,
) -> None:
    """Let this policy decide on the server from now on.

    Prints which running jobs it stops or shrinks, and asks first on a terminal; scripts are warned and not asked.
    """
    options = dict(_option(each) for each in option or ())
    with connect(server, state) as client:
        if not yes and is_asked() and (warnings := client.set_policy(name, options, dry_run=True)["warnings"]):
            if not confirm("\n".join(f"levada: {each}" for each in warnings), f"Let {name} decide?"):
                raise Refused("the policy was not changed")
            _tell(client.set_policy(name, options), output)
            return
        changed = client.set_policy(name, options)
    for each in changed.get("warnings") or ():
        chatter(f"levada: {each}")
    _tell(changed, output)


def _option(text: str) -> tuple[str, Any]:
    import json

    name, separator, value = text.partition("=")
    if not separator:
        raise BadInput.one(f"--option: {text}: must be NAME=VALUE")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


def _tell(policy: dict[str, Any], output: TextOrJson) -> None:
    if output is TextOrJson.JSON:
        data_json(policy)
        return
    options = "".join(f" {name}={value}" for name, value in policy["options"].items())
    data(policy["name"] + options)


def _with_alpha(record: Record | None, name: str) -> Record | None:
    """The record as `allox_alpha=0.5` means it, with that default."""
    alpha = alpha_of(name)
    if record is None or alpha is None:
        return record
    options = tuple(each._replace(default=alpha) if each.name == "alpha" else each for each in record.options)
    return record._replace(name=name, options=options)


def _of_user(name: str) -> Record:
    """What a policy that is not in the table tells about itself; raises BadInput."""
    # A user's policy may print what it likes, but stdout is for the answer alone.
    with redirect_stdout(sys.stderr):
        from levada.plugins import find_class, options_of

        found: Any = find_class(name)
    entry = next((each for each in installed() if each.name == name), None)
    text = (found.__doc__ or getattr(sys.modules.get(found.__module__), "__doc__", None) or "-").strip()
    file = getattr(sys.modules.get(found.__module__), "__file__", None) or found.__module__
    options = [Option(one.name, _default(one.default), "", "-") for one in options_of(found) or ()]
    return Record(
        name=found.name if entry is None else name,
        aliases=(),
        target=name if entry is None else entry.target,
        summary=text.splitlines()[0].rstrip("."),
        needs=tuple(_FIELD_OF_NEED[need.name or ""] for need in found.needs),
        source=file if entry is None else f"{entry.package} ({file})",
        options=tuple(options),
    )


def _default(value: Any) -> float | int | bool | str:
    """The default of an option as it can be printed; one without is required."""
    if value is Parameter.empty:
        return "required"
    return value if isinstance(value, float | int | bool | str) else repr(value)


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


def _goal(record: Record) -> str:
    """The objective of a share policy, by name and in words, as `levada allocate` prints it."""
    from importlib import import_module

    from levada.cases.formulas import NO_OBJECTIVE, meaning

    module, _, cls = record.target.partition(":")
    name = getattr(import_module(module), cls).objective or NO_OBJECTIVE
    return f"{name}: {meaning(name)}"


def as_json(record: Record) -> dict[str, Any]:
    """The policy as `-o json` prints it."""
    return {**record._asdict(), "options": [option._asdict() for option in record.options]}


def announced_as_json(policy: Installed) -> dict[str, Any]:
    """A policy of another package as `ls -o json` prints it: what only its code could tell is null."""
    known = {"name": policy.name, "aliases": [], "target": policy.target, "source": policy.package}
    return {field: known.get(field) for field in Record._fields}
