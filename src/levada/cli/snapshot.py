"""`levada snapshot` and `replay`: save a server's state, run a policy on it."""

from __future__ import annotations

import sys
from contextlib import redirect_stdout
from typing import Annotated, Any

import typer

from levada.cli.connection import LONG_S, Server, StateDir, connect
from levada.cli.formatting import moment
from levada.cli.output import TextOrJson, columns, data, data_json
from levada.errors import BadInput, LevadaError

#: Speeds of at most this many sizes are written.
_MOST_SIZES = 64


def register(app: typer.Typer) -> None:
    """Add the verbs `snapshot` and `replay`."""
    app.command("snapshot")(snapshot)
    app.command("replay")(replay)


def snapshot(
    out: Annotated[
        str | None, typer.Option("--out", metavar="FILE", help="Write to FILE instead of standard output.")
    ] = None,
    server: Server = None,
    state: StateDir = None,
) -> None:
    """Print nodes, queues, jobs and policy of the server as JSON.

    Jobs include their environment variables in clear text, with any keys and passwords. Check the file before you
    share it.
    """
    with connect(server, state, timeout_s=LONG_S) as client:
        state_now = client.snapshot()
    if out is None:
        data_json(state_now)
        return
    import json

    try:
        with open(out, "w", encoding="utf-8") as file:
            json.dump(state_now, file, indent=2)
    except OSError as error:
        raise LevadaError(f"cannot write {out}: {error.strerror}") from None
    data(out)


def replay(
    file: Annotated[str, typer.Argument(metavar="FILE", help="Output of `levada snapshot`; - = standard input.")],
    policy: Annotated[
        str | None, typer.Option("--policy", help="Policy to run. Default: that of the snapshot.")
    ] = None,
    case: Annotated[bool, typer.Option("--case", help="Print the case for `levada allocate` instead.")] = False,
    output: Annotated[TextOrJson, typer.Option("--output", "-o", help="Output format.")] = TextOrJson.TEXT,
) -> None:
    """Run a policy on a snapshot; compare with what jobs had."""
    from levada.cli.allocate import parse, read

    content = parse(file, read(file))
    try:
        allocate_case = case_of(content)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        if isinstance(error, BadInput):
            raise
        raise BadInput.one(f"{file}: not a snapshot of this version; create one with `levada snapshot`") from None
    if policy is not None:
        allocate_case |= {"policy": policy, "options": {}}
    if case:
        data_json(allocate_case)
        return
    from levada.allocate.decide import decide

    with redirect_stdout(sys.stderr):
        answer = decide(allocate_case)
    if output is TextOrJson.JSON:
        data_json(answer)
    else:
        data(_comparison(allocate_case, answer))


def _comparison(case: dict[str, Any], answer: dict[str, Any]) -> str:
    """Format what each job had and what it would get."""
    if "allocations" not in answer:
        from levada.cli.allocate import as_table

        return as_table(answer)

    def amounts(grant: Any) -> str:
        return ",".join(f"{kind}={count}" for kind, count in (grant or {}).items()) or "-"

    rows = [
        (job["id"], amounts(job.get("running")), amounts(answer["allocations"].get(job["id"])),
         answer["reasons"].get(job["id"], {}).get("text", "-"))
        for job in case["jobs"]
    ]  # fmt: skip
    return columns(("JOB", "HAD", answer["policy"].upper(), "REASON"), rows, spare=())


def case_of(state: dict[str, Any]) -> dict[str, Any]:
    """Convert a snapshot to a case of `levada allocate`."""
    nodes = [
        {
            "name": node["name"],
            "gpus": {kind: count["total"] for kind, count in node["gpus"].items()},
            "cpu": node["cpu"],
            "memory": node["memory_mib"],
        }
        for node in state["nodes"]
        if node["phase"] == "Ready"
    ]
    fields = ("parent", "weight", "guaranteed", "limit", "borrow")
    return {
        "policy": state["policy"]["name"],
        "options": state["policy"]["options"],
        "now": moment(state["time"]),
        "cluster": {"nodes": nodes},
        "queues": {queue["name"]: {field: queue[field] for field in fields} for queue in state["queues"]},
        "jobs": [_case_job(job) for job in state["jobs"] if job["phase"] != "Suspended"],
    }


def _case_job(job: dict[str, Any]) -> dict[str, Any]:
    from levada.jobfile.load import check
    from levada.jobfile.model import Job

    content = check(job["document"]).content
    if not isinstance(content, Job):
        raise KeyError("spec")
    spec = content.spec
    progress = job["progress"] or {}
    if job.get("fixed"):
        job = {**job, "min": job["fixed"], "max": job["fixed"]}
    case: dict[str, Any] = {
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
    # A job with a new range may still run at its old size.
    if job["min"] <= workers <= job["max"] and job["gpu_type"]:
        case["running"] = {job["gpu_type"]: workers}
    desired = case["min"] if spec.workers.desired is None else spec.workers.desired
    case["desired"] = max(job["min"], min(job["max"], desired))
    # Like Voda, assume linear speed-up where the speed is unknown.
    case["speedup"] = {str(size): float(size) for size in range(1, min(job["max"], _MOST_SIZES) + 1)}
    if "running" in case and progress.get("rate"):
        # For policies that do not choose sizes, this is also the size.
        rate = progress["rate"] * case["desired"] / workers
        case |= {"scale_factor": case["desired"], "throughput": {job["gpu_type"]: rate}}
    if job["eta_s"] is not None:
        case["remaining_s"] = job["eta_s"] * max(1, workers)
    elif progress.get("total") is not None:
        case["steps_left"] = max(0.0, progress["total"] - (progress.get("step") or 0))
    return case
