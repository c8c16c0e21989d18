"""How a job file is understood, before anything is sent."""

from __future__ import annotations

import os
import shlex
from typing import Any

from levada.cli.words import counted, number

#: Commands longer than this are cut for people: a script is sent whole.
_LONGEST = 100
_SUFFIXES = (".py", ".sh", ".bash", ".jl", ".pl", ".R", ".lua", ".rb")


def understood(document: Any) -> dict[str, Any]:
    """What a checked document asks for."""
    told: dict[str, Any] = {"kind": document.kind, "name": document.name}
    if not document.is_job:
        return told
    from levada.jobfile.model import array_indices

    spec = document.content.spec
    return {
        **told,
        "min": spec.workers.min,
        "max": spec.workers.max,
        "step": spec.workers.step,
        "gpus_per_worker": int(each) if (each := spec.gpus_per_worker) == int(each) else each,
        "gpu_types": list(spec.gpu_types),
        "queue": spec.queue,
        "priority": spec.priority,
        "command": None if spec.run is None else list(spec.run.command),
        "workdir": _folder(document),
        "array": None if spec.array is None else array_indices(spec.array),
        "after": list(spec.after),
    }


def as_text(told: dict[str, Any]) -> str:
    """The same for people."""
    head = f"{told['kind']} {told['name']}: right"
    if "min" not in told:
        return head
    least, most, each = told["min"], told["max"], told["gpus_per_worker"]
    count = f"{least} to {most} workers" if least != most else counted(least, "worker")
    count += f" in steps of {told['step']}" if told["step"] > 1 and least != most else ""
    gpus = "no GPU" if not each else f"{number(each)} GPU" + ("" if each <= 1 else "s")
    kinds = f" of {' or '.join(told['gpu_types'])}" if told["gpu_types"] else " of any type" if each else ""
    rows = [("Workers", f"{count} with {gpus} each{kinds}, in queue {told['queue']}")]
    if told["array"] is not None:
        indices = told["array"]
        rows.append(("Array", f"{counted(len(indices), 'job')}, LEVADA_ARRAY_INDEX {indices[0]} to {indices[-1]}"))
    if told["after"]:
        rows.append(("After", ", ".join(told["after"])))
    if told["command"] is not None:
        rows.append(("Command", shortened(shlex.join(told["command"]))))
        rows.append(("Folder", told["workdir"]))
    return "\n".join([head, *(f"  {name + ':':<9}{text}" for name, text in rows)])


def shortened(command: str) -> str:
    """A command on one line that people can read."""
    line = " ".join(command.split())
    return line if len(line) <= _LONGEST else f"{line[: _LONGEST - 1]}…"


def missing(document: Any) -> str:
    """What a job needs and does not find in its folder on this machine; empty where nothing is known to be missing."""
    if not document.is_job or document.content.spec.run is None or document.content.spec.kubernetes is not None:
        return ""
    folder = _folder(document)
    if not os.path.isdir(folder):
        return f"there is no folder {folder} on this machine"
    script = _script(document.content.spec.run.command)
    if script is None or os.path.exists(os.path.join(folder, script)):
        return ""
    return f"there is no {script} in its folder {folder}; a relative workdir is below the folder of the job file"


def _script(command: list[str]) -> str | None:
    """The file that a command runs, where that can be told: `train.py` of `python -u train.py`, or `./train`."""
    if "-c" in command[:3] or "-m" in command[:3]:
        return None
    program, *words = command[:4]
    if program.endswith(_SUFFIXES) or ("/" in program and not os.path.isabs(program)):
        return program
    return next((word for word in words if word.endswith(_SUFFIXES) and not word.startswith("-")), None)


def _folder(document: Any) -> str:
    from levada.sdk.sending import folder_of

    return os.path.normpath(os.path.join(os.getcwd(), folder_of(document.source) or "."))
