"""`levada run`, `attach` and `exec`: being with a job while it runs."""

from __future__ import annotations

import os
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from levada.cli.connection import LONG_S, JobName, Server, State, connect
from levada.cli.output import chatter
from levada.errors import BadInput, NotFound, Refused

if TYPE_CHECKING:
    from levada.sdk.client import Client


class Framework(StrEnum):
    """As in job files."""

    PLAIN = "plain"
    TORCHRUN = "torchrun"
    TENSORFLOW = "tensorflow"
    HOROVOD = "horovod"
    MPI = "mpi"


Command = Annotated[list[str], typer.Argument(metavar="-- COMMAND...", help="What to run.", show_default=False)]
_COMMAND_ENDS_OPTIONS = {"allow_interspersed_args": False}


def register(app: typer.Typer) -> None:
    """Adds the verbs `run`, `attach` and `exec`."""
    app.command("run", context_settings=_COMMAND_ENDS_OPTIONS)(run)
    app.command("attach")(attach)
    app.command("exec")(execute)


def run(
    command: Command,
    gpus: Annotated[float, typer.Option("--gpus", "-g", min=0, help="GPUs of each worker.")] = 1,
    workers: Annotated[str, typer.Option("--workers", "-w", metavar="N|MIN-MAX", help="How many workers.")] = "1",
    gpu_type: Annotated[
        list[str] | None, typer.Option("--gpu-type", help="Allowed type, preferred first; may be repeated.")
    ] = None,
    gpu_memory: Annotated[str | None, typer.Option("--gpu-memory", help="For a part of a GPU, e.g. 3Gi.")] = None,
    name: Annotated[str | None, typer.Option("--name", help="What to call it; by default its script.")] = None,
    queue: Annotated[str, typer.Option("--queue", "-q", help="The queue it waits in.")] = "default",
    priority: Annotated[int, typer.Option("--priority", help="Higher is more important.")] = 0,
    env: Annotated[
        list[str] | None, typer.Option("--env", "-e", metavar="NAME[=VALUE]", help="A variable; may be repeated.")
    ] = None,
    framework: Annotated[
        Framework | None,
        typer.Option("--framework", help="Who brings the workers together; see `run.framework` of job files."),
    ] = None,
    detach: Annotated[bool, typer.Option("--detach", "-d", help="Do not stay with it.")] = False,
    server: Server = None,
    state: State = None,
) -> None:
    """Submit a command and stay with it: its output here, and an exit code as of `levada wait`."""
    from levada.cli.submit import Answer, tell, warn_of
    from levada.jobfile.load import check
    from levada.jobfile.model import API_VERSION
    from levada.jobfile.script import as_name
    from levada.jobfile.workload_name import workload_of

    spec: dict[str, Any] = {
        "workers": _workers(workers),
        "gpusPerWorker": int(gpus) if gpus.is_integer() else gpus,
        "gpuTypes": gpu_type or [],
        "queue": queue,
        "priority": priority,
        "run": {"command": command, "env": _env(env or [])},
    }
    if framework is not None:
        spec["run"]["framework"] = framework.value
    if gpu_memory is not None:
        spec["gpuMemory"] = gpu_memory
    called = name if name is not None else as_name(workload_of(command))
    document = {"apiVersion": API_VERSION, "kind": "Job", "metadata": {"name": called}, "spec": spec}
    check(document)
    with connect(server, state, timeout_s=LONG_S) as client:
        (job,) = client.submit(document)
        if detach:
            tell([job], Answer.TEXT)
            return
        chatter(f"Submitted {job['id']}")
        warn_of([job])
        _stay(client, job, tail=None)


def _workers(text: str) -> Any:
    least, dash, most = text.partition("-")
    if not least.isdecimal() or (dash and not most.isdecimal()) or len(text) > 20:
        raise BadInput.one(f"--workers: {text}: must be a number or a range, e.g. 4 or 1-8")
    return {"min": int(least), "max": int(most)} if dash else int(least)


def _env(given: list[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for each in given:
        name, separator, value = each.partition("=")
        if not separator and name not in os.environ:
            raise BadInput.one(f"--env: {name} is not set here; give NAME=VALUE")
        found[name] = value if separator else os.environ[name]
    return found


def attach(
    name: JobName,
    tail: Annotated[int, typer.Option("--tail", "-n", min=0, help="Begin with the last so many lines.")] = 10,
    server: Server = None,
    state: State = None,
) -> None:
    """Stay with a job: its output from now on, and an exit code as of `levada wait`."""
    with connect(server, state) as client:
        _stay(client, client.get(name), tail)


def _stay(client: Client, job: Any, tail: int | None) -> None:
    """Prints what a job says until it is over, and ends with its exit code; Ctrl-C leaves it to itself."""
    from levada.cli.logs import print_lines, until_it_runs
    from levada.cli.wait import code_of_phase

    try:
        until_it_runs(client, job)
        print_lines(client.logs(job["id"], follow=True, tail=tail), job["max"] > 1)
        ended = client.wait(job["id"])
    except KeyboardInterrupt:
        chatter(f"{job['id']} goes on; levada attach {job['id']} comes back to it, levada cancel {job['id']} ends it")
        raise
    if ended["phase"] != "Succeeded":
        code = "" if ended["exit_code"] is None else f" with exit code {ended['exit_code']}"
        chatter(f"levada: {ended['id']} has ended as {ended['phase']}{code}")
    raise typer.Exit(code_of_phase(ended["phase"]))


def execute(
    name: JobName,
    command: Command,
    worker: Annotated[
        str | None, typer.Option("--worker", help="A worker's number or name; by default the first.")
    ] = None,
    server: Server = None,
    state: State = None,
) -> None:
    """Run a command beside a worker of a job: in its folder, with its environment and devices."""
    with connect(server, state) as client:
        job: Any = client.get(name)
    spec = _spec_of(job, worker, state)
    doing = spec["cwd"]
    try:
        os.chdir(doing)
        doing = command[0]
        os.execvpe(doing, command, {**spec["env"], **_terminal()})
    except OSError as error:
        raise BadInput.one(f"{doing}: {error.strerror}") from None


def _spec_of(job: Any, worker: str | None, state: str | None) -> Any:
    """What a running worker was started with; raises NotFound, and Refused where it runs on another machine."""
    import json

    from levada.sdk.place import state_dir

    folder = os.path.join(state_dir(state), "jobs", job["id"], "workers")
    if not job["workers"]:
        raise NotFound(f"{job['id']} has no worker now; it is {job['phase']}")
    try:
        there = sorted(
            each for each in os.listdir(folder) if not os.path.exists(os.path.join(folder, each, "exit.json"))
        )
    except OSError:
        raise Refused(f"{job['id']} runs on another machine; levada exec works beside its workers") from None
    fitting = [each for each in there if worker is None or each == worker or each.rpartition("-")[2] == worker]
    if not fitting:
        raise NotFound(f"{job['id']} has no worker {worker} here; there are {', '.join(there) or 'none'}")
    with open(os.path.join(folder, fitting[0], "spec.json"), encoding="utf-8") as file:
        return json.load(file)


def _terminal() -> dict[str, str]:
    """What a program needs to know of this terminal."""
    return {name: os.environ[name] for name in ("TERM", "COLORTERM", "LANG", "LC_ALL") if name in os.environ}
