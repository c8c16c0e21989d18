"""`levada snapshot` and `replay`: the state of a server as a file, and what a policy would make of it."""

from __future__ import annotations

import sys
from contextlib import redirect_stdout
from typing import Annotated, Any

import typer

from levada.cli.connection import LONG_S, Server, State, connect
from levada.cli.output import TextOrJson, columns, data, data_json
from levada.cli.words import moment
from levada.errors import BadInput, LevadaError

#: Of a job's sizes, those whose speed is told.
_MOST_SIZES = 64


def register(app: typer.Typer) -> None:
    """Adds the verbs `snapshot` and `replay`."""
    app.command("snapshot")(snapshot)
    app.command("replay")(replay)


def snapshot(
    out: Annotated[
        str | None, typer.Option("--out", metavar="FILE", help="Write it there instead of printing it.")
    ] = None,
    server: Server = None,
    state: State = None,
) -> None:
    """Print the whole state of the server as JSON: nodes, queues, jobs, the policy.

    Jobs are in it as they were submitted, with the environment of each in the clear: keys and passwords, too. Look
    before you pass it on.
    """
    with connect(server, state, timeout_s=LONG_S) as client:
        told = client.snapshot()
    if out is None:
        data_json(told)
        return
    import json

    try:
        with open(out, "w", encoding="utf-8") as file:
            json.dump(told, file, indent=2)
    except OSError as error:
        raise LevadaError(f"cannot write {out}: {error.strerror}") from None
    data(out)


def replay(
    file: Annotated[str, typer.Argument(metavar="FILE", help="Of levada snapshot; - for standard input.")],
    policy: Annotated[str | None, typer.Option("--policy", help="Another policy than the one that decided.")] = None,
    case: Annotated[bool, typer.Option("--case", help="Print the case for levada allocate instead.")] = False,
    output: Annotated[TextOrJson, typer.Option("--output", "-o", help="How to print it.")] = TextOrJson.TEXT,
) -> None:
    """Show what a policy would decide in the state of a snapshot, beside what each job had."""
    from levada.cli.allocate import parse, read

    told = parse(file, read(file))
    try:
        made = case_of(told)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        if isinstance(error, BadInput):
            raise
        raise BadInput.one(f"{file}: is no snapshot of this version (levada snapshot makes one)") from None
    if policy is not None:
        made |= {"policy": policy, "options": {}}
    if case:
        data_json(made)
        return
    from levada.cases.decide import decide

    with redirect_stdout(sys.stderr):
        answer = decide(made)
    if output is TextOrJson.JSON:
        data_json(answer)
    else:
        data(_beside(made, answer))


def _beside(case: dict[str, Any], answer: dict[str, Any]) -> str:
    """What each job had, and what it would be given."""
    if "allocations" not in answer:
        from levada.cli.allocate import as_table

        return as_table(answer)

    def plain(grant: Any) -> str:
        return ",".join(f"{kind}={count}" for kind, count in (grant or {}).items()) or "-"

    rows = [
        (job["id"], plain(job.get("running")), plain(answer["allocations"].get(job["id"])),
         answer["reasons"].get(job["id"], {}).get("text", "-"))
        for job in case["jobs"]
    ]  # fmt: skip
    return columns(("JOB", "HAD", answer["policy"].upper(), "REASON"), rows, spare=())


def case_of(told: dict[str, Any]) -> dict[str, Any]:
    """A snapshot as a case of `levada allocate`."""
    nodes = [
        {
            "name": node["name"],
            "gpus": {kind: of["total"] for kind, of in node["gpus"].items()},
            "cpu": node["cpu"],
            "memory": node["memory_mib"],
        }
        for node in told["nodes"]
        if node["phase"] == "Ready"
    ]
    fields = ("parent", "weight", "guaranteed", "limit", "borrow")
    return {
        "policy": told["policy"]["name"],
        "options": told["policy"]["options"],
        "now": moment(told["time"]),
        "cluster": {"nodes": nodes},
        "queues": {queue["name"]: {field: queue[field] for field in fields} for queue in told["queues"]},
        "jobs": [_case_job(job) for job in told["jobs"] if job["phase"] != "Suspended"],
    }


def _case_job(job: dict[str, Any]) -> dict[str, Any]:
    from levada.jobfile.load import check
    from levada.jobfile.model import Job

    content = check(job["document"]).content
    if not isinstance(content, Job):
        raise KeyError("spec")
    spec = content.spec
    done = job["progress"] or {}
    if job.get("fixed"):
        job = {**job, "min": job["fixed"], "max": job["fixed"]}
    made: dict[str, Any] = {
        "id": job["id"],
        "submitted": moment(job["submitted"]),
        "first_started": moment(job["started"]),
        "min": job["min"],
        "max": job["max"],
        "gpus_per_worker": spec.gpus_per_worker,
        "gpu_memory": spec.gpu_memory or 0,
        "cpu": spec.resources.cpu / 1000,
        "memory": spec.resources.memory,
        "gpu_types": spec.gpu_types,
        "queue": job["queue"],
        "priority": job["priority"],
        "weight": spec.weight,
    }
    workers = len(job["workers"])
    # One that was just told to have another size may not have it yet.
    if job["min"] <= workers <= job["max"] and job["gpu_type"]:
        made["running"] = {job["gpu_type"]: workers}
    desired = made["min"] if spec.workers.desired is None else spec.workers.desired
    made["desired"] = max(job["min"], min(job["max"], desired))
    # What is not known of its speed is taken as Voda takes it: twice the workers, twice as fast.
    made["speedup"] = {str(size): float(size) for size in range(1, min(job["max"], _MOST_SIZES) + 1)}
    if "running" in made and done.get("rate"):
        # For policies that do not choose sizes this is its size, too.
        rate = done["rate"] * made["desired"] / workers
        made |= {"scale_factor": made["desired"], "throughput": {job["gpu_type"]: rate}}
    if job["eta_s"] is not None:
        made["remaining_s"] = job["eta_s"] * max(1, workers)
    elif done.get("total") is not None:
        made["steps_left"] = max(0.0, done["total"] - (done.get("step") or 0))
    return made
