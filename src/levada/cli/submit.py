"""`levada submit`, `create`, `apply` and `whatif`: what to do with a job file."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from levada.cli.connection import LONG_S, Server, State, connect
from levada.cli.documents import Files, read_files, read_script, with_options
from levada.cli.output import TextOrJson, chatter, columns, data, data_json
from levada.errors import BadInput

if TYPE_CHECKING:
    from levada.sdk.client import Client

#: Of more jobs than this at once only the first ones are shown to people.
_MOST_SHOWN = 20


class Answer(StrEnum):
    """How a submission is told."""

    TEXT = "text"
    JSON = "json"
    NAME = "name"


AnswerOption = Annotated[Answer, typer.Option("--output", "-o", help="How to print it.")]
Script = Annotated[
    list[str] | None,
    typer.Argument(metavar="[SCRIPT [ARGUMENT...]]", help="Instead of a file: a script with #LEVADA lines."),
]
_JOB_FILES = (".yaml", ".yml", ".json")
#: What follows the name of a script is the script's, dashes and all.
_SCRIPT_ENDS_OPTIONS = {"allow_interspersed_args": False}


def register(app: typer.Typer) -> None:
    """Adds the verbs `submit`, `create`, `apply` and `whatif`."""
    app.command("submit", context_settings=_SCRIPT_ENDS_OPTIONS)(submit)
    app.command("create", hidden=True)(create)
    app.command("apply")(apply)
    app.command("whatif")(whatif)


def submit(
    script: Script = None,
    file: Files = None,
    from_sbatch: Annotated[
        str | None, typer.Option("--from-sbatch", metavar="SCRIPT", help="A script for Slurm: its #SBATCH lines count.")
    ] = None,
    array: Annotated[
        str | None,
        typer.Option("--array", metavar="INDICES", help="One job per index, e.g. 0-9 or 1,3,5-7: LEVADA_ARRAY_INDEX."),
    ] = None,
    after: Annotated[
        list[str] | None,
        typer.Option("--after", metavar="JOB", help="Start once this job has succeeded; may be repeated."),
    ] = None,
    output: AnswerOption = Answer.TEXT,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only show how the file is understood; nothing is sent.")
    ] = False,
    key: Annotated[
        str | None, typer.Option("--key", help="Submitted again with the same key, the jobs stay the same.")
    ] = None,
    server: Server = None,
    state: State = None,
) -> None:
    """Submit jobs from a file, or a script.

    A relative `workdir` in a file is below the folder of that file; without one, jobs run in the folder that you are
    in. Options of Levada stand before the name of a script: what follows it are the script's own arguments.
    """
    words = [*([from_sbatch] if from_sbatch else []), *(script or [])]
    if words and words[0].endswith(_JOB_FILES) and not from_sbatch and not file:
        # Whoever forgets -f does not mean a script.
        words, file = [], words
    if bool(file) == bool(words):
        raise BadInput.one("levada submit needs -f FILE, or a script")
    written = jobs_only(read_files(file) if file else read_script(words))
    documents = with_options(written, array, after or [])
    if dry_run:
        _checked(documents, output)
        return
    _warn(documents)
    with connect(server, state, timeout_s=LONG_S) as client:
        if after:
            # Every verb takes short names of jobs; a job file has whole ones.
            documents = with_options(written, array, [client.get(name)["id"] for name in after])
        jobs: list[Any] = list(client.submit(sources(documents), key=key))
    tell(jobs, output)


def create(
    file: Annotated[list[str], typer.Option("--filename", "-f", metavar="FILE", help="A job file: YAML or JSON.")],
    server: Server = None,
    state: State = None,
) -> None:
    """Submit jobs from a file, and say so as Voda does."""
    documents = jobs_only(read_files(file))
    with connect(server, state, timeout_s=LONG_S) as client:
        jobs = client.submit(sources(documents))
        warn_of(jobs)
        for job in jobs:
            data(f"Training job created: {job['id']}\nView your logs by:\n    levada logs {job['id']}")


def jobs_only(documents: list[Any]) -> list[Any]:
    """*documents*, where all of them can be submitted; raises BadInput."""
    for document in documents:
        if document.kind == "Queue":
            raise BadInput.one(f"queue {document.name}: queues are made by levada apply -f", "kind")
    return documents


def sources(documents: list[Any]) -> list[dict[str, Any]]:
    """What is sent."""
    return [document.source for document in documents]


def _checked(documents: list[Any], output: Answer) -> None:
    from levada.cli.understood import as_text, understood

    match output:
        case Answer.JSON:
            data_json([understood(each) for each in documents])
        case Answer.NAME:
            data("\n".join(each.name for each in documents))
        case Answer.TEXT:
            data("\n\n".join(as_text(understood(each)) for each in documents))
    _warn(documents)


def _warn(documents: list[Any]) -> None:
    """Says what probably goes wrong."""
    from levada.cli.understood import missing

    for document in documents[:_MOST_SHOWN]:
        if what := missing(document):
            chatter(f"levada: {document.name}: {what}")


def warn_of(jobs: Sequence[Any]) -> None:
    """Prints what the server warns of; what is said of many jobs is said once."""
    of: dict[str, list[str]] = {}
    for job in jobs:
        for text in job.get("warnings") or ():
            of.setdefault(text, []).append(job["id"])
    for text, ids in of.items():
        more = f" and {len(ids) - 1} more" if len(ids) > 1 else ""
        chatter(f"levada: {ids[0]}{more}: {text}")


def tell(jobs: list[Any], output: Answer) -> None:
    """Says which jobs there are now, and to people what they may do next."""
    warn_of(jobs)
    match output:
        case Answer.JSON:
            brief = [{name: job[name] for name in ("id", "name", "phase", "warnings") if name in job} for job in jobs]
            data_json(brief[0] if len(brief) == 1 else brief)
        case Answer.NAME:
            data("\n".join(job["id"] for job in jobs))
        case Answer.TEXT:
            lines = [f"Submitted {job['id']}{_index(job)}" for job in jobs[:_MOST_SHOWN]]
            more = len(jobs) - len(lines)
            data("\n".join([*lines, f"and {more} more"] if more else lines))
            chatter(next_steps(jobs))


def _index(job: Any) -> str:
    return "" if job.get("array_index") is None else f"  index {job['array_index']}"


def next_steps(jobs: list[Any]) -> str:
    """What somebody who has just submitted jobs may want to type."""
    job = jobs[0]["id"]
    if len(jobs) == 1:
        steps = [
            (f"levada logs -f {job}", "its output"),
            (f"levada explain {job}", "why it waits, when it should start"),
        ]
    else:
        steps = [
            (f"levada logs -f {job}", f"output of the first{_index(jobs[0]).replace('  ', ', ')}"),
            (f"levada ls -n {len(jobs)} -o wide", "these jobs; INDEX tells those of an array apart"),
        ]
    steps.append(("levada ls", "all jobs"))
    width = max(len(command) for command, _ in steps)
    return "\n".join(["Next:", *(f"    {command.ljust(width)}  {what}" for command, what in steps)])


def apply(
    file: Annotated[list[str], typer.Option("--filename", "-f", metavar="FILE", help="A file of queues and jobs.")],
    output: Annotated[TextOrJson, typer.Option("--output", "-o", help="How to print it.")] = TextOrJson.TEXT,
    server: Server = None,
    state: State = None,
) -> None:
    """Make or change what a file describes: queues, and jobs that are not over."""
    documents = read_files(file)
    done: list[dict[str, str]] = []
    with connect(server, state, timeout_s=LONG_S) as client:
        before: dict[str, Any] = {queue["name"]: _settings(queue) for queue in client.queues()}
        for document in documents:
            if document.kind == "Queue":
                is_now = _settings(client.put_queue(document.source))
                was = before.get(document.name)
                what = "created" if was is None else "unchanged" if was == is_now else "changed"
                done.append({"kind": "queue", "name": document.name, "result": what})
        jobs = [document for document in documents if document.kind != "Queue"]
        mine = {job["workload"]: job for job in client.jobs(user="me") if job["finished"] is None} if jobs else {}
        for document in jobs:
            if document.name in mine and document.is_job:
                done.append(_changed(client, mine[document.name], document))
        new = [document for document in jobs if document.name not in mine]
        if new:
            created = client.submit(sources(new))
            warn_of(created)
            done += [{"kind": "job", "name": job["id"], "result": "created"} for job in created]
    if output is TextOrJson.JSON:
        data_json(done)
    else:
        data("\n".join(f"{each['kind']} {each['name']} {each['result']}" for each in done))


def _settings(queue: Any) -> dict[str, Any]:
    """What somebody said about a queue, without what its jobs do."""
    return {name: value for name, value in queue.items() if name not in ("used", "running", "waiting")}


def _changed(client: Client, job: Any, document: Any) -> dict[str, str]:
    """Gives a job that is there what its document says of it now, as far as that can change."""
    spec = document.content.spec
    wanted = {"priority": spec.priority, "queue": spec.queue, "min": spec.workers.min, "max": spec.workers.max}
    wanted |= {"preemptible": spec.preemptible} if "preemptible" in spec.model_fields_set else {}
    changes = {name: value for name, value in wanted.items() if job[name] != value}
    if "weight" in spec.model_fields_set:
        changes["weight"] = spec.weight
    if changes:
        client.update(job["id"], **changes)
    can_change = "its priority, queue, workers, weight and preemptible can change, and nothing else"
    chatter(f"{job['id']} is there already: {can_change}")
    return {"kind": "job", "name": job["id"], "result": "changed" if changes else "unchanged"}


def whatif(
    file: Annotated[list[str], typer.Option("--filename", "-f", metavar="FILE", help="A job file: YAML or JSON.")],
    policy: Annotated[str | None, typer.Option("--policy", help="Under this policy instead of the one in use.")] = None,
    output: Annotated[TextOrJson, typer.Option("--output", "-o", help="How to print it.")] = TextOrJson.TEXT,
    server: Server = None,
    state: State = None,
) -> None:
    """Show what would become of jobs, and of all others, if they were submitted now."""
    documents = jobs_only(read_files(file))
    with connect(server, state, timeout_s=LONG_S) as client:
        answer = client.whatif(sources(documents), policy=policy)
    if output is TextOrJson.JSON:
        data_json(answer)
        return
    from levada.cli.words import short

    def when(told: Any) -> tuple[str, str]:
        told = told or {}
        return short(told.get("starts_in_s")), short(told.get("ends_in_s"))

    lines = [f"Under {answer['policy']}:", ""]
    lines.append(columns(("JOB", "STARTS IN", "ENDS IN"), [(each["job"], *when(each)) for each in answer["jobs"]]))
    others = [(each["job"], *when(each.get("before")), *when(each.get("after"))) for each in answer["others"]]
    if others:
        header = ("OTHERS", "STARTS IN", "ENDS IN", "WOULD START IN", "WOULD END IN")
        lines += ["", columns(header, others)]
    else:
        lines += ["", "No other job would start or end at another time."]
    unknown = "the job cannot start on this cluster, a job declares no steps, or no speed of its workload is known yet"
    data("\n".join([*lines, "", f'"-" = unknown: {unknown}.']))
