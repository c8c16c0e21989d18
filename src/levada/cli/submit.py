"""`levada submit`, `create`, `apply` and `whatif`: verbs that read job files."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from levada.cli.connection import LONG_S, Server, StateDir, connect
from levada.cli.documents import Files, read_files, read_script, with_options
from levada.cli.output import TextOrJson, columns, data, data_json, message
from levada.errors import BadInput

if TYPE_CHECKING:
    from levada.sdk.client import Client

#: Only this many jobs of a submission are printed and checked for warnings.
_MOST_SHOWN = 20


class SubmitFormat(StrEnum):
    """Output formats of a submission."""

    TEXT = "text"
    JSON = "json"
    NAME = "name"


SubmitOutput = Annotated[SubmitFormat, typer.Option("--output", "-o", help="Output format.")]
Script = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[SCRIPT [ARGUMENT...]]", help="Script with #LEVADA lines and its arguments, instead of -f."
    ),
]
_JOB_FILES = (".yaml", ".yml", ".json")
#: Arguments after the name of a script belong to the script, also those with dashes.
_SCRIPT_ENDS_OPTIONS = {"allow_interspersed_args": False}


def register(app: typer.Typer) -> None:
    """Add the verbs `submit`, `create`, `apply` and `whatif`."""
    app.command("submit", context_settings=_SCRIPT_ENDS_OPTIONS)(submit)
    app.command("create", hidden=True)(create)
    app.command("apply")(apply)
    app.command("whatif")(whatif)


def submit(  # noqa: PLR0913 - one parameter per flag
    script: Script = None,
    file: Files = None,
    from_sbatch: Annotated[
        str | None,
        typer.Option(
            "--from-sbatch",
            metavar="SCRIPT",
            help="Slurm script to submit; #SBATCH lines are also read without this flag.",
        ),
    ] = None,
    array: Annotated[
        str | None,
        typer.Option(
            "--array",
            metavar="INDICES",
            help="Submit one job per index, e.g. 0-9 or 1,3,5-7; jobs read LEVADA_ARRAY_INDEX.",
        ),
    ] = None,
    after: Annotated[
        list[str] | None,
        typer.Option("--after", metavar="JOB", help="Start after this job has succeeded; may be repeated."),
    ] = None,
    output: SubmitOutput = SubmitFormat.TEXT,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check the file and print the resulting jobs; submit nothing.")
    ] = False,
    key: Annotated[
        str | None,
        typer.Option("--key", help="Idempotency key: submitting again with the same key creates no new jobs."),
    ] = None,
    server: Server = None,
    state: StateDir = None,
) -> None:
    """Submit jobs from a job file or a script.

    A relative `workdir` in a job file is relative to the folder of the file. Jobs without one run in the current
    folder. Options of Levada precede the name of a script; words after the name are arguments of the script.
    """
    words = [*([from_sbatch] if from_sbatch else []), *(script or [])]
    if words and words[0].endswith(_JOB_FILES) and not from_sbatch and not file:
        # A job file without -f.
        words, file = [], words
    if bool(file) == bool(words):
        raise BadInput.one("levada submit needs either -f FILE or a script")
    originals = jobs_only(read_files(file) if file else read_script(words))
    documents = with_options(originals, array, after or [])
    if dry_run:
        _print_dry_run(documents, output)
        return
    _warn(documents)
    with connect(server, state, timeout_s=LONG_S) as client:
        if after:
            # Flags accept short names of jobs; documents need full ids.
            documents = with_options(originals, array, [client.get(name)["id"] for name in after])
        jobs: list[Any] = list(client.submit(sources(documents), key=key))
    print_submitted(jobs, output)


def create(
    file: Annotated[list[str], typer.Option("--filename", "-f", metavar="FILE", help="Job file: YAML or JSON.")],
    server: Server = None,
    state: StateDir = None,
) -> None:
    """Submit jobs from a file; print the result like Voda."""
    documents = jobs_only(read_files(file))
    with connect(server, state, timeout_s=LONG_S) as client:
        jobs = client.submit(sources(documents))
        warn_of(jobs)
        for job in jobs:
            data(f"Training job created: {job['id']}\nView your logs by:\n    levada logs {job['id']}")


def jobs_only(documents: list[Any]) -> list[Any]:
    """Return *documents*; raises BadInput if one is a queue."""
    for document in documents:
        if document.kind == "Queue":
            raise BadInput.one(f"queue {document.name}: create queues with `levada apply -f`", "kind")
    return documents


def sources(documents: list[Any]) -> list[dict[str, Any]]:
    """Return the documents as they are sent."""
    return [document.source for document in documents]


def _print_dry_run(documents: list[Any], output: SubmitFormat) -> None:
    from levada.cli.dry_run import as_text, summary

    match output:
        case SubmitFormat.JSON:
            data_json([summary(document) for document in documents])
        case SubmitFormat.NAME:
            data("\n".join(document.name for document in documents))
        case SubmitFormat.TEXT:
            data("\n\n".join(as_text(summary(document)) for document in documents))
    _warn(documents)


def _warn(documents: list[Any]) -> None:
    """Warn about missing files."""
    from levada.cli.dry_run import missing

    for document in documents[:_MOST_SHOWN]:
        if problem := missing(document):
            message(f"levada: {document.name}: {problem}")


def warn_of(jobs: Sequence[Any]) -> None:
    """Print the warnings of the server, each one once for all its jobs."""
    jobs_by_warning: dict[str, list[str]] = {}
    for job in jobs:
        for text in job.get("warnings") or ():
            jobs_by_warning.setdefault(text, []).append(job["id"])
    for text, ids in jobs_by_warning.items():
        more = f" and {len(ids) - 1} more" if len(ids) > 1 else ""
        message(f"levada: {ids[0]}{more}: {text}")


def print_submitted(jobs: list[Any], output: SubmitFormat) -> None:
    """Print the submitted jobs, and as text also the next steps."""
    warn_of(jobs)
    match output:
        case SubmitFormat.JSON:
            brief = [{name: job[name] for name in ("id", "name", "phase", "warnings") if name in job} for job in jobs]
            data_json(brief[0] if len(brief) == 1 else brief)
        case SubmitFormat.NAME:
            data("\n".join(job["id"] for job in jobs))
        case SubmitFormat.TEXT:
            lines = [f"Submitted {job['id']}{_index(job)}" for job in jobs[:_MOST_SHOWN]]
            more = len(jobs) - len(lines)
            data("\n".join([*lines, f"and {more} more"] if more else lines))
            message(next_steps(jobs))


def _index(job: Any) -> str:
    return "" if job.get("array_index") is None else f"  index {job['array_index']}"


def next_steps(jobs: list[Any]) -> str:
    """Return useful commands after a submission."""
    job = jobs[0]["id"]
    if len(jobs) == 1:
        steps = [
            (f"levada logs -f {job}", "follow its output"),
            (f"levada explain {job}", "why it waits and when it will start"),
        ]
    else:
        steps = [
            (f"levada logs -f {job}", f"follow the output of the first{_index(jobs[0]).replace('  ', ', ')}"),
            (f"levada ls -n {len(jobs)} -o wide", "these jobs, with their array INDEX"),
        ]
    steps.append(("levada ls", "all jobs"))
    width = max(len(command) for command, _ in steps)
    return "\n".join(["Next:", *(f"    {command.ljust(width)}  {text}" for command, text in steps)])


def apply(
    file: Annotated[list[str], typer.Option("--filename", "-f", metavar="FILE", help="File of queues and jobs.")],
    output: Annotated[TextOrJson, typer.Option("--output", "-o", help="Output format.")] = TextOrJson.TEXT,
    server: Server = None,
    state: StateDir = None,
) -> None:
    """Create or update the queues and jobs of a file.

    A job that has not finished is updated; otherwise a new one is submitted.
    """
    documents = read_files(file)
    results: list[dict[str, str]] = []
    with connect(server, state, timeout_s=LONG_S) as client:
        before: dict[str, Any] = {queue["name"]: _settings(queue) for queue in client.queues()}
        for document in documents:
            if document.kind == "Queue":
                new = _settings(client.put_queue(document.source))
                old = before.get(document.name)
                result = "created" if old is None else "unchanged" if old == new else "changed"
                results.append({"kind": "queue", "name": document.name, "result": result})
        jobs = [document for document in documents if document.kind != "Queue"]
        mine = {job["workload"]: job for job in client.jobs(user="me") if job["finished"] is None} if jobs else {}
        for document in jobs:
            if document.name in mine and document.is_job:
                results.append(_update(client, mine[document.name], document))
        missing_jobs = [document for document in jobs if document.name not in mine]
        if missing_jobs:
            created = client.submit(sources(missing_jobs))
            warn_of(created)
            results += [{"kind": "job", "name": job["id"], "result": "created"} for job in created]
    if output is TextOrJson.JSON:
        data_json(results)
    else:
        data("\n".join(f"{row['kind']} {row['name']} {row['result']}" for row in results))


def _settings(queue: Any) -> dict[str, Any]:
    """Return the settings of a queue, without its current use."""
    return {name: value for name, value in queue.items() if name not in ("used", "running", "waiting")}


def _update(client: Client, job: Any, document: Any) -> dict[str, str]:
    """Update the fields of an existing job that can change."""
    spec = document.content.spec
    wanted = {"priority": spec.priority, "queue": spec.queue, "min": spec.workers.min, "max": spec.workers.max}
    wanted |= {"preemptible": spec.preemptible} if "preemptible" in spec.model_fields_set else {}
    changes = {name: value for name, value in wanted.items() if job[name] != value}
    if "weight" in spec.model_fields_set:
        changes["weight"] = spec.weight
    if changes:
        client.update(job["id"], **changes)
    can_change = "only priority, queue, workers, weight and preemptible are updated"
    message(f"{job['id']} exists: {can_change}")
    return {"kind": "job", "name": job["id"], "result": "changed" if changes else "unchanged"}


def whatif(
    file: Annotated[list[str], typer.Option("--filename", "-f", metavar="FILE", help="Job file: YAML or JSON.")],
    policy: Annotated[
        str | None, typer.Option("--policy", help="Forecast with this policy. Default: the active one.")
    ] = None,
    output: Annotated[TextOrJson, typer.Option("--output", "-o", help="Output format.")] = TextOrJson.TEXT,
    server: Server = None,
    state: StateDir = None,
) -> None:
    """Forecast start and end of jobs if a file were submitted now."""
    documents = jobs_only(read_files(file))
    with connect(server, state, timeout_s=LONG_S) as client:
        answer = client.whatif(sources(documents), policy=policy)
    if output is TextOrJson.JSON:
        data_json(answer)
        return
    from levada.cli.formatting import short

    def when(forecast: Any) -> tuple[str, str]:
        forecast = forecast or {}
        return short(forecast.get("starts_in_s")), short(forecast.get("ends_in_s"))

    lines = [f"With policy {answer['policy']}:", ""]
    lines.append(columns(("JOB", "STARTS IN", "ENDS IN"), [(row["job"], *when(row)) for row in answer["jobs"]]))
    others = [(row["job"], *when(row.get("before")), *when(row.get("after"))) for row in answer["others"]]
    if others:
        header = ("OTHERS", "STARTS IN", "ENDS IN", "WOULD START IN", "WOULD END IN")
        lines += ["", columns(header, others)]
    else:
        lines += ["", "No other job is affected."]
    unknown = "the job can never start, a job does not declare its total steps, or its speed is not measured yet"
    data("\n".join([*lines, "", f'"-" = unknown: {unknown}.']))
