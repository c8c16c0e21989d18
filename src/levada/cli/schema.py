"""`levada schema job|queue|case`: the JSON Schema of a file, for editors and for other programs."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from levada.cli.output import data_json


class Kind(StrEnum):
    """What a schema can be printed of."""

    JOB = "job"
    QUEUE = "queue"
    CASE = "case"


def register(app: typer.Typer) -> None:
    """Adds the verb `schema`."""
    app.command("schema")(schema)


def schema(
    kind: Annotated[Kind, typer.Argument(metavar="KIND", help="Which file: job, queue or case.", show_default=False)],
) -> None:
    """Print the JSON Schema of a job file, a queue file or a case, be it of jobs or of DRAGON's pods."""
    from typing import Any

    from pydantic import TypeAdapter

    from levada.cases.casefile import Case
    from levada.cases.dragon_case import DragonCase
    from levada.jobfile.model import Job, Queue

    models: dict[Kind, Any] = {Kind.JOB: Job, Kind.QUEUE: Queue, Kind.CASE: Case | DragonCase}
    made = TypeAdapter(models[kind]).json_schema()
    data_json({"$schema": "https://json-schema.org/draft/2020-12/schema", **made})
