"""`levada allocate`: one decision of one policy for a case file."""

from __future__ import annotations

import json
import sys
from contextlib import redirect_stdout
from enum import StrEnum
from typing import Annotated, Any

import typer

from levada.cli.output import columns, data, data_json
from levada.errors import BadInput, Fault


class AllocateFormat(StrEnum):
    """Output formats of `levada allocate`."""

    JSON = "json"
    TABLE = "table"


def register(app: typer.Typer) -> None:
    """Add the verb `allocate`."""
    app.command("allocate")(allocate)


def allocate(
    file: Annotated[str, typer.Option("--filename", "-f", help="Case file (JSON or YAML); - reads standard input.")],
    output: Annotated[AllocateFormat, typer.Option("--output", "-o", help="Output format.")] = AllocateFormat.TABLE,
    policy: Annotated[
        str | None, typer.Option("--policy", help="Policy: name or path/to/file.py:Class. Default: that of the case.")
    ] = None,
) -> None:
    """Run one policy once on a case file."""
    from levada.allocate.decide import decide

    raw = parse(file, read(file))
    # A user's policy may print; stdout carries only the answer.
    with redirect_stdout(sys.stderr):
        answer = decide(raw, policy)
    if output is AllocateFormat.JSON:
        data_json(answer)
    else:
        data(as_table(answer))


def read(file: str, *, regular: bool = False) -> str:
    """Return the text of a file, or of standard input for `-`; raises BadInput."""
    from levada.jobfile.read import read_bytes

    content = read_bytes(file, regular=regular)
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise BadInput.one(f"{file}: invalid UTF-8 at byte {error.start}; save the file as UTF-8") from None


def parse(file: str, text: str) -> dict[str, Any]:
    """Parse *text* into a mapping; raises BadInput.

    Files named .yaml or .yml are YAML, others JSON; on standard input, text that starts with { or [ is JSON.
    """
    from levada.jobfile.text import parse_documents, parse_json

    if not text.strip():
        raise BadInput.one(f"{file}: the file is empty")
    is_yaml = file.endswith((".yaml", ".yml")) or (file == "-" and text.lstrip()[0] not in "{[")
    try:
        documents = parse_documents(text) if is_yaml else [parse_json(text)]
    except BadInput as error:
        # Errors without a field concern the whole file.
        faults = [fault if fault.path else Fault("", f"{file}: {fault.text}") for fault in error.faults]
        raise BadInput(faults, error.more) from None
    if len(documents) != 1:
        raise BadInput.one(f"{file}: has {len(documents)} documents; must have exactly one case")
    if not isinstance(documents[0], dict):
        raise BadInput.one(f"{file}: must be a mapping with the fields of a case; see docs/allocate.md")
    return documents[0]


def as_table(answer: dict[str, Any]) -> str:
    """Format the answer as a table: one row per job, or per field of a DRAGON outcome."""
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
    """Format shares in percent of time, one column per GPU type, with the objective below."""
    from levada.allocate.objectives import meaning
    from levada.allocate.reasons import percent
    from levada.cli.main import one_line

    shares, reasons = answer["shares"], answer["reasons"]
    types = [name for name in answer["state"]["types"] if any(name in share for share in shares.values())]
    rows = [
        (
            one_line(job),
            *(percent(share[name]) if name in share else "-" for name in types),
            reasons[job]["text"] if job in reasons else "The two jobs run packed on the same GPUs.",
        )
        for job, share in shares.items()
    ]
    value = answer["objective"]["value"]
    lines = [columns(("JOB", *(f"{one_line(name)} %" for name in types), "REASON"), rows)]
    name = answer["objective"]["name"]
    lines += ["", f"{name}: {'-' if value is None else f'{value:.6g}'} ({meaning(name)})"]
    return "\n".join([*lines, answer["alarm"]] if "alarm" in answer else lines)
