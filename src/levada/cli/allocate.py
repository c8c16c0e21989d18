"""`levada allocate`: one decision of one policy as a pure function, from a case to an answer."""

from __future__ import annotations

import json
import sys
from contextlib import redirect_stdout
from enum import StrEnum
from typing import Annotated, Any

import typer

from levada.cli.output import columns, data, data_json
from levada.errors import BadInput, Fault


class Output(StrEnum):
    """How the answer is printed."""

    JSON = "json"
    TABLE = "table"


def register(app: typer.Typer) -> None:
    """Adds the verb `allocate`."""
    app.command("allocate")(allocate)


def allocate(
    file: Annotated[str, typer.Option("--filename", "-f", help="A case: JSON or YAML, - for standard input.")],
    output: Annotated[Output, typer.Option("--output", "-o", help="How to print it.")] = Output.TABLE,
    policy: Annotated[
        str | None, typer.Option("--policy", help="A name, or path/to/file.py:Class; overrides the case's.")
    ] = None,
) -> None:
    """Show what one policy would give to each job of a case."""
    from levada.cases.decide import decide

    raw = parse(file, read(file))
    # A user's policy may print what it likes, but stdout is for the answer alone.
    with redirect_stdout(sys.stderr):
        answer = decide(raw, policy)
    if output is Output.JSON:
        data_json(answer)
    else:
        data(as_table(answer))


def read(file: str, *, regular: bool = False) -> str:
    """The text of a file, or of standard input for `-`; raises BadInput."""
    from levada.jobfile.read import read_bytes

    content = read_bytes(file, regular=regular)
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise BadInput.one(f"{file}: not UTF-8 at byte {error.start}") from None


def parse(file: str, text: str) -> dict[str, Any]:
    """The mapping in *text*: YAML where the name says so, either on standard input, otherwise JSON; raises BadInput."""
    from levada.jobfile.text import parse_documents, parse_json

    if not text.strip():
        raise BadInput.one(f"{file}: is empty")
    is_yaml = file.endswith((".yaml", ".yml")) or (file == "-" and text.lstrip()[0] not in "{[")
    try:
        documents = parse_documents(text) if is_yaml else [parse_json(text)]
    except BadInput as error:
        # What is said of no field is said of the file.
        faults = [each if each.path else Fault("", f"{file}: {each.text}") for each in error.faults]
        raise BadInput(faults, error.more) from None
    if len(documents) != 1:
        raise BadInput.one(f"{file}: must hold one case")
    if not isinstance(documents[0], dict):
        raise BadInput.one(f"{file}: a case must be a mapping")
    return documents[0]


def as_table(answer: dict[str, Any]) -> str:
    """The answer for people, one line per job, or per part of a DRAGON outcome."""
    from levada.cli.main import one_line

    if "outcome" in answer:
        outcome = [(key, json.dumps(value, ensure_ascii=False)) for key, value in answer["outcome"].items()]
        waits = [(one_line(job), why["text"]) for job, why in answer["reasons"].items()]
        tables = [columns(("OUTCOME", "VALUE"), outcome), *([columns(("JOB", "REASON"), waits)] if waits else [])]
        return "\n\n".join(tables)
    if "shares" in answer:
        return shares_as_table(answer)
    rows = []
    for job, allocation in answer["allocations"].items():
        gpu_type, workers = next(iter(allocation.items()), ("-", 0))
        rows.append((one_line(job), str(workers), one_line(gpu_type), answer["reasons"][job]["text"]))
    return columns(("JOB", "WORKERS", "TYPE", "REASON"), rows)


def shares_as_table(answer: dict[str, Any]) -> str:
    """Shares in per cent of the time, one column per GPU type, and the objective below them."""
    from levada.cases.formulas import meaning
    from levada.cases.told import percent
    from levada.cli.main import one_line

    shares, reasons = answer["shares"], answer["reasons"]
    types = [name for name in answer["state"]["types"] if any(name in share for share in shares.values())]
    rows = [
        (
            one_line(job),
            *(percent(share[name]) if name in share else "-" for name in types),
            reasons[job]["text"] if job in reasons else "They run together.",
        )
        for job, share in shares.items()
    ]
    value = answer["objective"]["value"]
    lines = [columns(("JOB", *(f"{one_line(name)} %" for name in types), "REASON"), rows)]
    name = answer["objective"]["name"]
    lines += ["", f"{name}: {'-' if value is None else f'{value:.6g}'} ({meaning(name)})"]
    return "\n".join([*lines, answer["alarm"]] if "alarm" in answer else lines)
