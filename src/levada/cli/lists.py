"""Lists in the forms of `-o`: a table, or every field for other programs."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Annotated, Any

import typer

from levada.cli.output import chatter, columns, data, data_json


class ListFormat(StrEnum):
    """How a list is printed."""

    TABLE = "table"
    WIDE = "wide"
    JSON = "json"
    YAML = "yaml"
    CSV = "csv"
    JSONL = "jsonl"
    NAME = "name"


Output = Annotated[ListFormat, typer.Option("--output", "-o", help="How to print it.")]
NoHeaders = Annotated[bool, typer.Option("--no-headers", help="Leave the line with the names of columns out.")]

#: A thing as the server tells of it.
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
    """Prints *items*; *table* makes header and rows, wide ones or not, *key* is what `-o name` prints.

    *nothing* is said on stderr where a table would be empty.
    """
    match output:
        case ListFormat.TABLE | ListFormat.WIDE:
            if nothing and not items:
                chatter(nothing)
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
    """Prints a table, without its first line where nobody wants the names of columns."""
    if no_headers:
        text = text.partition("\n")[2]
    if text:
        data(text)


def data_as(output: ListFormat, value: Any) -> None:
    """Prints plain values as JSON, YAML, lines of JSON, or CSV."""
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
    """A line of names and one line per item; what lies deeper has a column of its own, as `progress.step`."""
    import csv
    import io

    rows = [dict(_flat(item)) for item in items]
    names = list(dict.fromkeys(name for row in rows for name in row))
    # Where one has something deeper, nothing needs no column beside it.
    names = [name for name in names if not any(other.startswith(f"{name}.") for other in names)]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(names)
    writer.writerows([row.get(name) for name in names] for row in rows)
    return text.getvalue().rstrip("\n")


def _flat(item: Item, before: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in item.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{before}{name}.")
        elif isinstance(value, list):
            plain = all(isinstance(each, str | int | float) for each in value)
            yield before + name, ";".join(map(str, value)) if plain else json.dumps(value)
        else:
            yield before + name, value
