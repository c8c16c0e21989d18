"""`levada submit --dry-run`: the jobs of a file, without submitting them."""

from __future__ import annotations

import os
import shlex
from typing import Any

from levada.cli.formatting import counted, number

#: Longer commands are truncated in the text output.
_LONGEST = 100
_SUFFIXES = (".py", ".sh", ".bash", ".jl", ".pl", ".R", ".lua", ".rb")


def summary(document: Any) -> dict[str, Any]:
    """Return what a checked document requests."""
    result: dict[str, Any] = {"kind": document.kind, "name": document.name}
    if not document.is_job:
        return result
    from levada.jobfile.model import array_indices
    from levada.jobfile.torchrun import framework_of

    spec = document.content.spec
    run, servers = spec.run, spec.parameter_servers is not None
    return {
        **result,
        "min": spec.workers.min,
        "max": spec.workers.max,
        "step": spec.workers.step,
        "gpus_per_worker": int(gpus) if (gpus := spec.gpus_per_worker) == int(gpus) else gpus,
        "gpu_types": list(spec.gpu_types),
        "queue": spec.queue,
        "priority": spec.priority,
        "command": None if run is None else list(run.command),
        "framework": None if run is None else framework_of(run.command, run.framework, servers, spec.workers.max),
        "workdir": _folder(document),
        "array": None if spec.array is None else array_indices(spec.array),
        "after": list(spec.after),
    }


def as_text(job: dict[str, Any]) -> str:
    """Format the result of `summary` as text."""
    head = f"{job['kind']} {job['name']} is valid"
    if "min" not in job:
        return head
    head += f" (framework: {job['framework']})" if job["framework"] else ""
    least, most, per_worker = job["min"], job["max"], job["gpus_per_worker"]
    count = f"{least} to {most} workers" if least != most else counted(least, "worker")
    count += f" in steps of {job['step']}" if job["step"] > 1 and least != most else ""
    gpus = "no GPU" if not per_worker else f"{number(per_worker)} GPU" + ("" if per_worker <= 1 else "s")
    kinds = f" of {' or '.join(job['gpu_types'])}" if job["gpu_types"] else " of any type" if per_worker else ""
    rows = [("Workers", f"{count} with {gpus} each{kinds}, in queue {job['queue']}")]
    if job["array"] is not None:
        indices = job["array"]
        rows.append(("Array", f"{counted(len(indices), 'job')}, LEVADA_ARRAY_INDEX {indices[0]} to {indices[-1]}"))
    if job["after"]:
        rows.append(("After", ", ".join(job["after"])))
    if job["command"] is not None:
        rows.append(("Command", shortened(shlex.join(job["command"]))))
        rows.append(("Folder", job["workdir"]))
    return "\n".join([head, *(f"  {name + ':':<9}{text}" for name, text in rows)])


def shortened(command: str) -> str:
    """Return a command on one line, truncated to 100 characters."""
    line = " ".join(command.split())
    return line if len(line) <= _LONGEST else f"{line[: _LONGEST - 1]}…"


def missing(document: Any) -> str:
    """Return which file or folder of a job is missing on this machine; empty if none is."""
    if not document.is_job or document.content.spec.run is None or document.content.spec.kubernetes is not None:
        return ""
    folder = _folder(document)
    if not os.path.isdir(folder):
        return f"folder {folder} does not exist on this machine"
    script = _script(document.content.spec.run.command)
    if script is None or os.path.exists(os.path.join(folder, script)):
        return ""
    return f"{script} does not exist in {folder}; a relative workdir is relative to the folder of the job file"


def _script(command: list[str]) -> str | None:
    """Return the script of a command, if known: `train.py` of `python -u train.py`, or `./train`."""
    if "-c" in command[:3] or "-m" in command[:3]:
        return None
    program, *words = command[:4]
    if program.endswith(_SUFFIXES) or ("/" in program and not os.path.isabs(program)):
        return program
    return next((word for word in words if word.endswith(_SUFFIXES) and not word.startswith("-")), None)


def _folder(document: Any) -> str:
    from levada.sdk.prepare import folder_of

    return os.path.normpath(os.path.join(os.getcwd(), folder_of(document.source) or "."))
