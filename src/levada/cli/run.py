"""`levada run`, `attach` and `exec`: follow a job while it runs."""

from __future__ import annotations

import os
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from levada.cli.connection import LONG_S, JobName, Server, StateDir, connect
from levada.cli.output import message
from levada.errors import BadInput, NotFound, Refused

if TYPE_CHECKING:
    from levada.sdk.client import Client


class FrameworkChoice(StrEnum):
    """Values of `run.framework` in job files."""

    PLAIN = "plain"
    TORCHRUN = "torchrun"
    TENSORFLOW = "tensorflow"
    HOROVOD = "horovod"
    MPI = "mpi"


Command = Annotated[
    list[str], typer.Argument(metavar="-- COMMAND...", help="Command and its arguments.", show_default=False)
]
_COMMAND_ENDS_OPTIONS = {"allow_interspersed_args": False}


def register(app: typer.Typer) -> None:
    """Add the verbs `run`, `attach` and `exec`."""
    app.command("run", context_settings=_COMMAND_ENDS_OPTIONS)(run)
    app.command("attach")(attach)
    app.command("exec")(execute)


def run(  # noqa: PLR0913 - one parameter per flag
    command: Command,
    gpus: Annotated[float, typer.Option("--gpus", "-g", min=0, help="GPUs per worker.")] = 1,
    workers: Annotated[
        str,
        typer.Option("--workers", "-w", metavar="N|MIN-MAX", help="Number of workers, or a range for an elastic job."),
    ] = "1",
    gpu_type: Annotated[
        list[str] | None,
        typer.Option("--gpu-type", help="Allowed GPU type, preferred first; may be repeated. Default: any."),
    ] = None,
    gpu_memory: Annotated[
        str | None, typer.Option("--gpu-memory", help="GPU memory per worker for a fraction of a GPU, e.g. 3Gi.")
    ] = None,
    name: Annotated[str | None, typer.Option("--name", help="Name of the job. Default: name of its script.")] = None,
    queue: Annotated[str, typer.Option("--queue", "-q", help="Queue of the job.")] = "default",
    priority: Annotated[int, typer.Option("--priority", help="Priority; higher goes first.")] = 0,
    env: Annotated[
        list[str] | None,
        typer.Option(
            "--env", "-e", metavar="NAME[=VALUE]", help="Set or pass on an environment variable; may be repeated."
        ),
    ] = None,
    framework: Annotated[
        FrameworkChoice | None,
        typer.Option(
            "--framework",
            help="Framework that connects the workers; see `run.framework` in job files. Default: detected.",
        ),
    ] = None,
    detach: Annotated[
        bool, typer.Option("--detach", "-d", help="Return after the submission; do not follow the output.")
    ] = False,
    server: Server = None,
    state: StateDir = None,
) -> None:
    """Submit a command and follow its output.

    The exit code is that of `levada wait`. Ctrl-C leaves the job running.
    """
    from levada.cli.submit import SubmitFormat, print_submitted, warn_of
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
    job_name = name if name is not None else as_name(workload_of(command))
    document = {"apiVersion": API_VERSION, "kind": "Job", "metadata": {"name": job_name}, "spec": spec}
    check(document)
    with connect(server, state, timeout_s=LONG_S) as client:
        (job,) = client.submit(document)
        if detach:
            print_submitted([job], SubmitFormat.TEXT)
            return
        message(f"Submitted {job['id']}")
        warn_of([job])
        _follow(client, job, tail=None)


def _workers(text: str) -> Any:
    least, dash, most = text.partition("-")
    if not least.isdecimal() or (dash and not most.isdecimal()) or len(text) > 20:
        raise BadInput.one(f"--workers: {text}: must be a number or a range, e.g. 4 or 1-8")
    return {"min": int(least), "max": int(most)} if dash else int(least)


def _env(texts: list[str]) -> dict[str, str]:
    variables: dict[str, str] = {}
    for text in texts:
        name, separator, value = text.partition("=")
        if not separator and name not in os.environ:
            raise BadInput.one(f"--env: {name} is not set in this shell; use NAME=VALUE")
        variables[name] = value if separator else os.environ[name]
    return variables


def attach(
    name: JobName,
    tail: Annotated[int, typer.Option("--tail", "-n", min=0, help="Begin with this many previous lines.")] = 10,
    server: Server = None,
    state: StateDir = None,
) -> None:
    """Follow the output of a job until it finishes.

    The exit code is that of `levada wait`. Ctrl-C leaves the job running.
    """
    with connect(server, state) as client:
        _follow(client, client.get(name), tail)


def _follow(client: Client, job: Any, tail: int | None) -> None:
    """Print the output of a job until it finishes, then exit with its code; Ctrl-C leaves the job running."""
    from levada.cli.logs import print_lines, wait_for_start
    from levada.cli.wait import code_of_phase

    try:
        wait_for_start(client, job)
        print_lines(client.logs(job["id"], follow=True, tail=tail), job["max"] > 1)
        ended = client.wait(job["id"])
    except KeyboardInterrupt:
        message(
            f"{job['id']} keeps running; follow it with `levada attach {job['id']}`, "
            f"stop it with `levada cancel {job['id']}`"
        )
        raise
    if ended["phase"] != "Succeeded":
        code = "" if ended["exit_code"] is None else f" with exit code {ended['exit_code']}"
        message(f"levada: {ended['id']} ended: {ended['phase']}{code}")
    raise typer.Exit(code_of_phase(ended["phase"]))


def execute(
    name: JobName,
    command: Command,
    worker: Annotated[
        str | None, typer.Option("--worker", help="Number or name of the worker. Default: the first one.")
    ] = None,
    server: Server = None,
    state: StateDir = None,
) -> None:
    """Run a command in the environment of a worker, with its GPUs.

    The worker must run on this machine; the command starts in its folder.
    """
    with connect(server, state) as client:
        job: Any = client.get(name)
    spec = _spec_of(job, worker, state)
    target = spec["cwd"]
    try:
        os.chdir(target)
        target = command[0]
        os.execvpe(target, command, {**spec["env"], **_terminal()})
    except OSError as error:
        raise BadInput.one(f"{target}: {error.strerror}") from None


def _spec_of(job: Any, worker: str | None, state: str | None) -> Any:
    """Return the start specification of a worker; raises NotFound, or Refused if it is on another machine."""
    import json

    from levada.sdk.discovery import state_dir

    folder = os.path.join(state_dir(state), "jobs", job["id"], "workers")
    if not job["workers"]:
        raise NotFound(f"{job['id']} has no workers: it is {job['phase']}")
    try:
        running = sorted(
            name for name in os.listdir(folder) if not os.path.exists(os.path.join(folder, name, "exit.json"))
        )
    except OSError:
        raise Refused(f"{job['id']} runs on another machine; run `levada exec` there") from None
    matching = [name for name in running if worker is None or name == worker or name.rpartition("-")[2] == worker]
    if not matching:
        raise NotFound(
            f"{job['id']} has no worker {worker} on this machine; workers here: {', '.join(running) or 'none'}"
        )
    with open(os.path.join(folder, matching[0], "spec.json"), encoding="utf-8") as file:
        return json.load(file)


def _terminal() -> dict[str, str]:
    """Return the variables that describe this terminal."""
    return {name: os.environ[name] for name in ("TERM", "COLORTERM", "LANG", "LC_ALL") if name in os.environ}
