"""Print lists in the formats of `-o`: as a table, or with all fields for programs."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Annotated, Any

import typer

from levada.cli.output import columns, data, data_json, message


class ListFormat(StrEnum):
    """Output formats of a list."""

    TABLE = "table"
    WIDE = "wide"
    JSON = "json"
    YAML = "yaml"
    CSV = "csv"
    JSONL = "jsonl"
    NAME = "name"


Output = Annotated[ListFormat, typer.Option("--output", "-o", help="Output format.")]
NoHeaders = Annotated[bool, typer.Option("--no-headers", help="Print no column headers.")]

#: An object in a response of the server.
Item = Mapping[str, Any]


def show(
    items: Sequence[Item],
    output: ListFormat,
    table: Callable[[bool], tuple[Sequence[str], Iterable[Sequence[str]]]],
    *,
    key: str = "name",
    spare: Sequence[str] = (),
    no_headers: bool = False,
    nothing: str = "",
) -> None:
    """Print *items*; *table* makes header and rows of a wide or normal table, *key* is the field of `-o name`.

    *nothing* is printed to stderr instead of an empty table.
    """
    match output:
        case ListFormat.TABLE | ListFormat.WIDE:
            if nothing and not items:
                message(nothing)
                return
            wide = output is ListFormat.WIDE
            header, rows = table(wide)
            show_table(columns(header, rows, spare=None if wide else spare), no_headers)
        case ListFormat.NAME:
            if items:
                data("\n".join(str(item[key]) for item in items))
        case _:
            data_as(output, list(items))


def show_table(text: str, no_headers: bool) -> None:
    """Print a table, without its header if *no_headers*."""
    if no_headers:
        text = text.partition("\n")[2]
    if text:
        data(text)


def data_as(output: ListFormat, value: Any) -> None:
    """Print plain values as JSON, YAML, JSON lines or CSV."""
    match output:
        case ListFormat.JSONL:
            lines = [json.dumps(item, allow_nan=False) for item in (value if isinstance(value, list) else [value])]
            if lines:
                data("\n".join(lines))
        case ListFormat.YAML:
            import yaml

            data(yaml.safe_dump(value, sort_keys=False, allow_unicode=True).rstrip("\n"))
        case ListFormat.CSV:
            data(as_csv(value if isinstance(value, list) else [value]))
        case _:
            data_json(value)


def as_csv(items: Sequence[Item]) -> str:
    """Format items as CSV; nested values get their own columns, e.g. `progress.step`."""
    import csv
    import io

    rows = [dict(_flat(item)) for item in items]
    names = list(dict.fromkeys(name for row in rows for name in row))
    # A column that is nested in some items and null in others has only the nested columns.
    names = [name for name in names if not any(other.startswith(f"{name}.") for other in names)]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(names)
    writer.writerows([row.get(name) for name in names] for row in rows)
    return text.getvalue().rstrip("\n")


def _flat(item: Item, prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in item.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        elif isinstance(value, list):
            is_plain = all(isinstance(element, str | int | float) for element in value)
            yield prefix + name, ";".join(map(str, value)) if is_plain else json.dumps(value)
        else:
            yield prefix + name, value
