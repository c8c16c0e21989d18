"""`levada schema job|queue|case`: print the JSON Schema of a file."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from levada.cli.output import data_json


class SchemaKind(StrEnum):
    """Files with a schema."""

    JOB = "job"
    QUEUE = "queue"
    CASE = "case"


def register(app: typer.Typer) -> None:
    """Add the verb `schema`."""
    app.command("schema")(schema)


def schema(
    kind: Annotated[
        SchemaKind, typer.Argument(metavar="KIND", help="Kind of file: job, queue or case.", show_default=False)
    ],
) -> None:
    """Print the JSON Schema of a job, queue or case file.

    A case holds jobs, or pods for DRAGON.
    """
    from typing import Any

    from pydantic import TypeAdapter

    from levada.allocate.case_file import Case
    from levada.allocate.dragon_case import DragonCase
    from levada.jobfile.model import Job, Queue

    models: dict[SchemaKind, Any] = {SchemaKind.JOB: Job, SchemaKind.QUEUE: Queue, SchemaKind.CASE: Case | DragonCase}
    json_schema = TypeAdapter(models[kind]).json_schema()
    data_json({"$schema": "https://json-schema.org/draft/2020-12/schema", **json_schema})
